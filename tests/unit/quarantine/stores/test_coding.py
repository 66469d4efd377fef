"""A book as JSON and back."""

from __future__ import annotations

import json

import pytest

from gpufleet.quarantine.book import Book, Seen, Tripped
from gpufleet.quarantine.record import Outcome, Stage, Step
from gpufleet.quarantine.stores.coding import VERSION, CodingError, decode, encode
from tests.support.quarantine_records import incident, record, refused

RECORD = {
    "changed_at",
    "decided_at",
    "decision",
    "heard_at",
    "incident",
    "marked_at",
    "node",
    "pool",
    "refunded",
    "released_by",
    "resolved_at",
    "scope",
    "stage",
    "steps",
    "was_cordoned",
}
INCIDENT = {
    "action",
    "blame",
    "fault",
    "gpu",
    "holders",
    "isolate",
    "key",
    "labels",
    "pci_bus_id",
    "refund",
    "since",
    "uuid",
}


def book() -> Book:
    """A book with something in every part."""
    steps = (Step("cordon", "node/gpu-1", Outcome.DONE, "…"), Step("evict", "pod/a/b@1", Outcome.BLOCKED))
    first = record(
        stage=Stage.HELD, steps=steps, refunded=("u1", "u2"), marked_at=1.5, resolved_at=2.5, released_by="é"
    )
    second = refused(incident("gpu-2", "i-2", labels=(("a", "b"), ("c", "d"))))
    return Book(
        {each.key: each for each in (first, second)},
        placed_at=(1.0, 2.25),
        seen=(Seen(1.0, "gpu-1", "a100", "79"),),
        tripped=Tripped(3.0, "same_fault", "three of them"),
    )


@pytest.mark.parametrize("given", [Book(), book()])
def test_a_book_comes_back_as_it_was(given: Book) -> None:
    """Nothing is lost, rounded or changed in type."""
    assert decode(encode(given)) == given


def test_the_same_book_is_the_same_bytes() -> None:
    """Whatever order its records were made in."""
    given = book()
    turned = Book(dict(reversed(list(given.records.items()))), given.placed_at, given.seen, given.tripped)

    assert encode(turned) == encode(given)


def test_what_a_book_holds_is_pinned_to_its_version() -> None:
    """A field that is added, renamed or dropped needs a new version: change both together."""
    sheet = json.loads(encode(book()))
    fields = {name: sorted(sheet[name][0]) for name in ("records", "seen")}
    step, holder = sheet["records"][0]["steps"][0], sheet["records"][0]["incident"]["holders"][0]

    assert (VERSION, sorted(sheet)) == (1, ["placed_at", "records", "seen", "tripped", "version"])
    assert sorted(sheet["tripped"]) == ["at", "detail", "reason"]
    assert sorted(step) == ["action", "detail", "outcome", "target"]
    assert sorted(holder) == ["container", "namespace", "pod", "project", "run", "task"]
    assert fields["seen"] == ["at", "fault", "node", "pool"]
    assert fields["records"] == sorted(RECORD)
    assert sorted(sheet["records"][0]["incident"]) == sorted(INCIDENT)


def test_a_newer_ledger_is_left_alone() -> None:
    """An older release would drop what it does not know, and write the rest back."""
    with pytest.raises(CodingError, match="version 2, and this release of gpufleet knows version 1; run the release"):
        decode(b'{"version":2,"records":[],"shiny":{}}')


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"version":"1"}',
        b'{"version":1,"more":0}',
        b'{"version":1,"records":[{}]}',
        encode(book()).replace(b'"held"', b'"hold"'),
        encode(book())[:-20],
    ],
)
def test_what_is_no_ledger_says_so(content: bytes) -> None:
    """Whatever lies there."""
    with pytest.raises(CodingError, match="no ledger of gpufleet"):
        decode(content)
