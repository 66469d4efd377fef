"""The faults thread: the one owner of the ledger.

Everything that tells of a fault reaches it: the kernel's log, the driver's events, the kernel's word on devices, and
each poll. It writes the ledger down before it shows an incident, so that a crash can't give the same fault two names,
and it never waits for a GPU: an incident must be on its way while the GPU that it is about holds up everybody else.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from gpufleet.collect.fault_file import FaultFile
from gpufleet.collect.kernel_log import OPEN_AGAIN_SECONDS, KernelLog, Named
from gpufleet.faults.ledger import Ledger
from gpufleet.model.fault import FaultEvent
from gpufleet.model.incident import FaultsView, Incident
from gpufleet.model.snapshot import Snapshot, SourceHealth
from gpufleet.model.state import GpuState
from gpufleet.sources.kmsg import SOURCE

log = logging.getLogger(__name__)

FIRST_POLL_SECONDS = 5.0
"""After a start the log waits so long for the first poll: an incident that is shown before it has no GPU's number."""
_IDLE_SECONDS = 30.0

Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Where the kernel's log is and where the ledger is kept."""

    kmsg_path: Path | None = Path("/dev/kmsg")
    """``None``: a scripted node, whose kernel has nothing to say of its GPUs."""
    accept_userspace: bool = False
    """Believe every record, whoever wrote it: for tests."""
    state_dir: Path | None = None
    open_again_seconds: float = OPEN_AGAIN_SECONDS
    """Between two tries to open a log that can't be read."""
    first_poll_seconds: float = FIRST_POLL_SECONDS


class FaultWatch:
    """Owns a ledger on a thread of its own. ``view`` may be read from any thread; it is replaced whole."""

    def __init__(
        self,
        ledger: Ledger,
        options: FaultOptions,
        *,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        show: Callable[[FaultsView], None] = lambda _: None,
    ) -> None:
        """``show`` is called by the faults thread with each new view, after it was written down."""
        self.view = FaultsView()
        self._ledger = ledger
        self._wall = wall
        self._monotonic = monotonic
        self._show = show
        self._file = FaultFile(options.state_dir, monotonic)
        self._log: KernelLog | None = None
        if options.kmsg_path is not None:
            self._log = KernelLog(
                options.kmsg_path,
                accept_userspace=options.accept_userspace,
                monotonic=monotonic,
                wall=wall,
                open_again_seconds=options.open_again_seconds,
            )
        self._readable: bool | None = None
        self._read_from = monotonic() + options.first_poll_seconds
        self._told: deque[FaultEvent | Named] = deque()
        self._jobs: deque[Job] = deque()
        self._answers: deque[threading.Event] = deque()
        self._snapshot: Snapshot | None = None
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def load(self) -> None:
        """Take up what is kept, and show it: nobody must take the time that a start needs for its end.

        Before ``start``, and before anybody looks.
        """
        try:
            self._file.load(self._ledger, self._wall())
            self._publish()
        except Exception:
            log.exception("the kept faults can't be used: beginning anew")

    # --- for other threads --------------------------------------------------------------------------------------------
    @property
    def health(self) -> SourceHealth:
        """Whether the kernel's log is followed."""
        return SourceHealth(SOURCE, up=False, reason="there is none") if self._log is None else self._log.health

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is known and end."""
        self._stopping = True
        self._wake()
        self._thread.join(timeout)

    def feed(self, event: FaultEvent, _uuid: str = "") -> None:
        """Take an event in that another thread was told of; the ledger knows the GPU by its address."""
        self._jobs.append(lambda: self._ledger.feed(event, self._wall()))
        self._wake()

    def device(self, action: str, pci_bus_id: str) -> None:
        """The kernel says that a device came or went, in udev's words."""
        self._jobs.append(lambda: self._ledger.device(action, pci_bus_id, self._wall()))
        self._wake()

    def observe(self, snapshot: Snapshot) -> None:
        """Take a poll in; one that comes before the last was looked at takes its place."""
        self._snapshot = snapshot
        self._wake()

    def clear(self, incident: str, timeout: float = 5.0) -> bool:
        """A person says that an incident is over; false when there is none of that name.

        True once it is written down, so that it can't come back.
        """
        done = threading.Event()
        cleared: list[bool] = []

        def job() -> None:
            cleared.append(self._ledger.clear(incident, self._wall()))
            self._answers.append(done)

        self._jobs.append(job)
        self._wake()
        return done.wait(timeout) and cleared[0]

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        deadline: float | None = self._wall()
        while not self._stopping:
            self._wait(deadline)
            try:
                deadline = self._turn()
            except Exception:
                # A mistake in the folding of one fault must not keep the next one from being told.
                log.exception("a turn of the faults thread failed")
                deadline = self._wall() + 1.0
        self._file.keep(self._ledger, force=True)
        self._file.sync()
        if self._log is not None:
            self._log.close()

    def _turn(self) -> float | None:
        """Take in everything that is there, then write and show; returns when to look again at the latest."""
        if self._log is not None:
            self._follow(self._log)
        while self._jobs:
            self._jobs.popleft()()
        ledger, now = self._ledger, self._wall()
        # During a replay it is another time: what a poll tells of now comes after it.
        if not ledger.replaying:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                ledger.observe(snapshot, now)
        deadline = ledger.tick(now)
        later = self._file.keep(ledger, force=bool(self._answers))
        if later is None:
            self._publish()
        while self._answers:
            self._answers.popleft().set()
        self._file.sync()
        return min((at for at in (deadline, None if later is None else now + later) if at is not None), default=None)

    def _publish(self) -> None:
        view = self._ledger.view()
        if view is self.view:
            return
        before, self.view = self.view, view
        self._show(view)
        _say(before, view)

    def _wait(self, deadline: float | None) -> None:
        seconds = _IDLE_SECONDS if deadline is None else min(_IDLE_SECONDS, max(0.0, deadline - self._wall()))
        waiting = select.poll()
        waiting.register(self._woken, select.POLLIN)
        if self._told:
            seconds = 0.0
        elif self._log is not None and not self._is_early():
            seconds = min(seconds, self._log.wait_with(waiting))
        elif self._log is not None:
            seconds = min(seconds, max(0.0, self._read_from - self._monotonic()))
        waiting.poll(ceil(seconds * 1000))
        try:
            os.eventfd_read(self._woken)
        except BlockingIOError:
            return

    # --- the kernel's log ---------------------------------------------------------------------------------------------
    def _is_early(self) -> bool:
        return self._monotonic() < self._read_from

    def _follow(self, kernel_log: KernelLog) -> None:
        self._log_is(readable=kernel_log.open())
        if self._is_early() and self._ledger.replaying and not self._get_to_know():
            return
        self._read_from = self._monotonic()
        self._told += kernel_log.read()
        while self._told:
            told = self._told.popleft()
            if isinstance(told, Named):
                self._ledger.learn(told.pci_bus_id, told.uuid, self._wall())
            else:
                self._ledger.feed(told, self._wall())
        self._log_is(readable=kernel_log.is_open)
        if kernel_log.replayed and self._ledger.replaying:
            self._ledger.replay_ended(self._wall())

    def _log_is(self, *, readable: bool) -> None:
        if readable is not self._readable:
            self._readable = readable
            self._ledger.log_readable(readable=readable, now=self._wall())

    def _get_to_know(self) -> bool:
        """Learn from the first poll which board is where; false when there was none yet."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.gpus:
            return False
        # What is enumerated now holds against what is only remembered.
        for gpu in sorted(snapshot.gpus, key=lambda gpu: gpu.state is not GpuState.GONE):
            self._ledger.learn(gpu.identity.pci_bus_id, gpu.identity.uuid, self._wall(), gpu.number)
        return True


def _say(before: FaultsView, after: FaultsView) -> None:
    """One line for each incident that is shown, and one for its end."""
    was, now = ({incident.id: incident for incident in view.active} for view in (before, after))
    for name in now.keys() - was.keys():
        log.warning("a fault is shown", extra=_facts(now[name]))
    gone = was.keys() - now.keys()
    reasons = {incident.id: incident.closed_because for incident in after.closed} if gone else {}
    for name in gone:
        log.info("a fault is over", extra={**_facts(was[name]), "because": reasons.get(name)})


def _facts(incident: Incident) -> dict[str, object]:
    labels = incident.labels()
    return {
        "incident": labels.incident,
        "fault": labels.fault,
        "class": labels.class_,
        "action": labels.action,
        "isolate": incident.isolate,
        "gpu": incident.gpu,
        "uuid": incident.uuid,
        "pci_bus_id": incident.pci_bus_id,
        "text": incident.text or None,
    }
