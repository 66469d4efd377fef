"""A real Prometheus that holds hours of a simulated fleet, with the mixin's rules evaluated over them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.scenario import Scenario
from gpufleet.simulate.staging import Stage
from tests.conftest import built
from tests.integration.prometheus_server import PrometheusServer
from tests.support import recorded
from tests.support.recorded import Firing, Group, Labels, Span

STEP = 30
"""Seconds between two scrapes."""
CLUSTER = "here"
BEGIN = 1_780_300_800
"""2026-06-01T08:00:00Z: a multiple of every interval."""
SERVERS = (("gpu-node-07", "vllm"), ("gpu-node-07", "sglang"))
Pages = Callable[[Fleet], Mapping[Labels, bytes]]
Scrape = Callable[[int], Mapping[Labels, bytes]]
"""Labels and page of each target at a Unix time."""


GRAFANA = {
    "__rate_interval": "2m",
    "__interval": "1m",
    "__range": "90m",
    "__range_s": "5400",
    # Few, so that a run of some nodes is shown as a large one is.
    "lines": "2",
}
_VARIABLE = re.compile(r"\$\{([a-z_]\w*)[^}]*\}|\$([a-z_]\w*)")


def asked(expr: str, **chosen: str) -> str:
    """A panel's query as Grafana sends it where everything is chosen, but for these variables."""
    values = GRAFANA | chosen
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], ".*"), expr)


class RecordedFleet:
    """The Prometheus, and the span that it knows."""

    def __init__(self, server: PrometheusServer, span: Span, groups: Sequence[Group]) -> None:
        self.server = server
        self.span = span
        self._groups = groups

    def range(self, expr: str, begin: int, end: int, step: int) -> list[dict[str, Any]]:
        """The matrix of an expression."""
        return self.server.query_range(expr, begin, end, step)

    def answers(self, expr: str) -> list[Mapping[str, str]]:
        """Labels of all series that a panel's query has at any minute of the span; or has where pods are chosen."""
        span = self.span
        found = self.range(asked(expr), span.begin, span.end, 60)
        found = found or self.range(asked(expr, pod=".+"), span.begin, span.end, 60)
        return [each["metric"] for each in found]

    def firings(self) -> list[Firing]:
        """The alerts that fired."""
        return recorded.firings(self.range, self._groups, self.span)


def nodes_of(fleet: Fleet) -> Mapping[Labels, bytes]:
    """The page of each node, as a target of its own."""
    return {
        (("cluster", CLUSTER), ("job", "gpufleet"), ("instance", f"{name}:9836")): fleet.text(name)
        for name in fleet.names
    }


def all_of(fleet: Fleet) -> Mapping[Labels, bytes]:
    """The same, and what the default scenario has beside its nodes."""
    pages = dict(nodes_of(fleet))
    for node, kind in SERVERS:
        text = fleet.server(node, kind)
        if text is not None:
            pages[("cluster", CLUSTER), ("job", kind), ("instance", f"{node}:{kind}")] = text
    pages[(("cluster", CLUSTER), ("job", "gpufleet-quarantine"), ("instance", "quarantine"))] = fleet.quarantine()
    return pages


def scraping(scenario: Scenario, pages: Pages = nodes_of) -> Scrape:
    """What targets answer at a time, from the start of a scenario on."""
    now = [float(BEGIN)]
    fleet = Fleet(Stage(scenario), FleetOptions(), clock=lambda: now[0], wall=lambda: now[0])

    def scrape(at: int) -> Mapping[Labels, bytes]:
        now[0] = float(at)
        return pages(fleet)

    return scrape


@contextlib.contextmanager
def recorded_fleet(directory: Path, scrape: Scrape, minutes: int, groups: Sequence[Group]) -> Iterator[RecordedFleet]:
    """Scrape for so many minutes, and evaluate the recording rules; the server ends with the block."""
    span = Span(BEGIN, BEGIN + 60 * minutes)
    storage = directory / "prometheus"
    storage.mkdir()
    gone = recorded.blocks(built("promtool", "newest"), storage, span, STEP, scrape)
    with PrometheusServer(
        built("prometheus", "newest"),
        storage,
        [],
        config={"storage": {"tsdb": {"out_of_order_time_window": "30d"}}},
        flags=["--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y"],
    ) as server:
        found = RecordedFleet(server, span, groups)
        recorded.record(server.url, found.range, groups, span, gone)
        yield found
