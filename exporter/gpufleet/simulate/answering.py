"""NVML's functions, answered by scripted GPUs on a clock of one's choice.

It follows the argument convention of ``sources.nvml.calls`` and stands in for the library itself. Readings are
functions of a clock that is an argument; ``speed`` lets an hour pass in a minute. What real drivers are known to do (a
lost GPU makes the event wait return at once, a re-partitioned GPU's old handles are refused) is done here too.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from gpufleet.simulate.buffers import Buffer, Handle
from gpufleet.simulate.devices import Device, Hanging
from gpufleet.simulate.functions import OF_GPU, OF_SLICE, DeviceAnswer
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.health import Window
from gpufleet.simulate.identity import write_text
from gpufleet.simulate.session import NoSession, Session
from gpufleet.simulate.versions import has_function, parse_driver_version
from gpufleet.sources.nvml.calls import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    NvmlFunction,
)

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = 13000
_REFRESH_SECONDS = 0.05
"""The figures of a GPU are at most so old; real drivers refresh theirs each 100 ms or less often."""


class AnsweringDriver:
    """A driver without hardware. One object is one node; its functions may be called from any thread.

    ``blocking=False`` makes scheduled hangs answer TIMEOUT at once, for a process whose threads serve many nodes.
    ``origin`` is the clock's reading at which the script begins, now if it is not given; ``started_at`` the Unix time
    of that moment. ``lacking`` names functions that this driver does not have beyond those that its version lacks.
    """

    simulated = True

    def __init__(
        self,
        gpus: Sequence[GpuScript],
        *,
        clock: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
        origin: float | None = None,
        started_at: float | None = None,
        driver_version: str = DRIVER_VERSION,
        lacking: Iterable[str] = (),
        restarts: Sequence[Window] = (),
        blocking: bool = True,
    ) -> None:
        self.driver_version = driver_version
        self._branch, minor = parse_driver_version(driver_version)
        self._lacking = frozenset(lacking)
        self._clock = clock
        self._origin = clock() if origin is None else origin
        self._scale = 1000 * speed
        self._period = max(1, round(_REFRESH_SECONDS * 1000 * max(1.0, speed)))
        self._epoch_us = round((time.time() if started_at is None else started_at) * 1_000_000)
        self._moment = -self._period
        self._restarts = tuple(restarts)
        self._blocking = blocking
        self._lock = threading.Lock()
        self.devices = [
            Device(i, script, (self._branch, minor), self.moment, self._timestamp, self._lock, self._restarts)
            for i, script in enumerate(gpus)
        ]
        self._session: Session = NoSession()
        self._sessions = 0
        self._loaded = True
        self._forced: dict[str, int] = {}
        self._hangs: list[Hanging] = []
        self._guard_again()

    # What calls.Driver asks for.

    def function(self, name: str) -> NvmlFunction | None:
        """The function of that name; ``None`` where a driver of this version lacks it."""
        if name in self._lacking or not has_function(name, self._branch):
            return None
        own: dict[str, NvmlFunction] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": lambda buffer, size: write_text(buffer, size, self.driver_version),
            "nvmlSystemGetNVMLVersion": lambda buffer, size: write_text(buffer, size, f"13.{self.driver_version}"),
            "nvmlSystemGetCudaDriverVersion": _cuda_version,
        }
        if name in own:
            return self._library_function(name, own[name])
        if name in _OF_SESSION:
            return self._library_function(name, self._of_session(_OF_SESSION[name]))
        if name in _OF_SESSION_AND_TARGET:
            answer = self._of_session(_OF_SESSION_AND_TARGET[name])
            return self._device_function(name, answer, answer)
        if name not in OF_GPU and name not in OF_SLICE:
            return None
        return self._device_function(name, OF_GPU.get(name), OF_SLICE.get(name))

    def _of_session(self, method: Callable[..., int]) -> NvmlFunction:
        """A method of whatever session is open when it is called."""
        return lambda *arguments: method(self._session, *arguments)

    def _library_function(self, name: str, answer: NvmlFunction) -> NvmlFunction:
        def call(*arguments: object) -> int:
            if self._hangs:
                self._hold(name, self._hangs)
            if name in self._forced:
                return self._forced[name]
            if name != "nvmlInitWithFlags" and (code := self._session_code()):
                return code
            return answer(*arguments)

        return call

    def _device_function(self, name: str, of_gpu: DeviceAnswer | None, of_slice: DeviceAnswer | None) -> NvmlFunction:
        def call(handle: Handle, *arguments: object) -> int:
            target = self._session.objects.get(handle.value or 0)
            if target is None:
                return self._session_code() or INVALID_ARGUMENT
            device = target.device
            if device.guarded and (code := self._guard(name, device)):
                return code
            if target is device:
                return of_gpu(device, *arguments) if of_gpu is not None else INVALID_ARGUMENT
            return of_slice(target, *arguments) if of_slice is not None else NOT_SUPPORTED

        return call

    # Time.

    def moment(self) -> int:
        """Milliseconds of the script, in steps of the refresh period."""
        now = int((self._clock() - self._origin) * self._scale)
        if now - self._moment >= self._period:
            self._moment = now
        return self._moment

    def _timestamp(self, moment: int) -> int:
        return self._epoch_us + 1000 * moment

    def _real_seconds(self, moment: int) -> float:
        return moment / self._scale - (self._clock() - self._origin)

    # What keeps a call from its plain answer.

    def _unloaded(self) -> bool:
        return not self._loaded or any(window.holds(self.moment()) for window in self._restarts)

    def _session_code(self) -> int:
        if self._unloaded():
            return DRIVER_NOT_LOADED
        if not self._session.references or self._stale():
            return UNINITIALIZED
        return SUCCESS

    def _stale(self) -> bool:
        """Whether the driver was unloaded since the session was opened."""
        ends = (window.last_end(self.moment()) for window in self._restarts)
        return self._session.ended or any(end is not None and end > self._session.opened_at for end in ends)

    def _guard(self, name: str, device: Device) -> int:
        self._hold(name, (*self._hangs, *device.hangs))
        if self._restarts and (code := self._session_code()):
            return code
        for hang in device.gpu.script.troubles.hangs:
            now = self.moment()
            if hang.function in (None, name) and hang.window.holds(now):
                if not self._blocking:
                    return TIMEOUT
                time.sleep(hang.window.left(now) / self._scale)
        if device.is_lost():
            return GPU_IS_LOST
        return device.down or device.forced.get(name) or self._forced.get(name, SUCCESS)

    @staticmethod
    def _hold(name: str, hangs: Sequence[Hanging]) -> None:
        for hanging in tuple(hangs):
            if hanging.function in (None, name):
                hanging.entered.set()
                hanging.released.wait()

    def _guard_again(self) -> None:
        everywhere = bool(self._forced or self._hangs or self._restarts)
        for device in self.devices:
            troubles = device.gpu.script.troubles
            own = device.down or device.lost or device.forced or device.hangs or not device.present
            device.guarded = bool(everywhere or own or troubles.hangs or troubles.losses)

    # The session.

    def _init(self, _flags: int) -> int:
        with self._lock:
            if self._unloaded():
                return DRIVER_NOT_LOADED
            if self._session.references and not self._stale():
                self._session.references += 1
                return SUCCESS
            self._session.close()
            self._sessions += 1
            self._session = Session(self._sessions, self.devices, self.moment, self._real_seconds)
        return SUCCESS

    def _shutdown(self) -> int:
        with self._lock:
            self._session.references -= 1
            if self._session.references == 0:
                self._session.close()
                self._session = NoSession()
        return SUCCESS


_OF_SESSION: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetCount_v2": Session.count,
    "nvmlDeviceGetHandleByIndex_v2": Session.by_index,
    "nvmlDeviceGetHandleByUUID": Session.by_uuid,
    "nvmlGpmSampleAlloc": Session.alloc_sample,
    "nvmlGpmSampleFree": Session.free_sample,
    "nvmlGpmMetricsGet": Session.metrics,
    "nvmlEventSetCreate": Session.create_set,
    "nvmlEventSetFree": Session.free_set,
    "nvmlEventSetWait_v2": Session.wait,
}
_OF_SESSION_AND_TARGET: dict[str, Callable[..., int]] = {
    "nvmlGpmSampleGet": Session.take_sample,
    "nvmlGpmMigSampleGet": Session.take_instance_sample,
    "nvmlDeviceGetSupportedEventTypes": Session.event_types,
    "nvmlDeviceRegisterEvents": Session.register,
}


def _cuda_version(buffer: Buffer) -> int:
    struct.pack_into("<i", buffer, 0, CUDA_VERSION)
    return SUCCESS
