"""Which thread reads which GPU: one for all while all is well, and none of them for two GPUs that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpufleet.collect.rounds import LONGEST_PATIENCE_SECONDS
from gpufleet.sources.nvml.calls import Driver, NvmlFunction
from gpufleet.sources.nvml.session import open_library
from tests.support.fake_nvml import FakeNvml
from tests.support.poller_rig import HeldInFake, Rig, states
from tests.waiting import until

GPUS = 4
FIELDS = "nvmlDeviceGetFieldValues"
BY_INDEX = "nvmlDeviceGetHandleByIndex_v2"


class Noting:
    """The library, with a note of which thread asked for the fields of which GPU."""

    def __init__(self, driver: Driver) -> None:
        self.simulated = driver.simulated
        self._driver = driver
        self.asked: list[tuple[int, str]] = []
        self._numbers: dict[int, int] = {}

    def function(self, name: str) -> NvmlFunction | None:
        """The driver's function; the one for fields is noted with GPU and thread."""
        bound = self._driver.function(name)
        if bound is None or name not in {FIELDS, BY_INDEX}:
            return bound

        def find(index: int, handle: Any) -> int:  # noqa: ANN401 - as ctypes
            code = bound(index, handle)
            self._numbers[handle[0]] = index
            return code

        def call(handle: Any, *arguments: Any) -> int:  # noqa: ANN401 - as ctypes
            self.asked.append((self._numbers[handle.value], str(threading.get_ident())))
            return bound(handle, *arguments)

        return find if name == BY_INDEX else call

    def readers(self, poll: Callable[[], object]) -> dict[int, set[str]]:
        """Who reads each GPU in a poll."""
        self.asked.clear()
        poll()
        found: dict[int, set[str]] = {}
        for number, thread in self.asked:
            found.setdefault(number, set()).add(thread)
        return found


@pytest.fixture
def noting(fake_nvml: FakeNvml) -> Noting:
    """A driver of four GPUs that notes its callers."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.control.gpm_spacing_ms = 0
    return Noting(open_library(str(fake_nvml.library)))


@pytest.fixture
def node(fake_nvml: FakeNvml, noting: Noting) -> Iterator[Rig]:
    """A poller on it that has read every GPU."""
    with Rig(lambda: noting, held=HeldInFake(fake_nvml)) as rig:
        rig.poll(2)
        yield rig
        fake_nvml.release()
        rig.rest()
    assert max(fake_nvml.control.max_stuck[:GPUS]) <= 1, "two threads were stuck on one GPU"
    assert not fake_nvml.misuse(), fake_nvml.misuse()


def test_one_thread_reads_every_gpu_while_none_takes_long(noting: Noting, node: Rig) -> None:
    """Waking a thread for each GPU would cost as much as reading it."""
    readers = noting.readers(node.poll)

    assert set(readers) == set(range(GPUS))
    assert len(set.union(*readers.values())) == 1
    assert noting.readers(node.poll) == readers


def test_a_stuck_thread_stays_with_its_gpu(fake_nvml: FakeNvml, noting: Noting, node: Rig) -> None:
    """Another one reads the others from then on, and nobody asks the GPU that hangs."""
    (first,) = set.union(*noting.readers(node.poll).values())
    fake_nvml.hang(FIELDS, 1)
    assert states(node.poll()) == ["ok", "hung", "ok", "ok"]

    readers = noting.readers(node.poll)
    (second,) = set.union(*readers.values())

    assert second != first
    assert set(readers) == {0, 2, 3}
    assert fake_nvml.stuck(1) == 1


def test_each_gpu_can_hang_and_no_thread_is_made_for_it(fake_nvml: FakeNvml, noting: Noting, node: Rig) -> None:
    """There are as many workers as GPUs, and the reader: all of them stuck but one, and all of them back afterwards."""
    before = threading.active_count()
    for gpu in range(GPUS):
        fake_nvml.hang(FIELDS, gpu)
        node.poll()
        assert [fake_nvml.stuck(other) for other in range(GPUS)] == [1] * (gpu + 1) + [0] * (GPUS - gpu - 1)
    assert "ok" not in states(node.latest)

    fake_nvml.release()
    node.poll(2)

    assert states(node.latest) == ["ok"] * GPUS
    assert len(set.union(*noting.readers(node.poll).values())) == 1
    # The workers of GPUs that had been read by the reader so far are threads only once they had something to do.
    assert threading.active_count() <= before + GPUS


def test_a_gpu_that_takes_long_does_not_hold_the_others(fake_nvml: FakeNvml, noting: Noting, node: Rig) -> None:
    """Slower than patience lasts and faster than the deadline: the rest is read beside it, and its result is good."""
    fake_nvml.hang(FIELDS, 0)
    noting.asked.clear()
    node.advance(node.options.interval)
    until(lambda: fake_nvml.stuck(0), "the first GPU takes long")
    assert {number for number, _ in noting.asked} == {0}

    node.advance(LONGEST_PATIENCE_SECONDS)
    until(lambda: {number for number, _ in noting.asked} == set(range(GPUS)), "the others are read")
    fake_nvml.release()
    node.rest()

    assert states(node.latest) == ["ok"] * GPUS
    assert node.latest.gpus[0].polled_at == node.latest.gpus[GPUS - 1].polled_at
