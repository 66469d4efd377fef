"""What the mixin costs one Prometheus that scrapes a large fleet, and which alerts it raises there.

python -m tests.bench.mixin_scale --minutes 25

It serves made-up nodes with planted faults, scrapes them with the newest Prometheus every 30 s, evaluates all rules and
alerts, has Alertmanager inhibit them as in the example, and prints a report in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from gpufleet.metrics.family import Level
from tests.bench.programs import BIN, ROOT, Measured, Program, free_port
from tests.conftest import built
from tests.integration.alertmanager_server import AlertmanagerServer
from tests.integration.prometheus_server import PrometheusServer
from tests.integration.recorded_fleet import asked
from tests.support.planted_fleet import PlantedFleet, planted_fleet
from tests.waiting import until

SCRAPE = EVALUATION = 30
"""Seconds."""
_SHOWN = 6 * 3600
_PIXELS = 1600
"""Width of the screen that a dashboard is drawn on: a panel asks for a value each pixel, as Grafana does."""
_TIMES = 5
"""How often each expression is asked: the least counts, as others may use the machine."""
_WORST, _ASKED = 12, 50


@dataclass(slots=True)
class Costs:
    """Seconds that each rule took, each time that it was evaluated."""

    rules: dict[tuple[str, int, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    groups: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    failed: set[str] = field(default_factory=set)

    def look(self, server: PrometheusServer) -> None:
        """Note what each rule took the last time."""
        for group in server._api("rules")["groups"]:
            self.groups[group["name"]][group["lastEvaluation"]] = group["evaluationTime"]
            for number, rule in enumerate(group["rules"]):
                self.rules[group["name"], number, rule["name"]][rule["lastEvaluation"]] = rule["evaluationTime"]
                if rule.get("lastError"):
                    self.failed.add(f"{rule['name']}: {rule['lastError']}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an expression cost: seconds and CPU seconds, the least of some times, and the samples that it read."""

    what: str
    seconds: float
    cpu: float
    samples: int

    def row(self) -> tuple[str, str, str, str]:
        """For a table."""
        return self.what, f"{self.cpu:.3f}", f"{self.seconds:.3f}", f"{self.samples:,}"


@dataclass(frozen=True, slots=True)
class Quiet:
    """A Prometheus that does nothing but answer, as of the last moment at which it did more."""

    server: PrometheusServer
    process: Measured
    at: float

    @classmethod
    def of(cls, server: PrometheusServer) -> Self:
        """Take its targets and its rules from it."""
        assert server._process is not None
        at = time.time()
        (server._directory / "prometheus.yml").write_text("{}\n")
        server._process.send_signal(signal.SIGHUP)
        until(lambda: not server.targets() and not server._api("rules")["groups"], "it is idle", seconds=120)
        return cls(server, Measured(server._process.pid), at)

    def cost_of(self, what: str, endpoint: str, **parameters: str) -> Asked:
        """Ask some times."""
        seconds = cpu = float("inf")
        samples = 0
        for _ in range(_TIMES):
            before = self.process.cpu_seconds()
            data = self.server._api(endpoint, stats="all", **parameters)
            cpu = min(cpu, self.process.cpu_seconds() - before)
            seconds = min(seconds, data["stats"]["timings"]["evalTotalTime"])
            samples = data["stats"]["samples"]["totalQueryableSamples"]
        return Asked(what, seconds, cpu, samples)

    def of_rules(self, groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, Asked]]:
        """Evaluations a minute of each rule, and the cost of one."""
        for group in groups:
            for rule in group["rules"]:
                labels = rule.get("labels", {})
                also = [labels[key] for key in ("problem", "part", "state", "slice", "severity") if key in labels]
                name = " ".join([f"{group['name']}: {rule['name']}", *also])
                # What it answers is counted: writing thousands of series as JSON is no part of a rule.
                expr = f"count({rule['query']})"
                yield 60 / group["interval"], self.cost_of(name, "query", query=expr, time=f"{self.at}")

    def of_panels(self, file: str, span: int) -> Iterator[Asked]:
        """Cost of each query of a dashboard, now and over six hours.

        Six hours are not there: as many steps are asked for as six hours have, over the ``span`` seconds that are.
        """
        dashboard = json.loads((ROOT / "dashboards" / file).read_text())
        for panel in [each for top in dashboard["panels"] for each in (top, *top.get("panels", ()))]:
            most = panel.get("maxDataPoints") or _PIXELS * panel["gridPos"]["w"] // 24
            steps = _SHOWN / max(15, _SHOWN / most)
            for target in panel.get("targets", ()):
                what, expr = f"{panel['title']} {target['refId']}", asked(target["expr"])
                yield self.cost_of(f"{what}, now", "query", query=expr, time=f"{self.at}")
                if not target.get("instant"):
                    bounds = {"start": f"{self.at - span}", "end": f"{self.at}", "step": f"{span / steps}"}
                    yield self.cost_of(f"{what}, 6 h", "query_range", query=expr, **bounds)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """In Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def alerts_of(alertmanager: AlertmanagerServer, fleet: PlantedFleet) -> str:
    """Which alerts are active, and whether each planted fault is named."""
    every = alertmanager.alerts()
    active = [each["labels"] for each in every if each["status"]["state"] != "suppressed"]
    rows = []
    explained: list[int] = []
    for fault in fleet.faults:
        hits = [
            number
            for number, labels in enumerate(active)
            if labels["alertname"] == fault.alert and fault.labels.items() <= labels.items()
        ]
        explained += hits
        rows.append((type(fault.event).__name__, fault.event.node, fault.alert, "named" if hits else "**not named**"))
    others = [labels for number, labels in enumerate(active) if number not in explained]
    kept = ("node", "gpu", "run", "model", "severity", "instance", "source")
    told = [f"{each['alertname']} " + " ".join(f"{k}={each[k]}" for k in kept if k in each) for each in others]
    return (
        f"{len(active)} alerts that nothing inhibits, of {len(every)}: "
        f"{dict(Counter(each['labels']['alertname'] for each in every))}\n\n"
        + table(("fault", "node", "alert", ""), rows)
        + "\nOthers:\n"
        + "".join(f"- {line}\n" for line in told)
    )


def report(server: PrometheusServer, costs: Costs, span: int, process: Measured) -> Iterator[str]:
    """Everything but alerts."""
    window = f"{max(60, span - 120)}s"
    own = '{job="prometheus"}'
    for what, expr in {
        "evaluation, seconds a minute": f"60 * sum(rate(prometheus_rule_group_duration_seconds_sum{own}[{window}]))",
        "missed iterations": f"sum(prometheus_rule_group_iterations_missed_total{own})",
        "failed evaluations": f"sum(prometheus_rule_evaluation_failures_total{own})",
        "failed scrapes": f"sum(count_over_time(up[{window}]) - sum_over_time(up[{window}]))",
        "slowest scrape, seconds": "max(scrape_duration_seconds)",
        "series": f"max(prometheus_tsdb_head_series{own})",
        "series recorded": 'count({__name__=~".+:.+"})',
        "samples a second": f"sum(rate(prometheus_tsdb_head_samples_appended_total{own}[{window}]))",
        "CPU of Prometheus, cores": f"sum(rate(process_cpu_seconds_total{own}[{window}]))",
    }.items():
        yield f"{what}: {server.value(expr)}"
    yield f"RSS of Prometheus, MiB: {process.rss_mib():.0f}"
    yield f"load average: {os.getloadavg()}"
    yield f"failed: {sorted(costs.failed)}\n"
    by_group = sorted(costs.groups.items(), key=lambda each: -statistics.median(each[1].values()))
    yield table(
        ("group", "evaluations seen", "median s", "least s", "most s"),
        [(name, len(t), *_three(list(t.values()))) for name, t in by_group],
    )
    by_rule = sorted(costs.rules.items(), key=lambda each: -statistics.median(each[1].values()))[:_WORST]
    yield table(
        ("group", "rule", "median s", "least s", "most s"),
        [(group, f"{name} (rule {number})", *_three(list(t.values()))) for (group, number, name), t in by_rule],
    )


def afterwards(quiet: Quiet, groups: Sequence[Mapping[str, Any]], span: int) -> Iterator[str]:
    """What each expression costs by itself."""
    heads = ("CPU s", "s", "samples read")
    rules = list(quiet.of_rules(groups))
    yield f"samples read by rules a minute: {sum(often * each.samples for often, each in rules):,.0f}"
    yield f"CPU seconds of rules a minute: {sum(often * each.cpu for often, each in rules):.2f}"
    yield f"seconds of rules a minute: {sum(often * each.seconds for often, each in rules):.2f}\n"
    costly = sorted(rules, key=lambda each: -each[1].cpu)
    yield table(("rule", *heads, "times a minute"), [(*each.row(), f"{often:g}") for often, each in costly[:_ASKED]])
    panels = sorted(quiet.of_panels("fleet.json", min(_SHOWN, span)), key=lambda each: -each.cpu)
    yield table(("query of the fleet dashboard", *heads), [each.row() for each in panels[:_WORST]])


def _three(times: Sequence[float]) -> tuple[str, str, str]:
    return f"{statistics.median(times):.3f}", f"{min(times):.3f}", f"{max(times):.3f}"


def measure(directory: Path, nodes: int, minutes: int) -> None:
    """Run all of it, and print."""
    fleet = planted_fleet(nodes, Level.CORE)
    scenario = directory / "scenario.yaml"
    scenario.write_bytes(fleet.file())
    itself = directory / "prometheus.json"
    itself.write_text("[]")
    port = free_port()
    # The fleet would be on machines of its own: here it has what Prometheus leaves of the cores.
    command: list[str | Path] = [
        "nice",
        "-n",
        "19",
        BIN / "gpufleet",
        "simulate",
        f"--scenario.file={scenario}",
        "--metrics.level=core",
    ]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    example = yaml.safe_load((ROOT / "alerts" / "alertmanager.example.yml").read_text())
    example["receivers"] = [{"name": receiver["name"]} for receiver in example["receivers"]]
    with (
        Program(command, directory, port=port, env={}) as simulated,
        AlertmanagerServer(built("alertmanager", "newest"), directory / "alertmanager", config=example) as alertmanager,
    ):
        simulated.wait_until_it_listens(120)
        until(lambda: "every node has been read" in simulated.log.read_text(), "every node was read", seconds=600)
        jobs: list[dict[str, object]] = [
            {
                "job_name": "gpufleet",
                "honor_labels": True,
                "http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}],
                # It would raise an alert a node, as it should.
                "metric_relabel_configs": [
                    {"source_labels": ["__name__"], "regex": "gpufleet_simulated", "action": "drop"}
                ],
            },
            {"job_name": "prometheus", "file_sd_configs": [{"files": [str(itself)], "refresh_interval": "5s"}]},
        ]
        with PrometheusServer(
            built("prometheus", "newest"),
            directory / "prometheus",
            jobs,
            config={
                "global": {
                    "scrape_interval": f"{SCRAPE}s",
                    "scrape_timeout": f"{SCRAPE}s",
                    "evaluation_interval": f"{EVALUATION}s",
                    "external_labels": {"cluster": "scale"},
                },
                "rule_files": [str(ROOT / "alerts" / "gpufleet-*.yaml")],
                "alerting": {
                    "alertmanagers": [{"static_configs": [{"targets": [alertmanager.url.removeprefix("http://")]}]}]
                },
            },
        ) as server:
            assert server._process is not None
            itself.write_text(json.dumps([{"targets": [server.url.removeprefix("http://")]}]))
            costs = Costs()
            begin = time.monotonic()
            while (span := time.monotonic() - begin) < 60 * minutes:
                simulated.check()
                time.sleep(10)
                if span > min(6, minutes / 2) * 60:  # with windows of five minutes filled
                    costs.look(server)
            for line in report(server, costs, int(span), Measured(server._process.pid)):
                print(line, flush=True)
            print(f"RSS of gpufleet simulate, MiB: {simulated.rss_mib():.0f}\n")
            print(alerts_of(alertmanager, fleet))
            groups = server._api("rules")["groups"]
            quiet = Quiet.of(server)
            simulated.stop()
            for line in afterwards(quiet, groups, int(span)):
                print(line, flush=True)


def main() -> None:
    """Read the flags, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--minutes", type=int, default=25)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mixin-scale-") as directory:
        measure(Path(directory), arguments.nodes, arguments.minutes)


if __name__ == "__main__":
    main()
