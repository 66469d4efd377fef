"""A node that is polled by whoever asks, on the caller's thread: for a simulated fleet of thousands.

The same devices, plans and sums as the poller's, without its threads and deadlines; so only for a driver that can't
hang.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from gpufleet.collect.accounting import Accounting, NoAccounts
from gpufleet.collect.event_watch import fault_of
from gpufleet.collect.fault_sink import standing
from gpufleet.collect.lanes import Lane
from gpufleet.collect.options import PollerOptions
from gpufleet.collect.publish import health_of
from gpufleet.collect.roster import state_of
from gpufleet.collect.watched import Watched
from gpufleet.faults.ledger import Ledger
from gpufleet.model.incident import Owner
from gpufleet.model.owner import NO_OWNERS
from gpufleet.model.snapshot import NodeIdentity, Snapshot, SourceHealth
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.sources.nvml.calls import DEVICE_DOWN, LIBRARY_DOWN, Driver, NvmlError
from gpufleet.sources.nvml.device import Device
from gpufleet.sources.nvml.events import MIG_CHANGE, XID, DriverEvent, EventSet
from gpufleet.sources.nvml.session import Session, SessionError

MOST_EVENTS = 256
"""Taken in one poll: whoever injects them faster than this waits for the next."""


class SynchronousNode:
    """One node and its driver. ``poll`` may be called by several threads; they take turns."""

    def __init__(
        self,
        driver: Driver,
        options: PollerOptions,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        accounting: Accounting | None = None,
    ) -> None:
        """``accounting`` tells of holders and cost; nothing is known of them without."""
        self._accounting = accounting or NoAccounts()
        self._driver = driver
        self._options = options
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._events: EventSet | None = None
        self._gpus: dict[str, Watched] = {}
        self._by_handle: dict[int, Watched] = {}
        self._owners = NO_OWNERS
        self._ledger = Ledger(
            node=options.node,
            boot_id=options.boot_id,
            random_id=lambda: os.urandom(8).hex(),
            owner_of=self._owner_of,
            has_log=False,
        )
        self._unopened: list[int] = []
        """Indexes of the session's GPUs that could not be opened yet."""
        self._polls = 0
        self._state = NvmlState.NO_DRIVER
        self._reason: str | None = None

    def poll(self) -> Snapshot:
        """Read every GPU now and return what there is to show."""
        with self._lock:
            started = self._monotonic()
            self._polls += 1
            if self._session is None:
                self._open()
            if self._session is not None:
                self._open_devices(self._session)
            for gpu in list(self._gpus.values()):
                self._read(gpu)
            self._take_events()
            return self._snapshot(started)

    def _owner_of(self, uuid: str) -> Owner:
        return self._owners.owner_of(uuid)

    def _open(self) -> None:
        try:
            session = Session(self._driver)
        except SessionError as error:
            self._state, self._reason = error.state, error.reason
            return
        try:
            count = session.count()
        except NvmlError as error:
            session.close()
            self._state, self._reason = NvmlState.NO_DRIVER, str(error)
            return
        self._session = session
        self._state, self._reason = (NvmlState.OK, None) if count else (NvmlState.NO_GPU, "the driver lists no GPU")
        try:
            self._events = EventSet(session.calls)
        except NvmlError:
            self._events = None
        self._unopened = list(range(count))

    def _open_devices(self, session: Session) -> None:
        """Those that are new, and those that were lost: a handle is not good any more once its GPU fell off the bus."""
        options = self._options.device_options(session.versions.driver)
        for index in tuple(self._unopened):
            try:
                device = Device(session.calls, session.handle(index), options, self._monotonic())
            except NvmlError as error:
                # A GPU that is lost from the start has no name to be shown under; the count tells of it, and the next
                # poll tries again.
                if error.code in LIBRARY_DOWN:
                    self._close(str(error))
                    return
                continue
            self._unopened.remove(index)
            self._adopt(index, device)
        for gpu in self._gpus.values():
            if gpu.device is None and gpu.state is not GpuState.GONE:
                try:
                    handle = session.handle_of(gpu.identity.uuid)
                    device = Device(session.calls, handle, options, self._monotonic())
                except NvmlError as error:
                    self._fail(gpu, error)
                    if error.code in LIBRARY_DOWN:
                        return
                    continue
                self._adopt(gpu.number, device)

    def _adopt(self, index: int, device: Device) -> None:
        known = self._gpus.get(device.uuid)
        if known is None:
            known = self._gpus[device.uuid] = Watched(index, device.identity, Lane("unused"), self._options.interval)
        known.adopt(device, known.lane)
        self._by_handle[device.handle.value or 0] = known
        if self._events is not None:
            self._events.register(device.handle, device.trace)

    def _read(self, gpu: Watched) -> None:
        device = gpu.device
        if device is None:
            return
        now = self._monotonic()
        try:
            gpu.take_reading(device.read(now), now, self._wall())
            if device.samples_gpm:
                gpu.take_sample(device.sample(now), now)
        except NvmlError as error:
            self._fail(gpu, error)

    def _fail(self, gpu: Watched, error: NvmlError) -> None:
        gpu.failed(error.code)
        gpu.down(state_of(error), str(error))
        if error.code in LIBRARY_DOWN:
            self._close(str(error))
        elif error.code in DEVICE_DOWN and gpu.device is not None:
            gpu.device.close()
            gpu.forget_device()

    def _close(self, reason: str) -> None:
        self._state, self._reason = NvmlState.NO_DRIVER, reason
        for gpu in self._gpus.values():
            if gpu.device is not None:
                gpu.device.close()
            gpu.down(GpuState.GONE, reason)
            gpu.forget_device()
        self._by_handle.clear()
        self._unopened = []
        if self._events is not None:
            self._events.free()
            self._events = None
        if self._session is not None:
            self._session.close()
            self._session = None

    def _take_events(self) -> None:
        for _ in range(MOST_EVENTS):
            if self._events is None:
                return
            try:
                event = self._events.wait(0)
            except NvmlError:
                # A lost GPU answers so at once and for ever; its state is shown by its own calls.
                return
            if event is None:
                return
            self._take_event(event)

    def _take_event(self, event: DriverEvent) -> None:
        gpu = self._by_handle.get(event.handle)
        if gpu is None:
            return
        if event.kind == XID:
            self._ledger.feed(fault_of(event, gpu.identity, self._wall()), self._wall())
        elif event.kind == MIG_CHANGE and gpu.device is not None:
            gpu.device.mig_has_changed()

    def _snapshot(self, started: float) -> Snapshot:
        now, wall = self._monotonic(), self._wall()
        gpus = sorted(self._gpus.values(), key=lambda gpu: gpu.number)
        self._ledger.tick(wall)
        faults = self._ledger.view()
        shown = standing(faults)
        for gpu in gpus:
            gpu.standing = shown.get(gpu.identity.uuid, ())
        versions = None if self._session is None else self._session.versions
        reported = tuple(gpu.snapshot(now) for gpu in gpus)
        self._owners, meter = self._accounting.take(reported, monotonic=now, whole=True, quiesced=False)
        snapshot = Snapshot(
            sequence=self._polls,
            at=wall,
            monotonic=now,
            node=NodeIdentity(
                node=self._options.node,
                boot_id=self._options.boot_id,
                driver_version=None if versions is None else versions.driver,
                nvml_version=None if versions is None else versions.nvml,
                cuda_version=None if versions is None else versions.cuda,
                simulated=self._driver.simulated,
            ),
            nvml_state=self._state,
            gpus=reported,
            gpus_expected=len(gpus) + len(self._unopened) or None,
            gpus_visible=sum(gpu.state is GpuState.OK for gpu in gpus),
            poll=health_of(gpus, now - started, self._polls),
            sources=self._sources(),
            faults=faults,
            owners=self._owners,
            meter=meter,
            reason=self._reason,
        )
        # What this poll tells of faults is shown by the next.
        self._ledger.observe(snapshot, wall)
        return snapshot

    def _sources(self) -> tuple[SourceHealth, ...]:
        nvml = SourceHealth("nvml", self._state in (NvmlState.OK, NvmlState.NO_GPU), self._reason)
        if self._session is None:
            return (nvml,)
        listening = self._events is not None
        reason = None if listening else "the driver has no events here"
        return (nvml, SourceHealth("nvml_events", up=listening, reason=reason))
