"""A caller of NVML in the plainest way: one call at a time, through the exporter's own table of functions."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpufleet.sources.nvml.calls import Calls, Library
from tests.support.fake_nvml import FakeNvml

ALL = 0xFFFFFFFF


class Client:
    """Calls a stand-in driver. Numbers come back as (return code, value)."""

    def __init__(self, fake: FakeNvml, library: Path | None = None) -> None:
        self.calls = Calls(Library(str(library or fake.library)))

    def init(self, flags: int = 0) -> int:
        """Open the library."""
        return self.calls["nvmlInitWithFlags"](flags)

    def shutdown(self) -> int:
        """Close the library."""
        return self.calls["nvmlShutdown"]()

    def count(self) -> tuple[int, int]:
        """How many GPUs there are."""
        out = (ctypes.c_uint32 * 1)()
        return self.calls["nvmlDeviceGetCount_v2"](out), out[0]

    def handle(self, index: int) -> ctypes.c_void_p:
        """The handle of the GPU with that enumeration index."""
        out = (ctypes.c_void_p * 1)()
        code = self.calls["nvmlDeviceGetHandleByIndex_v2"](index, out)
        assert code == 0, f"no handle for {index}: {code}"
        return ctypes.c_void_p(out[0])

    def instance(self, parent: ctypes.c_void_p, place: int) -> ctypes.c_void_p:
        """The handle of the instance at that place of a GPU's enumeration."""
        out = (ctypes.c_void_p * 1)()
        code = self.calls["nvmlDeviceGetMigDeviceHandleByIndex"](parent, place, out)
        assert code == 0, f"no handle for instance {place}: {code}"
        return ctypes.c_void_p(out[0])

    def number(self, function: str, handle: ctypes.c_void_p, *arguments: int) -> tuple[int, int]:
        """A call that gives one number of 32 bits."""
        out = (ctypes.c_uint32 * 1)()
        return self.calls[function](handle, *arguments, out), out[0]

    def text(self, function: str, handle: ctypes.c_void_p) -> str:
        """A call that gives a text."""
        out = (ctypes.c_char * 96)()
        code = self.calls[function](handle, out, 96)
        assert code == 0, f"{function}: {code}"
        return out.value.decode()

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """A device's UUID."""
        return self.text("nvmlDeviceGetUUID", handle)

    def fields(self, handle: ctypes.c_void_p, *wanted: tuple[int, int]) -> list[tuple[int, int, int, int]]:
        """(return code, value as 64 bits, type, timestamp) of each (field id, scope).

        The return code and the value are 0xEEEEEEEE where the driver wrote neither.
        """
        entry = struct.Struct("<IIqqIiQ")
        buffer = (ctypes.c_char * (entry.size * len(wanted)))()
        for place, (field_id, scope) in enumerate(wanted):
            entry.pack_into(buffer, place * entry.size, field_id, scope, 0, 0, 0, -0x11111112, 0xEEEEEEEE)
        code = self.calls["nvmlDeviceGetFieldValues"](handle, len(wanted), buffer)
        assert code == 0, code
        return [
            (ret & 0xFFFFFFFF, value, kind, timestamp)
            for _, _, timestamp, _, kind, ret, value in entry.iter_unpack(bytes(buffer))
        ]

    def field(self, handle: ctypes.c_void_p, field_id: int, scope: int = 0) -> tuple[int, int]:
        """(return code, value) of one field."""
        return self.fields(handle, (field_id, scope))[0][:2]

    def new_sample(self) -> ctypes.c_void_p:
        """A new GPM sample."""
        out = (ctypes.c_void_p * 1)()
        assert self.calls["nvmlGpmSampleAlloc"](out) == 0
        return ctypes.c_void_p(out[0])

    def sample(self, handle: ctypes.c_void_p, sample: ctypes.c_void_p) -> int:
        """Fill a GPM sample."""
        return self.calls["nvmlGpmSampleGet"](handle, sample)

    def metrics(
        self, older: ctypes.c_void_p, newer: ctypes.c_void_p, *wanted: int
    ) -> tuple[int, list[tuple[int, float]]]:
        """The return code, and (return code, value) of each GPM metric between two samples."""
        buffer = (ctypes.c_char * (24 + 40 * len(wanted)))()
        struct.pack_into("<IIQQ", buffer, 0, 1, len(wanted), older.value or 0, newer.value or 0)
        for place, metric in enumerate(wanted):
            struct.pack_into("<I", buffer, 24 + 40 * place, metric)
        code = self.calls["nvmlGpmMetricsGet"](buffer)
        return code, [struct.unpack_from("<4xid", buffer, 24 + 40 * place) for place in range(len(wanted))]

    def event_set(self) -> ctypes.c_void_p:
        """A new event set."""
        out = (ctypes.c_void_p * 1)()
        assert self.calls["nvmlEventSetCreate"](out) == 0
        return ctypes.c_void_p(out[0])

    def wait_event(self, events: ctypes.c_void_p, ms: int) -> tuple[int, tuple[int, int, int, int, int]]:
        """The return code, and (device, type, data, GPU instance, compute instance) of the next event."""
        buffer = (ctypes.c_char * 32)()
        code = self.calls["nvmlEventSetWait_v2"](events, buffer, ms)
        device, kind, data, gi, ci = struct.unpack("<QQQII", buffer)
        return code, (device, kind, data, gi, ci)


class Aside:
    """A call on a thread of its own, for calls that hang."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.result: Any = None
        self._error: BaseException | None = None
        self._function = function
        self._arguments = arguments
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self._error = error

    @property
    def out(self) -> bool:
        """Whether the call has not returned."""
        return self._thread.is_alive()

    def done(self, seconds: float = 10.0) -> Any:  # noqa: ANN401 - whatever the function gives
        """Wait for the call and give its result."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self.result
