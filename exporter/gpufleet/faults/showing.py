"""What time brings: cases that have settled are shown, quiet ones are closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults import gathering
from gpufleet.faults.assessment import is_owners_doing
from gpufleet.faults.case import Frozen
from gpufleet.faults.repeats import MOST_ISOLATIONS, Stamp, link_token
from gpufleet.faults.settling import BURST_SECONDS, QUIET_SECONDS
from gpufleet.model.fault import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.faults.case import Case
    from gpufleet.faults.docket import Docket

NEEDS_NO_CURE = frozenset({Action.NONE, Action.RESTART_APPLICATION})


def settle(docket: Docket, clock: float, still_true: Callable[[Case], float]) -> None:
    """Show what has settled by ``clock`` and close what was quiet, each in its turn.

    ``still_true`` gives the last time at which a polled condition of a case held: that is no silence.
    """
    # Each step shows, closes or gives away a case, and a case is shown and closed at most once.
    for _ in range(2 * len(docket.open) + 2):
        at = deadline(docket, still_true)
        if at is None or at > clock:
            return
        _step(docket, at, still_true)


def deadline(docket: Docket, still_true: Callable[[Case], float]) -> float | None:
    """When ``settle`` has something to do next, as far as is known now; None for never."""
    times = (_next(case, still_true) for case in docket.open.values())
    return min((at for at in times if at is not None), default=None)


def _step(docket: Docket, clock: float, still_true: Callable[[Case], float]) -> None:
    for case in list(docket.open.values()):
        at = _next(case, still_true)
        if case.id not in docket.open or at is None or at > clock:
            continue
        if case.frozen is not None:
            docket.close(case, "three quiet hours", clock)
        elif case.due is None:
            docket.drop(case)
        elif not gathering.settle_among(docket, case):
            _show(docket, case, clock)


def _next(case: Case, still_true: Callable[[Case], float]) -> float | None:
    if case.frozen is None:
        due = case.due
        return due if due is not None else case.last_at + BURST_SECONDS
    if case.action in NEEDS_NO_CURE and case.yielded_to is None:
        return max(case.last_at, still_true(case)) + QUIET_SECONDS
    return None


def _show(docket: Docket, case: Case, clock: float) -> None:
    repeats = docket.world.repeats
    root = case.judged.root
    if root is None:
        return
    case.suspect = repeats.is_suspect(case, root.token)
    assessed = case.assess()
    tenant = case.owner.tenant
    if assessed.isolate and is_owners_doing(assessed.blame) and tenant:
        case.capped = repeats.isolated(tenant, case.last_at, case.lineage) >= MOST_ISOLATIONS
        assessed = case.assess()
        if not case.capped:
            repeats.record_isolation(tenant, Stamp(case.last_at, case.lineage))
    case.frozen = Frozen(clock, root.token, assessed.blame, assessed.action, assessed.isolate, assessed.refund)
    _record(docket, case)
    before = docket.open.get(case.successor_of or "")
    if before is not None:
        docket.close(before, f"taken over by {case.id}", clock)
    docket.revision += 1


def identify(docket: Docket, case: Case, uuid: str, gpu: int | None) -> None:
    """Say whose address it is that a case is about. The one thing that is added to what was shown already."""
    if case.uuid == uuid and case.gpu == gpu:
        return
    case.uuid, case.gpu = uuid, gpu if gpu is not None else case.gpu
    if case.frozen is not None:
        _record(docket, case)
    docket.revision += 1


def _record(docket: Docket, case: Case) -> None:
    if case.uuid is None:
        return
    tokens = [token for token, seen in case.seen.items() if seen.verdict.opens]
    tokens += [link_token(link) for link in case.links]
    stamp = Stamp(case.began_at, case.lineage, case.owner.tenant, case.unit)
    docket.world.repeats.record(case.uuid, tokens, stamp)
