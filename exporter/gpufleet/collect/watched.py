"""One GPU of this boot, as the poll thread sees it: who it is, what is being asked of it, what it answered last.

The poll thread owns every attribute; ``claim`` is the one thing that a worker and the GPM thread also change.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

from gpufleet.collect.integrals import Integrals, integrable
from gpufleet.collect.lanes import Lane
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.readings import Readings
from gpufleet.model.snapshot import GpuSnapshot, SliceSnapshot
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.device import Device, DeviceReading, GpmSample
from gpufleet.sources.nvml.gpm import SHORTEST_SECONDS
from gpufleet.sources.nvml.tally import Tally


class Activity(Enum):
    """What is being done for a GPU."""

    IDLE = "idle"
    WAITING = "waiting"
    """Its worker is to be started in this round."""
    READING = "reading"
    """Its worker is in the driver."""
    QUEUED = "queued"
    """Read; waits for the poll thread and the GPM thread."""
    SAMPLING = "sampling"
    """The GPM thread is in the driver for it."""


class Claim:
    """Who may call the driver for a GPU: at most one thread, and only for the poll that it was told of."""

    __slots__ = ("_lock", "activity", "generation", "since")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.activity = Activity.IDLE
        self.generation = 0
        self.since = 0.0

    def begin(self, now: float) -> int:
        """Start a poll; returns its generation. By the poll thread, when idle."""
        with self._lock:
            self.generation += 1
            self.activity, self.since = Activity.WAITING, now
            return self.generation

    def move(self, generation: int, activity: Activity, now: float) -> bool:
        """Go on to the next activity, unless the poll was withdrawn."""
        with self._lock:
            if generation != self.generation:
                return False
            self.activity, self.since = activity, now
            return True

    def withdraw(self) -> bool:
        """Take a GPU back for which nobody is in the driver; false when somebody is."""
        with self._lock:
            if self.activity in (Activity.READING, Activity.SAMPLING):
                return False
            self.generation += 1
            self.activity = Activity.IDLE
            return True

    def end(self) -> None:
        """Nobody is in the driver for this GPU any more. By the poll thread."""
        with self._lock:
            self.activity = Activity.IDLE


MOST_SLICES = 64

Activities = tuple[Readings, float]
"""Readings of the GPM thread, and the monotonic time until which they are good."""


@dataclass(slots=True, eq=False)
class Watched:
    """A GPU that was seen in this boot."""

    number: int
    identity: GpuIdentity
    lane: Lane
    interval: float
    device: Device | None = None
    state: GpuState = GpuState.OK
    reason: str | None = None
    claim: Claim = field(default_factory=Claim)
    out: bool = False
    """A call is overdue; nothing is asked of this GPU until it returns."""
    out_since: int = 0
    """Number of the poll in which it became overdue."""
    retry_at: float = 0.0
    registered_with: object = None
    """Event set that has this GPU's events."""
    reading: DeviceReading | None = None
    read_at: float | None = None
    polled_at: float | None = None
    """Unix time of ``reading``."""
    last_error: int | None = None
    """Code of the call that cost the last poll; ``None`` after one that succeeded."""
    activity: Activities | None = None
    slice_activity: dict[str, Activities] = field(default_factory=dict)
    """By UUID of the slice."""
    basis: str | None = None
    """Which reading stands for utilization; kept while the GPU is down, as a part of who it is."""
    standing: tuple[Readings, ...] = ()
    gaps: int = 0
    past: Tally = field(default_factory=Tally)
    """Counts of devices that were opened for this GPU before the present one."""
    _integrals: Integrals = field(default_factory=Integrals)
    _slice_integrals: dict[str, Integrals] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """The driver's function that is being called for this GPU, or was last."""
        if self.device is None:
            return ""
        device = self.device
        return device.gpm_trace.last if self.claim.activity is Activity.SAMPLING else device.trace.last

    def adopt(self, device: Device, lane: Lane) -> None:
        """Take a device that was just opened for this GPU."""
        self.forget_device()
        self.device, self.lane = device, lane
        self.identity = device.identity
        self.state, self.reason = GpuState.OK, None

    def failed(self, code: int) -> None:
        """Note and count a call that failed for the poll as a whole."""
        self.last_error = code
        self.past.error(code)

    def forget_device(self) -> None:
        """Leave the present device: its handle is no longer good."""
        if self.device is not None:
            self.past.add(self.device.tally)
        self.device = None
        self.registered_with = None
        self.down(self.state, self.reason)

    def down(self, state: GpuState, reason: str | None) -> None:
        """From here on nothing is shown of what the driver said: it is not known to be true any more."""
        self.state, self.reason = state, reason
        self.reading = self.activity = None
        self.slice_activity = {}

    def take_reading(self, reading: DeviceReading, now: float, unix: float) -> None:
        """A poll's reading is in: show it and integrate it."""
        self.state, self.reason, self.last_error = GpuState.OK, None, None
        self._integrate(reading, now)
        if self.reading is not None and self.reading.is_cut != reading.is_cut:
            # What the GPM thread reported before is reported by the worker now, or the other way round: never by both.
            self.activity = None
        self.reading, self.read_at, self.polled_at = reading, now, unix
        if self.device is not None:
            self.basis = self.device.utilization_basis

    def _integrate(self, reading: DeviceReading, now: float) -> None:
        elapsed = 0.0 if self.read_at is None else now - self.read_at
        if not integrable(elapsed, self.interval):
            self.gaps += 1
            elapsed = 0.0
        self._integrals.add(reading.parts[-1:], elapsed)

    def take_sample(self, sample: GpmSample, now: float) -> None:
        """The GPM thread's part of a poll is in: show it and integrate it.

        A window that was not to be had this time takes nothing away: what was measured before is good for two
        intervals, like any tier's value, and the driver asks for some time between two samples.
        """
        good_until = now + 2 * self.interval + SHORTEST_SECONDS
        if sample.own is not None:
            self.activity = (sample.own[0], good_until)
            self._add(self._integrals, *sample.own)
        if not sample.slices:
            return
        for uuid, (readings, seconds) in sample.slices.items():
            self.slice_activity[uuid] = (readings, good_until)
            self._add(self._slice_integrals.setdefault(uuid, Integrals()), readings, seconds)
        if len(self._slice_integrals) > MOST_SLICES:
            # A GPU that is cut anew again and again: slices of the past are not worth their memory.
            self.slice_activity = {uuid: self.slice_activity[uuid] for uuid in sample.slices}
            self._slice_integrals = {uuid: self._slice_integrals[uuid] for uuid in sample.slices}

    def _add(self, integrals: Integrals, readings: Readings, seconds: float) -> None:
        integrals.add((readings,), seconds if integrable(seconds, self.interval) else 0.0)

    def snapshot(self, now: float) -> GpuSnapshot:
        """What is shown of this GPU at ``now``."""
        reading = self.reading
        if reading is None or self.device is None or self.state is not GpuState.OK:
            return GpuSnapshot(
                number=self.number,
                identity=self.identity,
                state=self.state,
                polled_at=self.polled_at,
                standing=self.standing,
                utilization_basis=self.basis,
                reason=self.reason,
            )
        own = _good(self.activity, now)
        return GpuSnapshot(
            number=self.number,
            identity=self.identity,
            state=self.state,
            polled_at=self.polled_at,
            parts=(*reading.parts, *own, self._integrals.readings()),
            standing=self.standing,
            slices=tuple(self._slice(identity, parts, now) for identity, parts in reading.slices),
            utilization_basis=self.basis,
            processes=reading.processes,
        )

    def _slice(self, identity: SliceIdentity, parts: tuple[Readings, ...], now: float) -> SliceSnapshot:
        integrals = self._slice_integrals.get(identity.mig_uuid)
        own = _good(self.slice_activity.get(identity.mig_uuid), now)
        sums = () if integrals is None else (integrals.readings(),)
        return SliceSnapshot(identity, (*parts, *own, *sums))


def _good(activity: Activities | None, now: float) -> tuple[Readings, ...]:
    return () if activity is None or now > activity[1] else (activity[0],)
