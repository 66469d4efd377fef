"""What the quarantine says of itself is what the catalogue says that it does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.quarantine.book import Book, Tripped
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.policy import Mode, Policy
from gpufleet.quarantine.record import Decision, Outcome, Step, Verdict
from gpufleet.quarantine.telemetry import Telemetry
from tests.support.quarantine_records import record
from tests.support.quarantined import NOW, incident, view


def told(telemetry: Telemetry) -> dict[str, float]:
    """Series and values, without the times at which counters began."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(telemetry.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_names_types_and_helps_are_the_catalogues() -> None:
    """Which this program may not import."""
    telemetry = Telemetry()
    telemetry.decided(incident().key, Decision(Verdict.DEFER, "budget"))
    telemetry.acted(record(), Step("cordon", "node/n1", Outcome.DONE))
    telemetry.delivered(200)
    telemetry.wrote()
    telemetry.unusable("no_node")
    shown = {
        sample.name: (family.type, family.documentation, tuple(sample.labels))
        for family in text_string_to_metric_families(telemetry.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }

    expected = {
        name: (family.kind.value, family.help, family.labels)
        for name, family in FAMILIES.items()
        if name.startswith("gpufleet_quarantine_")
    }
    assert shown == expected


def test_a_decision_counts_once_however_often_it_is_told() -> None:
    """And again when it is another one."""
    telemetry = Telemetry()
    for reason in ("budget", "budget", "isolate", "isolate", "budget"):
        telemetry.decided(incident().key, Decision(Verdict.DEFER, reason))

    assert told(telemetry)["gpufleet_quarantine_decisions_total decision=defer reason=budget"] == 2
    assert told(telemetry)["gpufleet_quarantine_decisions_total decision=defer reason=isolate"] == 1


def test_gauges_are_of_the_last_round() -> None:
    """Nodes that are out, what may be, and what waits."""
    session = Session(Book(), view(40), Policy(mode=Mode.ACT), NOW)
    for number in range(1, 4):
        session.judge(incident(number, f"n{number}", fault=str(number)))
    telemetry = Telemetry()
    telemetry.seen(session.book, view(40), Policy(), NOW)

    shown = told(telemetry)
    assert shown["gpufleet_quarantine_nodes"] == 2
    assert shown["gpufleet_quarantine_budget"] == 3
    assert shown["gpufleet_quarantine_deferred"] == 1
    assert shown["gpufleet_quarantine_breaker_open"] == 0
    telemetry.seen(Book(tripped=Tripped(NOW, "same_fault", "")), view(1), Policy(), NOW)
    assert told(telemetry)["gpufleet_quarantine_breaker_open"] == 1
