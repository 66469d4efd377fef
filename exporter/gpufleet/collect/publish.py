"""Puts a snapshot together from what the poll thread knows, and hands it on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gpufleet.collect.fault_sink import standing
from gpufleet.collect.lifecycle import Lifecycle
from gpufleet.collect.options import PollerOptions, World
from gpufleet.collect.quiesce import Quiesce
from gpufleet.collect.roster import Roster
from gpufleet.collect.watched import Watched
from gpufleet.model.incident import FaultsView
from gpufleet.model.readings import Readings
from gpufleet.model.snapshot import NodeIdentity, PollHealth, Snapshot, SourceHealth
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.sources.nvml.session import Versions
from gpufleet.sources.nvml.tally import Tally

log = logging.getLogger(__name__)


class Publisher:
    """Holds the newest snapshot, replaced whole by one assignment."""

    def __init__(
        self, options: PollerOptions, world: World, roster: Roster, lifecycle: Lifecycle, quiesce: Quiesce
    ) -> None:
        self.subscribers: list[Callable[[Snapshot], None]] = []
        self._options = options
        self._world = world
        self._roster = roster
        self._lifecycle = lifecycle
        self._quiesce = quiesce
        self._sequence = self._polls = 0
        self._faults: FaultsView | None = None
        self._standing: dict[str, tuple[Readings, ...]] = {}
        self._versions: Versions | None = None
        self._node = NodeIdentity(options.node)
        self.latest = self._make(0.0, whole=False)

    def publish(self, duration: float, *, whole: bool = True) -> None:
        """Make a snapshot of now; ``duration`` is how long the poll has taken, ``whole`` whether it is at its end."""
        self._sequence += 1
        self._polls += whole
        self.latest = snapshot = self._make(duration, whole=whole)
        for subscriber in self.subscribers:
            try:
                subscriber(snapshot)
            except Exception:
                log.exception("a subscriber failed")

    def _make(self, duration: float, *, whole: bool) -> Snapshot:
        lifecycle, now = self._lifecycle, self._world.monotonic()
        gpus = list(self._roster)
        faults = self._world.faults.view
        if faults is not self._faults:
            self._faults, self._standing = faults, standing(faults)
        for gpu in gpus:
            gpu.standing = self._standing.get(gpu.identity.uuid, ())
        state, reason = self._nvml(gpus)
        kernel_gpus = lifecycle.surveyed[1] if lifecycle.surveyed is not None else frozenset()
        listed = lifecycle.surveyed[0] if lifecycle.surveyed is not None else 0
        quiesced = self._quiesce.active
        shown = tuple(gpu.snapshot(now) for gpu in gpus)
        owners, meter = self._world.accounting.take(shown, monotonic=now, whole=whole, quiesced=quiesced)
        return Snapshot(
            sequence=self._sequence,
            at=self._world.wall(),
            monotonic=now,
            node=self._identity(),
            nvml_state=state,
            gpus=shown,
            # A GPU that fell off the bus is in neither list any more, but it was seen in this boot.
            gpus_expected=max(len(kernel_gpus), len(gpus), listed) or None,
            gpus_visible=sum(gpu.state is GpuState.OK for gpu in gpus),
            quiesced=quiesced,
            poll=health_of(gpus, duration, self._polls),
            sources=(*self._sources(state, reason), *self._world.other_sources()),
            faults=faults,
            owners=owners,
            meter=meter,
            reason=reason,
        )

    def _identity(self) -> NodeIdentity:
        versions = self._lifecycle.versions
        if versions is not self._versions:
            self._versions = versions
            self._node = NodeIdentity(
                node=self._options.node,
                boot_id=self._options.boot_id,
                driver_version=versions.driver,
                nvml_version=versions.nvml,
                cuda_version=versions.cuda,
                simulated=self._lifecycle.simulated,
            )
        return self._node

    def _nvml(self, gpus: list[Watched]) -> tuple[NvmlState, str | None]:
        lifecycle = self._lifecycle
        blocked = next((gpu for gpu in gpus if gpu.state is GpuState.DRIVER_BLOCKED), None)
        if blocked is not None and all(gpu.out for gpu in gpus if gpu.device is not None):
            return NvmlState.HUNG, lifecycle.reason or blocked.reason
        openings = self._roster.openings
        if openings and all(opening.out for opening in openings) and all(gpu.device is None for gpu in gpus):
            # Without a name none of them can be shown as hung, so that the node has to say it.
            call = openings[0].trace.last
            return NvmlState.HUNG, lifecycle.reason or f"no GPU could be opened: {call} has not returned"
        return lifecycle.state, lifecycle.reason

    def _sources(self, state: NvmlState, reason: str | None) -> tuple[SourceHealth, ...]:
        lifecycle = self._lifecycle
        nvml = SourceHealth("nvml", state in (NvmlState.OK, NvmlState.NO_GPU), reason)
        if lifecycle.opened is None:
            return (nvml,)
        events = lifecycle.events
        if events is None:
            return (nvml, SourceHealth("nvml_events", up=False, reason="the driver has no events here"))
        flaw = "nvmlEventSetWait_v2 has not returned" if lifecycle.events_hang else events.error
        return (nvml, SourceHealth("nvml_events", up=flaw is None, reason=None if flaw is None else str(flaw)))


def health_of(gpus: Iterable[Watched], duration: float, polls: int) -> PollHealth:
    """Counts of every device that was opened for these GPUs, past ones included, so that they never go down."""
    total, gaps = Tally(), 0
    for gpu in gpus:
        gaps += gpu.gaps
        total.add(gpu.past)
        if gpu.device is not None:
            total.add(gpu.device.tally)
    return PollHealth(
        duration_seconds=duration,
        nvml_errors=tuple(sorted(total.errors.items())),
        invalid_readings=tuple(sorted(total.invalid.items())),
        polls=polls,
        gaps=gaps,
    )
