"""Everything that must outlive the process: the records, and what bounds new quarantines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpufleet.quarantine.incident import Key
from gpufleet.quarantine.record import Record


@dataclass(frozen=True, slots=True)
class Tripped:
    """Why the breaker is open."""

    at: float
    """Unix time."""
    reason: str
    """A word in snake case."""
    detail: str
    """A sentence with the figures."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A fault that counts towards the breaker."""

    at: float
    """When it was first heard of here, Unix time."""
    node: str
    pool: str
    fault: str


@dataclass(frozen=True, slots=True)
class Book:
    """The ledger's content. Immutable: a change makes a new one."""

    records: Mapping[Key, Record] = field(default_factory=dict)
    placed_at: tuple[float, ...] = ()
    """When places were taken, Unix times, oldest first: for the rate. Kept for as long as the policy's window."""
    seen: tuple[Seen, ...] = ()
    """Faults within the breaker's window, oldest first."""
    tripped: Tripped | None = None
    """The breaker is open; a person resets it."""

    def with_record(self, record: Record) -> Book:
        """This book with the record in place of the one of its key."""
        return replace(self, records={**self.records, record.key: record})
