"""One write, announced in the audit, made, and its outcome noted there: the only way in which anything is written."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError, NotFoundError, TooManyRequestsError
from gpufleet.quarantine.audit import Audit, AuditError
from gpufleet.quarantine.incident import Key
from gpufleet.quarantine.record import Outcome, Step

Refused = Callable[[ApiError], Outcome | None]


def outcome_of(error: ApiError) -> Outcome:
    """What an error means for who wanted the write."""
    if isinstance(error, NotFoundError):
        return Outcome.GONE
    if isinstance(error, TooManyRequestsError) and error.disruption_budget:
        return Outcome.BLOCKED
    return Outcome.FAILED


class Writer:
    """Makes writes for one incident."""

    def __init__(self, audit: Audit, key: Key) -> None:
        self._audit = audit
        self._key = key

    def write(
        self, action: str, target: str, act: Callable[[], object], *, meaning: Refused | None = None, **facts: str
    ) -> Step:
        """Have ``act`` write; ``facts`` are what it depends on and what it changes.

        ``meaning`` says of an error what it means here, or None for what it means in general. Without its lines in the
        audit nothing counts as done.
        """
        try:
            intent = self._audit.intend(action, target, self._key, **facts)
            outcome, detail = Outcome.DONE, ""
            try:
                act()
            except ApiError as error:
                outcome, detail = (meaning and meaning(error)) or outcome_of(error), str(error)
            intent.result(outcome, detail)
        except AuditError as error:
            return Step(action, target, Outcome.FAILED, str(error))
        return Step(action, target, outcome, detail)
