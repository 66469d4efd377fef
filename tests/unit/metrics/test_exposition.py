from __future__ import annotations

import gzip
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.exposition import Exposition, compressed, openmetrics_content_type
from gpufleet.metrics.family import Level
from gpufleet.metrics.selfmetrics import SelfMetrics
from tests.unit.metrics.snapshots import hopper_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from gpufleet.model.snapshot import Snapshot


class Node:
    """A poller and its clock, both in the test's hand."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        self.now = snapshot.monotonic
        self.callbacks: list[Callable[[Snapshot], None]] = []

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        """Remember who wants snapshots."""
        self.callbacks.append(callback)

    def publish(self, snapshot: Snapshot) -> None:
        """Publish a snapshot at its own time."""
        self.latest = snapshot
        self.now = snapshot.monotonic
        for callback in self.callbacks:
            callback(snapshot)

    def clock(self) -> float:
        """The monotonic time."""
        return self.now


class Counting:
    """A collector that counts how often it was asked, which is how often a text was made."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self) -> Iterable[Metric]:
        """Count, and say nothing."""
        self.asked += 1
        return []


class Fixture:
    """An exposition with all that it depends on."""

    def __init__(self, snapshot: Snapshot, level: Level = Level.STANDARD, interval: float = 1.0) -> None:
        self.node = Node(snapshot)
        self.self_metrics = SelfMetrics()
        self.exposition = Exposition(
            self.node, self.self_metrics, interval=interval, level=level, clock=self.node.clock
        )

    def text(self) -> str:
        """The plain text."""
        return self.exposition.body().decode()


def test_all_four_forms_say_the_same() -> None:
    """Text and OpenMetrics, plain and compressed: valid, and with the same names and values."""
    fixture = Fixture(hopper_node(2, slices=1))
    body = fixture.exposition.body
    text, openmetrics = body().decode(), body(openmetrics=True).decode()
    assert gzip.decompress(body(gzip=True)).decode() == text
    assert gzip.decompress(body(openmetrics=True, gzip=True)).decode() == openmetrics
    assert openmetrics.endswith("\n# EOF\n")
    ours = [sample for family in parse_text(text) for sample in family.samples]
    theirs = [sample for family in parse_openmetrics(openmetrics) for sample in family.samples]
    assert len(ours) == len(theirs) > 200
    assert {sample.name for sample in ours} == {sample.name for sample in theirs}
    assert {"gpu_power_watts", "gpufleet_build_info", "process_open_fds"} <= {sample.name for sample in ours}


def test_the_level_is_that_of_the_exposition() -> None:
    """Level core leaves out what standard shows."""
    assert "gpu_graphics_clock_hertz" in Fixture(hopper_node(1)).text()
    assert "gpu_graphics_clock_hertz" not in Fixture(hopper_node(1), Level.CORE).text()


def test_compression_depends_on_the_text_alone() -> None:
    """No time of day in it, so that the same text gives the same bytes."""
    data = compressed(b"gpu_up 1\n" * 1000)
    assert data[:10] == bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, data[8], data[9]))
    assert gzip.decompress(data) == b"gpu_up 1\n" * 1000


def test_the_content_type_names_the_negotiated_version() -> None:
    """Prometheus reads the version to choose its parser."""
    assert openmetrics_content_type("1.0.0") == "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_many_scrapes_of_one_snapshot_are_rendered_once() -> None:
    """200 threads at once get the very same bytes, which were made once."""
    fixture = Fixture(hopper_node(2))
    counting = Counting()
    fixture.self_metrics.register("counting", counting)
    asked_before = counting.asked
    ready = threading.Barrier(200)
    bodies: list[bytes] = []

    def scrape() -> None:
        ready.wait(30)
        bodies.append(fixture.exposition.body(gzip=True))

    threads = [threading.Thread(target=scrape) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(bodies) == 200
    assert len({id(body) for body in bodies}) == 1
    assert counting.asked == asked_before + 1


def test_scrapes_while_snapshots_are_published_are_whole() -> None:
    """Whatever the order of threads, a text is of one snapshot: every GPU has the same poll's time."""
    fixture = Fixture(hopper_node(4, poll=1))
    snapshots = [hopper_node(4, poll=poll) for poll in range(2, 60)]
    done = threading.Event()
    torn: list[str] = []

    def scrape() -> None:
        while not done.is_set():
            text = fixture.exposition.body().decode()
            times = {line.split()[1] for line in text.splitlines() if line.startswith("gpufleet_last_poll_")}
            if len(times) != 1:
                torn.append(text)

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    for snapshot in snapshots:
        fixture.node.publish(snapshot)
    done.set()
    for thread in threads:
        thread.join(30)
    assert torn == []


def test_a_scrape_gets_the_newest_snapshot() -> None:
    """Also when nothing was made ahead."""
    fixture = Fixture(hopper_node(1, poll=1))
    assert "gpufleet_polls_total 1\n" in fixture.text()
    fixture.node.latest = hopper_node(1, poll=2)
    assert "gpufleet_polls_total 2\n" in fixture.text()


def test_text_is_made_ahead_while_somebody_scrapes() -> None:
    """In the two minutes after a scrape every poll leaves the text ready, in the form that was wanted; not before."""
    fixture = Fixture(hopper_node(1, poll=0))
    made = Made(fixture)
    fixture.node.publish(hopper_node(1, poll=1))
    assert made.forms() == set()
    fixture.exposition.body(openmetrics=True, gzip=True)
    fixture.node.publish(hopper_node(1, poll=2))
    assert made.forms() == {(True, True), (True, False)}
    ready = made.bodies()[True, True]
    assert fixture.exposition.body(openmetrics=True, gzip=True) is ready
    fixture.node.publish(hopper_node(1, poll=115))
    assert made.forms() == {(True, True), (True, False)}
    fixture.node.publish(hopper_node(1, poll=300))
    assert made.forms() == set()


def test_an_expected_scrape_is_made_ahead_of_the_first() -> None:
    """After a start the first poll leaves the text ready for whoever comes first; for two minutes."""
    fixture = Fixture(hopper_node(1, poll=0))
    made = Made(fixture)
    fixture.exposition.expect(openmetrics=True, gzip=True)
    fixture.node.publish(hopper_node(1, poll=1))
    assert made.forms() == {(True, True), (True, False)}
    ready = made.bodies()[True, True]
    assert fixture.exposition.body(openmetrics=True, gzip=True) is ready
    fixture.node.publish(replace(hopper_node(1, poll=2), monotonic=1.1))
    assert made.forms() == {(True, True), (True, False)}
    other = Fixture(hopper_node(1, poll=0))
    other.exposition.expect(openmetrics=True, gzip=True)
    other.node.publish(hopper_node(1, poll=200))
    assert Made(other).forms() == set()


def test_fast_polls_are_not_all_rendered_ahead() -> None:
    """At ten polls a second one a second is made ahead: nobody scrapes faster, and a scrape makes what is missing."""
    fixture = Fixture(hopper_node(1, poll=0))
    made = Made(fixture)
    fixture.exposition.body()
    count = 0
    for tenth in range(1, 31):
        fixture.node.publish(replace(hopper_node(1, poll=tenth), monotonic=tenth / 10))
        count += bool(made.forms())
    assert count in (3, 4)
    assert "gpufleet_polls_total 30\n" in fixture.text()


class Made:
    """What is there of the latest snapshot before anybody asks."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture

    def bodies(self) -> dict[tuple[bool, bool], bytes]:
        """Bodies by form, if they are of the latest snapshot."""
        edition = self._fixture.exposition._edition
        if edition is None or edition.snapshot is not self._fixture.node.latest:
            return {}
        return edition.bodies

    def forms(self) -> set[tuple[bool, bool]]:
        """The forms that are there."""
        return set(self.bodies())


def test_an_old_snapshot_is_served_without_driver_readings() -> None:
    """Older than three intervals it says nothing of now; with the next poll everything is back."""
    fixture = Fixture(hopper_node(1, poll=10))
    fixture.node.now = 13.0
    assert "gpu_power_watts{" in fixture.text()
    fixture.node.now = 13.1
    old = fixture.text()
    assert "gpu_power_watts" not in old
    assert "gpu_info{" in old
    assert 'gpu_up{gpu="0",uuid="GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e100"} 0\n' in old
    assert "process_open_fds" in old
    fixture.node.publish(hopper_node(1, poll=14))
    assert "gpu_power_watts{" in fixture.text()


def test_process_metrics_do_not_age_with_slow_polls() -> None:
    """With a poll a minute the process is still asked every few seconds, not at every scrape."""
    fixture = Fixture(hopper_node(1, poll=1), interval=60.0)
    counting = Counting()
    fixture.self_metrics.register("counting", counting)
    before = counting.asked
    for second in range(11):
        fixture.node.now = 1.0 + second
        fixture.text()
    assert counting.asked - before == 3


def test_a_snapshot_that_can_not_be_written_does_not_cost_the_scrape(caplog: pytest.LogCaptureFixture) -> None:
    """The process's own metrics answer and count it; the next good snapshot is shown whole."""
    fixture = Fixture(hopper_node(1, poll=1))
    assert "gpu_info{" in fixture.text()
    broken = replace(hopper_node(1, poll=2), gpus=cast("tuple[()]", (None,)))
    fixture.node.publish(broken)
    text = fixture.text()
    assert "gpu_info{" not in text
    assert 'gpufleet_collector_errors_total{collector="snapshot"} 1.0\n' in text
    assert "process_open_fds" in text
    assert [record.__dict__["collector"] for record in caplog.records] == ["snapshot"]
    fixture.node.publish(hopper_node(1, poll=3))
    text = fixture.text()
    assert "gpu_info{" in text
    assert "gpu_power_watts{" in text
    assert 'gpufleet_collector_errors_total{collector="snapshot"} 1.0\n' in text
