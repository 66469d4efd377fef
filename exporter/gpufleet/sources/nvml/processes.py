"""Who has a compute context on a device: how many processes, and which.

The list is asked of the whole GPU (its slices' processes are in it, with their instances), in the same call that counts
them. Most replies are the last one again, and are then compared as bytes and not looked into.

Graphics contexts are not asked for: an X server is nobody's work, and the call was measured at 4.5 ms.
"""

from __future__ import annotations

import ctypes
import struct

from gpufleet.model.claims import GpuProcess
from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    INSUFFICIENT_SIZE,
    LIBRARY_DOWN,
    NEVER_HERE,
    NO_PERMISSION,
    SUCCESS,
    Calls,
    Trace,
)
from gpufleet.sources.nvml.tally import Tally, Tier

MOST_PROCESSES = 1024
"""Listed of one GPU; where there are more they are counted only."""
MORE_CALLS = 1
"""That one turn may make beside the call that every turn makes."""
PROCESSES = Key("processes")

_FIRST_ROOM = 16
_PID_LIMIT = 4_194_304
"""PID_MAX_LIMIT of a 64-bit kernel: no pid is as large, and no GPU has as many processes."""
_NO_INSTANCE = 0xFFFF_FFFF
# nvmlProcessInfo_t: pid 0, usedGpuMemory 8 (64 bits), gpuInstanceId 16, computeInstanceId 20. Drivers of early R535
# have 8 bytes more behind the same symbol, and nothing in the reply says so: the bytes that they did not write do.
_ENTRY = struct.Struct("<I12xII")
_SIZE, _SIZE_OF_535 = 24, 32
_UNWRITTEN = 0xA5
_UNWRITTEN_WORD = 0xA5A5_A5A5

Listed = tuple[GpuProcess, ...]


class _Asked:
    """One of the driver's lists of a device: a buffer that grows with it, and the reply before this one."""

    __slots__ = (
        "_address",
        "_arguments",
        "_buffer",
        "_calls",
        "_handle",
        "_last",
        "_name",
        "_view",
        "found",
        "needed",
        "room",
    )

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, function: str) -> None:
        self._calls = calls
        self._name = function
        self._handle = handle
        self._last: bytes | None = None
        self.found: Listed | None = None
        """As of the last reply; ``None`` where that had none in it that can be read."""
        self.needed = (ctypes.c_uint32 * 1)()
        self.room = 0
        self._make(_FIRST_ROOM)

    def grow(self) -> bool:
        """Make room for as many as the driver just said there are; false where that are too many."""
        if not self.room < self.needed[0] <= MOST_PROCESSES:
            return False
        # With some to spare: what starts ranks starts several.
        self._make(min(MOST_PROCESSES, self.needed[0] + _FIRST_ROOM))
        return True

    def _make(self, room: int) -> None:
        """A buffer for that many, in the larger of the two sizes."""
        self.room = room
        self._buffer = (ctypes.c_char * (room * _SIZE_OF_535))()
        self._address = ctypes.addressof(self._buffer)
        self._view = memoryview(self._buffer).cast("B")
        self._arguments = (self._handle, self.needed, self._buffer)

    def ask(self) -> int:
        """Call the driver; returns its code. ``needed`` is then how many there are."""
        self.needed[0] = self.room
        ctypes.memset(self._address, _UNWRITTEN, len(self._buffer))
        return self._calls[self._name](*self._arguments)

    def take(self, tally: Tally) -> bool:
        """Take a reply that came with SUCCESS; false where it is the last one again."""
        count = self.needed[0]
        if count > self.room:
            # More than there was room for, and no complaint: what is in the buffer is not known.
            self.found = self._last = None
            return True
        end = count * _SIZE_OF_535
        if self._last is not None and self._view[:end] == self._last:
            return False
        self._last = bytes(self._view[:end])
        self.found = parse(self._last, count, tally)
        return True

    def forget(self) -> None:
        """What there was is not known to be true any more."""
        self.found = self._last = None


def parse(reply: bytes, count: int, tally: Tally) -> Listed | None:
    """Processes of a reply with room for ``count`` entries of 32 bytes, without doubles and in order.

    Bytes that the driver left alone are 0xA5. ``None`` when it wrote less than it says. Pids that no process can have
    are dropped and counted.
    """
    behind = reply[count * _SIZE :]
    # Of one entry the 24 bytes are the same in either size.
    size = _SIZE if count == 1 or behind.count(_UNWRITTEN) == len(behind) else _SIZE_OF_535
    found = set()
    for at in range(0, count * size, size):
        pid, gpu_instance, compute_instance = _ENTRY.unpack_from(reply, at)
        if compute_instance == _UNWRITTEN_WORD:
            return None
        if not 0 < pid < _PID_LIMIT:
            tally.impossible(PROCESSES)
            continue
        found.add((pid, gpu_instance, compute_instance))
    return tuple(GpuProcess(pid, _instance(gpu), _instance(compute)) for pid, gpu, compute in sorted(found))


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number


class ProcessList:
    """The count of a device's compute processes as a reading, and the list of them."""

    function = "nvmlDeviceGetComputeRunningProcesses_v3"
    tier = Tier.MEDIUM
    keys: tuple[Key, ...] = (PROCESSES,)

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, trace: Trace) -> None:
        self.values: list[Number | None] = [None]
        self._trace = trace
        self._own = _Asked(calls, handle, self.function)
        self._clients: _Asked | None = None
        function = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
        if calls.has(function):
            self._clients = _Asked(calls, handle, function)
        self._clients_due = True
        self._clients_changed = False
        self._list: Listed | None = None

    @property
    def processes(self) -> Listed | None:
        """In the order of pids, MPS clients included; the same object until one changes. ``None``: not told."""
        # The plan takes a value away that has grown too old; the list goes with it.
        return None if self.values[0] is None else self._list

    def run(self, tally: Tally) -> int:
        """Ask once; a second time where the room was not enough or, for MPS clients, where the list has changed."""
        own = self._own
        code = own.ask()
        grown = code == INSUFFICIENT_SIZE and own.grow() and not self._trace.given_up
        if grown:
            code = own.ask()
        count = own.needed[0]
        if code not in (SUCCESS, INSUFFICIENT_SIZE) or self._trace.given_up:
            return self._unknown(code)
        if count >= _PID_LIMIT:
            tally.impossible(PROCESSES)
            return self._unknown(SUCCESS)
        if code == INSUFFICIENT_SIZE:
            own.forget()
            changed = True
        else:
            changed = own.take(tally)
        self._clients_due = self._clients_due or changed
        if not grown and (code := self._ask_clients(tally)):
            return self._unknown(code)
        self.values = [count]
        if changed or self._clients_changed:
            self._put_together()
        return SUCCESS

    def _unknown(self, code: int) -> int:
        self.values = [None]
        self._own.forget()
        return code

    def _ask_clients(self, tally: Tally) -> int:
        """MPS: the other list has the server that holds the context; here are those that it works for.

        A client that comes or goes shows in the other list too, as the server does when it starts or ends: this one is
        asked only then, and while it has anybody in it. Returns a code only where the device or the library is down.
        """
        self._clients_changed = False
        clients = self._clients
        if clients is None or not (self._clients_due or clients.found):
            return SUCCESS
        code = clients.ask()
        self._clients_due = code != SUCCESS
        if code in DEVICE_DOWN or code in LIBRARY_DOWN:
            return code
        if code == SUCCESS:
            self._clients_changed = clients.take(tally)
        elif code in NEVER_HERE or code == NO_PERMISSION:
            self._clients = None
            self._clients_changed = True
        elif code != INSUFFICIENT_SIZE:
            tally.error(code)
        else:
            # There is room for them in the next turn.
            clients.grow()
        return SUCCESS

    def _put_together(self) -> None:
        found = self._own.found
        if found is not None and self._clients is not None and self._clients.found:
            found = tuple(sorted({*found, *self._clients.found}, key=_order))
        if found != self._list:
            self._list = found


def _order(process: GpuProcess) -> tuple[int, int, int]:
    instances = (process.gpu_instance, process.compute_instance)
    gpu, compute = (_NO_INSTANCE if number is None else number for number in instances)
    return process.pid, gpu, compute
