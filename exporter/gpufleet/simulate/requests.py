"""Requests to a replica of a model server over time: how many, and how they fared. Pure.

The load is that of the day (``patterns.inference``). Requests come in three lots: those that find the replica calm,
those that find it busy, and those of an overload. A lot's latencies have one distribution, so that a histogram is a
sum of three curves, each times a count that only grows: it is exact for any moment and never goes down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.simulate.health import Window

LOW, HIGH = 0.15, 0.95
"""Load at the quietest and at the busiest hour: those of ``patterns.inference``."""

Lots = tuple[float, float, float]
"""Requests that found the replica calm, busy, overloaded."""
NONE: Lots = (0.0, 0.0, 0.0)
EVERY: Lots = (1.0, 1.0, 1.0)
"""All of each lot, as a share."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Latencies of a lot: a log-normal distribution, in seconds."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        """The mean."""
        return self.median * math.exp(self.sigma**2 / 2)

    def share(self, bound: float) -> float:
        """The share of requests up to the bound."""
        if bound <= 0:
            return 0.0
        return 0.5 * (1 + math.erf(math.log(bound / self.median) / (self.sigma * math.sqrt(2))))


Spreads = tuple[Spread, Spread, Spread]
"""Of the three lots."""


@lru_cache(maxsize=256)
def _curves(bounds: tuple[float, ...], spreads: Spreads) -> tuple[tuple[float, float, float], ...]:
    calm, busy, overloaded = spreads
    return tuple([(calm.share(bound), busy.share(bound), overloaded.share(bound)) for bound in bounds])


def observed(bounds: tuple[float, ...], spreads: Spreads, lots: Lots) -> tuple[list[int], float]:
    """Observations up to each bound, all of them last, and their sum."""
    counts = [share_of(lots, curve) for curve in (*_curves(bounds, spreads), EVERY)]
    total = sum([count * spread.mean for count, spread in zip(lots, spreads, strict=True)])
    return counts, round(total, 6)


def share_of(lots: Lots, shares: Lots) -> int:
    """How many requests there are of each lot's share."""
    return int(lots[0] * shares[0] + lots[1] * shares[1] + lots[2] * shares[2])


def between(lots: Lots, before: Lots) -> Lots:
    """Those of ``lots`` that were not there ``before``.

    To be taken before anything is rounded: differences of rounded counts can fall from one bound to the next.
    """
    return lots[0] - before[0], lots[1] - before[1], lots[2] - before[2]


def together(several: Iterable[Lots]) -> Lots:
    """Their sum."""
    calm, busy, overloaded = NONE
    for lots in several:
        calm, busy, overloaded = calm + lots[0], busy + lots[1], overloaded + lots[2]
    return calm, busy, overloaded


class Demand:
    """Requests to one replica. Times are milliseconds of the script."""

    def __init__(
        self, per_second: float, *, day: int, phase: int, overloads: Sequence[tuple[int, int, float]], period: int
    ) -> None:
        """``per_second`` at full load; an overload is from when to when, and by how much; ``period`` as elsewhere."""
        self._per_ms = per_second / 1000
        self._swing = day / (2 * math.pi)
        self._phase = phase
        self._overloads = sorted(overloads)
        self._windows = [(Window(start, end, period), factor) for start, end, factor in self._overloads]
        self._period = period
        self._whole = self._by(period) if period else NONE

    def lots(self, time: int) -> Lots:
        """All requests from 0 to ``time``."""
        if not self._period:
            return self._by(time)
        rounds, local = divmod(time, self._period)
        calm, busy, over = self._by(local)
        return rounds * self._whole[0] + calm, rounds * self._whole[1] + busy, rounds * self._whole[2] + over

    def load(self, time: int) -> float:
        """Requests of the moment over what the replica can take: above 1 in an overload."""
        local = time % self._period if self._period else time
        usual = self._middle - self._depth * math.cos((local + self._phase) / self._swing)
        return usual * self.factor(time)

    def per_second(self, time: int) -> float:
        """Requests a second that come in."""
        return self._per_ms * 1000 * self.load(time)

    def factor(self, time: int) -> float:
        """By how much there are more requests than on an ordinary day."""
        return max([factor for window, factor in self._windows if window.holds(time)], default=1.0)

    def overloaded_for(self, time: int) -> int:
        """Milliseconds since the overload began; 0 where there is none."""
        local = time % self._period if self._period else time
        begun = [start for start, end, _ in self._overloads if start <= local < end]
        return local - min(begun) if begun else 0

    _middle = (LOW + HIGH) / 2
    _depth = (HIGH - LOW) / 2

    def _by(self, time: int) -> Lots:
        """Within one round: the day's requests outside overloads, and what came in them."""
        calm = busy = over = 0.0
        edge = 0
        for start, end, factor in self._overloads:
            begin, stop = max(edge, min(start, time)), min(end, time)
            calm, busy = self._add(calm, busy, edge, begin)
            if stop > begin:
                over += factor * (self._load_sum(stop) - self._load_sum(begin))
            edge = max(begin, stop)
        calm, busy = self._add(calm, busy, edge, time)
        return calm * self._per_ms, busy * self._per_ms, over * self._per_ms

    def _add(self, calm: float, busy: float, start: int, end: int) -> tuple[float, float]:
        if end <= start:
            return calm, busy
        every = self._load_sum(end) - self._load_sum(start)
        crowded = self._square_sum(end) - self._square_sum(start)
        return calm + max(0.0, every - crowded), busy + max(0.0, crowded)

    def _load_sum(self, time: int) -> float:
        """The integral of the load, middle - depth x cos."""
        x = time + self._phase
        return self._middle * x - self._depth * self._swing * math.sin(x / self._swing)

    def _square_sum(self, time: int) -> float:
        """The integral of its square: the busier the replica, the more of its requests find it busy."""
        x = time + self._phase
        return (
            (self._middle**2 + self._depth**2 / 2) * x
            - 2 * self._middle * self._depth * self._swing * math.sin(x / self._swing)
            + self._depth**2 * self._swing / 4 * math.sin(2 * x / self._swing)
        )
