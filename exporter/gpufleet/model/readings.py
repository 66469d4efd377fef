"""Readings by column: what was asked once, and the values of one poll.

A poll produces hundreds of numbers a GPU every second, so they travel as one tuple of values beside one tuple of keys.
The tuple of keys is made when the call plan is made and is the *same object* until the plan changes; consumers may
cache whatever they derive from it by identity.
"""

from __future__ import annotations

from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True, slots=True)
class Key:
    """Names one reading: ``Key("clock_event_seconds", ("sw_power_cap",))``.

    ``name`` carries the SI unit; ``members`` are the values of the extra labels that its metric family declares, in
    that order (a reason, a link, a location).
    """

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """Values of one poll; ``values[i]`` belongs to ``keys[i]`` and is ``None`` when it was not reported this time."""

    keys: tuple[Key, ...]
    values: tuple[Number | None, ...]

    def get(self, name: str, *members: str) -> Number | None:
        """The value under a key, or ``None`` when it is not reported. Linear in the number of keys."""
        wanted = Key(name, members)
        for key, value in zip(self.keys, self.values, strict=True):
            if key == wanted:
                return value
        return None


NOTHING = Readings((), ())
