from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet import __version__
from gpufleet.metrics.render import OPENMETRICS_END
from gpufleet.metrics.selfmetrics import SelfMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample


class Answers:
    """A collector that gives what it is told, and raises when that is an exception."""

    def __init__(self, *answers: list[Metric] | Exception) -> None:
        self.answers = list(answers)

    def collect(self) -> Iterable[Metric]:
        """Give the next answer; the last one for ever."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def family(name: str, *members: str) -> Metric:
    """A gauge with one series a member."""
    gauge = GaugeMetricFamily(name, "A test.", labels=["member"])
    for member in members:
        gauge.add_metric([member], 1)
    return gauge


def samples(exposition: bytes) -> list[Sample]:
    """All samples of a text."""
    return [sample for each in parse_text(exposition.decode()) for sample in each.samples]


def failures(exposition: bytes) -> dict[str, float]:
    """How often each collector failed."""
    name = "gpufleet_collector_errors_total"
    return {sample.labels["collector"]: sample.value for sample in samples(exposition) if sample.name == name}


def test_it_says_what_runs_and_what_that_costs() -> None:
    """Version, memory, CPU time, file descriptors; each collector's failures from zero."""
    metrics = SelfMetrics()
    found = {sample.name: sample for sample in samples(metrics.text())}
    assert found["gpufleet_build_info"].labels["version"] == __version__
    assert found["gpufleet_build_info"].labels["python"].count(".") == 2
    assert found["process_resident_memory_bytes"].value > 2**20
    assert found["process_cpu_seconds_total"].value > 0
    assert found["process_open_fds"].value > 0
    assert failures(metrics.text()) == {"build": 0, "process": 0}


def test_both_formats_say_the_same() -> None:
    """OpenMetrics has the same samples, and does not end: other families may follow."""
    metrics = SelfMetrics()
    openmetrics = metrics.openmetrics().decode()
    assert not openmetrics.endswith(OPENMETRICS_END)
    names = [sample.name for each in parse_openmetrics(openmetrics + OPENMETRICS_END) for sample in each.samples]
    assert sorted(names) == sorted([sample.name for sample in samples(metrics.text())])


def test_a_collector_that_raises_costs_its_own_series() -> None:
    """The others are there, the failure is counted, and its series are back as soon as it works."""
    metrics = SelfMetrics()
    metrics.register("fickle", Answers([], OSError("no"), [family("a", "x")]))
    failed = metrics.text()
    assert failures(failed) == {"build": 0, "process": 0, "fickle": 1}
    assert "gpufleet_build_info" in failed.decode()
    worked = metrics.text()
    assert 'a{member="x"} 1.0' in worked.decode()
    assert failures(worked)["fickle"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        [family("b", "x", "x")],
        [family("b", "x"), family("b", "y")],
        [family("gpufleet_build_info", "x")],
    ],
    ids=["series", "family", "family of another collector"],
)
def test_what_is_there_twice_costs_its_own_collector(answer: list[Metric]) -> None:
    """A duplicate would make Prometheus refuse the whole scrape; here only the one who made it is left out."""
    metrics = SelfMetrics()
    metrics.register("good", Answers([], [family("a", "x")]))
    metrics.register("bad", Answers([], answer))
    text = metrics.text()
    assert "\nb{" not in text.decode()
    assert 'a{member="x"} 1.0' in text.decode()
    assert failures(text) == {"build": 0, "process": 0, "good": 0, "bad": 1}


def test_a_name_or_a_family_that_is_taken_is_refused() -> None:
    """At registration, where somebody sees it."""
    metrics = SelfMetrics()
    with pytest.raises(ValueError, match="process"):
        metrics.register("process", Answers([]))
    with pytest.raises(ValueError, match="gpufleet_build_info"):
        metrics.register("other", Answers([family("gpufleet_build_info")]))


def test_a_failure_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Not at every scrape: when it begins, when it becomes another one, and when it is over."""
    metrics = SelfMetrics()
    no, never = OSError("no"), OSError("never")
    metrics.register("fickle", Answers([], no, no, never, never, [CounterMetricFamily("a", "A test.", value=1)]))
    with caplog.at_level(logging.INFO):
        for _ in range(6):
            metrics.text()
    assert [(record.levelname, record.__dict__["collector"]) for record in caplog.records] == [
        ("ERROR", "fickle"),
        ("ERROR", "fickle"),
        ("INFO", "fickle"),
    ]
    assert failures(metrics.text())["fickle"] == 4
