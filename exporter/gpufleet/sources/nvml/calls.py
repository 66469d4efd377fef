"""The NVML functions that gpufleet calls, with their C signatures, bound once.

A function is used as ``calls[name](...)`` and returns NVML's return code. Arguments follow one convention, so that the
scripted driver (``gpufleet.simulate``) can stand in for the library without any ctypes magic:

* a handle (device, GPM sample, event set) is a ``ctypes.c_void_p``: a plain int would be cut to 32 bits by ctypes
  wherever ``argtypes`` were missing;
* a number that is passed in is a Python int;
* whatever the driver writes, and every struct that it reads, is a ``ctypes`` *array* (``c_char * n``, ``c_uint32 * 1``,
  ``c_void_p * 1``) made once by the caller and passed as it is: it converts to a pointer, and both sides can use it as
  a writable buffer (``struct.unpack_from``, ``struct.pack_into``).

A symbol that the loaded library lacks is bound to a function that returns FUNCTION_NOT_FOUND, as an old driver would
say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Protocol

import pynvml

NvmlFunction = Callable[..., int]

HANDLE = c_void_p
BUFFER = c_void_p

SIGNATURES: Mapping[str, tuple[type, ...]] = {
    # Library and system
    "nvmlInitWithFlags": (c_uint,),
    "nvmlShutdown": (),
    "nvmlSystemGetDriverVersion": (BUFFER, c_uint),
    "nvmlSystemGetNVMLVersion": (BUFFER, c_uint),
    "nvmlSystemGetCudaDriverVersion": (BUFFER,),
    "nvmlDeviceGetCount_v2": (BUFFER,),
    "nvmlDeviceGetHandleByIndex_v2": (c_uint, BUFFER),
    "nvmlDeviceGetHandleByUUID": (c_char_p, BUFFER),
    # Identity, once per opening of a device
    "nvmlDeviceGetUUID": (HANDLE, BUFFER, c_uint),
    "nvmlDeviceGetName": (HANDLE, BUFFER, c_uint),
    "nvmlDeviceGetSerial": (HANDLE, BUFFER, c_uint),
    "nvmlDeviceGetVbiosVersion": (HANDLE, BUFFER, c_uint),
    "nvmlDeviceGetPciInfo_v3": (HANDLE, BUFFER),
    "nvmlDeviceGetMinorNumber": (HANDLE, BUFFER),
    "nvmlDeviceGetArchitecture": (HANDLE, BUFFER),
    "nvmlDeviceGetMaxClockInfo": (HANDLE, c_int, BUFFER),
    "nvmlDeviceGetMaxPcieLinkGeneration": (HANDLE, BUFFER),
    "nvmlDeviceGetMaxPcieLinkWidth": (HANDLE, BUFFER),
    "nvmlDeviceGetTemperatureThreshold": (HANDLE, c_int, BUFFER),
    "nvmlDeviceGetSupportedClocksEventReasons": (HANDLE, BUFFER),
    "nvmlDeviceGetSupportedClocksThrottleReasons": (HANDLE, BUFFER),
    "nvmlDeviceGetNumFans": (HANDLE, BUFFER),
    # Readings
    "nvmlDeviceGetFieldValues": (HANDLE, c_int, BUFFER),
    "nvmlDeviceGetMemoryInfo_v2": (HANDLE, BUFFER),
    "nvmlDeviceGetMemoryInfo": (HANDLE, BUFFER),
    "nvmlDeviceGetBAR1MemoryInfo": (HANDLE, BUFFER),
    "nvmlDeviceGetUtilizationRates": (HANDLE, BUFFER),
    "nvmlDeviceGetEncoderUtilization": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetDecoderUtilization": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetJpgUtilization": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetOfaUtilization": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetClockInfo": (HANDLE, c_int, BUFFER),
    "nvmlDeviceGetCurrentClocksEventReasons": (HANDLE, BUFFER),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (HANDLE, BUFFER),
    "nvmlDeviceGetPerformanceState": (HANDLE, BUFFER),
    "nvmlDeviceGetTemperatureV": (HANDLE, BUFFER),
    "nvmlDeviceGetTemperature": (HANDLE, c_int, BUFFER),
    "nvmlDeviceGetMarginTemperature": (HANDLE, BUFFER),
    "nvmlDeviceGetPowerUsage": (HANDLE, BUFFER),
    "nvmlDeviceGetFanSpeed_v2": (HANDLE, c_uint, BUFFER),
    "nvmlDeviceGetEccMode": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetMemoryErrorCounter": (HANDLE, c_int, c_int, c_int, BUFFER),
    "nvmlDeviceGetSramEccErrorStatus": (HANDLE, BUFFER),
    "nvmlDeviceGetRowRemapperHistogram": (HANDLE, BUFFER),
    "nvmlDeviceGetCurrPcieLinkGeneration": (HANDLE, BUFFER),
    "nvmlDeviceGetCurrPcieLinkWidth": (HANDLE, BUFFER),
    "nvmlDeviceGetGpuFabricInfoV": (HANDLE, BUFFER),
    "nvmlDeviceGetGpuFabricInfo": (HANDLE, BUFFER),
    "nvmlDeviceGetComputeRunningProcesses_v3": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (HANDLE, BUFFER, BUFFER),
    # Activity, from Hopper on
    "nvmlGpmQueryDeviceSupport": (HANDLE, BUFFER),
    "nvmlGpmSampleAlloc": (BUFFER,),
    "nvmlGpmSampleFree": (HANDLE,),
    "nvmlGpmSampleGet": (HANDLE, HANDLE),
    "nvmlGpmMigSampleGet": (HANDLE, c_uint, HANDLE),
    "nvmlGpmMetricsGet": (BUFFER,),
    # MIG
    "nvmlDeviceGetMigMode": (HANDLE, BUFFER, BUFFER),
    "nvmlDeviceGetMaxMigDeviceCount": (HANDLE, BUFFER),
    "nvmlDeviceGetMigDeviceHandleByIndex": (HANDLE, c_uint, BUFFER),
    "nvmlDeviceGetGpuInstanceId": (HANDLE, BUFFER),
    "nvmlDeviceGetComputeInstanceId": (HANDLE, BUFFER),
    "nvmlDeviceGetAttributes_v2": (HANDLE, BUFFER),
    "nvmlDeviceGetGpuInstanceProfileInfo": (HANDLE, c_uint, BUFFER),
    # What the driver tells by itself
    "nvmlEventSetCreate": (BUFFER,),
    "nvmlEventSetFree": (HANDLE,),
    "nvmlDeviceGetSupportedEventTypes": (HANDLE, BUFFER),
    "nvmlDeviceRegisterEvents": (HANDLE, c_ulonglong, HANDLE),
    "nvmlEventSetWait_v2": (HANDLE, BUFFER, c_uint),
}

SUCCESS: int = pynvml.NVML_SUCCESS
UNINITIALIZED: int = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT: int = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION: int = pynvml.NVML_ERROR_NO_PERMISSION
NOT_FOUND: int = pynvml.NVML_ERROR_NOT_FOUND
INSUFFICIENT_SIZE: int = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
DRIVER_NOT_LOADED: int = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
TIMEOUT: int = pynvml.NVML_ERROR_TIMEOUT
IRQ_ISSUE: int = pynvml.NVML_ERROR_IRQ_ISSUE
LIBRARY_NOT_FOUND: int = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
FUNCTION_NOT_FOUND: int = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
CORRUPTED_INFOROM: int = pynvml.NVML_ERROR_CORRUPTED_INFOROM
GPU_IS_LOST: int = pynvml.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED: int = pynvml.NVML_ERROR_RESET_REQUIRED
OPERATING_SYSTEM: int = pynvml.NVML_ERROR_OPERATING_SYSTEM
LIB_RM_VERSION_MISMATCH: int = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
IN_USE: int = pynvml.NVML_ERROR_IN_USE
NO_DATA: int = pynvml.NVML_ERROR_NO_DATA
ARGUMENT_VERSION_MISMATCH: int = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
DEPRECATED: int = pynvml.NVML_ERROR_DEPRECATED
GPU_NOT_FOUND: int = pynvml.NVML_ERROR_GPU_NOT_FOUND
UNKNOWN: int = pynvml.NVML_ERROR_UNKNOWN

RETURN_NAMES: Mapping[int, str] = {SUCCESS: "success"} | {
    code: name.removeprefix("NVML_ERROR_").lower()
    for name, code in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(code, int)
}

NEVER_HERE = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
"""The device will give the same answer until the library is opened anew: do not ask again."""

DEVICE_DOWN = frozenset({GPU_IS_LOST, RESET_REQUIRED, IRQ_ISSUE, CORRUPTED_INFOROM})
"""The whole device is out, not one reading."""

LIBRARY_DOWN = frozenset(
    {UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH}
)
"""The library has to be shut down and opened again."""


def return_name(code: int) -> str:
    """NVML's name of a return code in lower case; ``code_<n>`` for one that this version does not know."""
    return RETURN_NAMES.get(code, f"code_{code}")


class NvmlError(Exception):
    """A driver call that failed: the function's name and NVML's return code."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {return_name(code)} ({code})")
        self.function = function
        self.code = code


class Driver(Protocol):
    """Something that answers NVML calls: the library itself or the scripted driver."""

    simulated: bool

    def function(self, name: str) -> NvmlFunction | None:
        """The function of that name, following the argument convention above; ``None`` where it is lacking."""


class Library:
    """``libnvidia-ml.so.1`` (or another path) opened with ctypes. Raises OSError when it can't be loaded."""

    simulated = False

    def __init__(self, path: str) -> None:
        # CDLL releases the GIL around each call: a call that hangs stops its own thread only.
        self._library = ctypes.CDLL(path)

    def function(self, name: str) -> NvmlFunction | None:
        """Bind a symbol with its signature; ``None`` when this driver does not have it."""
        try:
            bound = self._library[name]
        except AttributeError:
            return None
        bound.argtypes = SIGNATURES[name]
        bound.restype = c_int
        return bound


def _function_not_found(*_: object) -> int:
    return FUNCTION_NOT_FOUND


class Trace:
    """The function that a thread is in, or was in last: what a hang is blamed on. Read by other threads."""

    __slots__ = ("given_up", "last", "uuid")

    def __init__(self) -> None:
        self.last = ""
        self.uuid: str | None = None
        """The device that the thread is in the driver for, once that is known."""
        self.given_up = False
        """Set from outside when the call is overdue: once it returns, no other call is made."""


class Calls(Mapping[str, NvmlFunction]):
    """Every function of ``SIGNATURES``, bound to one driver."""

    __slots__ = ("_bound", "simulated")

    def __init__(self, driver: Driver) -> None:
        self.simulated = driver.simulated
        self._bound = {name: driver.function(name) or _function_not_found for name in SIGNATURES}

    def __getitem__(self, name: str) -> NvmlFunction:
        return self._bound[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def has(self, name: str) -> bool:
        """Whether the driver really has the function."""
        return self._bound[name] is not _function_not_found

    def traced(self, trace: Trace) -> Calls:
        """The same functions; looking one up, which is done just before calling it, is noted in ``trace``."""
        return _TracedCalls(self, trace)


class _TracedCalls(Calls):
    __slots__ = ("_trace",)

    def __init__(self, calls: Calls, trace: Trace) -> None:
        self.simulated = calls.simulated
        self._bound = calls._bound  # noqa: SLF001  (its own base class)
        self._trace = trace

    def __getitem__(self, name: str) -> NvmlFunction:
        self._trace.last = name
        return self._bound[name]
