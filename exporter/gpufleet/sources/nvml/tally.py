"""What went wrong while one device was read, counted; and the contract of whatever is asked of it."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.calls import return_name

UNWRITTEN = 0xFFFF_FFFF
"""Put into every return-code slot before a call: an entry that still has it was not written by the driver."""


class Tier(IntEnum):
    """How often something is asked."""

    FAST = 0
    """Each poll."""
    MEDIUM = 1
    """Every 10 s."""
    SLOW = 2
    """Every minute."""


class Tally:
    """Counts since the device was opened. Owned by the thread that reads the device; others only copy from it."""

    __slots__ = ("dropped", "errors", "invalid")

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        """NVML return code's name -> calls or entries that ended with it, "not supported" aside."""
        self.invalid: dict[str, int] = {}
        """Name of a reading -> values that could not be true."""
        self.dropped: dict[Key, str] = {}
        """What this device does not report, and the driver's word for why."""

    def add(self, other: Tally) -> None:
        """Take over the counts of another one (not what it dropped)."""
        if other.errors:
            # A copy, since the thread that reads the device may add a name meanwhile.
            for name, count in other.errors.copy().items():
                self.errors[name] = self.errors.get(name, 0) + count
        if other.invalid:
            for name, count in other.invalid.copy().items():
                self.invalid[name] = self.invalid.get(name, 0) + count

    def error(self, code: int) -> None:
        """Count one failed call or entry."""
        name = return_name(code) if code != UNWRITTEN else "unwritten"
        self.errors[name] = self.errors.get(name, 0) + 1

    def impossible(self, key: Key) -> None:
        """Count one value that was dropped because it can't be true."""
        self.invalid[key.name] = self.invalid.get(key.name, 0) + 1

    def drop(self, key: Key, code: int) -> None:
        """Remember that a reading is not to be had from this device."""
        self.dropped[key] = return_name(code) if code != UNWRITTEN else "unwritten"


class Item(Protocol):
    """One call of a plan: fills ``values`` (same length as ``keys``) and returns NVML's code."""

    function: str
    tier: Tier
    keys: tuple[Key, ...]
    values: list[Number | None]

    def run(self, tally: Tally) -> int:
        """Call the driver. On any code but SUCCESS every value is ``None``."""
