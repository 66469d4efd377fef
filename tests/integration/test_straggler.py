"""One node of four gets hot: what a real Prometheus makes of it by the mixin's rules."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from gpufleet.simulate.scenario_file import parse_scenario
from tests.integration.recorded_fleet import RecordedFleet, recorded_fleet, scraping
from tests.mixin.rendering import groups

HOT, *WAITING = NODES = [f"gpu-node-{number:02d}" for number in range(1, 5)]
# A step of 4 s would take 6.1 s on the hot GPU, so that scrapes 30 s apart would see it in the same place of its step
# for minutes. Then a mean of its clock is of what they happen to see.
HOT_AT = 20
"""Minutes from the start."""
SCENARIO = f"""
nodes: [{", ".join([f"{{name: {name}, profile: h100-80gb-hbm3, gpus: 8}}" for name in NODES])}]
runs:
  - name: llama3-pretrain
    project: foundation
    pattern: train
    nodes: [{", ".join(NODES)}]
    phase: 10m
    step: 4500ms
    checkpoint_every: 15m
    checkpoint_takes: 25s
events:
  - {{kind: heat, node: {HOT}, gpu: 5, at: {HOT_AT}m, for: 40m, celsius: 86, speed: 0.62}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedFleet]:
    """Twenty calm minutes, and forty with a hot GPU."""
    scrape = scraping(parse_scenario(SCENARIO.encode(), "scenario"))
    with recorded_fleet(tmp_path_factory.mktemp("straggler"), scrape, HOT_AT + 40, groups()) as found:
        yield found


def by_node(fleet: RecordedFleet, expr: str, minutes: tuple[int, int]) -> dict[str, float]:
    """The mean of an expression on each node between two minutes."""
    begin, end = (fleet.span.begin + 60 * minute for minute in minutes)
    return {
        each["metric"]["node"]: statistics.fmean(float(value) for _, value in each["values"])
        for each in fleet.range(expr, begin, end, 60)
    }


def test_the_straggler_is_named_and_no_other(fleet: RecordedFleet) -> None:
    """Within twenty minutes from when it gets hot, with the run that it holds up."""
    named = [firing for firing in fleet.firings() if firing.alert == "GpuRunStragglerNode"]
    assert [firing.labels["node"] for firing in named] == [HOT]
    (firing,) = named
    assert firing.labels["run"] == "llama3-pretrain"
    assert 0 < (firing.since - fleet.span.begin) / 60 - HOT_AT <= 20


def test_what_the_others_wait_for_is_not_used(fleet: RecordedFleet) -> None:
    """Their unused cost rises: they are paid for and do not compute. That of the hot one rises less."""
    unused = 'sum by (node) (rate(gpu_unused_cost_total{project="foundation"}[5m])) * 3600'
    calm, hot = by_node(fleet, unused, (8, HOT_AT)), by_node(fleet, unused, (HOT_AT + 10, HOT_AT + 40))
    for node in WAITING:
        assert hot[node] > 1.2 * calm[node]
        assert hot[node] > hot[HOT]


def test_activity_shows_who_waits(fleet: RecordedFleet) -> None:
    """All become less active, the node that they wait for the least, and its hot GPU alone not at all."""
    calm, hot = (8, HOT_AT), (HOT_AT + 10, HOT_AT + 40)
    before, after = (by_node(fleet, "node_run:gpu_sm_active:ratio_rate5m", minutes) for minutes in (calm, hot))
    clock = by_node(fleet, "node_run:sm_clock:ratio_min5m", hot)
    assert max(before.values()) - min(before.values()) < 0.01
    for node in WAITING:
        assert after[node] < before[node] - 0.2
        assert after[node] < after[HOT] - 0.02
        assert clock[node] > clock[HOT] + 0.15

    of_gpus = 'max by (gpu) (run_gpu:gpu_sm_active:ratio_rate5m{node="gpu-node-01"})'
    at = fleet.span.end - 60
    active = {each["metric"]["gpu"]: float(each["values"][0][1]) for each in fleet.range(of_gpus, at, at, 60)}
    assert max(active, key=active.__getitem__) == "5"
    assert active.pop("5") > max(active.values()) + 0.2
