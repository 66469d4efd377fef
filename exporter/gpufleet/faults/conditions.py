"""Polled signals of a GPU: what has become true, what the driver asks for, and what proves a reset. Pure.

A condition is told when it becomes true, not at each poll, and stays known over restarts: what a person has cleared is
not told again while it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.faults.condition_rows import (
    ECC,
    ECC_SRAM,
    FABRIC,
    LOST,
    REMAP_FAILURE,
    REMAP_PENDING,
    RESET_REQUIRED,
    SRAM_THRESHOLD,
)
from gpufleet.model.state import GpuState

if TYPE_CHECKING:
    from gpufleet.faults.readouts import Readout
    from gpufleet.model.snapshot import GpuSnapshot

STARTED_SECONDS = 60.0
"""A GPU that could not be started counts as started after it has answered for so long."""
SETTLED_SECONDS = 60.0
"""A reset whose moment is not known exactly cures what came before it when nothing new came for so long."""


@dataclass(slots=True)
class Polled:
    """What the last polls said of one board. Kept over restarts."""

    address: str
    true: dict[str, float] = field(default_factory=dict)
    """Conditions that hold, and when they were last seen to."""
    recovery: int | None = None
    energy: float | None = None
    uncorrectable: float | None = None
    """ECC errors since the driver was loaded."""
    sram: float | None = None
    counted_at: float = 0.0
    """Of ``energy`` and the errors."""
    reset_seen_at: float | None = None
    """When the counters were seen to have begun anew."""
    reset_after: float = 0.0
    """The last poll before that."""
    ok_since: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What one poll of one board brought."""

    rose: tuple[str, ...] = ()
    """Conditions that have become true."""
    fell: tuple[tuple[str, float], ...] = ()
    """Conditions that hold no more, and when they last did."""
    asks: int | None = None
    """Code of a recovery action that the driver has begun to ask for."""
    asks_nothing: bool = False
    """The driver was asked, and wants nothing."""
    remapped: bool = False
    """Rows that waited for it were replaced: only a reset does that."""
    usable_again: bool = False
    """A GPU that refused every call until its reset takes calls."""


def changes(polled: Polled, gpu: GpuSnapshot, readout: Readout, now: float) -> Changes:
    """Compare a poll with the last one and keep it in ``polled``."""
    if gpu.state is not GpuState.OK:
        polled.ok_since = None
        state = {GpuState.LOST: LOST, GpuState.RESET_REQUIRED: RESET_REQUIRED}.get(gpu.state)
        return Changes() if state is None else Changes(rose=_raise(polled, {state}, now))
    if polled.ok_since is None:
        polled.ok_since = now
    usable_again = polled.true.pop(RESET_REQUIRED, None) is not None
    polled.true.pop(LOST, None)
    _notice_reset(polled, readout, now)
    true = _true(readout)
    true |= _risen(polled, readout)
    remapped = readout.remap_pending is False and polled.true.get(REMAP_PENDING) is not None
    fell = tuple((name, at) for name, at in polled.true.items() if name not in true and _was_read(name, readout))
    for name, _ in fell:
        del polled.true[name]
    rose = _raise(polled, true, now)
    for name in (ECC, ECC_SRAM):
        polled.true.pop(name, None)  # a count that rose is an event, not a state
    asks = readout.recovery if readout.recovery and readout.recovery != polled.recovery else None
    if readout.recovery is not None:
        polled.recovery = readout.recovery
    _keep_counters(polled, readout, now)
    return Changes(rose, fell, asks, readout.recovery == 0, remapped, usable_again)


def _true(readout: Readout) -> set[str]:
    true = {f"{FABRIC}{issue}" for issue, holds in readout.fabric if holds}
    if readout.remap_pending:
        true.add(REMAP_PENDING)
    if readout.remap_failure:
        true.add(REMAP_FAILURE)
    if readout.sram_threshold:
        true.add(SRAM_THRESHOLD)
    return true


def _risen(polled: Polled, readout: Readout) -> set[str]:
    """Uncorrectable errors that have come since the last poll. Those that were there before the first are history."""
    if polled.reset_seen_at is not None and polled.reset_seen_at > polled.counted_at:
        return set()
    if _more(readout.sram, polled.sram) and readout.sram_threshold is None:
        return {ECC_SRAM}
    return {ECC} if _more(readout.sram, polled.sram) or _more(readout.uncorrectable, polled.uncorrectable) else set()


def _more(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now > before


def _was_read(name: str, readout: Readout) -> bool:
    """Whether the poll would have told the condition: what was not read keeps its last word."""
    if name.startswith(FABRIC):
        return any(f"{FABRIC}{issue}" == name for issue, _ in readout.fabric)
    read = {
        REMAP_PENDING: readout.remap_pending,
        REMAP_FAILURE: readout.remap_failure,
        SRAM_THRESHOLD: readout.sram_threshold,
    }
    return read.get(name) is not None


def _raise(polled: Polled, true: set[str], now: float) -> tuple[str, ...]:
    rose = tuple(sorted(true - polled.true.keys()))
    for name in true:
        polled.true[name] = now
    return rose


def _notice_reset(polled: Polled, readout: Readout, now: float) -> None:
    """Energy that is less than it was, and ECC errors that are fewer if there were any: both count from a reset on."""
    if polled.energy is None or readout.energy is None or readout.energy >= polled.energy:
        return
    had_errors = polled.uncorrectable is not None and polled.uncorrectable > 0
    if had_errors and not (readout.uncorrectable is not None and _more(polled.uncorrectable, readout.uncorrectable)):
        return
    polled.reset_seen_at, polled.reset_after = now, polled.counted_at


def _keep_counters(polled: Polled, readout: Readout, now: float) -> None:
    if readout.energy is not None:
        polled.energy, polled.counted_at = readout.energy, now
    if readout.uncorrectable is not None:
        polled.uncorrectable = readout.uncorrectable
    if readout.sram is not None:
        polled.sram = readout.sram
