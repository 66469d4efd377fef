"""How far a training process has come: steps and checkpoints as exact functions of time. Pure.

The GPUs' timelines (``patterns.train``) and this are cut from the same durations, so that steps stop in the moment in
which the GPUs begin to wait. Times are whole milliseconds of the script.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.simulate.scenario import Run
from gpufleet.simulate.staging import CALM, OUT, Chapter

BUCKETS = FAMILIES["train_step_duration_seconds"].buckets
STEPS, CHECKPOINTS, FAILED, RESTARTS, DURATION = range(5)
"""Places of ``Totals``; the observations of each bucket follow, each by itself."""
_FIRST_BUCKET = 5
_COLUMNS = _FIRST_BUCKET + len(BUCKETS) + 1
# What a step takes over what it takes on average; the mean is 1. Most are alike, and now and then one is late.
_SPREAD = (0.99, 0.98, 1.0, 0.99, 0.97, 1.01, 0.98, 0.99, 1.0, 0.98, 0.97, 0.99, 1.12, 0.98, 0.99, 1.06)

Totals = Sequence[int]


class Rhythm:
    """Steps of one length, and checkpoints between them, that go on for ever; ``phase`` old at time 0."""

    __slots__ = ("_buckets", "_durations", "_each_round", "_every", "_phase", "_step", "_working")

    def __init__(self, run: Run, pace: float, phase: int) -> None:
        """``pace`` is the speed of the slowest GPU of the run."""
        computing = round(run.step * (1 - run.communicate))
        self._step = round(computing / pace) + round(run.step * run.communicate)
        self._every: int = run.checkpoint_every
        self._working: int = run.checkpoint_every - run.checkpoint_takes
        if run.checkpoint_takes <= 0 or self._working <= 0:
            self._every = self._working = 0
        self._each_round = self._working // self._step
        self._phase = phase
        self._durations = [round(self._step * share) for share in _SPREAD]
        self._buckets = [bisect_left(BUCKETS, duration / 1000) for duration in self._durations]

    def totals(self, time: int) -> list[int]:
        """All counts from some time before 0 to ``time``: only differences mean something."""
        totals = [0] * _COLUMNS
        steps = self._steps(time + self._phase)
        totals[STEPS] = steps
        totals[CHECKPOINTS] = (time + self._phase) // self._every if self._every else 0
        rounds, rest = divmod(steps, len(_SPREAD))
        for place, (duration, bucket) in enumerate(zip(self._durations, self._buckets, strict=True)):
            count = rounds + (place < rest)
            totals[DURATION] += count * duration
            totals[_FIRST_BUCKET + bucket] += count
        return totals

    def last_step(self, time: int) -> int:
        """When the last step ended by ``time``; it may be before 0."""
        time += self._phase
        if not self._every:
            return time // self._step * self._step - self._phase
        begun, rest = divmod(time, self._every)
        steps = min(rest, self._working) // self._step
        if not steps:
            begun, steps = begun - 1, self._each_round
        return begun * self._every + steps * self._step - self._phase

    def last_checkpoint(self, time: int) -> int | None:
        """When the last checkpoint was written by ``time``; it may be before 0."""
        return (time + self._phase) // self._every * self._every - self._phase if self._every else None

    def writes(self, time: int) -> bool:
        """Whether a checkpoint is being written."""
        return bool(self._every) and (time + self._phase) % self._every >= self._working

    def _steps(self, time: int) -> int:
        if not self._every:
            return time // self._step
        rounds, rest = divmod(time, self._every)
        return rounds * self._each_round + min(rest, self._working) // self._step


class Progress:
    """What one process of a run has done by any time, through all that the run goes through."""

    def __init__(self, run: Run, chapters: Sequence[Chapter], period: int, phase: int) -> None:
        """``chapters`` begin at 0; with ``period`` everything starts again after so many milliseconds."""
        self._period = period
        self.checkpoint_takes = run.checkpoint_takes
        self._starts = [start for start, _, _, _ in chapters]
        self._states = [state for _, state, _, _ in chapters]
        self._rhythms = [Rhythm(run, pace, phase) if state == CALM else None for _, state, _, pace in chapters]
        self._bases: list[list[int]] = []
        """What to add to a chapter's own totals: what came before, less what it would have counted by then."""
        reached = [0] * _COLUMNS
        for place, start in enumerate(self._starts):
            before = self._rhythms[place - 1] if place else None
            rhythm = self._rhythms[place]
            if rhythm is None and before is not None and before.writes(start):
                reached[FAILED] += 1
            if rhythm is not None and place and before is None:
                reached[RESTARTS] += 1
            own = [0] * _COLUMNS if rhythm is None else rhythm.totals(start)
            self._bases.append([was - would for was, would in zip(reached, own, strict=True)])
            if place + 1 < len(self._starts):
                reached = self._by(place, self._starts[place + 1])
        self._whole = [0] * _COLUMNS
        if period:
            self._whole = self._by(len(self._starts) - 1, period)
            self._whole[RESTARTS] += self._begins_anew
        self._begins = [
            start
            for place, start in enumerate(self._starts)
            if place and self._rhythms[place] is not None and self._rhythms[place - 1] is None
        ]

    @property
    def _begins_anew(self) -> bool:
        """Whether the end of the story finds no process, and its new start has one."""
        return self._rhythms[-1] is None and self._rhythms[0] is not None

    def runs(self, time: int) -> bool:
        """Whether there is a process: it is there while it waits for a dead one, too."""
        return self._states[self._place(self._split(time)[1])] != OUT

    def totals(self, time: int) -> Totals:
        """All counts from 0 to ``time``."""
        rounds, local = self._split(time)
        own = self._by(self._place(local), local)
        return [rounds * whole + now for whole, now in zip(self._whole, own, strict=True)] if rounds else own

    def began(self, time: int) -> int | None:
        """When the process of ``time`` was started; ``None``: before time 0."""
        rounds, local = self._split(time)
        turn = bisect_right(self._begins, local)
        if turn:
            return rounds * self._period + self._begins[turn - 1]
        if not rounds:
            return None
        if self._begins_anew:
            return rounds * self._period
        return (rounds - 1) * self._period + self._begins[-1] if self._begins else None

    def last_step(self, time: int) -> int | None:
        """When the last step ended, by ``time``; ``None``: not since the process began, or time 0."""
        return self._last(time, checkpoint=False)

    def last_checkpoint(self, time: int) -> int | None:
        """When the last checkpoint was written, by ``time``; ``None`` as above."""
        return self._last(time, checkpoint=True)

    def _last(self, time: int, *, checkpoint: bool) -> int | None:
        rounds, local = self._split(time)
        earliest = self.began(time) or 0
        for begun in (rounds, rounds - 1):
            if begun < 0:
                break
            end = local if begun == rounds else self._period
            for place in range(len(self._starts) - 1, -1, -1):
                start, rhythm = self._starts[place], self._rhythms[place]
                if start > end:
                    continue
                if rhythm is not None:
                    found = rhythm.last_checkpoint(end) if checkpoint else rhythm.last_step(end)
                    if found is not None and found > start:
                        at = begun * self._period + found
                        return at if at > earliest else None
                end = start
        return None

    def _split(self, time: int) -> tuple[int, int]:
        return divmod(time, self._period) if self._period else (0, time)

    def _place(self, local: int) -> int:
        return bisect_right(self._starts, local) - 1

    def _by(self, place: int, local: int) -> list[int]:
        rhythm, base = self._rhythms[place], self._bases[place]
        if rhythm is None:
            return list(base)
        return [was + own for was, own in zip(base, rhythm.totals(local), strict=True)]


def cumulative(totals: Totals) -> tuple[int, ...]:
    """Observations up to each bound, of totals or their differences."""
    counts, running = [], 0
    for count in totals[_FIRST_BUCKET:]:
        running += count
        counts.append(running)
    return tuple(counts)
