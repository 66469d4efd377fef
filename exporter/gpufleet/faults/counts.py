"""How often each code was told since the node was booted: each fault once, whoever told it.

The kernel's log counts. The driver's own events (NVML) tell the same faults again, a few of them only, so one of those
counts when the log has no twin of it: the same GPU and code within five seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.model.fault import FaultEvent
from gpufleet.model.incident import ErrorCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.faults.roster import Board

TWIN_SECONDS = 5.0
MOST_ADDRESSES = 64
MOST_CODES = 32
"""… of one GPU or switch that are told apart."""
OTHER = -1
"""Code that stands for all beyond ``MOST_CODES``."""
_MOST_HELD = 64
_MOST_TWINS = 1024
_MOST_ALONE = 256


@dataclass(slots=True)
class Tally:
    """Events of one code."""

    fault_class: str
    count: int


@dataclass(slots=True)
class Counts:
    """Counts by PCI address and code, of this boot."""

    xids: dict[str, dict[int, Tally]] = field(default_factory=dict)
    """By PCI address; a GPU's, whatever board it was: ``moved`` keeps those of a board that was exchanged."""
    switches: dict[str, dict[int, Tally]] = field(default_factory=dict)
    moved: dict[str, dict[int, Tally]] = field(default_factory=dict)
    """By UUID: boards that are no longer where they were counted."""

    def add(self, table: dict[str, dict[int, Tally]], address: str, code: int, fault_class: str) -> bool:
        """Count one; false when there is no room for another GPU."""
        codes = table.get(address)
        if codes is None:
            if len(table) >= MOST_ADDRESSES:
                return False
            codes = table[address] = {}
        tally = codes.get(code)
        if tally is None and len(codes) >= MOST_CODES:
            code, fault_class = OTHER, "unknown"
            tally = codes.get(OTHER)
        if tally is None:
            # The class stays what it was first: a label that changed would start a second series.
            codes[code] = Tally(fault_class, 1)
        else:
            tally.count += 1
        return True

    def exchange(self, address: str, uuid: str) -> None:
        """Another board is at this address now: what was counted there stays with the one that left."""
        codes = self.xids.pop(address, None)
        if codes:
            _merge(self.moved.setdefault(uuid, {}), codes)

    def xid_errors(self, board_at: Callable[[str], Board | None]) -> tuple[ErrorCount, ...]:
        """Every count of a GPU, by UUID where that is known."""
        by_uuid: dict[str, dict[int, Tally]] = {}
        rows: list[ErrorCount] = []
        for uuid, codes in self.moved.items():
            _merge(by_uuid.setdefault(uuid, {}), codes)
        for address, codes in self.xids.items():
            board = board_at(address)
            if board is None:
                rows += _rows(codes, None, address)
            else:
                _merge(by_uuid.setdefault(board.uuid, {}), codes)
        for uuid, codes in by_uuid.items():
            rows += _rows(codes, uuid, None)
        return tuple(rows)

    def switch_errors(self) -> tuple[ErrorCount, ...]:
        """Every count of a switch."""
        return tuple(row for address, codes in self.switches.items() for row in _rows(codes, None, address))


@dataclass(slots=True)
class Burst:
    """Times of events that follow each other within ``TWIN_SECONDS``."""

    first: float
    last: float


@dataclass(slots=True)
class Twins:
    """Tells which events are the same fault told twice."""

    told: dict[str, Burst] = field(default_factory=dict, metadata={"stored": False})
    """The last burst of the kernel's log, by address and code."""
    alone: dict[str, deque[float]] = field(default_factory=dict)
    """Driver's events that counted, for the case that the log tells them later."""
    held: list[FaultEvent] = field(default_factory=list)
    """Driver's events that wait for their twin."""

    def log_tells(self, event: FaultEvent) -> bool:
        """Note an event of the kernel's log; false when the driver's twin of it was counted already."""
        key = _key(event)
        burst = self.told.get(key)
        if burst is not None and burst.first - TWIN_SECONDS <= event.at <= burst.last + TWIN_SECONDS:
            burst.first, burst.last = min(burst.first, event.at), max(burst.last, event.at)
        else:
            if burst is None and len(self.told) >= _MOST_TWINS:
                self.told.clear()
            self.told[key] = Burst(event.at, event.at)
        if self.held:
            self.held = [held for held in self.held if _key(held) != key or abs(held.at - event.at) > TWIN_SECONDS]
        times = self.alone.get(key)
        if times is None:
            return True
        for at in times:
            if abs(at - event.at) <= TWIN_SECONDS:
                times.remove(at)
                return False
        return True

    def is_told(self, event: FaultEvent) -> bool:
        """Whether the kernel's log has told a driver's event already."""
        burst = self.told.get(_key(event))
        return burst is not None and burst.first - TWIN_SECONDS <= event.at <= burst.last + TWIN_SECONDS

    def hold(self, event: FaultEvent) -> bool:
        """Let a driver's event wait for its twin; false when too many wait."""
        if len(self.held) >= _MOST_HELD:
            return False
        self.held.append(event)
        return True

    def release(self, clock: float) -> list[FaultEvent]:
        """Driver's events that no twin came for in time."""
        if not self.held:
            return []
        ready = [event for event in self.held if clock - event.at > TWIN_SECONDS]
        self.held = [event for event in self.held if clock - event.at <= TWIN_SECONDS]
        return ready

    def deadline(self) -> float | None:
        """When ``release`` has something to give."""
        return min((event.at + TWIN_SECONDS + 0.001 for event in self.held), default=None)

    def counted(self, event: FaultEvent) -> None:
        """A driver's event counted: its twin in the log must not, if it comes after all."""
        key = _key(event)
        if key not in self.alone and len(self.alone) >= _MOST_ALONE:
            self.alone.clear()
        self.alone.setdefault(key, deque(maxlen=8)).append(event.at)


def _key(event: FaultEvent) -> str:
    return f"{event.pci_bus_id} {event.code}"


def _merge(into: dict[int, Tally], codes: dict[int, Tally]) -> None:
    for code, tally in codes.items():
        known = into.get(code)
        if known is None:
            into[code] = Tally(tally.fault_class, tally.count)
        else:
            known.count += tally.count


def _rows(codes: dict[int, Tally], uuid: str | None, address: str | None) -> list[ErrorCount]:
    return [
        ErrorCount(None if code == OTHER else code, tally.fault_class, tally.count, uuid, address)
        for code, tally in codes.items()
    ]
