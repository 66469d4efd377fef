"""The outside worlds that a quarantine changes: one module or package each, and a dry run in place of any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpufleet.quarantine.record import Record, Step
    from gpufleet.quarantine.view import View


class UnobservableError(Exception):
    """The other side cannot be read now: nothing may be decided or done by what is not seen. Says what and why."""


class Actuator(Protocol):
    """Does and undoes; idempotent: each call looks first, and repeats nothing that is so already.

    Every write is conditional (resourceVersion, UID, restart count) and stands in the audit before and after. A call
    deals with everything that it can and returns a step for each thing, those that failed included; it raises
    UnobservableError only when it could not even look.
    """

    def view(self) -> View:
        """The nodes now."""
        ...

    def mark(self, record: Record) -> tuple[Step, ...]:
        """Take the node out and write on it why; one that somebody else has out stays as it is and bears our mark."""
        ...

    def move(self, record: Record) -> tuple[Step, ...]:
        """Move what held the broken GPU (``record.incident.holders``), without costing it a retry; nothing else."""
        ...

    def refund(self, record: Record) -> tuple[Step, ...]:
        """Give back retries that the fault has cost already: once for each pod, and not for those in ``refunded``."""
        ...

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """Take off our mark and nothing else; ``last``: no other incident holds the node."""
        ...
