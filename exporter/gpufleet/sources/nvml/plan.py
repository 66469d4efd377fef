"""The call plan of one device: what it was found to report, and which of it is due in a poll.

The plan is made by a probe when the device is opened. What the driver says it does not support is not asked again until
then. Fast items run in each poll; medium and slow ones are spread, so that no poll makes more than ``MOST_CALLS``.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    INSUFFICIENT_SIZE,
    LIBRARY_DOWN,
    NEVER_HERE,
    NO_PERMISSION,
    SUCCESS,
    Calls,
    NvmlError,
    Trace,
)
from gpufleet.sources.nvml.queries import Query
from gpufleet.sources.nvml.tally import Item, Tally, Tier

MOST_CALLS = 20
GPM_CALLS = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from one turn of each tier to its next."""

    interval: float
    medium: float = 10.0
    slow: float = 60.0


class Abandoned(Exception):
    """The poll was given up while a call was out; nobody waits for its result."""


@cache
def _layout(text: str) -> struct.Struct:
    """One object for all devices: there are as many layouts as queries, and a simulated fleet has thousands of GPUs."""
    return struct.Struct(text)


class PreparedQuery:
    """A query bound to one device: buffers and arguments made once."""

    __slots__ = (
        "_arguments",
        "_buffer",
        "_call",
        "_decode",
        "_unpack",
        "_version",
        "_view",
        "function",
        "keys",
        "tier",
        "values",
    )

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, query: Query) -> None:
        self.function = query.function
        self.tier = query.tier
        self.keys = query.keys
        self.values: list[Number | None] = [None] * len(query.keys)
        layout = _layout(query.layout)
        self._buffer = (ctypes.c_char * layout.size)()
        self._view = memoryview(self._buffer).cast("B")
        self._unpack = layout.unpack_from
        self._version = struct.pack("<I", query.version) if query.version else b""
        self._decode = query.decode
        self._call = calls[query.function]
        more = tuple((ctypes.c_char * size)() for size in query.more_buffers)
        self._arguments = (handle, *query.arguments, self._buffer, *more)

    def run(self, tally: Tally) -> int:
        """Call and decode."""
        if self._version:
            self._view[:4] = self._version
        code = self._call(*self._arguments)
        self.values = [None] * len(self.keys) if code else self._decode(self._unpack(self._buffer), tally)
        return code


class ProcessCount:
    """Processes with a compute context: a request for no room at all is answered with the room needed."""

    function = "nvmlDeviceGetComputeRunningProcesses_v3"
    tier = Tier.SLOW
    keys: tuple[Key, ...] = (Key("processes"),)

    def __init__(self, calls: Calls, handle: ctypes.c_void_p) -> None:
        self.values: list[Number | None] = [None]
        self._call = calls[self.function]
        self._handle = handle
        self._count = (ctypes.c_uint32 * 1)()

    def run(self, _: Tally) -> int:
        """Ask with a count of zero, so that the size of an entry (24 bytes, 32 in early R535) can't matter."""
        self._count[0] = 0
        code = self._call(self._handle, self._count, None)
        if code in (SUCCESS, INSUFFICIENT_SIZE):
            self.values = [self._count[0]]
            return SUCCESS
        self.values = [None]
        return code


def prepare(calls: Calls, handle: ctypes.c_void_p, queries: Iterable[Query], tally: Tally) -> list[Item]:
    """Try each query once and keep those that the device answers; raises NvmlError when the device is down.

    Where a function is refused, what is named ``instead`` is tried. A query that fails for a passing reason is kept.
    """
    items: list[Item] = []
    for query in queries:
        items += _prepare_one(calls, handle, query, tally)
    return items


def _prepare_one(calls: Calls, handle: ctypes.c_void_p, query: Query, tally: Tally) -> list[Item]:
    item = PreparedQuery(calls, handle, query)
    code = item.run(tally)
    if not refused(query.function, code):
        if code:
            tally.error(code)
        return [item]
    found: list[Item] = []
    for other in query.instead:
        found += _prepare_one(calls, handle, other, tally)
    reported = {key for one in found for key in one.keys}
    for key in query.keys:
        if key not in reported and key not in tally.dropped:
            tally.drop(key, code)
    return found


def refused(function: str, code: int) -> bool:
    """Whether the code means "never on this device"; raises NvmlError when it means that the device or library is
    down.
    """
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError(function, code)
    return code in NEVER_HERE or code == NO_PERMISSION


class Plan:
    """Runs what is due and puts the values together."""

    def __init__(self, items: Sequence[Item], pace: Pace, tally: Tally, trace: Trace, extra_calls: int = 0) -> None:
        self.tally = tally
        self._trace = trace
        self.abandoned = False
        """Set from outside when a call is overdue: the poll ends when it returns, with no other call."""
        self._fast = [item for item in items if item.tier is Tier.FAST]
        self._rest = [item for item in items if item.tier is not Tier.FAST]
        self._budget = max(1, MOST_CALLS - len(self._fast) - extra_calls)
        turn = pace.interval * math.ceil(len(self._rest) / self._budget)
        self._period = {Tier.MEDIUM: max(pace.medium, turn), Tier.SLOW: max(pace.slow, turn)}
        self._due: dict[Item, float] = {}
        self._good_until: dict[Item, float] = {}
        self._mask: tuple[bool, ...] = ()
        self._keys: tuple[Key, ...] = ()
        self.items: tuple[Item, ...] = (*self._fast, *self._rest)

    def spread(self, now: float) -> None:
        """Take the values of the probe as read now, and lay the next turns of each tier evenly over its period."""
        for tier in (Tier.MEDIUM, Tier.SLOW):
            of_tier = [item for item in self._rest if item.tier is tier]
            period = self._period[tier]
            for turn, item in enumerate(of_tier, start=1):
                self._due[item] = now + period * turn / len(of_tier)
                self._good_until[item] = now + 2 * period

    def run(self, now: float) -> Readings:
        """One poll at ``now`` (monotonic seconds). Raises NvmlError when the device or the library is down.

        The first fast item, the field batch, speaks for the device: when it fails as a whole, so does the poll.
        """
        for item in self._fast:
            self._run_item(item, speaks_for_device=item is self._fast[0])
        due = sorted((item for item in self._rest if self._due[item] <= now), key=self._due.__getitem__)
        for item in due[: self._budget]:
            period = self._period[item.tier]
            if self._run_item(item, speaks_for_device=False) == SUCCESS:
                self._good_until[item] = now + 2 * period
                self._due[item] = max(self._due[item] + period, now + period / 2)
            else:
                self._due[item] = now + period / 10
        for item in self._rest:
            if self._good_until[item] < now:
                item.values = [None] * len(item.keys)
        return self._readings()

    def _run_item(self, item: Item, *, speaks_for_device: bool) -> int:
        self._trace.last = item.function
        code = item.run(self.tally)
        if self.abandoned:
            raise Abandoned(item.function)
        if code == SUCCESS:
            return code
        if code in DEVICE_DOWN or code in LIBRARY_DOWN or speaks_for_device:
            raise NvmlError(item.function, code)
        if code in NEVER_HERE:
            self._drop(item, code)
        else:
            self.tally.error(code)
        return code

    def _drop(self, item: Item, code: int) -> None:
        """The device stopped supporting it (MIG was turned on, say): leave it alone until the plan is made anew."""
        self._fast = [other for other in self._fast if other is not item]
        self._rest = [other for other in self._rest if other is not item]
        self.items = (*self._fast, *self._rest)
        for key in item.keys:
            self.tally.drop(key, code)

    def _readings(self) -> Readings:
        values: list[Number | None] = []
        for item in self.items:
            values += item.values
        mask = tuple([value is not None for value in values])
        if mask != self._mask or not self._keys:
            # The tuple of keys stays the same object as long as the same readings are reported (see model.readings).
            every = [key for item in self.items for key in item.keys]
            self._keys = tuple(key for key, there in zip(every, mask, strict=True) if there)
            self._mask = mask
        if all(mask):
            return Readings(self._keys, tuple(values))
        return Readings(self._keys, tuple([value for value in values if value is not None]))
