"""Folds events into cases: which one an event belongs to, which of them are one fault, and when they are shown.

A case is opened by its first event and shown when it has settled. What was shown stays; a line that says more opens a
successor, which closes the one before when it is shown itself. What only echoes another GPU's fault is counted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults import gathering
from gpufleet.faults.condition_rows import RECOVERY
from gpufleet.faults.peers import follows
from gpufleet.faults.settling import BURST_SECONDS, CHAIN_SECONDS, STICKY_SECONDS
from gpufleet.faults.verdict import implied
from gpufleet.model.fault import Blame
from gpufleet.model.incident import NOBODY

if TYPE_CHECKING:
    from gpufleet.faults.case import Case
    from gpufleet.faults.docket import Docket
    from gpufleet.faults.verdict import Verdict
    from gpufleet.model.fault import FaultEvent

_REMOVED = "45"
"""Channels removed: the consequence of something, which it may precede by less than a millisecond."""


def add(docket: Docket, event: FaultEvent, verdict: Verdict, now: float, count: int = 1) -> None:
    """Take an event in. ``count`` is 0 for one that was counted before."""
    address = event.pci_bus_id or ""
    case = _find(docket, event, verdict, address)
    if case is not None and address != case.address:
        case.note_echo(event, verdict.token, count)
        return
    cause: Verdict | None = None
    if case is None:
        if event.caused_by is not None and str(event.caused_by) != _REMOVED:
            if docket.was_closed(address, str(event.caused_by)):
                return
            cause = implied(event.caused_by, docket.world.driver)
        if not verdict.opens and verdict.token != _REMOVED:
            return
        case = docket.start(event, verdict.token, now)
        if case is None:
            return
    if case.knows(event, verdict):
        case.note(event, verdict, count)  # the way that a flood takes
        return
    adapted = docket.world.repeats.adapt(verdict, case, event.at, event.link)

    def note(case: Case) -> None:
        if cause is not None:
            case.note(event, cause, 0)
        case.note(event, adapted, count)

    gathering.look_around(docket, docket.change(case, note, event, verdict.token))


def ask(docket: Docket, event: FaultEvent, verdict: Verdict, now: float, count: int = 1) -> None:
    """The driver asks for a recovery action: part of that GPU's latest case, or a case that nothing else began."""
    address = event.pci_bus_id or ""
    case = _asked(docket, address, event.at) or docket.start(event, RECOVERY, now)
    if case is None:
        return

    def note(case: Case) -> None:
        if verdict.isolates:
            case.asking.setdefault(address, event.at)
        case.note(event, verdict, count)

    gathering.look_around(docket, docket.change(case, note, event, RECOVERY))


def _find(docket: Docket, event: FaultEvent, verdict: Verdict, address: str) -> Case | None:
    cases = docket.of(address)
    if event.caused_by is not None:
        cause = str(event.caused_by)
        for case in reversed(cases):
            if cause == _REMOVED or cause in case.seen or cause in case.echoes:
                return case
    return next((case for case in reversed(cases) if _takes(docket, case, event, verdict, address)), None)


def _takes(docket: Docket, case: Case, event: FaultEvent, verdict: Verdict, address: str) -> bool:
    """Whether an event belongs to a case of its address."""
    gap = abs(event.at - case.last_at)
    assessed = case.judged
    in_burst = gap <= (STICKY_SECONDS if assessed.sticky else BURST_SECONDS)
    root = assessed.root
    if address != case.address:
        if verdict.opens and root is not None and verdict.order[0] < root.order[0]:
            return False  # what was taken for an echo says more than its source
        programs = case.of_application and verdict.blame is Blame.APPLICATION
        return in_burst and (programs or follows(verdict))
    if case.isolates:
        return True  # the GPU waits for its cure: whatever it says until then belongs to the same fault
    if not in_burst or gap <= CHAIN_SECONDS:
        return in_burst
    if verdict.opens and (root is None or verdict.order < root.order):
        return False  # weightier, and too late to be the cause of what came before
    holder = docket.world.owner_of(case.uuid) if case.uuid is not None else NOBODY
    return holder.tenant in {"", case.owner.tenant} or case.owner.tenant == ""


def _asked(docket: Docket, address: str, at: float) -> Case | None:
    newest_first = reversed(docket.of(address))
    for case in sorted(newest_first, key=lambda case: case.address != address):
        window = STICKY_SECONDS if case.judged.sticky else BURST_SECONDS
        if case.isolates or address in case.asking or abs(at - case.last_at) <= window:
            return case
    return None
