"""What /-/healthy and /-/ready answer: pure decisions on the newest snapshot.

Healthy: the process does its work, and nothing is wrong that a new process or container would mend. Ready: the driver's
readings are being served. A node without a driver is healthy and not ready: the driver may come any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.model.state import NvmlState

if TYPE_CHECKING:
    from gpufleet.model.snapshot import Snapshot

_LONGEST_SILENCE_SECONDS = 15.0
_SILENT_INTERVALS = 5
_STALE_INTERVALS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a probe."""

    ok: bool
    reason: str


class Health:
    """Judges snapshots; remembers only whether the devices could be used once. ``observe`` is the poll thread's."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._had_access = False

    def observe(self, snapshot: Snapshot) -> None:
        """Look at a new snapshot."""
        if snapshot.nvml_state is NvmlState.OK:
            self._had_access = True

    def healthy(self, snapshot: Snapshot, now: float) -> Verdict:
        """Whether to leave the process alone; ``now`` is on the snapshot's monotonic clock."""
        silence = now - snapshot.monotonic
        if silence > max(_LONGEST_SILENCE_SECONDS, _SILENT_INTERVALS * self._interval):
            return Verdict(ok=False, reason=f"no poll has ended for {silence:.0f} seconds")
        # Permission that a container had and lost comes back only with a new container. Where it never was, a new one
        # would be no better, and restarting for ever would hide the reason.
        if snapshot.nvml_state is NvmlState.NO_PERMISSION and self._had_access:
            return Verdict(ok=False, reason=snapshot.reason or "access to the devices was lost")
        return Verdict(ok=True, reason="ok")

    def ready(self, snapshot: Snapshot, now: float) -> Verdict:
        """Whether the driver's readings of now are served; ``now`` is on the snapshot's monotonic clock."""
        if now - snapshot.monotonic > _STALE_INTERVALS * self._interval:
            return Verdict(ok=False, reason="the newest poll is too old to show")
        if snapshot.quiesced:
            return Verdict(ok=False, reason="quiesced: no GPU is held")
        if snapshot.nvml_state not in (NvmlState.OK, NvmlState.NO_GPU):
            return Verdict(ok=False, reason=f"{snapshot.nvml_state}: {snapshot.reason or 'the driver does not answer'}")
        return Verdict(ok=True, reason="ok")
