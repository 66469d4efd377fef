"""The library as a whole: opened, asked for its devices, and closed.

The handles of a session are invalid after ``close``; whoever keeps one keeps it together with the session.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.model.state import NvmlState
from gpufleet.sources.nvml import calls as nvml
from gpufleet.sources.nvml.calls import Calls, Driver, Library, NvmlError
from gpufleet.sources.nvml.identity import read_text

MOST_DEVICES = 256


class SessionError(Exception):
    """The library can't be used: its state, and why, with the remedy where there is one."""

    def __init__(self, state: NvmlState, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that the library reports, ``None`` where it does not."""

    driver: str | None
    nvml: str | None
    cuda: str | None


def open_library(path: str) -> Driver:
    """Load the library. Raises SessionError when the dynamic linker does not find or accept it."""
    try:
        return Library(path)
    except OSError as error:
        raise SessionError(
            NvmlState.NO_LIBRARY,
            f"{path} can't be loaded ({error}); install the NVIDIA driver, or in a container give it the driver's "
            "libraries (NVIDIA_DRIVER_CAPABILITIES=utility), or name the file with --nvml.library",
        ) from error


class Session:
    """One nvmlInit and its nvmlShutdown. Made by a thread that may hang: every call in here can block in the driver."""

    def __init__(self, driver: Driver, can_open_devices: Callable[[], bool] = lambda: True) -> None:
        """Raises SessionError with the state that the failure stands for.

        ``can_open_devices`` tells whether this process may open the driver's device nodes; it is asked only to explain
        an UNKNOWN from nvmlInit, which is what a container gets after its device permissions were taken away.
        """
        self.calls = Calls(driver)
        self.closed = False
        code = self.calls["nvmlInitWithFlags"](0)
        if code != nvml.SUCCESS:
            raise _explain_init(code, can_open_devices)
        try:
            self.versions = Versions(
                read_text(self.calls, "nvmlSystemGetDriverVersion"),
                read_text(self.calls, "nvmlSystemGetNVMLVersion"),
                self._cuda(),
            )
        except NvmlError as error:
            raise _explain_init(error.code, can_open_devices) from error

    def _cuda(self) -> str | None:
        # The unversioned call: the _v2 form loads libcuda and fails where there is none.
        number = (ctypes.c_int32 * 1)()
        if self.calls["nvmlSystemGetCudaDriverVersion"](number) != nvml.SUCCESS or number[0] <= 0:
            return None
        return f"{number[0] // 1000}.{number[0] % 1000 // 10}"

    def count(self) -> int:
        """Devices of the node, those that this process may not open included. Raises NvmlError."""
        count = (ctypes.c_uint32 * 1)()
        code = self.calls["nvmlDeviceGetCount_v2"](count)
        if code != nvml.SUCCESS:
            raise NvmlError("nvmlDeviceGetCount_v2", code)
        return min(count[0], MOST_DEVICES)

    def handle(self, index: int) -> ctypes.c_void_p:
        """Handle of a device; the index is good for this session only. Raises NvmlError."""
        out = (ctypes.c_void_p * 1)()
        code = self.calls["nvmlDeviceGetHandleByIndex_v2"](index, out)
        if code != nvml.SUCCESS:
            raise NvmlError("nvmlDeviceGetHandleByIndex_v2", code)
        return ctypes.c_void_p(out[0])

    def handle_of(self, uuid: str) -> ctypes.c_void_p:
        """Handle of a device by its name. Raises NvmlError."""
        out = (ctypes.c_void_p * 1)()
        code = self.calls["nvmlDeviceGetHandleByUUID"](uuid.encode("ascii", "replace"), out)
        if code != nvml.SUCCESS:
            raise NvmlError("nvmlDeviceGetHandleByUUID", code)
        return ctypes.c_void_p(out[0])

    def close(self) -> None:
        """nvmlShutdown, once; with no call out."""
        if not self.closed:
            self.closed = True
            self.calls["nvmlShutdown"]()


def _explain_init(code: int, can_open_devices: Callable[[], bool]) -> SessionError:
    name = nvml.return_name(code)
    if code == nvml.LIB_RM_VERSION_MISMATCH:
        return SessionError(
            NvmlState.MISMATCH,
            "the driver's library and its kernel module are of different versions: reload the module or reboot; "
            "gpufleet starts itself anew when either changes",
        )
    if code == nvml.NO_PERMISSION or (code == nvml.UNKNOWN and not can_open_devices()):
        return SessionError(
            NvmlState.NO_PERMISSION,
            f"nvmlInit returned {name}: this process may not open /dev/nvidiactl; in a container its device "
            "permissions may have been taken away by a systemd reload, and only a new container has them again",
        )
    if code == nvml.LIBRARY_NOT_FOUND:
        return SessionError(NvmlState.NO_LIBRARY, f"nvmlInit returned {name}: the driver's library is incomplete")
    if code == nvml.FUNCTION_NOT_FOUND:
        return SessionError(NvmlState.NO_LIBRARY, "the library has no nvmlInitWithFlags: it is not NVIDIA's NVML")
    return SessionError(NvmlState.NO_DRIVER, f"nvmlInit returned {name} ({code}): is the kernel module nvidia loaded?")
