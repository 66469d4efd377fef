"""What closes an incident that needs a cure: proof that the cure was applied, never the mere lack of new events.

``replace`` is cured when the board leaves the node, ``reboot`` by a new boot, a reset by the driver's recovery action
that is none again or by counters that began anew. Each function closes what its proof is good for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults.condition_rows import MISSING, RECOVERY, RESET_REQUIRED
from gpufleet.model.fault import Action

if TYPE_CHECKING:
    from gpufleet.faults.case import Case
    from gpufleet.faults.docket import Docket

CURED_BY_RESET = frozenset({Action.RESET_GPU, Action.DRAIN_AND_RESET})
_INIT = frozenset({"143", "rm_init_failed"})
_NOT_STARTED = frozenset({*_INIT, RECOVERY, RESET_REQUIRED, MISSING})
_ONLY_MISSING = frozenset({MISSING, RECOVERY, RESET_REQUIRED})

NO_RESETS = frozenset({0, 3, 5})
"""Recovery actions that ask for no reset: to leave one of them proves none."""


def recovered(docket: Docket, address: str, at: float) -> None:
    """The driver asks for nothing any more for this GPU, after it did."""
    for case in docket.of(address):
        case.asking.pop(address, None)
        _cure(docket, case, address, "the driver's recovery action is back to none", at)


def was_reset(docket: Docket, address: str, *, before: float, at: float, because: str) -> None:
    """The GPU was reset: it cures what happened up to ``before``."""
    for case in docket.of(address):
        if case.last_at <= before:
            _cure(docket, case, address, because, at)


def started(docket: Docket, address: str, at: float) -> None:
    """The GPU answers: cures what said that it could not be started, and nothing else."""
    for case in docket.of(address):
        tokens = _opening(case)
        if tokens <= _NOT_STARTED and not tokens.isdisjoint(_INIT) and not case.asking:
            _cure(docket, case, address, "the GPU was started again and answers", at)


def is_back(docket: Docket, address: str, at: float) -> None:
    """A GPU that was missing is enumerated again."""
    for case in docket.of(address):
        tokens = _opening(case)
        if MISSING in tokens and tokens <= _ONLY_MISSING:
            docket.close(case, "the GPU is there again", at)


def left(docket: Docket, uuid: str, at: float) -> None:
    """The board is in this node no more."""
    for case in list(docket.open.values()):
        if case.uuid == uuid and not case.switch:
            docket.close(case, "the GPU left the node", at)


def rebooted(docket: Docket, at: float) -> None:
    """The node was rebooted, by proof of its boot id."""
    for case in list(docket.open.values()):
        if case.judged.root is None:
            docket.drop(case)
        elif case.action is Action.REBOOT_NODE:
            docket.close(case, "the node was rebooted", at)
        elif case.action in CURED_BY_RESET and not waits_for(case) - {""}:
            docket.close(case, "the node was rebooted", at)  # a switch's, or of no GPU that is known: none can prove it
        else:
            case.earlier_boot = True
            case.asking.clear()


def answers_after_reboot(docket: Docket, address: str, at: float) -> None:
    """A GPU answers in a new boot: its counters began anew with it."""
    for case in docket.of(address):
        if case.earlier_boot:
            _cure(docket, case, address, "the GPU was reset by the reboot", at)


def cleared(docket: Docket, incident: str, at: float) -> bool:
    """A person says that it is over; false when no such incident is open."""
    case = docket.open.get(incident)
    if case is None:
        return False
    successor = docket.open.get(case.yielded_to or "")
    if successor is not None:
        docket.close(successor, "cleared by a person", at)
    docket.close(case, "cleared by a person", at)
    return True


def waits_for(case: Case) -> set[str]:
    """Addresses of the GPUs that have to be reset before the case is over."""
    waiting = set(case.asking)
    if not case.switch:
        waiting.add(case.address)
    else:
        waiting.update(case.members)
    return waiting - set(case.cured)


def _cure(docket: Docket, case: Case, address: str, because: str, at: float) -> None:
    if case.action not in CURED_BY_RESET:
        return
    if address not in case.cured:
        case.cured.append(address)
    if not waits_for(case):
        docket.close(case, because, at)


def _opening(case: Case) -> set[str]:
    return {token for token, seen in case.seen.items() if seen.verdict.opens}
