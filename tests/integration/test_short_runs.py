"""A thousand runs of seconds and minutes, exporters that die, lost scrapes: what is recorded is what they cost."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.conftest import BUILDS, ROOT, built
from tests.integration.prometheus_server import PrometheusServer
from tests.support.short_runs_fleet import LONGER, PROJECT, SHORT, Fleet, Node, Run, plan
from tests.waiting import until

SEED = 20260601
NODES, RUNS = 24, 1000
SPEED = 30
"""Seconds of the fleet in one of ours; a scrape each second is one each half minute there."""
LOST = 0.02
IN_ALL, OF_SHORT = 0.005, 0.02
"""How far the sums may be from the truth."""
RULES = ROOT / "alerts" / "gpufleet-cost.yaml"


def faster_rules() -> str:
    """The rules as they ship, with each time that they name as long as it is on the fleet's clock."""

    def shorter(found: re.Match[str]) -> str:
        return f"{int(found[1]) * 60 // SPEED}s"

    text, count = re.subn(r'(?<=[\[" ])(\d+)m(?=[\])"])', shorter, RULES.read_text())
    assert count > 40
    assert yaml.safe_load(text)["groups"][0]["interval"] == "10s"
    return text


def absences(rng: random.Random, until_second: int) -> list[list[tuple[int, int]]]:
    """When the exporter of each node is away: most are back after a second or a few, as a service manager sees to it.

    Two nodes' are away for longer, which nobody is billed for.
    """
    found = []
    for node in range(NODES):
        begins = sorted(rng.sample(range(30, until_second, 60), 4))
        found.append([(at, at + rng.randrange(2, 5)) for at in begins])
        if node < 2:
            at, _ = found[-1][1]
            found[-1][1] = (at, at + rng.randrange(20, 40))
    return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one Prometheus has of the runs, by task."""

    cost: Mapping[str, float]
    unused: Mapping[str, float]
    seconds: Mapping[str, float]
    productive: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The truth, and what was recorded of it."""

    runs: Sequence[Run]
    recorded: Sequence[Recorded]
    scrapes: int
    lost: int
    refused: int


def asked(server: PrometheusServer, record: str) -> dict[str, float]:
    """Sum of a recorded series over the whole test, by task."""
    series = server.query(f'sum by (task) (sum_over_time({record}{{project="{PROJECT}"}}[1h]))')
    return {each["metric"]["task"]: float(each["value"][1]) for each in series}


def recorded(server: PrometheusServer) -> Recorded:
    """All of it."""
    kinds = ("cost", "unused_cost", "allocated_seconds", "productive_seconds")
    return Recorded(*[asked(server, f"run:gpu_{kind}:increase5m") for kind in kinds])


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """The whole story, watched by a Prometheus of each generation at the same time."""
    directory = tmp_path_factory.mktemp("short-runs")
    binaries = [built("prometheus", each) for each in BUILDS]
    rng = random.Random(SEED)
    runs = plan(rng, nodes=NODES, runs=RUNS)
    end = max(run.end for run in runs)
    away = absences(rng, end)
    nodes = [Node(number, [run for run in runs if run.node == number], away[number]) for number in range(NODES)]
    rules = directory / "rules.yaml"
    rules.write_text(faster_rules())
    with ExitStack() as running:
        fleet = running.enter_context(Fleet(nodes, speed=SPEED, lost=LOST, rng=rng))
        servers = [
            running.enter_context(started(binary, directory / str(number), fleet, rules))
            for number, binary in enumerate(binaries)
        ]
        fleet.begin()
        # Accounts stay for six minutes, a window is five and is told a minute after its end.
        over = end + 360 + 2 * 300 + 120
        until(lambda: fleet.now() > over, "all is over on the fleet's clock", seconds=280, every=0.2)
        found = [recorded(server) for server in servers]
        yield Outcome(runs, found, fleet.scrapes, fleet.lost, fleet.refused)


def started(binary: Path, directory: Path, fleet: Fleet, rules: Path) -> PrometheusServer:
    """A Prometheus that scrapes the fleet and records."""
    return PrometheusServer(binary, directory, [fleet.scrape_config()], config={"rule_files": [str(rules)]})


def error(found: Mapping[str, float], truth: float, *tasks: str) -> float:
    """How far the sum over ``tasks`` is from the truth, as a part of it."""
    return sum(found.get(task, 0.0) for task in tasks) / truth - 1


@pytest.mark.component
def test_what_is_recorded_is_what_it_cost(outcome: Outcome) -> None:
    """In all within half a percent of the truth, and runs of less than a minute within two percent."""
    short = [run for run in outcome.runs if run.task == SHORT]
    print(f"{len(short)} under a minute; {outcome.lost} of {outcome.scrapes} scrapes lost, {outcome.refused} refused")
    assert outcome.refused > 0
    assert outcome.lost > outcome.scrapes * LOST / 2
    assert len(outcome.runs) == RUNS
    assert len(short) > RUNS / 5
    for found in outcome.recorded:
        errors = {
            "cost": error(found.cost, sum(run.cost for run in outcome.runs), SHORT, LONGER),
            "unused": error(found.unused, sum(run.unused for run in outcome.runs), SHORT, LONGER),
            "short": error(found.cost, sum(run.cost for run in short), SHORT),
            "short, unused": error(found.unused, sum(run.unused for run in short), SHORT),
        }
        print(", ".join(f"{name} {100 * each:+.3f} %" for name, each in errors.items()))
        for name, each in errors.items():
            assert abs(each) < (OF_SHORT if name.startswith("short") else IN_ALL), errors


@pytest.mark.component
def test_time_and_money_agree(outcome: Outcome) -> None:
    """Seconds are recorded as money is: each is the other at the one price there is.

    Totals of one account that began anew are told apart each by itself, so a few seconds may be in one and not another.
    """
    for found in outcome.recorded:
        for task in (SHORT, LONGER):
            assert found.seconds[task] * 4.8 / 3600 == pytest.approx(found.cost[task], rel=IN_ALL)
            used = found.productive[task] * 4.8 / 3600
            assert found.cost[task] - used == pytest.approx(found.unused[task], rel=OF_SHORT)


def test_the_plan_is_as_it_is_meant() -> None:
    """Runs on one GPU meet and do not overlap, are as long as they should be, and some come again."""
    runs = plan(random.Random(SEED), nodes=NODES, runs=RUNS)
    assert {20 <= run.end - run.begin <= 600 for run in runs} == {True}
    assert len({run.name for run in runs}) < RUNS
    for node in range(NODES):
        for gpu in range(8):
            own = sorted((run.begin, run.end) for run in runs if run.node == node and gpu in run.gpus)
            assert all(one[1] <= other[0] for one, other in pairwise(own))
