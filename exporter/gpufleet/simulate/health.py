"""What goes wrong with a GPU over time: errors that are counted, states that hold for a while.

All are pure functions of time. Counts since the driver was loaded are differences of these; lifetime counts are not.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR = 3_600_000
"""Milliseconds."""
FOR_EVER = 1 << 62

RECOVERY_NONE, RECOVERY_GPU_RESET, RECOVERY_NODE_REBOOT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Tally:
    """Errors of one kind: ``once`` at ``start``, and then ``per_hour`` until ``end``. Times are milliseconds."""

    kind: str
    start: int
    end: int = FOR_EVER
    once: int = 0
    per_hour: int = 0
    link: int = 0
    """For errors of an NVLink: which."""
    period: int = 0
    """The whole story starts anew after so many milliseconds; 0: never."""

    def count(self, time: int) -> int:
        """How many by ``time``."""
        if self.period:
            rounds, time = divmod(time, self.period)
            return rounds * self._count(self.period) + self._count(time)
        return self._count(time)

    def _count(self, time: int) -> int:
        if time < self.start:
            return 0
        return self.once + (min(time, self.end) - self.start) * self.per_hour // HOUR


@dataclass(frozen=True, slots=True)
class Window:
    """A time from ``start`` to before ``end`` in which something holds."""

    start: int
    end: int = FOR_EVER
    period: int = 0

    def holds(self, time: int) -> bool:
        """Whether it holds at ``time``."""
        return self.start <= (time % self.period if self.period else time) < self.end

    def last_end(self, time: int) -> int | None:
        """When it ended last, by ``time``; None where it has not ended yet."""
        rounds, local = divmod(time, self.period) if self.period else (0, time)
        if local < self.end:
            rounds -= 1
        return None if rounds < 0 else rounds * self.period + self.end

    def next_start(self, time: int) -> int | None:
        """When it begins next after ``time``; None where it does not any more."""
        if not self.period:
            return self.start if time < self.start else None
        rounds, local = divmod(time, self.period)
        return (rounds + (local >= self.start)) * self.period + self.start

    def left(self, time: int) -> int:
        """Milliseconds until it ends; only while it holds."""
        return self.end - (time % self.period if self.period else time)


@dataclass(frozen=True, slots=True)
class Condition:
    """A flag or code that a GPU shows for a while: ``row_remap_pending``, ``recovery_action``, ..."""

    kind: str
    window: Window
    value: int = 1


@dataclass(frozen=True, slots=True)
class Heat:
    """Cooling that fails: the GPU goes to ``celsius`` whatever it draws, within some ``lag`` milliseconds."""

    window: Window
    celsius: int
    lag: int = 40_000


@dataclass(frozen=True, slots=True)
class ScheduledXid:
    """An Xid that the driver reports at ``at`` milliseconds."""

    code: int
    at: int
    period: int = 0

    def latest(self, time: int) -> int | None:
        """When it was last reported, by ``time``; None where it has not been yet."""
        if time < self.at:
            return None
        return self.at + (time - self.at) // self.period * self.period if self.period else self.at

    def following(self, time: int) -> int | None:
        """When it is reported next after ``time``; None where it is not any more."""
        if time < self.at:
            return self.at
        return self.at + ((time - self.at) // self.period + 1) * self.period if self.period else None


@dataclass(frozen=True, slots=True)
class Hang:
    """For a while every call on the GPU that comes (or one function alone) does not return."""

    window: Window
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Troubles:
    """All that goes wrong with one GPU."""

    tallies: tuple[Tally, ...] = ()
    conditions: tuple[Condition, ...] = ()
    heats: tuple[Heat, ...] = ()
    losses: tuple[Window, ...] = ()
    hangs: tuple[Hang, ...] = ()
    xids: tuple[ScheduledXid, ...] = ()
    lifetime: tuple[tuple[str, int], ...] = ()
    """Counts that the InfoROM brought from before: (kind, count)."""


NO_TROUBLE = Troubles()
