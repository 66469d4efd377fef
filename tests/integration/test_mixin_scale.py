"""All rules and alerts over 256 nodes with planted faults, in a real Prometheus; what they cost is in docs/scale.md."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.metrics.family import Level
from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.fleet_routes import FleetRoutes
from gpufleet.simulate.scenario import Scenario
from gpufleet.simulate.staging import Stage
from gpufleet.web.app import App
from gpufleet.web.endpoint import open_endpoint
from gpufleet.web.server import ServerLimits
from tests.conftest import ROOT, built
from tests.integration.prometheus_server import PrometheusServer
from tests.support.planted_fleet import Planted, planted_fleet
from tests.waiting import until

NODES = 256
INTERVAL = "20s"
"""Of every group, so that those of five minutes take part; more often than where they are used."""
CALM = 60
"""Seconds of the fleet's time until the faults begin, of which the last one waits for the first scrapes."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SLOW = (
    "GpuRunStragglerNode",
    "GpuThermalThrottling",
    "GpuPowerBrake",
    "GpuNvlinkErrors",
    "RdmaRetransmitsHigh",
    "RdmaPortFlapping",
)
"""These tell of means of five minutes or of what an hour brought: too late for a test."""
_SAMPLE = re.compile(r'^prometheus_rule_group_(\w+)_total\{rule_group="[^"]*;([^";]+)"\} (\S+)$', re.MULTILINE)


class FleetClock:
    """The fleet's time: it stands still before the faults until it is told to go on, however slow the machine is."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._stood = 0.0
        self._held = True

    def __call__(self) -> float:
        """Seconds since the start."""
        elapsed = time.monotonic() - self._begin - self._stood
        return min(elapsed, CALM - 1) if self._held else elapsed

    def go_on(self) -> None:
        """Let the faults come."""
        self._stood = time.monotonic() - self._begin - self()
        self._held = False


@contextlib.contextmanager
def served(scenario: Scenario, clock: FleetClock) -> Iterator[str]:
    """What ``gpufleet simulate`` serves, at this address, with a clock of ours."""
    fleet = Fleet(Stage(scenario), FleetOptions(), clock=clock)
    routes = FleetRoutes(fleet, scenario, address=lambda: "", own_metrics=lambda: b"")
    server = open_endpoint(App(routes.routes()), ["127.0.0.1:0"], limits=ServerLimits(newcomers_wait=True)).server
    try:
        for name in fleet.names:
            fleet.text(name)
        yield f"http://{server.addresses[0]}"
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class Found:
    """The server that has evaluated everything, and the faults that it should show."""

    server: PrometheusServer
    faults: tuple[Planted, ...]

    def unseen(self) -> list[str]:
        """Nodes whose fault no alert tells, not even one that waits for its `for`."""
        told = [each["metric"] for each in self.server.query("ALERTS")]
        return [
            f"{fault.alert} {fault.event.node}"
            for fault in self.faults
            if not any(fault.alert == each["alertname"] and fault.labels.items() <= each.items() for each in told)
        ]

    def rules(self) -> list[dict[str, Any]]:
        """All of them, as the server tells."""
        return [rule for group in self.server._api("rules")["groups"] for rule in group["rules"]]

    def counted(self, what: str) -> dict[str, float]:
        """A counter of the server's groups by name."""
        with _DIRECT.open(f"{self.server.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {group: float(value) for name, group, value in _SAMPLE.findall(text) if name == what}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """256 nodes at standard level, from before their faults until each is told."""
    directory = tmp_path_factory.mktemp("scale")
    fleet = planted_fleet(NODES, Level.STANDARD, starting=1000 * CALM)
    rules = directory / "rules"
    rules.mkdir()
    for file in (ROOT / "alerts").glob("gpufleet-*.yaml"):
        tree = yaml.safe_load(file.read_text())
        for group in tree["groups"]:
            group["interval"] = INTERVAL
        (rules / file.name).write_text(yaml.safe_dump(tree))
    faults = tuple(fault for fault in fleet.faults if fault.alert not in SLOW)
    clock = FleetClock()
    with served(fleet.scenario, clock) as url:
        job = {"job_name": "gpufleet", "honor_labels": True, "http_sd_configs": [{"url": f"{url}/sd"}]}
        with PrometheusServer(
            built("prometheus", "newest"),
            directory / "prometheus",
            [job],
            scrape_interval="15s",
            config={"rule_files": [f"{rules}/*.yaml"]},
        ) as server:
            server.wait_until_up(NODES, seconds=120)
            clock.go_on()
            found = Found(server, faults)
            with contextlib.suppress(TimeoutError):  # a test says which is not
                until(lambda: not found.unseen(), "every fault is told", seconds=240, every=1)
            more = {group: count + 1 for group, count in found.counted("iterations").items()}

            def again() -> bool:
                now = found.counted("iterations")
                return all(now[group] >= count for group, count in more.items())

            until(again, "each group was evaluated with the faults", seconds=120, every=1)
            yield found


@pytest.mark.timeout(600)  # the first test waits for the fleet
def test_no_rule_fails(found: Found) -> None:
    """Every rule of every file is there, was evaluated and has no error."""
    rules = found.rules()
    expected = [rule for file in (ROOT / "alerts").glob("gpufleet-*.yaml") for rule in _rules(file)]
    assert sorted(rule["name"] for rule in rules) == sorted(rule.get("record") or rule["alert"] for rule in expected)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule for rule in rules if rule.get("lastError")] == []


def test_no_evaluation_is_missed(found: Found) -> None:
    """No group took longer than its interval, which is shorter here than where it is used."""
    missed = found.counted("iterations_missed")
    assert len(missed) == len(list((ROOT / "alerts").glob("gpufleet-*.yaml")))
    assert {group: count for group, count in missed.items() if count} == {}


def test_each_planted_fault_is_told(found: Found) -> None:
    """By its alert, with its node; and no such alert names a GPU that is well."""
    assert found.unseen() == []
    incidents = found.server.query('count by (node, gpu) (ALERTS{alertname="GpuHardwareIncident"})')
    planted = {(fault.labels["node"], fault.labels["gpu"]) for fault in found.faults if "Hardware" in fault.alert}
    assert {(each["metric"]["node"], each["metric"]["gpu"]) for each in incidents} == planted


def _rules(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
