"""What one event adds to an incident: its token, and what it means there.

A token is what an incident counts events by and what ``fault`` is called after: the number of an Xid, ``sxid_20034``,
``gpu_lost``, or the name of a condition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gpufleet.faults import catalogue
from gpufleet.faults.condition_rows import CONDITIONS, FABRIC, LOST, MISSING, RECOVERY
from gpufleet.faults.entry import BLAMES, Entry, FaultClass, Severity
from gpufleet.faults.settling import LINK_XIDS, delay_of
from gpufleet.model.fault import Action, Blame, FaultEvent, FaultKind

TENANT_XIDS = frozenset({8, 13, 31, 32, 43, 45, 69, 109})
"""What any program can cause at will."""

_UNNUMBERED = 1 << 20
_TOLD_BY_TEXT = frozenset({48, 74, 94, 95, 154, *range(144, 151)})
"""Xids whose text changes what they mean."""
_CONTEXT_SWITCH = "CTX SWITCH TIMEOUT"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an event means. ``rank`` orders roots, lowest first; ``None`` never is one."""

    token: str
    rank: int | None
    fault_class: FaultClass
    action: Action
    isolates: bool
    settles: float
    """Seconds until an incident that rests on it is shown."""
    summary: str = ""
    remedy: str = ""
    sticky: bool = False
    needs_repeat: bool = False
    needs_victim: bool = False
    link: bool = False
    """About a link: the fault may be at its other end."""

    @property
    def opens(self) -> bool:
        """Whether it makes an incident that is shown."""
        return self.rank is not None

    @property
    def blame(self) -> Blame:
        """Whose fault it is."""
        return BLAMES[self.fault_class]

    @property
    def order(self) -> tuple[int, bool, int, int, str]:
        """Place among the roots: the lowest is the root. The same whatever the order of the lines."""
        kind, number = _kind_and_number(self.token)
        return _UNNUMBERED if self.rank is None else self.rank, self.needs_repeat, kind, number, self.token

    @property
    def weight(self) -> tuple[bool, int, int]:
        """How much it asks for; of two events with one token the heavier counts."""
        return self.isolates, _WEIGHTS[self.action], -(_UNNUMBERED if self.rank is None else self.rank)


_WEIGHTS = {action: weight for weight, action in enumerate(Action)}


def token_of(event: FaultEvent) -> str:
    """What events of this kind are counted by."""
    match event.kind:
        case FaultKind.XID:
            return str(event.code)
        case FaultKind.SXID:
            return f"sxid_{event.code}"
        case FaultKind.CONDITION:
            return (event.condition or "condition")[:64]
    return event.kind.value


def is_tenants(token: str) -> bool:
    """Whether any program can cause it at will."""
    return token.isdigit() and int(token) in TENANT_XIDS


def verdict_of(event: FaultEvent, driver: str | None) -> Verdict:
    """What an event means to a driver of that version; an Xid 154 and a condition named so are the driver's word."""
    if event.kind is FaultKind.CONDITION:
        return condition(token_of(event))
    if event.kind is FaultKind.XID and event.code is not None and event.code not in _TOLD_BY_TEXT:
        return _by_code(event.code, driver)
    entry = catalogue.entry_of(event, driver)
    if event.code == 48 and event.kind is FaultKind.XID and _CONTEXT_SWITCH in event.text:
        # The same number for something else: field reports show it for a monitor's own channel.
        entry = replace(entry, fault_class=FaultClass.EITHER)
    return _verdict(token_of(event), entry, delay_of(event, entry), event.kind, event.code)


@lru_cache(maxsize=256)
def _by_code(code: int, driver: str | None) -> Verdict:
    """The verdict on every event of a code: the same object, so that a flood is known by it."""
    event = FaultEvent(FaultKind.XID, 0.0, "", code=code)
    entry = catalogue.entry_of(event, driver)
    return _verdict(str(code), entry, delay_of(event, entry), event.kind, code)


@lru_cache(maxsize=64)
def condition(name: str) -> Verdict:
    """What a polled condition means; one that is not known is shown and blamed on nobody."""
    entry = CONDITIONS.get(name)
    if entry is None:
        entry = replace(CONDITIONS[RECOVERY], summary=f"The condition {name} was reported.", remedy="Look at the GPU.")
    settles = 0.0 if name in {LOST, MISSING} else 30.0 if name.startswith(FABRIC) else 5.0
    return _verdict(name, entry, settles, FaultKind.CONDITION, None)


@lru_cache(maxsize=64)
def recovery(code: int) -> Verdict:
    """What it means that the driver asks for the recovery action of that code."""
    action = catalogue.recovery(code)
    return replace(
        condition(RECOVERY), action=action, isolates=catalogue.isolates(action), remedy=_RECOVERY_REMEDIES[action]
    )


@lru_cache(maxsize=64)
def implied(code: int, driver: str | None) -> Verdict:
    """What the cause means that a later line names, when its own line was missed: it isolates nothing by itself."""
    return replace(_by_code(code, driver), isolates=False)


_RECOVERY_REMEDIES = {
    Action.NONE: "Look up what the driver asks for in its documentation: this version of gpufleet does not know it.",
    Action.RESTART_APPLICATION: "End the jobs that use links to other GPUs; the driver then goes on by itself.",
    Action.RESET_GPU: "Move the work off the GPU and reset it.",
    Action.DRAIN_AND_RESET: "Drain the GPU, then reset it.",
    Action.REBOOT_NODE: "Drain the node and reboot it.",
    Action.REPLACE: "Have the GPU replaced.",
}


def _verdict(token: str, entry: Entry, settles: float, kind: FaultKind, code: int | None) -> Verdict:
    notice = entry.fault_class is FaultClass.INFORMATIONAL or (
        entry.severity is Severity.BENIGN
        and entry.action is Action.NONE
        and entry.fault_class is not FaultClass.UNKNOWN
    )
    tenants = is_tenants(token)
    return Verdict(
        token=token,
        rank=None if notice else entry.rank,
        fault_class=entry.fault_class,
        action=entry.action,
        isolates=entry.isolates and not tenants,
        settles=settles,
        summary=entry.summary,
        remedy=entry.remedy,
        sticky=entry.sticky,
        needs_repeat=entry.needs_repeat,
        needs_victim=entry.needs_victim,
        link=kind in {FaultKind.SXID, FaultKind.NVLINK} or (kind is FaultKind.XID and code in LINK_XIDS),
    )


def _kind_and_number(token: str) -> tuple[int, int]:
    """A switch names a link before the GPUs at it do, and an Xid says more than the condition it leads to."""
    if token.startswith("sxid_") and token[5:].isdigit():
        return 0, int(token[5:])
    return (1, int(token)) if token.isdigit() else (2, 0)
