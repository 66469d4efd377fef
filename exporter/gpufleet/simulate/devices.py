"""What the driver's handles stand for: a GPU, or a MIG slice of one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpufleet.simulate.field_answers import Kind, kind_of
from gpufleet.simulate.gpu import Compute, GpuScript, Instance, Reading, ScriptedGpu
from gpufleet.simulate.health import Window


@dataclass(slots=True, eq=False)
class Hanging:
    """A call that does not return: set ``released`` to let it go; ``entered`` is set once a call is in it."""

    function: str | None
    released: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)


class Device:
    """A GPU as the driver has it: readings of the moment, and what has been done to it."""

    __slots__ = (
        "_lock",
        "_moment",
        "_reading",
        "down",
        "forced",
        "gpu",
        "guarded",
        "handle",
        "hangs",
        "index",
        "kind",
        "lost",
        "present",
        "restarts",
        "slices",
        "timestamp",
        "version",
    )

    def __init__(
        self,
        index: int,
        script: GpuScript,
        version: tuple[int, int],
        moment: Callable[[], int],
        timestamp: Callable[[int], int],
        lock: threading.Lock,
        restarts: tuple[Window, ...] = (),
    ) -> None:
        self.index = index
        self.version = version
        self.gpu = ScriptedGpu(script)
        self.kind: Kind = kind_of(script.profile, *version, mig=script.mig)
        self.handle = 0
        """0 while no session is open."""
        self.slices: list[Slice] = []
        self.present = True
        """Whether the next session finds it."""
        self.lost = False
        self.down = 0
        """Code that every call gets, such as RESET_REQUIRED; 0 while it is fine."""
        self.forced: dict[str, int] = {}
        self.hangs: list[Hanging] = []
        self.guarded = False
        """Whether any of the above (or the script) can keep a call from its plain answer."""
        self.restarts = restarts
        """When the driver is scheduled to be unloaded and loaded again."""
        self.timestamp = timestamp
        """Microseconds since the epoch of a moment."""
        self._moment = moment
        self._lock = lock
        self._reading: Reading | None = None

    @property
    def device(self) -> Device:
        """The GPU itself: a slice's is its parent."""
        return self

    def reading(self) -> Reading:
        """The reading of this moment; the same object until the driver refreshes its figures."""
        now = self._moment()
        reading = self._reading
        if reading is not None and reading.time >= now:
            return reading
        with self._lock:
            reading = self._reading
            if reading is None or reading.time < now:
                self._reload(now)
                reading = self._reading = self.gpu.read(now)
            return reading

    def _reload(self, now: int) -> None:
        """After a scheduled loss or restart the driver counts anew."""
        windows = (*self.restarts, *self.gpu.script.troubles.losses)
        if windows:
            last = max((end for window in windows if (end := window.last_end(now)) is not None), default=0)
            if last > self.gpu.loaded_at:
                self.gpu.load(last)

    def is_lost(self) -> bool:
        """Whether it has fallen off the bus or been taken out."""
        if self.lost or not self.present:
            return True
        losses = self.gpu.script.troubles.losses
        return bool(losses) and any(window.holds(self._moment()) for window in losses)

    def rescript(self, script: GpuScript) -> None:
        """Give the GPU another script from now on."""
        with self._lock:
            self.gpu = ScriptedGpu(script)
            self.kind = kind_of(script.profile, *self.version, mig=script.mig)
            self._reading = None

    def load(self, moment: int) -> None:
        """The driver counts anew from ``moment`` on."""
        with self._lock:
            self.gpu.load(moment)
            self._reading = None


@dataclass(slots=True, eq=False)
class Slice:
    """A MIG compute instance as the driver has it."""

    device: Device
    instance: Instance
    compute: Compute
    handle: int

    @property
    def profile_name(self) -> str:
        """``3g.40gb``, or ``1c.3g.40gb`` where the compute instance has a part of its GPU instance only."""
        name = self.instance.profile.profile
        if self.compute.slices < self.instance.profile.slices:
            return f"{self.compute.slices}c.{name}"
        return name

    @property
    def multiprocessors(self) -> int:
        """Of this compute instance."""
        return self.instance.profile.multiprocessors * self.compute.slices // self.instance.profile.slices
