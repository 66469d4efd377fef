"""Decisions: each bound at its edge, each refusal with its reason, and nothing that comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.quarantine.alerts import Resolved
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.incident import Holder, Incident, Key, Scope
from gpufleet.quarantine.policy import AlertRules, Breaker, Budget, Mode, Owners, Policy
from gpufleet.quarantine.record import Record, Stage, Verdict
from gpufleet.quarantine.view import Mark, View
from tests.support.quarantined import NOW, incident, view

# Wide bounds, so that each test is about the one that it narrows.
WIDE = Policy(
    mode=Mode.ACT,
    budget=Budget(share=1.0, most=100, most_share=1.0, out_share=1.0, new=100),
    breaker=Breaker(same_fault_nodes=100, pool_share=1.0),
)


def judged(
    told: list[Incident], policy: Policy = WIDE, nodes: View | None = None, book: Book | None = None, now: float = NOW
) -> tuple[list[tuple[str, str]], Book]:
    """Verdicts and reasons, and the book that they come to."""
    session = Session(book or Book(), nodes or view(), policy, now)
    found = [session.judge(each) for each in told]
    return [(str(decision.verdict), decision.reason) for decision in found], session.book


def test_a_hardware_incident_takes_a_place() -> None:
    """And is to be carried out."""
    verdicts, book = judged([incident()])

    assert verdicts == [("quarantine", "isolate")]
    (record,) = book.records.values()
    assert (record.node, record.stage, record.scope) == ("n1", Stage.RESERVED, Scope.GPU)
    assert book.placed_at == (NOW,)


def test_the_same_incident_is_one_quarantine_however_often_it_is_told() -> None:
    """In any order and multiplicity, also with another holder of the same GPU, and no further write is made."""
    told = incident()
    other = replace(told, holders=(Holder("team-b", "run-2", "", "ns2", "pod-2"),))
    _, book = judged([told, told, other])

    assert [record.incident.holders for record in book.records.values()] == [(*told.holders, *other.holders)]
    assert book.placed_at == (NOW,)
    assert judged([told, other], book=book, now=NOW + 600)[1].records == book.records
    assert Session(book, view(), WIDE, NOW + 1).book is book


def off(session: Session, key: Key) -> Record:
    """A record whose mark is off its node."""
    record = session.record(key)
    assert record is not None
    return replace(record, stage=Stage.RELEASED)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (incident(isolate=False), "not_isolating"),
        (incident(since=NOW - 86_401), "stale"),
        (incident(node="elsewhere"), "unknown_node"),
        (incident(node="n7"), "opted_out"),
    ],
)
def test_what_is_never_acted_on_is_refused(told: Incident, reason: str) -> None:
    """With its reason, and nothing is to be done."""
    verdicts, book = judged([told], nodes=view(n7={"opted_out": True}))

    assert verdicts == [("refuse", reason)]
    assert [record.stage for record in book.records.values()] == [Stage.NONE]
    assert book.placed_at == ()


def test_a_node_that_was_unknown_is_judged_anew_when_it_is_there() -> None:
    """It may have joined a moment ago."""
    _, book = judged([incident(node="late")])

    assert judged([incident(node="late")], nodes=view(late={}), book=book)[0] == [("quarantine", "isolate")]
    found = [Session(book, view(late={}), WIDE, NOW + seconds).again() for seconds in (899, 901)]
    assert [[decision.reason for _, decision in each] for each in found] == [["isolate"], []]


@pytest.mark.parametrize(
    ("size", "ours", "out"),
    [
        (1, 1, 1),
        (4, 1, 1),
        (9, 1, 1),
        (10, 1, 2),
        (29, 2, 5),
        (30, 3, 6),
        (100, 3, 20),
        (150, 3, 30),
        (200, 4, 40),
        (2048, 40, 409),
    ],
)
def test_the_default_budget(size: int, ours: int, out: int) -> None:
    """At most max(1, min(10 %, max(3, 2 %))) of ours, and max(1, 20 %) by anyone."""
    assert (Budget().ours(size), Budget().out(size)) == (ours, out)


def test_the_budget_holds_within_one_payload_and_across_restarts() -> None:
    """The fourth of four waits; it is decided again when there is room."""
    policy = replace(WIDE, budget=replace(WIDE.budget, share=0.1, most=3, most_share=0.0))
    told = [incident(number, f"n{number}", fault=str(number)) for number in range(1, 5)]

    verdicts, book = judged(told, policy)

    assert verdicts == [("quarantine", "isolate")] * 3 + [("defer", "budget")]
    assert judged(told, policy, book=book)[0] == verdicts
    session = Session(book, view(), policy, NOW + 1)
    session.release([told[0].key], "a person")
    assert session.again()[0][1].reason == "budget"  # our mark is not off yet
    session.put(off(session, told[0].key))
    later = Session(session.book, view(), policy, NOW + 2)
    assert [(key.node, decision.reason) for key, decision in later.again()] == [("n4", "isolate")]


def test_a_node_that_bears_our_mark_counts_though_the_ledger_was_lost() -> None:
    """The budget is of nodes that are out, not of records."""
    policy = replace(WIDE, budget=replace(WIDE.budget, most=1, most_share=0.0))
    nodes = view(n9={"mark": Mark("c/n9/x", NOW, was_cordoned=False), "out": True, "held_out": True})

    assert judged([incident()], policy, nodes)[0] == [("defer", "budget")]


def test_nodes_that_others_have_out_count_towards_what_may_be_out() -> None:
    """And a node that is out already costs nobody anything."""
    policy = replace(WIDE, budget=replace(WIDE.budget, out_share=0.2))
    out: dict[str, Any] = {f"n{number}": {"out": True, "held_out": True} for number in range(1, 3)}

    assert judged([incident(node="n5")], policy, view(10, **out))[0] == [("defer", "out_by_anyone")]
    assert judged([incident(node="n1")], policy, view(10, **out))[0] == [("quarantine", "isolate")]
    assert judged([incident(node="n5")], policy, view(15, **out))[0] == [("quarantine", "isolate")]


def test_new_ones_are_few_within_the_window_whatever_the_clock_does() -> None:
    """A clock that goes back makes no room."""
    policy = replace(WIDE, budget=replace(WIDE.budget, new=2, window=600.0))
    told = [incident(number, f"n{number}", fault=str(number)) for number in range(1, 4)]
    verdicts, book = judged(told, policy)

    assert verdicts[2] == ("defer", "rate")
    assert judged(told[2:], policy, book=book, now=NOW + 599)[0] == [("defer", "rate")]
    assert judged([replace(told[2], since=NOW - 9000)], policy, book=book, now=NOW - 7200)[0] == [("defer", "rate")]
    assert judged(told[2:], policy, book=book, now=NOW + 601)[0] == [("quarantine", "isolate")]


def test_pools_have_budgets_of_their_own() -> None:
    """One that is full does not stop the other."""
    policy = replace(WIDE, budget=replace(WIDE.budget, share=0.1, most=1, most_share=0.0))
    nodes = view(10, a1={"pool": "a"}, a2={"pool": "a"})
    told = [incident(1, "a1"), incident(2, "a2"), incident(3, "n1")]

    assert [reason for _, reason in judged(told, policy, nodes)[0]] == ["isolate", "budget", "isolate"]


def test_a_second_incident_of_a_node_takes_no_place() -> None:
    """It joins: its pods are moved, too, and the node is held by both."""
    policy = replace(WIDE, budget=replace(WIDE.budget, most=1, most_share=0.0, new=1))
    verdicts, book = judged([incident(1), incident(2, uuid="GPU-n1-1")], policy)

    assert verdicts == [("quarantine", "isolate"), ("join", "joined")]
    assert [record.stage for record in book.records.values()] == [Stage.RESERVED] * 2
    assert book.placed_at == (NOW,)


def test_the_breaker_opens_for_one_fault_on_three_nodes() -> None:
    """With two quarantined; it stays open until a person closes it, and survives being written down."""
    policy = replace(WIDE, breaker=Breaker())
    told = [incident(number, f"n{number}") for number in range(1, 5)]
    verdicts, book = judged(told, policy)

    assert verdicts == [("quarantine", "isolate")] * 2 + [("defer", "breaker")] * 2
    assert book.tripped is not None
    assert "fault 79 on 3 nodes" in book.tripped.detail
    assert judged([incident(9, "n9", fault="94", since=NOW + 7000)], policy, book=book, now=NOW + 7200)[0] == [
        ("defer", "breaker")
    ]
    session = Session(book, view(), policy, NOW + 7200)
    session.reset_breaker()
    assert [decision.reason for _, decision in session.again()] == ["isolate", "isolate"]


def test_the_breaker_opens_for_faults_on_more_than_a_fifth_of_a_pool() -> None:
    """Of any kind; one node alone is never too many."""
    policy = replace(WIDE, breaker=Breaker())
    told = [incident(number, f"n{number}", fault=str(number)) for number in range(1, 4)]

    assert [reason for _, reason in judged(told, policy, view(10))[0]] == ["isolate", "isolate", "breaker"]
    assert [reason for _, reason in judged(told, policy, view(15))[0]] == ["isolate", "isolate", "isolate"]
    assert judged(told[:1], policy, view(1))[0] == [("quarantine", "isolate")]


def test_old_incidents_do_not_open_the_breaker() -> None:
    """After a pause of the service they come all at once."""
    policy = replace(WIDE, breaker=Breaker())
    told = [incident(number, f"n{number}", since=NOW - 3600) for number in range(1, 5)]

    assert [reason for _, reason in judged(told, policy)[0]] == ["isolate"] * 4


def test_a_tenant_takes_out_few_nodes_by_faults_that_need_no_broken_hardware() -> None:
    """Whoever holds broken hardware is not to blame for it."""
    policy = replace(WIDE, owners=Owners(most_nodes=1))
    own = [incident(number, f"n{number}", blame="application", fault="45") for number in range(1, 4)]
    broken = [incident(number, f"n{number}") for number in range(4, 7)]

    assert [reason for _, reason in judged([*own, *broken], policy)[0]] == [
        *("isolate", "owner_cap", "owner_cap"),
        *("isolate",) * 3,
    ]


def test_a_release_is_remembered() -> None:
    """The same incident never comes back, a new one of the node does."""
    _, book = judged([incident()])
    session = Session(book, view(), WIDE, NOW + 1)
    session.release([incident().key], "ada")
    session.put(off(session, incident().key))

    assert judged([incident()], book=session.book)[0] == [("suppress", "released")]
    assert judged([incident(2)], book=session.book)[0] == [("quarantine", "isolate")]


def test_a_release_of_what_waits_is_remembered_too() -> None:
    """When there is room it does not come back either."""
    policy = replace(WIDE, budget=replace(WIDE.budget, most=1, most_share=0.0))
    _, book = judged([incident(1), incident(2, "n2")], policy)
    session = Session(book, view(), policy, NOW + 1)
    session.release([incident(2, "n2").key], "ada")

    assert Session(session.book, view(), WIDE, NOW + 2).again() == []
    assert judged([incident(2, "n2")], book=session.book)[0] == [("suppress", "released")]


def test_an_alert_that_has_ended_changes_nothing_outside() -> None:
    """It is noted; what only waited is over."""
    policy = replace(WIDE, budget=replace(WIDE.budget, most=1, most_share=0.0))
    _, book = judged([incident(1), incident(2, "n2")], policy)
    session = Session(book, view(), policy, NOW + 9)
    for told in (incident(1), incident(2, "n2"), incident(3, "n3")):
        session.resolve(Resolved(told.key, NOW + 8))

    first, second = session.book.records.values()
    assert (first.stage, first.resolved_at) == (Stage.RESERVED, NOW + 8)
    assert (second.decision.verdict, second.decision.reason) == (Verdict.REFUSE, "resolved")
    assert Key("c", "n3", "0000000000000003") not in session.book.records


def test_a_dry_run_plans_within_the_same_bounds_and_acts_later() -> None:
    """It shows what the budget would have done; once the policy acts, what is still told is decided anew."""
    policy = replace(WIDE, mode=Mode.DRY_RUN, budget=replace(WIDE.budget, most=1, most_share=0.0))
    told = [incident(1), incident(2, "n2")]
    verdicts, book = judged(told, policy)

    assert verdicts == [("plan", "dry_run"), ("defer", "budget")]
    assert all(record.stage is Stage.NONE for record in book.records.values())
    acting = replace(policy, mode=Mode.ACT, budget=WIDE.budget)
    assert judged(told, acting, book=book)[0] == [("quarantine", "isolate")] * 2


def test_faults_of_the_node_take_every_pod_with_gpus() -> None:
    """By the policy's patterns, and where the alert names no GPU."""
    _, book = judged([incident(1, fault="sxid_20034"), incident(2, "n2", uuid=""), incident(3, "n3")])

    assert [record.scope for record in book.records.values()] == [Scope.NODE, Scope.NODE, Scope.GPU]


def test_a_node_s_name_may_be_longer_in_alerts() -> None:
    """Up to the first dot where the policy says so."""
    policy = replace(WIDE, alerts=AlertRules(short_names=True))
    _, book = judged([incident(node="n1.cluster.local")], policy)

    assert [record.node for record in book.records.values()] == ["n1"]


def test_judging_thousands_at_once_is_linear() -> None:
    """2,048 incidents in one payload are a fraction of a second: counted, not timed, by what is looked at."""
    told = [incident(number, f"n{number}") for number in range(1, 2049)]
    verdicts, book = judged(told, Policy(mode=Mode.ACT), view(2048))

    assert [reason for _, reason in verdicts] == ["isolate"] * 2 + ["breaker"] * 2046
    assert len(book.records) == 2048
