"""Whether a peer of a run was hit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpufleet.quarantine.book import Book
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.incident import Incident
from gpufleet.quarantine.policy import Budget, Mode, Policy
from gpufleet.quarantine.verdict import Verdicts, told
from gpufleet.web.message import Request
from tests.support.quarantined import NOW, incident, view

POLICY = Policy(mode=Mode.ACT)


def book(*incidents: Incident, policy: Policy = POLICY) -> Book:
    """The ledger after these."""
    session = Session(Book(), view(), policy, NOW)
    for each in incidents:
        session.judge(each)
    return session.book


def asked(found: Book, run: str = "run-1", project: str = "team-a", age: float = 60.0) -> list[dict[str, object]]:
    """Incidents of an answer."""
    answer: dict[str, list[dict[str, object]]] = json.loads(told(found, project, run, age, NOW))
    return answer["incidents"]


def test_a_run_hears_of_its_own_incident() -> None:
    """With its number and its age, and nothing of where it was."""
    assert asked(book(incident())) == [
        {"incident": "0000000000000001", "fault": "79", "refund": True, "age_seconds": 5.0}
    ]
    assert asked(book(incident()), project="") != []


@pytest.mark.parametrize(
    ("found", "run", "project", "age"),
    [
        (book(incident()), "run-2", "team-a", 60.0),
        (book(incident()), "run-1", "team-b", 60.0),
        (book(incident()), "run-1", "team-a", 3.0),  # it was there before the program
        (book(incident(refund=False)), "run-1", "team-a", 60.0),
        (book(incident(node="elsewhere")), "run-1", "team-a", 60.0),  # refused: the GPU would be met again
        (book(incident(), policy=replace(POLICY, mode=Mode.DRY_RUN)), "run-1", "team-a", 60.0),
        (Book(), "run-1", "team-a", 60.0),
    ],
)
def test_nobody_hears_of_what_does_not_excuse_him(found: Book, run: str, project: str, age: float) -> None:
    """Another's run, another's project, a fault of before, one of the program, and a node that stays in."""
    assert asked(found, run, project, age) == []


def test_a_node_that_waits_for_room_excuses_nobody_yet() -> None:
    """The next attempt could meet the same GPU, again and again."""
    full = replace(POLICY, budget=Budget(most=1, most_share=0.0))
    found = book(incident(9, "n9"), incident(), policy=full)

    assert [each["incident"] for each in asked(found)] == ["0000000000000009"]


@pytest.mark.parametrize(
    "query", ["", "run=a", "age=1", "run=a&age=x", "run=a&age=-1", "run=a&age=1e99", f"run={'x' * 300}&age=1"]
)
def test_a_question_that_is_none_is_refused(query: str) -> None:
    """With how to ask."""
    request = Request("GET", "/v1/verdict", query, {}, b"", "10.0.0.1")

    assert Verdicts(book, clock=lambda: NOW).answer(request).status == 400


def test_before_the_ledger_was_read_nobody_is_told_anything() -> None:
    """The launcher asks again."""
    request = Request("GET", "/v1/verdict", "run=a&age=1", {}, b"", "10.0.0.1")

    assert Verdicts(lambda: None, clock=lambda: NOW).answer(request).status == 503
