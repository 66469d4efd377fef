"""What one event means: its code's entry, corrected by what its text says beyond the code.

The driver's later verdict (Xid 154, the recovery action) weighs more than all of this; it is for those who put events
together.
"""

from __future__ import annotations

from dataclasses import replace

from gpufleet.faults import nvlink5, nvlink_registers, sxids, xids
from gpufleet.faults.entry import Entry, FaultClass, Severity
from gpufleet.faults.nvlink5_rows import End
from gpufleet.faults.nvlink_registers import LinkVerdict
from gpufleet.model.fault import Action, FaultEvent, FaultKind

_OSINIT = "https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/nvidia/arch/nvalloc/unix/src/osinit.c"
_KNVLINK = "https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/nvidia/src/kernel/gpu/nvlink"

_GPU_LOST = replace(
    xids.lookup(79),
    code=None,
    summary="The driver or the kernel finds the GPU no longer on the bus. No program can use it.",
    source=_OSINIT,
)
_INIT_FAILED = replace(
    xids.lookup(143),
    code=None,
    summary="The driver could not bring the GPU up when somebody opened it.",
    source=_OSINIT,
)
_LINK_DISCOVERY = Entry(
    code=None,
    name="NVLink discovery stuck",
    summary="The driver asks a GPU for its links again and again and gets no answer; calls into the driver may hang.",
    fault_class=FaultClass.EITHER,
    action=Action.NONE,
    severity=Severity.DEGRADED,
    remedy="Look for hanging programs and nvidia-smi; reboot the node when they hang.",
    source=_KNVLINK,
    rank=19,
)
_CONDITION = Entry(
    code=None,
    name="condition",
    summary="A state that was polled.",
    fault_class=FaultClass.UNKNOWN,
    action=Action.NONE,
    severity=Severity.DEGRADED,
    remedy="",
    source=__name__,
)

_FATAL_LINK_RANK = 11
_OTHER_LINK_RANK = 19

# nvml.h, NVML_GPU_RECOVERY_ACTION_*; 6 and 7 from NVML 13 on. Draining P2P or an IMEX domain ends jobs, no more.
_RECOVERY = {
    0: Action.NONE,
    1: Action.RESET_GPU,
    2: Action.REBOOT_NODE,
    3: Action.RESTART_APPLICATION,
    4: Action.DRAIN_AND_RESET,
    5: Action.RESTART_APPLICATION,
    6: Action.RESET_GPU,
    7: Action.REBOOT_NODE,
}
_USABLE = frozenset({Action.NONE, Action.RESTART_APPLICATION})


def recovery(code: int) -> Action:
    """The action that the driver asks for with Xid 154 or its recovery action; none for a value we do not know."""
    return _RECOVERY.get(code, Action.NONE)


def isolates(action: Action) -> bool:
    """Whether a GPU for which the driver asks this is of no use until it is done."""
    return action not in _USABLE


def class_of(event: FaultEvent) -> FaultClass:
    """How the event's code is classed, whatever its text says: the word that ``gpufleet faults --json`` prints."""
    return _by_code(event, None).fault_class


def entry_of(event: FaultEvent, driver: str | None = None) -> Entry:
    """What the event means to a driver of that version."""
    entry = _by_code(event, driver)
    if event.kind is not FaultKind.XID or event.code is None:
        return entry
    if event.code in nvlink5.XIDS and entry.fault_class is not FaultClass.UNKNOWN:
        return _nvlink5(entry, event, event.code, driver)
    if event.code == 74:
        return _nvlink4(entry, event)
    if event.code in {94, 95} and event.needs_reset is not None:
        return _memory(entry, reset=event.needs_reset, drain=event.needs_drain is True)
    if event.code == 154 and event.recovery_action is not None:
        action = recovery(event.recovery_action)
        return replace(entry, action=action, isolates=isolates(action))
    return entry


def _by_code(event: FaultEvent, driver: str | None) -> Entry:
    match event.kind:
        case FaultKind.XID if event.code is not None:
            return xids.lookup(event.code, driver)
        case FaultKind.SXID if event.code is not None:
            return sxids.lookup(event.code, event.fatal, driver)
        case FaultKind.GPU_LOST:
            return _GPU_LOST
        case FaultKind.RM_INIT_FAILED:
            return _INIT_FAILED
        case FaultKind.NVLINK:
            return _LINK_DISCOVERY
        case _:
            return _CONDITION


def _memory(entry: Entry, *, reset: bool, drain: bool) -> Entry:
    """An uncorrectable error whose text says whether the GPU has to be reset for it: that holds over the code."""
    if not reset and not drain:
        return replace(entry, action=Action.RESTART_APPLICATION, isolates=False)
    uncontained = xids.lookup(95)
    return replace(
        entry,
        action=Action.DRAIN_AND_RESET if drain else Action.RESET_GPU,
        isolates=True,
        severity=Severity.FATAL,
        remedy=uncontained.remedy,
        needs_repeat=False,
    )


def _nvlink4(entry: Entry, event: FaultEvent) -> Entry:
    match nvlink_registers.judge(event.registers):
        case LinkVerdict.HARMLESS:
            return replace(entry, severity=Severity.BENIGN, action=Action.NONE, isolates=False, rank=_OTHER_LINK_RANK)
        case LinkVerdict.ECHO:
            return replace(
                entry,
                summary=f"{entry.summary} The registers say that the other end went away.",
                fault_class=FaultClass.EITHER,
                isolates=False,
                needs_repeat=True,
            )
        case LinkVerdict.MARGINAL:
            return replace(entry, severity=Severity.DEGRADED, isolates=False, needs_repeat=True)
        case _:
            return entry


def _nvlink5(entry: Entry, event: FaultEvent, code: int, driver: str | None) -> Entry:
    decoded = nvlink5.decode(code, event.registers, unit=event.unit, driver=driver)
    if decoded is None:
        return entry
    told = decoded.meaning
    # A line that calls itself nonfatal isolates nothing by its registers; Xid 154 does where the driver wants it.
    needs_action = isolates(told.action)
    fatal = needs_action and event.fatal is not False
    where = "" if told.end in {End.HERE, End.UNKNOWN} else f" Look at: {told.end}."
    return replace(
        entry,
        summary=f"NVLink, unit {decoded.unit}: {told.words}.{where}",
        fault_class=told.fault_class,
        severity=told.severity,
        action=told.action,
        isolates=fatal,
        rank=_FATAL_LINK_RANK if needs_action else _OTHER_LINK_RANK,
        needs_repeat=not fatal,
    )
