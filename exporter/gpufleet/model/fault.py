"""Faults as they are told (events) and as a person acts on them (incidents).

What happened and what follows are apart: *blame* says whose fault it is, *action* what makes the GPU usable again, and
``isolate`` and ``refund`` are decided from both, so that an application's fault that needs a reboot isolates the node
and refunds nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class FaultKind(StrEnum):
    """What told of a fault."""

    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    """The driver or the kernel says that the GPU fell off the bus, without an Xid."""
    RM_INIT_FAILED = "rm_init_failed"
    """The driver could not initialise the GPU."""
    NVLINK = "nvlink"
    """A line about a link that is no Xid."""
    CONDITION = "condition"
    """A state that was polled and stands until it is cured: a failed row remap, a missing GPU."""


class Blame(StrEnum):
    """Whose fault it is."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    DRIVER = "driver"
    UNKNOWN = "unknown"


class Action(Enum):
    """What makes the GPU usable again; a later member includes those before it."""

    NONE = "none"
    RESTART_APPLICATION = "restart_application"
    RESET_GPU = "reset_gpu"
    DRAIN_AND_RESET = "drain_and_reset"
    REBOOT_NODE = "reboot_node"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One thing that a source said, before anything is concluded from it."""

    kind: FaultKind
    at: float
    """Unix time."""
    source: str
    """``kmsg``, ``nvml``, ``udev`` or ``poll``."""
    pci_bus_id: str | None = None
    """``dddd:bb:dd.f``, lower case; of the switch for an SXid."""
    code: int | None = None
    """The Xid or SXid."""
    condition: str | None = None
    """Name of a polled state, for ``CONDITION``."""
    pid: int | None = None
    """Host pid of whoever allocated the channel or was calling the driver: no proof of guilt."""
    process: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    text: str = ""
    """What the driver said after the code and the process, cut."""
    sequence: int | None = None
    """Number of the kernel log's record."""
    caused_by: int | None = None
    """The Xid that the text names as its cause."""
    recovery_action: int | None = None
    """Code of the driver's verdict that an Xid 154 carries: what it has changed to."""
    recovery_action_before: int | None = None
    """… and what it has changed from."""
    needs_reset: bool | None = None
    """The text's own word on a reset (``RST: Yes``), ``None`` where it says nothing."""
    needs_drain: bool | None = None
    fatal: bool | None = None
    """The word Fatal or Non-fatal of an SXid or a link event."""
    link: int | None = None
    unit: str | None = None
    """The part of the GPU that the text names: ``GPC 2, TPC 5`` of an Xid 13, NVLink 5's unit of an Xid 144 to 150."""
    registers: tuple[int, ...] = ()
    """Register words of an NVLink fault, in the order of the text."""
    continues: bool = False
    """A further line (severity, data) of an SXid that was told before: no event of its own."""
