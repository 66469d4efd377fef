"""Queries bound to a device: tried once when it is opened, kept where the driver answers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from functools import cache

from gpufleet.model.readings import Number
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    LIBRARY_DOWN,
    NEVER_HERE,
    NO_PERMISSION,
    Calls,
    NvmlError,
)
from gpufleet.sources.nvml.queries import Query
from gpufleet.sources.nvml.tally import Item, Tally


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
        "_high",
        "_mask",
        "_per",
        "_times",
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
        unit = query.unit
        self._mask = None if unit is None else unit.mask
        self._high, self._times, self._per = (0, 1, 1) if unit is None else (unit.high, unit.times, unit.per)
        self._call = calls[query.function]
        more = tuple((ctypes.c_char * size)() for size in query.more_buffers)
        self._arguments = (handle, *query.arguments, self._buffer, *more)

    def run(self, tally: Tally) -> int:
        """Call and decode."""
        if self._version:
            self._view[:4] = self._version
        code = self._call(*self._arguments)
        if code:
            self.values = [None] * len(self.keys)
            return code
        raw = self._unpack(self._buffer)
        if self._mask is None:
            self.values = self._decode(raw, tally)
            return code
        # One number, the usual case, needs no loop.
        number = raw[0] & self._mask
        if number > self._high:
            self.values = [None]
            tally.impossible(self.keys[0])
        else:
            self.values = [number * self._times if self._per == 1 else number / self._per]
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
