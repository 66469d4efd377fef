"""What it costs to write a node down, beside what prometheus-client's own exposition takes for the same series.

Absolute times are of the machine; the ratio is measured in one run on the same values, and printed.
"""

from __future__ import annotations

import statistics
import time
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.exposition import Exposition, compressed
from gpufleet.metrics.family import Level
from gpufleet.metrics.page import render as render_page
from gpufleet.metrics.render import Renderer
from gpufleet.metrics.selfmetrics import SelfMetrics
from tests.unit.metrics.snapshots import hopper_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric
    from pytest_benchmark.fixture import BenchmarkFixture

    from gpufleet.model.snapshot import Snapshot

POLLS = 30
NODES = {"8 GPUs": 0, "8 x 7 slices": 7}


def polls(slices: int) -> list[Snapshot]:
    """Snapshots of consecutive polls; activity, power, energy and the counters change from each to the next."""
    return [hopper_node(8, slices=slices, poll=poll) for poll in range(POLLS)]


class Parsed:
    """The same families and series, as prometheus-client has them before it writes them."""

    def __init__(self, text: str) -> None:
        self.families = list(parse_text(text))

    def collect(self) -> Iterable[Metric]:
        """Give the families, ready made: what it costs to build them anew at each scrape is not counted."""
        return self.families


def series(text: str) -> int:
    """Count the series of a text."""
    return sum(not line.startswith("#") for line in text.splitlines())


def milliseconds(work: Callable[[], object], times: int) -> float:
    """Return the median time that it takes."""
    measured = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        measured.append(time.perf_counter() - begin)
    return 1000 * statistics.median(measured)


@pytest.mark.parametrize("level", tuple(Level))
@pytest.mark.parametrize("slices", NODES.values(), ids=NODES.keys())
def test_warm_render(benchmark: BenchmarkFixture, slices: int, level: Level) -> None:
    """A poll's snapshot, when the one before it was rendered."""
    renderer, snapshots = Renderer(level), cycle(polls(slices))
    text = renderer.text(next(snapshots))
    benchmark.extra_info["series"] = series(text)
    benchmark(lambda: renderer.text(next(snapshots)))


@pytest.mark.parametrize("level", tuple(Level))
@pytest.mark.parametrize("slices", NODES.values(), ids=NODES.keys())
def test_cold_render(benchmark: BenchmarkFixture, slices: int, level: Level) -> None:
    """The first snapshot of a node, or one of a node whose GPUs have changed."""
    snapshot = polls(slices)[0]
    benchmark(lambda: Renderer(level).text(snapshot))


@pytest.mark.parametrize("slices", NODES.values(), ids=NODES.keys())
def test_gzip(benchmark: BenchmarkFixture, slices: int) -> None:
    """Compression of a node's text, once a poll."""
    text = Renderer().text(polls(slices)[0]).encode()
    benchmark.extra_info["bytes"] = len(text)
    benchmark.extra_info["compressed"] = len(compressed(text))
    benchmark(lambda: compressed(text))


class Ticking:
    """A poller whose next snapshot is there at each scrape, so that nothing is ready."""

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self._snapshots = cycle(snapshots)
        self.latest = next(self._snapshots)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        """Nobody is told: every scrape renders."""

    def tick(self) -> None:
        """Publish the next snapshot."""
        self.latest = next(self._snapshots)


@pytest.mark.parametrize("slices", NODES.values(), ids=NODES.keys())
def test_scrape_that_was_not_made_ahead(benchmark: BenchmarkFixture, slices: int) -> None:
    """The whole body for a Prometheus: OpenMetrics, self-metrics and gzip included."""
    source = Ticking(polls(slices))
    exposition = Exposition(source, SelfMetrics(), interval=1e9)

    def scrape() -> bytes:
        source.tick()
        return exposition.body(openmetrics=True, gzip=True)

    benchmark(scrape)


def test_page(benchmark: BenchmarkFixture) -> None:
    """The landing page, for a person."""
    snapshot = polls(7)[0]
    benchmark(lambda: render_page(snapshot, now=1.0, interval=1.0))


@pytest.mark.parametrize("slices", NODES.values(), ids=NODES.keys())
def test_it_is_many_times_faster_than_prometheus_client(slices: int) -> None:
    """Warm, on the same series and values, in the same run, although up to half of the values are new each time."""
    renderer, snapshots = Renderer(), cycle(polls(slices))
    text = renderer.text(next(snapshots))
    theirs = Parsed(text)
    written = generate_latest(theirs).decode()
    assert series(written) == series(text)
    ours = milliseconds(lambda: renderer.text(next(snapshots)).encode(), 100)
    cold = milliseconds(lambda: Renderer().text(next(snapshots)).encode(), 20)
    library = milliseconds(lambda: generate_latest(theirs), 20)
    print(
        f"\n{series(text)} series: warm {ours:.3f} ms, cold {cold:.2f} ms, "
        f"generate_latest {library:.2f} ms = {library / ours:.0f} x warm"
    )
    assert library > 5 * ours
