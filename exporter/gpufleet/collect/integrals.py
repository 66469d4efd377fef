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


class Integrals:
    """Running sums of one GPU or slice. They start at zero with the process and never go down."""

    __slots__ = ("_known", "_measured", "_order", "_sums")

    def __init__(self) -> None:
        self._sums: dict[Key, float] = {}
        self._order: tuple[Key, ...] = ()
        self._measured: set[Key] = set()
        self._known: dict[int, tuple[tuple[Key, ...], tuple[tuple[int, Key], ...]]] = {}

    def add(self, parts: Sequence[Readings], seconds: float) -> None:
        """Take ``parts`` to have held for the last ``seconds``."""
        sums = self._sums
        for part in parts:
            known = self._known.get(id(part.keys))
            if known is None:
                known = self._learn(part.keys)
            values = part.values
            for index, key in known[1]:
                value = values[index]
                if value:
                    sums[key] += value * seconds

    def _learn(self, keys: tuple[Key, ...]) -> tuple[tuple[Key, ...], tuple[tuple[int, Key], ...]]:
        # A counter that the driver gave once is the driver's, also in a poll in which it is missing.
        self._measured.update(key for key in keys if key.name == "clock_event_seconds")
        for key in self._measured & self._sums.keys():
            del self._sums[key]
        targets = _targets(keys, self._measured)
        for _, key in targets:
            self._sums.setdefault(key, 0.0)
        if len(self._known) >= MOST_LAYOUTS:
            self._known.clear()
        # The tuple is kept beside its id, so that no other object can get the same id.
        self._known[id(keys)] = (keys, targets)
        return self._known[id(keys)]

    def readings(self) -> Readings:
        """The sums so far."""
        if self._order != tuple(self._sums):
            self._order = tuple(self._sums)
        return Readings(self._order, tuple(self._sums.values()))


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
