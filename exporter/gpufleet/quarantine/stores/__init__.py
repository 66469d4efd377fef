"""Where the ledger's book lies: a local file (Slurm, one box) or ConfigMaps (Kubernetes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpufleet.quarantine.book import Book


class ConflictError(Exception):
    """Somebody has written since the book was loaded: load again, decide again."""


class StoreError(Exception):
    """The book cannot be loaded or written now; says what, and what to do. Nothing was changed, as far as is known."""


class FullError(StoreError):
    """The book has become too big for its place."""


@dataclass(frozen=True, slots=True)
class Held:
    """A book as it was loaded or written, and the version that a write must still find."""

    book: Book
    version: str


class Store(Protocol):
    """Loads and writes by compare-and-swap; a write that returned is durable."""

    def load(self) -> Held:
        """The book as it lies there now; an empty one at first. Raises StoreError."""
        ...

    def save(self, book: Book, version: str) -> Held:
        """Write where the version is still the one given. Raises ConflictError, FullError, StoreError."""
        ...
