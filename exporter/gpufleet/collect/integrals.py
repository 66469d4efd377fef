"""Ratios and flags integrated over time, so that ``rate()`` gives the exact mean over any window.

A gauge that is scraped every 15 s shows one second in fifteen. What is summed up at each poll loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.model.readings import Key, Readings

MOST_LAYOUTS = 16
LONGEST_GAP_INTERVALS = 5
"""Over a longer gap nobody knows what the GPU did: it is left out and counted."""

RATIOS: dict[str, Key] = {
    "utilization_ratio": Key("busy_seconds"),
    "sm_active_ratio": Key("sm_active_seconds"),
    "tensor_active_ratio": Key("tensor_active_seconds"),
    "mig_sm_active_ratio": Key("mig_sm_active_seconds"),
    "mig_tensor_active_ratio": Key("mig_tensor_active_seconds"),
}


_Known = tuple[tuple[Key, ...], tuple[tuple[int, int], ...]]
"""Keys of a reading; places of what is integrated among its values and among the sums."""


class Integrals:
    """Running sums of one GPU or slice. They start at zero with the process and never go down."""

    __slots__ = ("_keys", "_known", "_measured", "_places", "_sums")

    def __init__(self) -> None:
        self._keys: tuple[Key, ...] = ()
        self._sums: list[float] = []
        # By place, not by key: this is done for every reading of every poll, and a key takes longer to look up than a
        # value to add.
        self._places: dict[Key, int] = {}
        self._measured: set[Key] = set()
        self._known: dict[int, _Known] = {}

    def add(self, parts: Sequence[Readings], seconds: float) -> None:
        """Take ``parts`` to have held for the last ``seconds``."""
        sums = self._sums
        for part in parts:
            known = self._known.get(id(part.keys))
            if known is None:
                known = self._learn(part.keys)
            values = part.values
            for index, place in known[1]:
                value = values[index]
                if value:
                    sums[place] += value * seconds

    def _learn(self, keys: tuple[Key, ...]) -> _Known:
        # A counter that the driver gave once is the driver's, also in a poll in which it is missing.
        self._measured.update(key for key in keys if key.name == "clock_event_seconds")
        if not self._measured.isdisjoint(self._places):
            self._give_up_measured()
        targets = _targets(keys, self._measured)
        for _, key in targets:
            if key not in self._places:
                self._places[key] = len(self._sums)
                self._sums.append(0.0)
        if self._keys != tuple(self._places):
            self._keys = tuple(self._places)
        if len(self._known) >= MOST_LAYOUTS:
            self._known.clear()
        # The tuple is kept beside its id, so that no other object can get the same id.
        self._known[id(keys)] = known = (keys, tuple((index, self._places[key]) for index, key in targets))
        return known

    def _give_up_measured(self) -> None:
        kept = [key for key in self._places if key not in self._measured]
        # The list stays the same object: ``add`` has it in its hand. Places of earlier layouts are no longer right.
        self._sums[:] = [self._sums[self._places[key]] for key in kept]
        self._places = {key: place for place, key in enumerate(kept)}
        self._known.clear()

    def readings(self) -> Readings:
        """The sums so far."""
        return Readings(self._keys, tuple(self._sums))


def _targets(keys: tuple[Key, ...], measured: set[Key]) -> tuple[tuple[int, Key], ...]:
    """Which readings are integrated into what; an event that the driver itself times (``measured``) is not."""
    found: list[tuple[int, Key]] = []
    for index, key in enumerate(keys):
        if key.name in RATIOS:
            found.append((index, RATIOS[key.name]))
        elif key.name == "clock_event_active":
            seconds = Key("clock_event_seconds", key.members)
            if seconds not in measured:
                found.append((index, seconds))
    return tuple(found)


def integrable(elapsed: float, interval: float) -> bool:
    """Whether so much time between two polls may be taken to have been like the second of them."""
    return 0 <= elapsed <= LONGEST_GAP_INTERVALS * interval
