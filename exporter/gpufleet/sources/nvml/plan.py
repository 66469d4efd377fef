"""The call plan of one device: what it was found to report, and which of it is due in a poll.

The plan is made by a probe when the device is opened. What the driver says it does not support is not asked again until
then. Fast items run in each poll; medium and slow ones are spread, so that no poll makes more than ``MOST_CALLS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

from gpufleet.model.readings import NOTHING, Key, Number, Readings
from gpufleet.sources.nvml.calls import DEVICE_DOWN, LIBRARY_DOWN, NEVER_HERE, SUCCESS, NvmlError, Trace
from gpufleet.sources.nvml.tally import Item, Tally, Tier

MOST_CALLS = 20
GPM_CALLS = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from one turn of each tier to its next."""

    interval: float
    medium: float = 10.0
    slow: float = 60.0


@lru_cache(maxsize=256)
def same_keys(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Equal keys as one object: GPUs of one model then share what is derived from it, and a poll fetches it once."""
    return keys


class Abandoned(Exception):
    """The poll was given up while a call was out; nobody waits for its result."""


class Columns:
    """The values of some items as one ``Readings``, absent ones left out."""

    __slots__ = ("_keys", "_mask", "items")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)
        self._mask: list[bool] | None = None
        self._keys: tuple[Key, ...] = ()

    def readings(self) -> Readings:
        """As of now. The tuple of keys stays the same object as long as the same readings are reported."""
        values: list[Number | None] = []
        for item in self.items:
            values += item.values
        mask = [value is not None for value in values]
        if mask != self._mask:
            self._mask = mask
            self._keys = same_keys(tuple(compress((key for item in self.items for key in item.keys), mask)))
        return Readings(self._keys, tuple(values) if len(values) == len(self._keys) else tuple(compress(values, mask)))


class Plan:
    """Runs what is due and puts the values together."""

    def __init__(self, items: Sequence[Item], pace: Pace, tally: Tally, trace: Trace, extra_calls: int = 0) -> None:
        self.tally = tally
        self._trace = trace
        self._fast = Columns([item for item in items if item.tier is Tier.FAST])
        self._rest = Columns([item for item in items if item.tier is not Tier.FAST])
        self._budget = max(1, MOST_CALLS - len(self._fast.items) - extra_calls)
        turn = pace.interval * math.ceil(len(self._rest.items) / self._budget)
        self._period = {Tier.MEDIUM: max(pace.medium, turn), Tier.SLOW: max(pace.slow, turn)}
        self._due: dict[Item, float] = {}
        self._good_until: dict[Item, float] = {}
        self._next = -math.inf
        """When anything of the slower tiers has to be done: a turn or the end of a value."""
        self._rested = NOTHING

    @property
    def items(self) -> tuple[Item, ...]:
        """Everything that the device reports."""
        return (*self._fast.items, *self._rest.items)

    def spread(self, now: float) -> None:
        """Take the values of the probe as read now, and lay the next turns of each tier evenly over its period."""
        for tier in (Tier.MEDIUM, Tier.SLOW):
            of_tier = [item for item in self._rest.items if item.tier is tier]
            period = self._period[tier]
            for turn, item in enumerate(of_tier, start=1):
                self._due[item] = now + period * turn / len(of_tier)
                self._good_until[item] = now + 2 * period

    def run(self, now: float) -> tuple[Readings, Readings]:
        """One poll at ``now`` (monotonic seconds): readings of the fast tier, and of the slower ones.

        The latter are the same object until one of them was read again. Raises NvmlError when the device or the library
        is down: the first fast item, the field batch, speaks for the device, and when it fails as a whole, so does the
        poll.
        """
        trace, tally, speaker = self._trace, self.tally, True
        for item in self._fast.items:
            trace.last = item.function
            code = item.run(tally)
            if code or trace.given_up:
                self._failed(item, code, speaks_for_device=speaker)
            speaker = False
        if now >= self._next:
            self._run_rest(now)
            self._rested = self._rest.readings()
        return self._fast.readings(), self._rested

    def _run_rest(self, now: float) -> None:
        due = sorted((item for item in self._rest.items if self._due[item] <= now), key=self._due.__getitem__)
        for item in due[: self._budget]:
            period = self._period[item.tier]
            self._trace.last = item.function
            code = item.run(self.tally)
            if code or self._trace.given_up:
                self._due[item] = now + period / 10
                self._failed(item, code, speaks_for_device=False)
            else:
                self._good_until[item] = now + 2 * period
                self._due[item] = max(self._due[item] + period, now + period / 2)
        for item in self._rest.items:
            if self._good_until[item] < now:
                item.values = [None] * len(item.keys)
                self._good_until[item] = math.inf
        self._next = min((min(self._due[item], self._good_until[item]) for item in self._rest.items), default=math.inf)

    def _failed(self, item: Item, code: int, *, speaks_for_device: bool) -> None:
        if self._trace.given_up:
            raise Abandoned(item.function)
        if code in DEVICE_DOWN or code in LIBRARY_DOWN or speaks_for_device:
            raise NvmlError(item.function, code)
        if code in NEVER_HERE:
            self._drop(item, code)
        elif code != SUCCESS:
            self.tally.error(code)

    def _drop(self, item: Item, code: int) -> None:
        """The device stopped supporting it (MIG was turned on, say): leave it alone until the plan is made anew."""
        for columns in (self._fast, self._rest):
            columns.items = [other for other in columns.items if other is not item]
        for key in item.keys:
            self.tally.drop(key, code)
