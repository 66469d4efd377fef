"""What a case comes down to: its root, whose fault it is, what cures it. A pure function of the case.

Within the first seconds the order of the lines means nothing (a line may come before its own cause), so the weightiest
code is the root. A later line takes over only when it asks for more than the case does already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.faults.condition_rows import RECOVERY
from gpufleet.faults.entry import FaultClass, heaviest
from gpufleet.faults.settling import PROPAGATION_SECONDS
from gpufleet.faults.verdict import is_tenants
from gpufleet.model.fault import Action, Blame

if TYPE_CHECKING:
    from gpufleet.faults.case import Case, Frozen, Seen
    from gpufleet.faults.verdict import Verdict

_ACTIONS = list(Action)
_PAGE_FAULT, _HALT = "31", "62"
_SYSTEM_PROCESSOR = frozenset({"119", "120", "175"})
_BOARD_FLASH = frozenset({"122", "123", "124"})


@dataclass(frozen=True, slots=True)
class Assessment:
    """Root, blame and cure of a case; ``root`` is ``None`` while nothing in it makes an incident."""

    root: Verdict | None
    blame: Blame
    action: Action
    isolate: bool
    refund: bool
    due: float | None
    """When it may be shown."""
    sticky: bool = False
    """Its echoes come for hours."""
    notes: tuple[str, ...] = ()


_NOTHING = Assessment(None, Blame.UNKNOWN, Action.NONE, isolate=False, refund=False, due=None)


def assess(case: Case) -> Assessment:
    """Judge a case by everything that it holds."""
    ranked = sorted((seen for seen in case.seen.values() if seen.verdict.opens), key=lambda seen: seen.first_at)
    if not ranked:
        return _NOTHING
    early = [seen for seen in ranked if seen.first_at <= ranked[0].first_at + PROPAGATION_SECONDS]
    early = _without_consequences(early, case)
    root = min((seen.verdict for seen in early), key=lambda verdict: verdict.order)
    action = heaviest(*(seen.verdict.action for seen in early))
    isolate = any(_isolates(seen.verdict, case) for seen in early)
    early_tokens = {seen.verdict.token for seen in early}
    for verdict in (seen.verdict for seen in ranked if seen.verdict.token not in early_tokens):
        asks_more = outweighs(verdict.action, action) or (_isolates(verdict, case) and not isolate)
        if asks_more and verdict.order < root.order:
            root = verdict
        action = heaviest(action, verdict.action)
        isolate = isolate or _isolates(verdict, case)
    notes: list[str] = []
    if isolate and _repaired(case):
        isolate = False
        notes.append(
            "The bad memory was set aside and the error confined to one job: the GPU works on until its reset."
        )
    if root.token in _BOARD_FLASH and _PAGE_FAULT in case.seen:
        action = heaviest(action, Action.RESET_GPU)
        notes.append("The page fault follows from the board's flash: the job is innocent.")
    blame = _blame(case, root, notes)
    asked = case.seen.get(RECOVERY)
    if asked is not None and root is not asked.verdict:
        notes.append(f"The driver itself asks for: {asked.verdict.action.value.replace('_', ' ')}.")
    if isolate and case.capped and is_owners_doing(blame):
        isolate = False
        notes.append("This owner's programs have isolated GPUs too often: the node is not isolated for it again.")
    refund = blame is Blame.HARDWARE and not is_tenants(root.token)
    fresh = [seen for seen in case.fresh().values() if seen.verdict.opens] or ranked
    due = min(max(seen.first_at, case.fresh_from) + seen.verdict.settles for seen in fresh)
    sticky = any(seen.verdict.sticky for seen in ranked)
    return Assessment(root, blame, action, isolate, refund, due, sticky, tuple(notes))


def escalates(shown: Frozen, now: Assessment) -> bool:
    """Whether what is known by now says more than what was shown: it asks for more, or names another root to blame."""
    if now.root is None:
        return False
    other_blame = (now.blame, now.refund) != (shown.blame, shown.refund)
    return (
        outweighs(now.action, shown.action)
        or (now.isolate and not shown.isolate)
        or (now.root.token != shown.fault and other_blame)
    )


def is_owners_doing(blame: Blame) -> bool:
    """Whether the program that ran may have brought it about."""
    return blame in {Blame.APPLICATION, Blame.UNKNOWN}


def outweighs(one: Action, other: Action) -> bool:
    """Whether an action includes the other one and more."""
    return _ACTIONS.index(one) > _ACTIONS.index(other)


def _isolates(verdict: Verdict, case: Case) -> bool:
    return verdict.isolates and (not verdict.needs_victim or case.confirmed)


def _without_consequences(early: list[Seen], case: Case) -> list[Seen]:
    """A link that fails and the driver's verdict on it leave the system processor without an answer, not reversely."""
    if RECOVERY not in case.seen or not any(
        seen.verdict.link and seen.verdict.action.value != "none" for seen in early
    ):
        return early
    return [seen for seen in early if seen.verdict.token not in _SYSTEM_PROCESSOR]


def _repaired(case: Case) -> bool:
    """A double-bit error (48) whose row was set aside (63) and whose damage was contained (94): nothing else isolates.

    The driver's manual asks for a reset at the next idle moment, no sooner.
    """
    isolating = {seen.verdict.token for seen in case.seen.values() if _isolates(seen.verdict, case)}
    return isolating == {"48"} and "63" in case.seen and "94" in case.seen


def _blame(case: Case, root: Verdict, notes: list[str]) -> Blame:
    if case.of_application and root.fault_class not in {FaultClass.HARDWARE, FaultClass.DRIVER_OR_FIRMWARE}:
        notes.append("The same kind of fault came on three or more GPUs within a minute: one program, not the GPUs.")
        return Blame.APPLICATION
    if case.suspect and is_tenants(root.token):
        notes.append("Programs of several owners failed the same way on this GPU: have it tested before the next job.")
        return Blame.HARDWARE
    fault, halt = case.seen.get(_PAGE_FAULT), case.seen.get(_HALT)
    if root.token == _HALT and fault is not None and halt is not None and fault.first_at < halt.first_at:
        # A program that a tenant can write led here; nobody can tell whether this one is known to be good.
        notes.append("A page fault of the program came first.")
        return Blame.APPLICATION
    if root.fault_class is FaultClass.EITHER and any(
        seen.verdict.fault_class is FaultClass.APPLICATION and seen.verdict.opens for seen in case.seen.values()
    ):
        return Blame.APPLICATION
    return root.blame
