"""How a workload moves between activities: one timeline for each kind of run."""

from __future__ import annotations

import math
from random import Random

from gpufleet.simulate.activities import (
    CHECKPOINT,
    COMMUNICATE,
    COMPUTE,
    EVALUATE,
    FEED,
    FREE,
    HELD,
    IDLE,
    LOAD,
    SERVE,
    WAIT,
    Hindrance,
    regime,
)
from gpufleet.simulate.profiles import Profile
from gpufleet.simulate.timeline import Cycle, Timeline

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
"""Milliseconds."""

_LEVELS = 16
"""Serving load is quantised to so many levels: GPUs then share their regimes."""


def train(
    profile: Profile,
    own: Hindrance = FREE,
    pace: float = 1.0,
    *,
    step: int = 4000,
    communicate: float = 0.18,
    checkpoint_every: int = 15 * MINUTE,
    checkpoint_takes: int = 25_000,
) -> Timeline:
    """Compute and communicate in steps, with a pause for each checkpoint.

    ``own`` hinders this GPU; ``pace`` is the speed of the slowest GPU of the run. All GPUs take each step together: one
    that is done early waits, spinning in the collective, until the slowest has come.
    """
    computing = round(step * (1 - communicate))
    mine = round(computing / own.speed)
    slowest = max(mine, round(computing / pace))
    steps = Cycle(
        (
            (mine, regime(profile, COMPUTE, hindrance=own)),
            (slowest - mine, regime(profile, WAIT)),
            (round(step * communicate), regime(profile, COMMUNICATE)),
        )
    )
    if checkpoint_takes <= 0 or checkpoint_every <= checkpoint_takes:
        return steps
    return Cycle(((checkpoint_every - checkpoint_takes, steps), (checkpoint_takes, regime(profile, CHECKPOINT))))


def stalled(profile: Profile) -> Timeline:
    """Every rank but a dead one: in the collective, spinning, until the run is ended."""
    return regime(profile, WAIT)


def data_bound(profile: Profile, own: Hindrance = FREE, *, step: int = 2600, compute: float = 0.34) -> Timeline:
    """Short bursts of work between waits for the input pipeline."""
    return Cycle(
        (
            (round(step * (1 - compute)), regime(profile, LOAD)),
            (round(step * compute / own.speed), regime(profile, FEED, hindrance=own)),
        )
    )


def inference(
    profile: Profile, own: Hindrance = FREE, *, seed: int = 0, day: int = DAY, low: float = 0.15, high: float = 0.95
) -> Timeline:
    """Serving with the load of the day: a slow swell, and bursts of some seconds on top of it."""
    random = Random(seed)
    parts: list[tuple[int, Timeline]] = []
    for part in range(48):
        # The night is at the start and the end of the day.
        swell = low + (high - low) * (1 - math.cos(2 * math.pi * part / 48)) / 2
        bursts = []
        for _ in range(5):
            level = min(1.0, max(0.0, swell * random.uniform(0.6, 1.3)))
            load = max(1, round(level * _LEVELS)) / _LEVELS
            bursts.append((random.randrange(2000, 20_000), regime(profile, SERVE, load, own)))
        parts.append((day // 48, Cycle(bursts)))
    return Cycle(parts)


def evals(profile: Profile, own: Hindrance = FREE, *, seed: int = 0) -> Timeline:
    """One evaluation job after the other, of some minutes each, with pauses between them."""
    random = Random(seed)
    parts: list[tuple[int, Timeline]] = []
    for _ in range(6):
        level = random.randrange(_LEVELS // 3, _LEVELS + 1) / _LEVELS
        # The seconds between batches in which the answers are scored on the CPU.
        batches = Cycle(((random.randrange(3000, 9000), regime(profile, EVALUATE, level, own)), (900, _held(profile))))
        parts += [(random.randrange(2, 9) * MINUTE, batches), (random.randrange(15, 90) * 1000, idle(profile))]
    return Cycle(parts)


def _held(profile: Profile) -> Timeline:
    return regime(profile, LOAD)


def sandbox(profile: Profile) -> Timeline:
    """A notebook that holds the GPU and does nothing with it."""
    return regime(profile, HELD)


def idle(profile: Profile) -> Timeline:
    """No process at all."""
    return regime(profile, IDLE)
