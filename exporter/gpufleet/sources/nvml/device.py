"""One GPU, opened: its plan, its slices and its GPM readers.

A device is read by one thread at a time (its worker), its GPM readers by the GPM thread; neither is shared otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.readings import Key, Readings
from gpufleet.sources.nvml.batch import probe
from gpufleet.sources.nvml.calls import LIBRARY_DOWN, Calls, NvmlError, Trace
from gpufleet.sources.nvml.fields import ECC_TOTALS, SLOW_FIELDS, fast_fields
from gpufleet.sources.nvml.gpm import DEVICE_METRICS, GRAPHICS, GpmReader, supports_gpm
from gpufleet.sources.nvml.health_queries import HEALTH_QUERIES
from gpufleet.sources.nvml.identity import read_identity, read_mask, read_number, read_static, read_uuid
from gpufleet.sources.nvml.links import LinkBatch, count_links
from gpufleet.sources.nvml.mig import (
    SLICE_GONE,
    WATCH_CALLS,
    SliceReader,
    SliceWatch,
    discover,
    mig_mode,
    multiprocessors,
)
from gpufleet.sources.nvml.plan import GPM_CALLS, Pace, Plan
from gpufleet.sources.nvml.prepared import prepare, refused
from gpufleet.sources.nvml.processes import MORE_CALLS, Listed, ProcessList
from gpufleet.sources.nvml.queries import (
    FAST_QUERIES,
    MEDIUM_QUERIES,
    POWER_USAGE,
    SLOW_QUERIES,
    Query,
    clock_events,
    fan,
)
from gpufleet.sources.nvml.tally import Item, Tally, Tier

MOST_FANS = 8
BASES: Mapping[str, tuple[str, str | None]] = {
    "sm": ("sm_active_ratio", "mig_sm_active_ratio"),
    # Of a slice there is the activity of its engine, which is not what the driver calls utilization.
    "gpu": ("utilization_ratio", None),
    "tensor": ("tensor_active_ratio", "mig_tensor_active_ratio"),
}
"""What can stand for utilization, and as which reading of an uncut GPU and of a slice."""
_AUTO = ("sm", "gpu")


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the operator chose that changes what is asked of a device."""

    pace: Pace
    each_link: bool = False
    driver_version: str | None = None
    utilization: str = "auto"
    """Which reading stands for utilization: one of ``BASES``, or ``auto`` for the best that a device reports."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What the worker of a GPU brings home from one poll."""

    parts: tuple[Readings, ...]
    """What holds until the device is opened again, the slower tiers, and last the fast one."""
    slices: tuple[tuple[SliceIdentity, tuple[Readings, ...]], ...] = ()
    is_cut: bool = False
    """Whether MIG is on: utilization is then the GPM thread's to report, otherwise the worker's."""
    processes: Listed | None = None
    """Who has a compute context, as of the last turn of the slow tier; ``None`` where the driver does not tell."""


@dataclass(frozen=True, slots=True)
class GpmSample:
    """Means and the seconds that they are over: of the GPU itself, and of its slices by UUID."""

    own: tuple[Readings, float] | None
    slices: Mapping[str, tuple[Readings, float]]


class Device:
    """An open GPU. Making one asks about 60 calls; ``read`` makes at most ``MOST_CALLS``, and one a slice."""

    def __init__(
        self, calls: Calls, handle: ctypes.c_void_p, options: DeviceOptions, now: float, trace: Trace | None = None
    ) -> None:
        """Raises NvmlError when the device or the library is down, or when the device has no UUID.

        ``trace`` is where the call that the worker is in can be seen from outside, also before this returns.
        """
        self.trace = trace if trace is not None else Trace()
        self.gpm_trace = Trace()
        """The call that the GPM thread is in for this device, or was last."""
        calls = self._calls = calls.traced(self.trace)
        self._options = options
        self._mig_changed = False
        self.handle = handle
        self.uuid = self.trace.uuid = read_uuid(calls, handle)
        self.identity: GpuIdentity = read_identity(calls, handle, self.uuid)
        self.tally = Tally()
        self._static = read_static(calls, handle, self.tally)
        self.has_gpm = supports_gpm(calls, handle)
        self.plan = self._make_plan()
        self.plan.spread(now)
        self._mode = self._mode_item()
        self.gpm = self._make_gpm() if self.has_gpm else None
        self._retired: list[GpmReader] = []
        """Readers whose samples the GPM thread has yet to free."""
        self._mig = mig_mode(calls, handle)
        self.slices: tuple[SliceReader, ...] = ()
        self._discover_slices()

    def _make_plan(self) -> Plan:
        calls, handle, tally = self._calls, self.handle, self.tally
        items: list[Item] = []
        links = self._links()
        # Where each link is shown by itself there is no total beside them: a sum over the family would count twice.
        by_link = {key.name for item in links for key in item.keys}
        fields = [field for field in fast_fields(self._options.driver_version) if field.key.name not in by_link]
        fast = probe(calls, handle, Tier.FAST, fields, tally)
        if fast is not None:
            items.append(fast)
        slow = probe(calls, handle, Tier.SLOW, SLOW_FIELDS, tally)
        if slow is not None:
            items.append(slow)
        items += prepare(calls, handle, FAST_QUERIES, tally)
        items += prepare(calls, handle, [self._clock_events()], tally)
        items += prepare(calls, handle, MEDIUM_QUERIES, tally)
        items += links
        items += prepare(calls, handle, (*SLOW_QUERIES, *HEALTH_QUERIES), tally)
        fans = min(read_number(calls, "nvmlDeviceGetNumFans", handle) or 0, MOST_FANS)
        items += prepare(calls, handle, [fan(number) for number in range(fans)], tally)
        items += self._make_processes()
        reported = {key for item in items for key in item.keys}
        self._has_utilization = GRAPHICS[1] in reported
        """Of the driver's own; refused while MIG is on."""
        if Key("power_watts") not in reported:
            items += prepare(calls, handle, [POWER_USAGE], tally)
        if not any(key.name == "ecc_errors" for key in reported):
            totals = probe(calls, handle, Tier.SLOW, ECC_TOTALS, tally)
            if totals is not None:
                items.append(totals)
        extra = (GPM_CALLS if self.has_gpm else 0) + WATCH_CALLS + MORE_CALLS
        return Plan(items, self._options.pace, tally, self.trace, extra)

    def _mode_item(self) -> Item | None:
        return next((item for item in self.plan.items if item.keys == (Key("mig_enabled"),)), None)

    def _clock_events(self) -> Query:
        supported = read_mask(self._calls, "nvmlDeviceGetSupportedClocksEventReasons", self.handle)
        if supported is None:
            supported = read_mask(self._calls, "nvmlDeviceGetSupportedClocksThrottleReasons", self.handle)
        return clock_events(supported)

    def _links(self) -> list[Item]:
        links = count_links(self._calls, self.handle)
        if not links:
            return []
        batch = LinkBatch(self._calls, self.handle, links, each_link=self._options.each_link)
        code = batch.probe()
        if refused(batch.function, code) or not batch.keys:
            return []
        batch.run(self.tally)
        return [batch]

    def _make_processes(self) -> list[Item]:
        listed = ProcessList(self._calls, self.handle, self.trace)
        code = listed.run(self.tally)
        self._processes = None if refused(listed.function, code) else listed
        if self._processes is None:
            self.tally.drop(listed.keys[0], code)
            return []
        return [listed]

    def _make_gpm(self) -> GpmReader:
        metrics = DEVICE_METRICS
        if not self._has_utilization:
            # With MIG on the driver refuses its own utilization; the engine's activity is the nearest thing to it.
            metrics = (GRAPHICS, *metrics)
        return GpmReader(self._calls, self.handle, metrics, self.tally, self.gpm_trace)

    def _discover_slices(self) -> None:
        self._retired += [reader.gpm for reader in self.slices if reader.gpm is not None]
        self.slices = ()
        self._mig_changed = False
        if self._mig:
            self._whole = multiprocessors(self._calls, self.handle)
            gpm_trace = self.gpm_trace if self.has_gpm else None
            self.slices = tuple(
                SliceReader(self._calls, self.handle, found, self._whole, self.tally, gpm_trace)
                for found in discover(self._calls, self.handle)
            )
        self._watch = SliceWatch(self._calls, self.handle, self.slices) if self._mig else None
        wanted = self._options.utilization
        at = 1 if self.slices else 0
        self._bases = [(basis, BASES[basis][at]) for basis in (_AUTO if wanted == "auto" else (wanted,))]
        own = [self.gpm] if self.gpm is not None else []
        self._activities = [reader.gpm for reader in self.slices if reader.gpm is not None] if self.slices else own

    def mig_has_changed(self) -> None:
        """Say that the GPU may have been cut anew: the next ``read`` looks again. Callable from any thread."""
        self._mig_changed = True

    def abandon(self, *, given_up: bool) -> None:
        """Tell a poll whose call is overdue to end when the call returns (True), or allow polls again (False)."""
        self.trace.given_up = self.gpm_trace.given_up = given_up

    def _gpm_readers(self) -> list[GpmReader]:
        own = [self.gpm] if self.gpm is not None else []
        return own + [reader.gpm for reader in self.slices if reader.gpm is not None]

    def read(self, now: float) -> DeviceReading:
        """One poll, by the device's worker. Raises NvmlError when the device or the library is down."""
        if self._mig_changed:
            self._look_again(now)
        fast, slower = self.plan.run(now)
        if self._mode is not None and self._mode.values[0] not in (None, self._mig):
            self._look_again(now)
            fast, slower = self.plan.run(now)
        elif self._watch is not None and self._watch.sees_change(now):
            self._discover_slices()
        processes = None if self._processes is None else self._processes.processes
        return DeviceReading((self._static, slower, fast), self._read_slices(), self._mig, processes)

    def _look_again(self, now: float) -> None:
        was = self._mig
        self._mig = mig_mode(self._calls, self.handle)
        if was != self._mig:
            # What the driver refuses depends on the mode, so everything is asked once more.
            self.tally.dropped.clear()
            if self.gpm is not None:
                self._retired.append(self.gpm)
            self.plan = self._make_plan()
            self.plan.spread(now)
            self._mode = self._mode_item()
            self.gpm = self._make_gpm() if self.has_gpm else None
        self._discover_slices()

    def _read_slices(self) -> tuple[tuple[SliceIdentity, tuple[Readings, ...]], ...]:
        found = []
        for reader in self.slices:
            try:
                parts = reader.read()
            except NvmlError as error:
                if error.code in LIBRARY_DOWN:
                    raise
                # The GPU itself has just answered: it is the slice that is out of order, or was destroyed.
                self.tally.error(error.code)
                if error.code in SLICE_GONE:
                    self._mig_changed = True
                    continue
                parts = reader.unread()
            found.append((reader.identity, parts))
        return tuple(found)

    @property
    def samples_gpm(self) -> bool:
        """Whether ``sample`` has anything to do."""
        return bool(self._gpm_readers() or self._retired)

    def sample(self, now: float) -> GpmSample:
        """Activity since the previous call, by the GPM thread. Raises NvmlError when the device or the library is
        down.
        """
        while self._retired and self._retired[-1].close():
            self._retired.pop()
        own = self._window(self.gpm, now)
        slices = {}
        for reader in self.slices:
            window = self._window(reader.gpm, now)
            if window is not None:
                slices[reader.identity.mig_uuid] = window
        return GpmSample(own, slices)

    def _window(self, gpm: GpmReader | None, now: float) -> tuple[Readings, float] | None:
        readings = gpm.read(now) if gpm is not None else None
        if gpm is None or readings is None or gpm.window_seconds is None:
            return None
        return readings, gpm.window_seconds

    @property
    def utilization_basis(self) -> str | None:
        """Which reading stands for utilization, as far as the device reports it; see ``BASES``.

        With ``auto`` it is SM activity, else the driver's own. Of a GPU that is cut it says what its slices have.
        """
        for basis, name in self._bases:
            for gpm in self._activities:
                if gpm.supported and name in gpm.names:
                    return basis
            if basis == "gpu" and self._has_utilization and not self.slices and GRAPHICS[1] not in self.tally.dropped:
                return basis
        return None

    def close(self) -> None:
        """Free what the driver allocated. By the GPM thread or with it ended, before nvmlShutdown, with no call out."""
        for gpm in (*self._retired, *self._gpm_readers()):
            gpm.close()
        self._retired.clear()
