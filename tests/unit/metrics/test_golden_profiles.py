"""The whole exposition of a node of each profile, byte for byte, through the real call plan and decoding."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.metrics.family import Level
from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import sliced, uniform
from tests.conftest import Golden
from tests.promtool import Promtool
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock

GPUS = 2
POLLS = 3
"""The first seeds activity, the second has it, the third has sums of two windows."""
SLICED = "h100-80gb-hbm3-7x1g.10gb"
PROFILES = ("h100-80gb-hbm3", "h200", "b200", "a100-80gb", "l4", "t4", "gb10", SLICED)


def polled(profile: str) -> Snapshot:
    """A node of two GPUs, some polls old, under a clock that a test moves."""
    scripts = sliced("h100-80gb-hbm3", ["1g.10gb"] * 7, GPUS) if profile == SLICED else uniform(profile, GPUS)
    clock = HandClock()
    node = SynchronousNode(ScriptedDriver(scripts, clock=clock, started_at=EPOCH), OPTIONS, clock, clock.wall)
    for _ in range(POLLS - 1):
        clock.now += 1.0
        node.poll()
    clock.now += 1.0
    return node.poll()


@pytest.mark.parametrize("level", list(Level), ids=str)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_exposition_of_a_profile_is_the_golden_one(
    profile: str, level: Level, golden: Golden, promtool: Promtool
) -> None:
    """A changed name, label, unit or value shows as a difference of the file; promtool has no complaint of it."""
    text = Renderer(level).text(polled(profile)).encode()
    golden(f"{profile}__{level.value}.prom", text)
    assert promtool.check_metrics(text) == ""


ROOM = {Level.CORE: 70, Level.STANDARD: 160}
"""Series that a GPU may have."""
OF_A_HOLDER = 8
"""Its identity, share, allocated and productive time, cost, both reasons for unused cost, and the price."""
OF_ONE_THAT_WENT = 5
"""The totals, which linger when a run has ended."""


@pytest.mark.parametrize("level", list(Level), ids=str)
@pytest.mark.parametrize("profile", [profile for profile in PROFILES if profile != SLICED])
def test_readings_leave_room_for_holders_and_costs(profile: str, level: Level) -> None:
    """Of the one that has the GPU and of the one that had it a minute ago."""
    (gpu, *_) = polled(profile).gpus
    text = Renderer(level).text(polled(profile))

    series = [line for line in text.splitlines() if f'uuid="{gpu.identity.uuid}"' in line]

    assert len(series) + OF_A_HOLDER + OF_ONE_THAT_WENT <= ROOM[level]


@pytest.mark.parametrize("profile", PROFILES)
def test_both_formats_are_read_back_as_the_same_samples(profile: str) -> None:
    """By prometheus-client's parsers: the same names, labels and values in either."""
    renderer, snapshot = Renderer(), polled(profile)
    text = renderer.text(snapshot)
    openmetrics = renderer.openmetrics(snapshot) + OPENMETRICS_END

    def samples(families: object) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in families  # type: ignore[attr-defined]
            for sample in family.samples
        }

    read = samples(text_families(text))
    assert read == samples(openmetrics_families(openmetrics))
    assert len(read) == sum(not line.startswith("#") for line in text.splitlines())
