"""The form of the rows of ``xid_rows`` and ``xid_rows_retired``, and the words that several of them share."""

from __future__ import annotations

from typing import NamedTuple

from gpufleet.faults.entry import FaultClass, Severity
from gpufleet.model.fault import Action

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
"""NVIDIA's catalogue, with the sheet of 2025-09-30."""
OLD_LIST = "http://docs.nvda.net.cn/deploy/xid-errors/index.html"
"""The listing that the catalogue replaced."""
HEADER = "https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/common/sdk/nvidia/inc/nverror.h"
STUDY = "https://arxiv.org/abs/2503.11901"
"""Two and a half years of A100 and H100 in one cluster."""
FIELD = "reports from the field"

HARDWARE, APPLICATION, DRIVER = FaultClass.HARDWARE, FaultClass.APPLICATION, FaultClass.DRIVER_OR_FIRMWARE
EITHER, INFORMATIONAL = FaultClass.EITHER, FaultClass.INFORMATIONAL
BENIGN, CONTAINED, DEGRADED, FATAL = Severity.BENIGN, Severity.CONTAINED, Severity.DEGRADED, Severity.FATAL
NONE, RESTART, RESET = Action.NONE, Action.RESTART_APPLICATION, Action.RESET_GPU
DRAIN, REBOOT, REPLACE = Action.DRAIN_AND_RESET, Action.REBOOT_NODE, Action.REPLACE

ISOLATES, STICKY, REPEAT = "isolates", "sticky", "needs_repeat"
"""Marks of a row."""


class Row(NamedTuple):
    """Facts that hold for every code named."""

    codes: str
    """``39-41,70``."""
    name: str
    fault_class: FaultClass
    severity: Severity
    action: Action
    rank: int | None
    marks: frozenset[str]
    source: str
    summary: str
    remedy: str


def row(
    codes: str,
    name: str,
    facts: tuple[FaultClass, Severity, Action],
    rank: int | None,
    summary: str,
    remedy: str,
    *marks: str,
    source: str = CATALOG,
) -> Row:
    """Write a row in the order in which one reads it."""
    return Row(codes, name, *facts, rank, frozenset(marks), source, summary, remedy)


OWN_CODE = "Restart the job. Look for the fault in its code first."
RESTART_JOB = "Restart the job. When it comes again on the same GPU with other jobs, test the GPU."
IGNORE = "Nothing to do."
UPDATE = "Nothing to do on the node. When it comes again, update driver and firmware."
RESET_NOW = "Move the work off the GPU and reset it. When it comes back after the reset, have the GPU replaced."
RESET_IDLE = "Let running work finish, then reset the GPU."
