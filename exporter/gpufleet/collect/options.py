"""What the poller is told, and the world that it is put into: everything that a test wants to decide itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.sources.nvml.calls import Driver


@dataclass(frozen=True, slots=True)
class PollerOptions:
    """The operator's choices."""

    node: str
    interval: float = 1.0
    """Seconds between polls."""
    deadline: float = 1.0
    """Seconds after which a GPU that has not answered is taken to hang."""
    each_link: bool = False
    quiesce_max: float = 900.0
    boot_id: str | None = None


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
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class QuiesceOutcome:
    """Whether every handle was released; if not, who is in the way."""

    ok: bool
    blocked_by: str | None = None
