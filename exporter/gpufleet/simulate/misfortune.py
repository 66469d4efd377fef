"""What a scenario's events do to a GPU: the troubles that its driver shows, and how they hinder its work. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpufleet.simulate import health
from gpufleet.simulate.activities import (
    FREE,
    HW_POWER_BRAKE_SLOWDOWN,
    HW_SLOWDOWN,
    SW_THERMAL_SLOWDOWN,
    Hindrance,
)
from gpufleet.simulate.health import FOR_EVER, Condition, ScheduledXid, Tally, Troubles, Window
from gpufleet.simulate.profiles import Profile
from gpufleet.simulate.scenario import DriverRestart, Duration, Ecc, Event, Hang, Heat, Loss, Nvlink, PowerBrake, Xid

_WARM_UP = 60_000
"""Milliseconds from when the cooling fails to when the clock falls."""
_STEP_DOWN = 20_000
_RECOVERY_ACTIONS = {"none": 0, "gpu_reset": 1, "node_reboot": 2, "drain_p2p": 3, "drain_and_reset": 4}


@dataclass(frozen=True, slots=True)
class Slowed:
    """A time in which a GPU works hindered."""

    start: int
    end: int
    hindrance: Hindrance


def end_of(at: Duration, lasts: Duration | None) -> int:
    """When an event ends; for ever without a duration."""
    return FOR_EVER if lasts is None else at + lasts


def _warm_up(event: Heat) -> int:
    return min(_WARM_UP, event.lasts // 4)


def slowed_by(event: Event) -> tuple[Slowed, ...]:
    """How an event hinders the GPU that it happens to."""
    if isinstance(event, PowerBrake):
        hindrance = Hindrance(event.speed, HW_SLOWDOWN | HW_POWER_BRAKE_SLOWDOWN)
        return (Slowed(event.at, event.at + event.lasts, hindrance),)
    if not isinstance(event, Heat):
        return ()
    # The driver takes the clock down in steps until the temperature no longer rises.
    start, end = event.at + _warm_up(event), event.at + event.lasts
    step = min(_STEP_DOWN, (end - start) // 6)
    starts = (start, start + step, start + 2 * step)
    ends = (*starts[1:], end)
    depths = (0.35, 0.7, 1.0)
    return tuple(
        Slowed(begin, until, Hindrance(round(1 - (1 - event.speed) * depth, 3), SW_THERMAL_SLOWDOWN))
        for begin, until, depth in zip(starts, ends, depths, strict=True)
    )


def outage_of(event: Event) -> tuple[int, int] | None:
    """From when to when an event leaves the GPU unusable, if it does."""
    if isinstance(event, Loss) or (isinstance(event, Xid) and event.lost):
        return event.at, end_of(event.at, event.lasts)
    if isinstance(event, DriverRestart):
        return event.at, event.at + event.lasts
    return None


def hindrance_at(slowed: Iterable[Slowed], time: int) -> Hindrance:
    """All hindrances of a moment as one: the lowest speed, every reason."""
    speed, reasons = 1.0, 0
    for each in slowed:
        if each.start <= time < each.end:
            speed = min(speed, each.hindrance.speed)
            reasons |= each.hindrance.reasons
    return Hindrance(speed, reasons) if reasons else FREE


def troubles_of(
    events: Iterable[Event], profile: Profile, period: int, lifetime: tuple[tuple[str, int], ...]
) -> Troubles:
    """What the driver shows of the events of one GPU; ``period`` is when all of it starts again, 0 for never."""
    tallies: list[Tally] = []
    conditions: list[Condition] = []
    heats: list[health.Heat] = []
    losses: list[Window] = []
    hangs: list[health.Hang] = []
    xids: list[ScheduledXid] = []
    for event in events:
        if isinstance(event, Heat):
            window = Window(event.at, event.at + event.lasts, period)
            heats.append(health.Heat(window, event.celsius, max(1, _warm_up(event) // 3)))
        elif isinstance(event, Hang):
            hangs.append(health.Hang(Window(event.at, event.at + event.lasts, period), event.function))
        elif isinstance(event, Loss):
            losses.append(Window(event.at, end_of(event.at, event.lasts), period))
        elif isinstance(event, Xid):
            xids.append(ScheduledXid(event.code, event.at, period))
            window = Window(event.at, end_of(event.at, event.lasts), period)
            if event.lost:
                losses.append(window)
            elif event.recovery != "none":
                conditions.append(Condition("recovery_action", window, _RECOVERY_ACTIONS[event.recovery]))
        elif isinstance(event, Ecc):
            _memory_errors(event, profile, period, tallies, conditions)
        elif isinstance(event, Nvlink):
            end = end_of(event.at, event.lasts)
            kind = f"nvlink_{event.error}"
            if event.once or event.per_hour:
                tallies.append(Tally(kind, event.at, end, event.once, event.per_hour, event.link, period))
            if event.links_down:
                conditions.append(Condition("links_down", Window(event.at, end, period), event.links_down))
    return Troubles(tuple(tallies), tuple(conditions), tuple(heats), tuple(losses), tuple(hangs), tuple(xids), lifetime)


def _memory_errors(
    event: Ecc, profile: Profile, period: int, tallies: list[Tally], conditions: list[Condition]
) -> None:
    end = end_of(event.at, event.lasts)
    window = Window(event.at, end, period)

    def tally(kind: str, *, once: int = 0, per_hour: int = 0) -> None:
        if once or per_hour:
            tallies.append(Tally(kind, event.at, end, once, per_hour, 0, period))

    tally(f"ecc_correctable_{event.location}", per_hour=event.correctable_per_hour)
    tally(f"ecc_uncorrectable_{event.location}", once=event.uncorrectable)
    tally("remap_uncorrectable" if profile.row_remapping else "retired_double", once=event.remapped_rows)
    if event.remap_pending:
        conditions.append(Condition("remap_pending" if profile.row_remapping else "retired_pending", window))
        conditions.append(Condition("recovery_action", window, _RECOVERY_ACTIONS["gpu_reset"]))
    if event.remap_failed:
        conditions.append(Condition("remap_failure", window))
    if event.threshold_exceeded:
        conditions.append(Condition("sram_threshold", window))
