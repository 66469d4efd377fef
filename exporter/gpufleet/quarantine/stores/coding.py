"""A book as JSON and back, for whatever it lies in. Pure.

A field that is added, renamed or dropped anywhere in a book makes a new version: two replicas of different releases
share one ledger while an update rolls, and the older one would lose in silence what it does not know.
"""

from __future__ import annotations

import msgspec

from gpufleet.quarantine.book import Book, Seen, Tripped
from gpufleet.quarantine.record import Record

VERSION = 1


class CodingError(Exception):
    """This is no book that we can read; says why, and what to do."""


class _Sheet(msgspec.Struct, forbid_unknown_fields=True):
    """A book with its records in a list: JSON's keys are texts."""

    version: int
    records: tuple[Record, ...] = ()
    placed_at: tuple[float, ...] = ()
    seen: tuple[Seen, ...] = ()
    tripped: Tripped | None = None


class _Versioned(msgspec.Struct):
    version: int


def encode(book: Book) -> bytes:
    """The book as JSON; the same bytes for the same book."""
    records = tuple(book.records[key] for key in sorted(book.records))
    return msgspec.json.encode(_Sheet(VERSION, records, book.placed_at, book.seen, book.tripped))


def decode(content: bytes) -> Book:
    """The book of ``encode``. Raises CodingError."""
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise CodingError(
                f"the ledger is of version {version}, and this release of gpufleet knows version {VERSION}; "
                f"run the release that wrote it"
            )
        sheet = msgspec.json.decode(content, type=_Sheet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CodingError(f"this is no ledger of gpufleet: {error}; put a copy back, or move it aside") from error
    return Book({record.key: record for record in sheet.records}, sheet.placed_at, sheet.seen, sheet.tripped)
