"""States that are polled and stand until they are cured: what each means, and what it asks for.

Ranks are those of the Xids that say the same (64 beside a failed remap), so that a condition and an Xid are one
incident, named after the Xid.
"""

from __future__ import annotations

from gpufleet.faults.entry import Entry, FaultClass, Severity
from gpufleet.model.fault import Action

NVML = "https://docs.nvidia.com/deploy/nvml-api/"
MEMORY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"

REMAP_FAILURE = "row_remap_failure"
REMAP_PENDING = "row_remap_pending"
SRAM_THRESHOLD = "sram_threshold_exceeded"
ECC = "ecc_uncorrectable"
ECC_SRAM = "ecc_uncorrectable_sram"
LOST = "gpu_lost"
RESET_REQUIRED = "reset_required"
MISSING = "gpu_missing"
RECOVERY = "recovery_action"
FABRIC = "fabric_"
"""Followed by the issue that the fabric reports for the GPU."""

STANDING = frozenset({REMAP_FAILURE, SRAM_THRESHOLD})
"""What is kept in the board and outlives the boot."""


def _row(
    name: str,
    facts: tuple[FaultClass, Severity, Action],
    rank: int,
    summary: str,
    remedy: str,
    *,
    isolates: bool = False,
    source: str = NVML,
) -> Entry:
    fault_class, severity, action = facts
    return Entry(
        code=None,
        name=name,
        summary=summary,
        fault_class=fault_class,
        action=action,
        severity=severity,
        remedy=remedy,
        source=source,
        isolates=isolates,
        rank=rank,
    )


_HARDWARE, _DRIVER, _UNKNOWN = FaultClass.HARDWARE, FaultClass.DRIVER_OR_FIRMWARE, FaultClass.UNKNOWN
_FATAL, _DEGRADED = Severity.FATAL, Severity.DEGRADED
_AFTER_RESET = "Let running work finish, then reset the GPU."
_FABRIC_REMEDY = "Look at the log of the fabric manager and at both ends of the links."

CONDITIONS: dict[str, Entry] = {
    LOST: _row(
        "GPU off the bus",
        (_HARDWARE, _FATAL, Action.REBOOT_NODE),
        1,
        "The driver says that the GPU fell off the bus. No program can use it.",
        "Drain the node and reboot it, with a power cycle where it can be done.",
        isolates=True,
    ),
    MISSING: _row(
        "GPU missing",
        (_HARDWARE, _FATAL, Action.REBOOT_NODE),
        1,
        "A GPU that this node has is not enumerated any more, and nobody unbound it.",
        "Drain the node and reboot it, with a power cycle where it can be done; then inspect slot and power.",
        isolates=True,
    ),
    REMAP_FAILURE: _row(
        "row remapping failed",
        (_HARDWARE, _FATAL, Action.REPLACE),
        6,
        "A bad row of device memory could not be replaced: self-repair is at its end.",
        "Take the GPU out of service and have it replaced.",
        isolates=True,
        source=MEMORY,
    ),
    SRAM_THRESHOLD: _row(
        "too many SRAM errors",
        (_HARDWARE, _FATAL, Action.REPLACE),
        6,
        "The uncorrectable errors in the caches of this board are more than NVIDIA accepts.",
        "Take the GPU out of service and have it replaced.",
        isolates=True,
        source=MEMORY,
    ),
    REMAP_PENDING: _row(
        "row remapping pending",
        (_HARDWARE, _DEGRADED, Action.RESET_GPU),
        10,
        "A bad row of device memory waits to be replaced; work is safe meanwhile, its pages are not used.",
        _AFTER_RESET,
        source=MEMORY,
    ),
    ECC: _row(
        "uncorrectable memory errors",
        (_HARDWARE, _DEGRADED, Action.RESET_GPU),
        10,
        "The count of uncorrectable errors in the GPU's memory rose.",
        _AFTER_RESET,
        source=MEMORY,
    ),
    ECC_SRAM: _row(
        "uncorrectable cache errors",
        (_HARDWARE, _FATAL, Action.RESET_GPU),
        10,
        "The count of uncorrectable errors in the GPU's caches rose, and its SRAM threshold could not be read.",
        "Reset the GPU and read its SRAM threshold flag as root: when it is set, have the GPU replaced.",
        isolates=True,
        source=MEMORY,
    ),
    f"{FABRIC}route_unhealthy": _row(
        "fabric route unhealthy",
        (_HARDWARE, _FATAL, Action.DRAIN_AND_RESET),
        19,
        "The NVLink fabric reports that routes of this GPU do not work.",
        _FABRIC_REMEDY,
        isolates=True,
    ),
    f"{FABRIC}degraded_bandwidth": _row(
        "fabric bandwidth degraded",
        (_HARDWARE, _DEGRADED, Action.NONE),
        19,
        "The NVLink fabric runs with less bandwidth than it has.",
        _FABRIC_REMEDY,
    ),
    f"{FABRIC}route_recovery": _row(
        "fabric route in recovery",
        (_UNKNOWN, _DEGRADED, Action.NONE),
        19,
        "The NVLink fabric is restoring routes of this GPU.",
        _FABRIC_REMEDY,
    ),
    f"{FABRIC}access_timeout_recovery": _row(
        "fabric access timeouts",
        (_UNKNOWN, _DEGRADED, Action.NONE),
        19,
        "The NVLink fabric is recovering from accesses that timed out.",
        _FABRIC_REMEDY,
    ),
    f"{FABRIC}incorrect_configuration": _row(
        "fabric misconfigured",
        (_DRIVER, _DEGRADED, Action.NONE),
        19,
        "The NVLink fabric reports that this GPU is not set up as the system asks.",
        "Compare driver, firmware and the fabric manager's configuration with those of a healthy node.",
    ),
    RESET_REQUIRED: _row(
        "reset required",
        (_UNKNOWN, _FATAL, Action.RESET_GPU),
        20,
        "The driver refuses every call until the GPU is reset, and told no reason.",
        "Move the work off the GPU and reset it.",
        isolates=True,
    ),
    RECOVERY: _row(
        "recovery action",
        (_UNKNOWN, _FATAL, Action.NONE),
        20,
        "The driver asks for a recovery action, and told no reason: the event that led to it was missed.",
        "Do what the driver asks for.",
    ),
}
"""Action and ``isolates`` of ``recovery_action`` depend on what the driver asks for."""
