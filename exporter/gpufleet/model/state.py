"""The states that a GPU and the driver library can be in, as an operator sees them."""

from __future__ import annotations

from enum import StrEnum


class GpuState(StrEnum):
    """State of one GPU; every member but ``ok`` means that no driver reading is shown for it."""

    OK = "ok"
    HUNG = "hung"
    """A driver call on this GPU is overdue."""
    DRIVER_BLOCKED = "driver_blocked"
    """A call on every GPU is overdue: the driver's own lock is held."""
    LOST = "lost"
    """The driver says that the GPU fell off the bus."""
    RESET_REQUIRED = "reset_required"
    NO_PERMISSION = "no_permission"
    GONE = "gone"
    """Enumerated earlier in this boot and not any more: removed, unbound, or the driver is unloaded."""


class NvmlState(StrEnum):
    """State of the driver library as a whole."""

    OK = "ok"
    NO_LIBRARY = "no_library"
    NO_DRIVER = "no_driver"
    MISMATCH = "mismatch"
    """User-space library and kernel module are of different versions."""
    NO_PERMISSION = "no_permission"
    NO_GPU = "no_gpu"
    HUNG = "hung"


NOT_ASKED = "the driver has not been asked yet"
"""The reason before the first attempt to open it has ended: nothing is known, also not that anything is wrong."""
