"""What a policy would have done with past incidents. Pure: the same decisions as in service, on a made-up clock.

Nothing is known of what people did meanwhile: a node is taken to be returned when its incident's alert has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpufleet.quarantine.alerts import Delivery, Resolved
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.policy import Mode
from gpufleet.quarantine.record import Stage, Verdict
from gpufleet.quarantine.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpufleet.quarantine.incident import Incident, Key
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Decision
    from gpufleet.quarantine.view import Node

_BEAT = 60.0
"""Seconds between looks at what waits. In service it is half of this."""
_IDLE = 86_400.0
"""Nothing that waits for room changes by waiting longer than this."""


@dataclass(frozen=True, slots=True)
class Past:
    """An incident and when its alert was firing, Unix times; ``end`` None: it still is."""

    incident: Incident
    end: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """A decision that was new, or the opening of the breaker, at one moment."""

    at: float
    key: Key | None
    """None for the breaker."""
    decision: Decision | None
    detail: str
    out: int
    """Nodes that were quarantined after it."""


def replay(past: Iterable[Past], nodes: Iterable[Node], policy: Policy) -> Iterator[Event]:
    """Decisions in the order of time, by a policy that acts whatever its mode says."""
    acting = replace(policy, mode=Mode.ACT)
    known = {node.name: node for node in nodes}
    moments = _moments(past)
    book = Book()
    decided: dict[Key, tuple[str, str]] = {}
    for position, (at, delivery) in enumerate(moments):
        for beat in _beats(moments[position - 1][0] if position else at, at, book):
            session = Session(book, View(beat, known), acting, beat)
            found = session.again()
            yield from _new(found, session.book, book, beat, decided)
            book = _carried_out(session.book)
        session = Session(book, View(at, known), acting, at)
        found = session.deliver(delivery)
        session.release([each.key for each in delivery.resolved if _is_out(book, each)], "its alert ended")
        yield from _new(found, session.book, book, at, decided)
        book = _carried_out(session.book)


def _moments(past: Iterable[Past]) -> list[tuple[float, Delivery]]:
    moments: list[tuple[float, int, Delivery]] = []
    for each in past:
        moments.append((each.incident.since, 1, Delivery(firing=(each.incident,))))
        if each.end is not None:
            moments.append((each.end, 0, Delivery(resolved=(Resolved(each.incident.key, each.end),))))
    moments.sort(key=lambda moment: moment[:2])
    return [(at, delivery) for at, _, delivery in moments]


def _beats(last: float, now: float, book: Book) -> Iterator[float]:
    """Moments between two events at which what waits is looked at again; none where nothing waits."""
    if not any(
        record.decision.verdict is Verdict.DEFER and record.resolved_at is None for record in book.records.values()
    ):
        return
    at = last + _BEAT
    while at < min(now, last + _IDLE):
        yield at
        at += _BEAT


def _is_out(book: Book, resolved: Resolved) -> bool:
    record = book.records.get(resolved.key)
    return record is not None and record.takes_place


def _carried_out(book: Book) -> Book:
    """The book as if everything had succeeded at once."""
    done = {Stage.RESERVED: Stage.HELD, Stage.RELEASING: Stage.RELEASED}
    records = {key: replace(record, stage=done.get(record.stage, record.stage)) for key, record in book.records.items()}
    return replace(book, records=records)


def _new(
    found: Iterable[tuple[Key, Decision]], book: Book, before: Book, at: float, decided: dict[Key, tuple[str, str]]
) -> Iterator[Event]:
    out = len(
        {record.node for record in book.records.values() if record.takes_place and record.stage is not Stage.RELEASING}
    )
    if book.tripped is not None and before.tripped is None:
        yield Event(at, None, None, book.tripped.detail, out)
    for key, decision in found:
        word = (str(decision.verdict), decision.reason)
        if decided.get(key) != word:
            decided[key] = word
            yield Event(at, key, decision, decision.detail, out)
