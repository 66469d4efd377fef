"""The floor: what the calls of a fast poll cost when a plain loop makes them and looks at every value.

The calls are those that the exporter's own plan makes, recorded at the boundary to the library, with the requests that
went in. The loop restores each request, calls, checks the return code of the call and of every entry, and puts the raw
numbers into a dictionary. It scales nothing, bounds nothing, hands nothing to another thread.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpufleet.sources.nvml.calls import Driver, NvmlFunction
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session

NEVER = 1e9
"""Seconds between two readings of the slower tiers: what is measured is the fast one."""

_FIELDS = "nvmlDeviceGetFieldValues"
_LAYOUTS = {
    "nvmlDeviceGetMemoryInfo_v2": "<8x4Q",
    "nvmlDeviceGetUtilizationRates": "<2I",
    "nvmlDeviceGetClockInfo": "<I",
    "nvmlDeviceGetCurrentClocksEventReasons": "<Q",
    "nvmlDeviceGetPerformanceState": "<I",
    "nvmlDeviceGetTemperatureV": "<8xi",
}
_VERSIONED = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"}
"""Structs whose first word, the version, has to be right at every call."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the exporter made it: ``request`` is what stood in the buffer when it went out."""

    function: str
    arguments: tuple[Any, ...]
    request: bytes

    @property
    def buffer(self) -> ctypes.Array[Any]:
        """What the driver writes to."""
        found: ctypes.Array[Any] = self.arguments[-1]
        return found


class Recording:
    """A driver that notes each call before it passes it on."""

    def __init__(self, driver: Driver) -> None:
        self.simulated = driver.simulated
        self._driver = driver
        self.calls: list[Call] = []

    def function(self, name: str) -> NvmlFunction | None:
        """The driver's function, with a note taken at each call."""
        bound = self._driver.function(name)
        if bound is None:
            return None

        def call(*arguments: Any) -> int:  # noqa: ANN401 - as ctypes
            buffers = [argument for argument in arguments if isinstance(argument, ctypes.Array)]
            self.calls.append(Call(name, arguments, bytes(buffers[-1]) if buffers else b""))
            return bound(*arguments)

        return call


class BareLoop:
    """The fast calls of every GPU of a driver, in one loop on one thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        recording = Recording(driver)
        # Opened once through the recording, for the plan; closed at the end like any session.
        self._session = Session(recording)
        self._devices: list[Device] = []
        self._polls: list[Callable[[], dict[str, Any]]] = []
        pace = Pace(1.0, NEVER, NEVER)
        for index in range(self._session.count()):
            options = DeviceOptions(pace, driver_version=self._session.versions.driver)
            device = Device(self._session.calls, self._session.handle(index), options, 0.0)
            device.sample(0.0)
            device.read(1.0)
            recording.calls.clear()
            device.read(2.0)
            reading, sampling = recording.calls[:], []
            if device.samples_gpm:
                recording.calls.clear()
                device.sample(2.0)
                sampling = recording.calls[:]
            self._devices.append(device)
            self._polls.append(self._loop_of(reading, sampling))
            self.calls_each = len(reading) + len(sampling)

    def _bound(self, name: str) -> NvmlFunction:
        function = self._driver.function(name)
        assert function is not None, f"{name} was called a moment ago"
        return function

    def _loop_of(self, reading: list[Call], sampling: list[Call]) -> Callable[[], dict[str, Any]]:
        (fields,) = [call for call in reading if call.function == _FIELDS]
        get_fields, arguments, template = self._bound(_FIELDS), fields.arguments, fields.request
        entries = len(template) // 40
        view = memoryview(fields.buffer).cast("B")
        unpack = struct.Struct("<" + "28xIQ" * entries).unpack_from
        names = [(2 * i, f"field {struct.unpack_from('<II', template, 40 * i)}") for i in range(entries)]
        rest = []
        for call in reading:
            if call.function != _FIELDS:
                head = call.request[:4] if call.function in _VERSIONED else b""
                rest.append(
                    (
                        self._bound(call.function),
                        call.arguments,
                        struct.Struct(_LAYOUTS[call.function]).unpack_from,
                        call.buffer,
                        memoryview(call.buffer).cast("B"),
                        head,
                        f"{call.function} {call.arguments[1:-1]}",
                    )
                )
        sample = self._sampling_loop(sampling) if sampling else None

        def poll() -> dict[str, Any]:
            values: dict[str, Any] = {}
            view[:] = template
            if get_fields(*arguments) == 0:
                reply = unpack(arguments[-1])
                for at, name in names:
                    if reply[at] == 0:
                        values[name] = reply[at + 1]
            for function, passed, decode, buffer, struct_view, head, name in rest:
                if head:
                    struct_view[:4] = head
                if function(*passed) == 0:
                    values[name] = decode(buffer)
            if sample is not None:
                sample(values)
            return values

        return poll

    def _sampling_loop(self, sampling: list[Call]) -> Callable[[dict[str, Any]], None]:
        taken, computed = sampling
        get_sample, get_metrics = self._bound(taken.function), self._bound(computed.function)
        handle = taken.arguments[0]
        buffer, request = computed.buffer, computed.request
        view = memoryview(buffer).cast("B")
        first, second = struct.unpack_from("<2Q", request, 8)
        count = struct.unpack_from("<I", request, 4)[0]
        unpack = struct.Struct("<24x" + "4xId24x" * count).unpack_from
        names = [(2 * i, f"gpm {struct.unpack_from('<I', request, 24 + 40 * i)[0]}") for i in range(count)]
        # Two samples take turns; a request for each order.
        orders = [(first, second), (second, first)]
        requests = [request[:8] + struct.pack("<2Q", older, newer) + request[24:] for older, newer in orders]
        samples = [ctypes.c_void_p(newer) for _, newer in orders]
        turn = 0

        def sample(values: dict[str, Any]) -> None:
            nonlocal turn
            turn ^= 1
            if get_sample(handle, samples[turn]) != 0:
                return
            view[:] = requests[turn]
            if get_metrics(buffer) == 0:
                reply = unpack(buffer)
                for at, name in names:
                    if reply[at] == 0:
                        values[name] = reply[at + 1]

        return sample

    def poll(self) -> list[dict[str, Any]]:
        """Every GPU once."""
        return [poll() for poll in self._polls]

    def cost(self, period: float, seconds: float) -> float:
        """CPU seconds of the process a GPU and poll, at one poll each ``period``; 0 is back to back."""
        polls = 0
        begin, used = time.monotonic(), time.process_time()
        while (now := time.monotonic()) - begin < seconds:
            left = begin + polls * period - now
            if left > 0:
                time.sleep(left)
            self.poll()
            polls += 1
        return (time.process_time() - used) / polls / len(self._polls)

    def close(self) -> None:
        """Let the driver go."""
        for device in self._devices:
            device.close()
        self._session.close()
