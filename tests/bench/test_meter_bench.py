"""What it costs the poll thread to bill a poll and to hand the totals over. Absolute times are of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gpufleet.collect.meter_file import MeterFile
from gpufleet.cost.meter_bytes import encode_slot
from gpufleet.model.meter import COLUMNS, MeterView
from gpufleet.model.owner import OwnersView
from gpufleet.model.snapshot import GpuSnapshot
from tests.support.metered import Node, cut, gpu, held, owners

NODES = {"8 GPUs": (0, 1), "8 GPUs, 4 holders each": (0, 4), "8 x 7 slices, 2 holders each": (7, 2)}
GPUS = 8


def polls(slices: int) -> Iterator[list[GpuSnapshot]]:
    """Snapshots of consecutive polls: objects of their own, equal identities, other readings."""
    return cycle(
        [
            [
                gpu(
                    number,
                    poll / 10,
                    slices=[cut(f"MIG-{number}-{at}", poll / 10, instance=at) for at in range(slices)],
                )
                for number in range(GPUS)
            ]
            for poll in range(10)
        ]
    )


def metered(slices: int, holders: int) -> tuple[Node, Iterator[list[GpuSnapshot]], OwnersView]:
    """A node that has been polled once, further polls, and its holders."""
    devices = max(slices, 1)
    view = owners(
        *(
            held(number, 1 / devices / holders, f"r{at}-{holder}", mig=f"MIG-{number}-{at}" if slices else "")
            for number in range(GPUS)
            for at in range(devices)
            for holder in range(holders)
        )
    )
    node, snapshots = Node(), polls(slices)
    node.poll(next(snapshots), view)
    return node, snapshots, view


@pytest.mark.parametrize("name", NODES)
def test_billing_a_poll(benchmark: BenchmarkFixture, name: str) -> None:
    """With nothing new but the readings, as at nearly every poll."""
    slices, holders = NODES[name]
    node, snapshots, view = metered(slices, holders)

    def poll() -> MeterView:
        return node.poll(next(snapshots), view)

    found = benchmark(poll)

    assert len(found.values) == len(COLUMNS) * GPUS * max(slices, 1) * holders
    assert None not in found.values


@pytest.mark.parametrize("name", NODES)
def test_handing_the_totals_over(benchmark: BenchmarkFixture, name: str, tmp_path: Path) -> None:
    """The part of the poll thread; the writing is another thread's."""
    node, _, _ = metered(*NODES[name])
    file = MeterFile(tmp_path, "boot")

    benchmark(file.keep, node.meter)

    file.stop()
    assert file.health()[0].up


@pytest.mark.parametrize("name", NODES)
def test_putting_numbers_into_bytes(benchmark: BenchmarkFixture, name: str) -> None:
    """By the thread that writes, once a poll."""
    node, _, _ = metered(*NODES[name])

    assert benchmark(encode_slot, node.meter.dump(), 1)
