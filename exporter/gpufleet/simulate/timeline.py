"""What a GPU does over time, as exact integer integrals.

A timeline answers, for any time, which regime the GPU is in and what every counter has come to since time 0. Times are
whole milliseconds and rates whole numbers a millisecond, so the totals are exact: they never go down, and a GPU that is
read every 100 ms and one that is read every 30 s show the same counters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ENERGY = 0
"""Microjoules."""
# Activities, in millionths: the integral over a second of a unit that is always busy is 1e9.
GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, INTEGER, FP64, FP32, FP16 = range(1, 10)
TENSOR_HALF, TENSOR_INT8, TENSOR_FP64, DECODER, JPEG = range(10, 15)
PCIE_TRANSMIT, PCIE_RECEIVE, NVLINK_TRANSMIT, NVLINK_RECEIVE = range(15, 19)
"""Bytes."""
POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE, BELOW_BASE = range(19, 24)
"""Nanoseconds."""
COUNTERS = 24

Totals = Sequence[int]
"""One number for each counter above."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A way of working that does not change while it lasts. It is itself the simplest timeline: always this."""

    name: str
    rates: tuple[int, ...]
    """Each counter's growth in a millisecond."""
    utilization: int
    """Percent of time with a kernel running, as the driver shows it."""
    memory_utilization: int
    encoder_utilization: int
    decoder_utilization: int
    sm_clock: int
    """MHz; the graphics clock is the same."""
    memory_clock: int | None
    video_clock: int
    memory_thousandths: int
    """Thousandths of the memory that can be used which are used."""
    reasons: int
    """Clock-event reasons that hold all the time."""
    power_cap_share: int
    """In how many of 1024 moments the software power cap holds."""
    idle: bool

    def at(self, time: int) -> Regime:  # noqa: ARG002 -- one of the timelines, whose regime depends on time
        """The regime at ``time``."""
        return self

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""
        return [rate * time for rate in self.rates]

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``."""
        return self.rates[ENERGY] * time


class Timeline(Protocol):
    """Anything that tells regime and totals for a time in milliseconds, 0 or later."""

    def at(self, time: int) -> Regime:
        """The regime at ``time``."""

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``: one of the totals, for a tenth of the price."""


def _sums(children: Sequence[Timeline], durations: Sequence[int]) -> list[list[int]]:
    """Totals at the start of each child and, last, at the end."""
    sums = [[0] * COUNTERS]
    for child, duration in zip(children, durations, strict=True):
        sums.append([before + more for before, more in zip(sums[-1], child.totals(duration), strict=True)])
    return sums


class Cycle:
    """Timelines one after the other, for ever again; each starts at its own time 0 whenever its turn comes."""

    __slots__ = ("_children", "_ends", "_last", "_starts", "_sums", "_whole", "length")

    def __init__(self, parts: Sequence[tuple[int, Timeline]]) -> None:
        parts = [(duration, child) for duration, child in parts if duration > 0]
        durations = [duration for duration, _ in parts]
        self._children = [child for _, child in parts]
        self.length = sum(durations)
        self._ends = [sum(durations[: i + 1]) for i in range(len(durations))]
        self._starts = [0, *self._ends[:-1]]
        sums = _sums(self._children, durations)
        self._sums = sums[:-1]
        self._whole = sums[-1]
        self._last: tuple[int, Totals] = (0, [0] * COUNTERS)

    def at(self, time: int) -> Regime:
        """The regime at ``time``."""
        time %= self.length
        turn = bisect_right(self._ends, time)
        return self._children[turn].at(time - self._starts[turn])

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""
        # The GPUs of a run share their timeline and are read together: seven of eight get the answer of the first.
        last, totals = self._last
        if last == time:
            return totals
        rounds, rest = divmod(time, self.length)
        turn = bisect_right(self._ends, rest)
        inner = self._children[turn].totals(rest - self._starts[turn])
        totals = [
            rounds * whole + before + now
            for whole, before, now in zip(self._whole, self._sums[turn], inner, strict=True)
        ]
        self._last = (time, totals)
        return totals

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``."""
        rounds, rest = divmod(time, self.length)
        turn = bisect_right(self._ends, rest)
        inner = self._children[turn].energy(rest - self._starts[turn])
        return rounds * self._whole[ENERGY] + self._sums[turn][ENERGY] + inner


class Story:
    """Timelines that each hold from a time on until the next begins; the last one holds for ever.

    All run on the story's own time: a training run that is disturbed for a while keeps the rhythm of its checkpoints.
    """

    __slots__ = ("_bases", "_chapters", "_last", "_starts")

    def __init__(self, chapters: Sequence[tuple[int, Timeline]]) -> None:
        self._starts = [start for start, _ in chapters]
        self._chapters = [chapter for _, chapter in chapters]
        self._bases: list[list[int]] = []
        """What to add to a chapter's own totals: what came before, less what it would have counted by then."""
        reached: Totals = [0] * COUNTERS
        for i, (start, chapter) in enumerate(chapters):
            base = [before - own for before, own in zip(reached, chapter.totals(start), strict=True)]
            self._bases.append(base)
            if i + 1 < len(chapters):
                end = chapter.totals(chapters[i + 1][0])
                reached = [plus + own for plus, own in zip(base, end, strict=True)]
        self._last: tuple[int, Totals] = (-1, [])

    def at(self, time: int) -> Regime:
        """The regime at ``time``."""
        return self._chapters[bisect_right(self._starts, time) - 1].at(time)

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""
        last, totals = self._last
        if last == time:
            return totals
        chapter = bisect_right(self._starts, time) - 1
        own = self._chapters[chapter].totals(time)
        totals = [base + growth for base, growth in zip(self._bases[chapter], own, strict=True)]
        self._last = (time, totals)
        return totals

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``."""
        chapter = bisect_right(self._starts, time) - 1
        return self._bases[chapter][ENERGY] + self._chapters[chapter].energy(time)


class Shifted:
    """A timeline that is already ``by`` milliseconds old at time 0."""

    __slots__ = ("_base", "_by", "_timeline")

    def __init__(self, timeline: Timeline, by: int) -> None:
        self._timeline = timeline
        self._by = by
        self._base = list(timeline.totals(by))

    def at(self, time: int) -> Regime:
        """The regime at ``time``."""
        return self._timeline.at(time + self._by)

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""
        return [now - then for now, then in zip(self._timeline.totals(time + self._by), self._base, strict=True)]

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``."""
        return self._timeline.energy(time + self._by) - self._base[ENERGY]


class Blend:
    """Shares of several timelines on top of one that always runs: the slices of a GPU on top of its idle draw.

    Each share counts only what its timeline does beyond the ground, times ``numerator / denominator``.
    """

    __slots__ = ("_denominator", "_ground", "_last", "_shares")

    def __init__(self, ground: Regime, shares: Sequence[tuple[Timeline, int]], denominator: int) -> None:
        self._ground = ground
        self._shares = shares
        self._denominator = denominator
        self._last: tuple[int, Totals] = (-1, [])

    def at(self, time: int) -> Regime:
        """The regime of the share that draws most: clocks follow the busiest."""
        regimes = [timeline.at(time) for timeline, _ in self._shares]
        return max(regimes, key=lambda regime: regime.rates[ENERGY], default=self._ground)

    def totals(self, time: int) -> Totals:
        """Every counter's growth from 0 to ``time``."""
        last, totals = self._last
        if last == time:
            return totals
        ground = self._ground.totals(time)
        summed = list(ground)
        for timeline, numerator in self._shares:
            own = timeline.totals(time)
            for i in range(COUNTERS):
                summed[i] += (own[i] - ground[i]) * numerator // self._denominator
        self._last = (time, summed)
        return summed

    def energy(self, time: int) -> int:
        """Microjoules from 0 to ``time``."""
        ground = self._ground.energy(time)
        return ground + sum(
            (timeline.energy(time) - ground) * numerator // self._denominator for timeline, numerator in self._shares
        )
