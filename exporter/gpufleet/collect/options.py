"""What the poller is told, and the world that it is put into: everything that a test wants to decide itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpufleet.collect.accounting import Accounting, NoAccounts
from gpufleet.collect.fault_sink import Counting, FaultSink
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.nvml.calls import Driver
from gpufleet.sources.nvml.device import DeviceOptions
from gpufleet.sources.nvml.plan import Pace


@dataclass(frozen=True, slots=True)
class PollerOptions:
    """The operator's choices."""

    node: str
    interval: float = 1.0
    """Seconds between polls."""
    medium_seconds: float = 10.0
    """Between two readings of what changes slowly: links, codec engines, the graphics and video clocks."""
    slow_seconds: float = 60.0
    """Between two readings of what hardly changes."""
    deadline: float = 1.0
    """Seconds after which a GPU that has not answered is taken to hang."""
    each_link: bool = False
    quiesce_max: float = 900.0
    boot_id: str | None = None
    utilization: str = "auto"
    """Which reading stands for utilization: ``sm``, ``gpu`` or ``tensor``, or the best that a GPU reports."""

    @property
    def pace(self) -> Pace:
        """How often each tier is read."""
        return Pace(self.interval, self.medium_seconds, self.slow_seconds)

    def device_options(self, driver_version: str | None) -> DeviceOptions:
        """The part of it that concerns what is asked of a device."""
        return DeviceOptions(self.pace, self.each_link, driver_version, self.utilization)


@dataclass(frozen=True, slots=True)
class World:
    """What the poller asks of its surroundings. Each may block: they are called off the poll thread."""

    open_driver: Callable[[], Driver]
    """Load the library; raises SessionError."""
    can_open_devices: Callable[[], bool] = lambda: True
    """Whether the driver's device nodes may be opened by this process."""
    kernel_gpus: Callable[[], frozenset[str]] = frozenset
    """PCI addresses of the GPUs that the kernel's driver has; empty where that can't be told."""
    driver_loaded: Callable[[], bool | None] = lambda: None
    """Whether the kernel module is loaded; ``None`` where that can't be told."""
    open_device_files: Callable[[], tuple[str, ...]] = tuple
    """Device files of the driver that this process has open."""
    other_sources: Callable[[], tuple[SourceHealth, ...]] = tuple
    """Health of sources that others look after; does not block."""
    faults: FaultSink = field(default_factory=Counting)
    """Who is told of the driver's events, and tells what to show of faults; does not block."""
    accounting: Accounting = field(default_factory=NoAccounts)
    """Who holds the GPUs and what that costs; does not block."""
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class QuiesceOutcome:
    """Whether every handle was released; if not, who is in the way."""

    ok: bool
    blocked_by: str | None = None
