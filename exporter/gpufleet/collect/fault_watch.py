"""The faults thread: the one owner of the ledger.

Everything that tells of a fault reaches it: the kernel's log, the driver's events, the kernel's word on devices, and
each poll. It writes the ledger to disk before it shows an incident, so that a crash can't give the same fault two
names, and it never waits for a GPU: an incident must be on its way while the GPU that it is about holds up everybody
else.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.collect.state_file import StateError, read_state, replace_state
from gpufleet.faults.ledger import Ledger
from gpufleet.faults.stored import StoredError
from gpufleet.logs import OnChange
from gpufleet.model.fault import FaultEvent
from gpufleet.model.incident import FaultsView
from gpufleet.model.snapshot import Snapshot, SourceHealth
from gpufleet.sources.errors import SourceError
from gpufleet.sources.kmsg import SOURCE, Follower, wall_time
from gpufleet.sources.kmsg_lines import Lines, believable, harvest_identity, parse_record

log = logging.getLogger(__name__)

STATE_FILE = "faults.json"
WRITE_SECONDS = 1.0
"""Counts alone are written this often at most; incidents at once."""
OPEN_AGAIN_SECONDS = 60.0
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
        """``show`` is called by the faults thread with each new view, after it is on disk."""
        self.view = FaultsView()
        self.health = SourceHealth(SOURCE, up=False, reason="not opened yet")
        self._ledger = ledger
        self._options = options
        self._wall = wall
        self._monotonic = monotonic
        self._show = show
        self._file = None if options.state_dir is None else options.state_dir / STATE_FILE
        self._follower: Follower | None = None
        self._open_at = 0.0
        self._lines = Lines()
        self._jobs: deque[Job] = deque()
        self._snapshot: Snapshot | None = None
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._written = (-1, -1)
        self._write_at = 0.0
        self._stopping = False
        self._said = OnChange(log)
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    # --- for other threads --------------------------------------------------------------------------------------------
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
        """A person says that an incident is over; false when there is none of that name."""
        done = threading.Event()
        cleared: list[bool] = []

        def job() -> None:
            cleared.append(self._ledger.clear(incident, self._wall()))
            done.set()

        self._jobs.append(job)
        self._wake()
        return done.wait(timeout) and cleared[0]

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        self._load()
        deadline: float | None = self._wall()
        while not self._stopping:
            self._wait(deadline)
            try:
                deadline = self._turn()
            except Exception:
                # A mistake in the folding of one fault must not keep the next one from being told.
                log.exception("a turn of the faults thread failed")
                deadline = self._wall() + 1.0
        self._write(force=True)
        if self._follower is not None:
            self._follower.close()

    def _turn(self) -> float | None:
        """Take in everything that is there, then write and show; returns when to look again at the latest."""
        self._read_log()
        while self._jobs:
            self._jobs.popleft()()
        snapshot, self._snapshot = self._snapshot, None
        now = self._wall()
        if snapshot is not None:
            self._ledger.observe(snapshot, now)
        deadline = self._ledger.tick(now)
        self._write(force=False)
        view = self._ledger.view()
        if view is not self.view:
            self.view = view
            self._show(view)
        if self._written != self._state():
            deadline = min(deadline or now + WRITE_SECONDS, now + WRITE_SECONDS)
        return deadline

    def _wait(self, deadline: float | None) -> None:
        seconds = _IDLE_SECONDS if deadline is None else min(_IDLE_SECONDS, max(0.0, deadline - self._wall()))
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        follower = self._follower
        if follower is not None and follower.waits_by_poll:
            poll.register(follower.descriptor, select.POLLIN)
        elif follower is not None or self._open_at:
            seconds = min(seconds, 0.2 if follower is not None else OPEN_AGAIN_SECONDS)
        if follower is not None and not follower.caught_up:
            seconds = 0.0
        poll.poll(round(seconds * 1000))
        try:
            os.eventfd_read(self._woken)
        except BlockingIOError:
            return

    # --- the kernel's log ---------------------------------------------------------------------------------------------
    def _read_log(self) -> None:
        if self._options.kmsg_path is None:
            return
        if self._follower is None and self._monotonic() >= self._open_at:
            self._open(self._options.kmsg_path)
        follower = self._follower
        if follower is None:
            return
        try:
            records = follower.read()
        except SourceError as error:
            self._lose(error)
            return
        monotonic, wall = self._monotonic(), self._wall()
        for raw in records:
            self._take(raw, monotonic, wall)
        if follower.caught_up and self._ledger.replaying:
            self._ledger.replay_ended(wall)

    def _take(self, raw: bytes, monotonic: float, wall: float) -> None:
        record = parse_record(raw)
        if record is None or not believable(record, accept_userspace=self._options.accept_userspace):
            return
        event = self._lines.record(record, at=wall_time(record.microseconds, monotonic, wall))
        if event is not None:
            self._ledger.feed(event, wall)
            return
        named = harvest_identity(record.text)
        if named is not None:
            self._ledger.learn(*named, wall)

    def _open(self, path: Path) -> None:
        try:
            self._follower = Follower(path)
        except SourceError as error:
            self._lose(error)
            return
        self._ledger.log_readable(readable=True, now=self._wall())
        self.health = SourceHealth(SOURCE, up=True)
        self._said.over(SOURCE, "the kernel's log is followed", path=str(path))

    def _lose(self, error: SourceError) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        self._open_at = self._monotonic() + OPEN_AGAIN_SECONDS
        self.health = SourceHealth(SOURCE, up=False, reason=error.reason)
        self._said.failed(SOURCE, "the kernel's log can't be followed", error.reason)
        self._ledger.log_readable(readable=False, now=self._wall())

    # --- the disk -----------------------------------------------------------------------------------------------------
    def _state(self) -> tuple[int, int]:
        return self._ledger.revision, self._ledger.events

    def _write(self, *, force: bool) -> None:
        """Keep the ledger: at once when an incident changed, else when the last time is a while ago."""
        state, now = self._state(), self._monotonic()
        if self._file is None or state == self._written or self._ledger.replaying:
            return
        if not force and state[0] == self._written[0] and now < self._write_at:
            return
        self._write_at = now + WRITE_SECONDS
        try:
            replace_state(self._file, json.dumps(self._ledger.dump(), separators=(",", ":")).encode())
        except StateError as error:
            self._said.failed(
                "write",
                "faults can't be kept: after a restart of gpufleet they begin anew; make --state.dir writable",
                str(error),
                file=str(self._file),
            )
        else:
            self._said.over("write", "faults are kept again", file=str(self._file))
        self._written = self._state()

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            content = read_state(self._file)
            if content is not None:
                self._ledger.load(json.loads(content), self._wall())
        except (StateError, StoredError, ValueError, RecursionError) as error:
            self._said.failed("read", "the kept faults can't be used: beginning anew", str(error), file=str(self._file))
