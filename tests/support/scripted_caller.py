"""A caller of the scripted driver: the exporter's own table of functions, buffers as it makes them, a clock by hand."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.sources.nvml.calls import SUCCESS, Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpufleet.simulate.gpu import GpuScript

ALL_LINKS = 0xFFFF_FFFF
_ENTRY = struct.Struct("<IIqqIIQ")
UNWRITTEN = 0xEEEE_EEEE

Struct = TypeVar("Struct", bound=ctypes.Structure)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Caller:
    """Calls a scripted driver whose script began when the caller was made."""

    def __init__(self, gpus: Sequence[GpuScript], **options: Any) -> None:  # noqa: ANN401 -- the driver's own options
        self.clock = Clock()
        self.driver = ScriptedDriver(gpus, clock=self.clock, started_at=1_700_000_000.0, **options)
        self.calls = Calls(self.driver)
        self.open()

    def open(self) -> None:
        """Begin a session and take the handles of all GPUs."""
        code = self.calls["nvmlInitWithFlags"](0)
        assert code == SUCCESS, code
        out = (ctypes.c_uint32 * 1)()
        assert self.calls["nvmlDeviceGetCount_v2"](out) == SUCCESS
        self.handles = [self.handle(index) for index in range(out[0])]

    def handle(self, index: int) -> ctypes.c_void_p:
        """The handle of a GPU by its index; a null handle where the driver gives none."""
        out = (ctypes.c_void_p * 1)()
        self.calls["nvmlDeviceGetHandleByIndex_v2"](index, out)
        return ctypes.c_void_p(out[0])

    def slices(self, gpu: int) -> list[ctypes.c_void_p]:
        """The handles of a GPU's MIG slices."""
        found = []
        for index in range(7):
            out = (ctypes.c_void_p * 1)()
            if self.calls["nvmlDeviceGetMigDeviceHandleByIndex"](self.handles[gpu], index, out) == SUCCESS:
                found.append(ctypes.c_void_p(out[0]))
        return found

    def code(self, function: str, handle: ctypes.c_void_p, *arguments: object) -> int:
        """The return code of a call that gets one buffer of 128 bytes after its arguments."""
        return self.calls[function](handle, *arguments, (ctypes.c_char * 128)())

    def number(self, function: str, handle: ctypes.c_void_p, *arguments: object, size: int = 4) -> tuple[int, int]:
        """Return code and number of a call that writes one unsigned number of 4 or 8 bytes."""
        out = (ctypes.c_char * size)()
        code = self.calls[function](handle, *arguments, out)
        return code, int.from_bytes(out.raw, "little")

    def text(self, function: str, handle: ctypes.c_void_p, size: int = 96) -> str:
        """The text that a call writes."""
        out = (ctypes.c_char * size)()
        code = self.calls[function](handle, out, size)
        assert code == SUCCESS, code
        return out.value.decode()

    def read(
        self, function: str, handle: ctypes.c_void_p, layout: type[Struct], version: int = 0
    ) -> tuple[int, Struct]:
        """Return code, and what a call wrote as one of pynvml's structs; ``version`` is the word it is stamped with."""
        buffer = (ctypes.c_char * ctypes.sizeof(layout))()
        if version:
            struct.pack_into("<I", buffer, 0, version)
        code = self.calls[function](handle, buffer)
        return code, layout.from_buffer_copy(buffer)

    def fields(self, handle: ctypes.c_void_p, *wanted: tuple[int, int]) -> list[tuple[int, int]]:
        """Return code and value of each (field id, scope); UNWRITTEN where the driver wrote neither."""
        buffer = (ctypes.c_char * (_ENTRY.size * len(wanted)))()
        for place, (field, scope) in enumerate(wanted):
            _ENTRY.pack_into(buffer, place * _ENTRY.size, field, scope, 0, 0, 0, UNWRITTEN, 0)
        code = self.calls["nvmlDeviceGetFieldValues"](handle, len(wanted), buffer)
        assert code == SUCCESS, code
        return [(entry[5], entry[6]) for entry in _ENTRY.iter_unpack(bytes(buffer))]

    def field(self, handle: ctypes.c_void_p, field: int, scope: int = 0) -> int:
        """The value of a field that the device has."""
        ((code, value),) = self.fields(handle, (field, scope))
        assert code == SUCCESS, code
        return value

    def profile_info(self, number: int) -> tuple[int, pynvml.c_nvmlGpuInstanceProfileInfo_t]:
        """Return code and nvmlGpuInstanceProfileInfo_t of the first GPU."""
        buffer = (ctypes.c_char * ctypes.sizeof(pynvml.c_nvmlGpuInstanceProfileInfo_t))()
        code = self.calls["nvmlDeviceGetGpuInstanceProfileInfo"](self.handles[0], number, buffer)
        return code, pynvml.c_nvmlGpuInstanceProfileInfo_t.from_buffer_copy(buffer)

    def sample(self) -> ctypes.c_void_p:
        """A GPM sample buffer."""
        out = (ctypes.c_void_p * 1)()
        assert self.calls["nvmlGpmSampleAlloc"](out) == SUCCESS
        return ctypes.c_void_p(out[0])

    def metrics(
        self, older: ctypes.c_void_p, newer: ctypes.c_void_p, *ids: int, version: int = 1
    ) -> tuple[int, list[tuple[int, float]]]:
        """Return code of nvmlGpmMetricsGet, and return code and value of each metric."""
        buffer = (ctypes.c_char * (24 + 40 * len(ids)))()
        struct.pack_into("<IIQQ", buffer, 0, version, len(ids), older.value or 0, newer.value or 0)
        for place, metric in enumerate(ids):
            struct.pack_into("<I", buffer, 24 + 40 * place, metric)
        code = self.calls["nvmlGpmMetricsGet"](buffer)
        return code, [struct.unpack_from("<Id", buffer, 28 + 40 * place) for place in range(len(ids))]

    def activity(self, handle: ctypes.c_void_p, seconds: float, *ids: int) -> list[float]:
        """GPM metrics of a GPU over the next ``seconds``."""
        older, newer = self.sample(), self.sample()
        assert self.calls["nvmlGpmSampleGet"](handle, older) == SUCCESS
        self.clock.forward(seconds)
        assert self.calls["nvmlGpmSampleGet"](handle, newer) == SUCCESS
        code, found = self.metrics(older, newer, *ids)
        assert code == SUCCESS, code
        return [value for _, value in found]

    def event_set(self) -> ctypes.c_void_p:
        """An event set."""
        out = (ctypes.c_void_p * 1)()
        assert self.calls["nvmlEventSetCreate"](out) == SUCCESS
        return ctypes.c_void_p(out[0])

    def register(self, handle: ctypes.c_void_p, mask: int, event_set: ctypes.c_void_p) -> int:
        """Ask for events."""
        return self.calls["nvmlDeviceRegisterEvents"](handle, mask, event_set)

    def wait(self, event_set: ctypes.c_void_p, timeout_ms: int = 0) -> tuple[int, tuple[int, int, int]]:
        """Return code, and device, type and data of the event."""
        buffer = (ctypes.c_char * 32)()
        code = self.calls["nvmlEventSetWait_v2"](event_set, buffer, timeout_ms)
        return code, struct.unpack_from("<QQQ", buffer)
