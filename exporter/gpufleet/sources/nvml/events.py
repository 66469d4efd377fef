"""NVML events: Xid errors and changes that the driver reports by itself, waited for in a thread of their own."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

import pynvml

from gpufleet.sources.nvml.calls import NEVER_HERE, NO_PERMISSION, SUCCESS, TIMEOUT, Calls, NvmlError, Trace
from gpufleet.sources.nvml.identity import read_uuid

XID = int(pynvml.nvmlEventTypeXidCriticalError)
MIG_CHANGE = int(pynvml.nvmlEventMigConfigChange)
# Registered one by one beside these two, so that one bit that a device does not know loses no Xid. P-state changes and
# single-bit errors are left out: they come by the thousand and are polled anyway.
OPTIONAL = (
    int(pynvml.nvmlEventTypeDoubleBitEccError),
    MIG_CHANGE,
    0x400,  # DRAM retirement
    0x800,  # DRAM retirement failure
    0x1000,  # non-fatal poison
    0x2000,  # fatal poison
    0x4000,  # GPU unavailable
    0x8000,  # recovery action changed
)
"""Bits that pynvml's older releases have no names for are from nvml.h."""

# nvmlEventData_t: device 0, eventType 8, eventData 16, gpuInstanceId 24, computeInstanceId 28.
_DATA = struct.Struct("<QQQII")
_NO_INSTANCE = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """One event as the driver gave it."""

    handle: int
    """Address of a handle of the device: the one that was registered, as far as drivers are known."""
    kind: int
    """One bit of NVML's event types."""
    data: int
    """The Xid for ``XID`` (999: not known to the driver), otherwise 0."""
    gpu_instance: int | None
    compute_instance: int | None
    uuid: str | None = None
    """The device's UUID where the handle is not one that was registered: nvml.h does not promise that it is."""


class EventSet:
    """NVML's event set: created once a session, waited for by one thread."""

    def __init__(self, calls: Calls) -> None:
        """Raises NvmlError where the platform has no events (WSL2)."""
        self._calls = calls
        out = (ctypes.c_void_p * 1)()
        code = calls["nvmlEventSetCreate"](out)
        if code != SUCCESS:
            raise NvmlError("nvmlEventSetCreate", code)
        self._set = ctypes.c_void_p(out[0])
        self._buffer = (ctypes.c_char * _DATA.size)()
        self._registered: set[int | None] = set()

    def register(self, handle: ctypes.c_void_p, trace: Trace) -> bool:
        """Ask for a device's events, by the device's own worker; false when it has to be tried again, since the call
        for its Xids failed for a passing reason.

        ``trace`` is where the call that the worker is in can be seen from outside.
        """
        self._registered.add(handle.value)
        calls = self._calls.traced(trace)
        supported = (ctypes.c_uint64 * 1)()
        code = calls["nvmlDeviceGetSupportedEventTypes"](handle, supported)
        if code != SUCCESS:
            return _is_final(code)
        settled = True
        for bit in [bit for bit in (XID, *OPTIONAL) if supported[0] & bit]:
            if trace.given_up:
                return False
            code = calls["nvmlDeviceRegisterEvents"](handle, bit, self._set)
            if bit == XID:
                settled = _is_final(code)
        return settled

    def wait(self, milliseconds: int) -> DriverEvent | None:
        """The next event, or ``None`` when none came in time. Raises NvmlError on every other answer.

        GPU_IS_LOST comes back at once and again at each call: the caller has to pause.
        """
        code = self._calls["nvmlEventSetWait_v2"](self._set, self._buffer, milliseconds)
        if code == TIMEOUT:
            return None
        if code != SUCCESS:
            raise NvmlError("nvmlEventSetWait_v2", code)
        handle, kind, data, gpu_instance, compute_instance = _DATA.unpack_from(self._buffer)
        return DriverEvent(
            handle,
            kind,
            data,
            None if gpu_instance == _NO_INSTANCE else gpu_instance,
            None if compute_instance == _NO_INSTANCE else compute_instance,
            None if handle in self._registered else self._uuid_of(handle),
        )

    def _uuid_of(self, handle: int) -> str | None:
        try:
            return read_uuid(self._calls, ctypes.c_void_p(handle))
        except NvmlError:
            return None

    def free(self) -> None:
        """Give the set back: with nobody waiting, and before nvmlShutdown."""
        self._calls["nvmlEventSetFree"](self._set)


def _is_final(code: int) -> bool:
    return code in (SUCCESS, NO_PERMISSION) or code in NEVER_HERE
