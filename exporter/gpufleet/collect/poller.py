"""The poll thread: the one writer of snapshots.

It starts each GPU's worker at each interval, waits for them no longer than the deadline, and publishes. Everything else
that happens (a late result, an event, a command, a device that came) reaches it as a message in one queue, so that
nothing here needs a lock. Scrapes read ``latest`` and never come near the driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from gpufleet.collect.event_watch import fault_of
from gpufleet.collect.known import KnownGpus
from gpufleet.collect.lanes import Job
from gpufleet.collect.lifecycle import LONGEST_RETRY_SECONDS, Lifecycle, Opened, Phase
from gpufleet.collect.opening import Memory, Numbering
from gpufleet.collect.options import PollerOptions, QuiesceOutcome, World
from gpufleet.collect.publish import Publisher
from gpufleet.collect.quiesce import Quiesce
from gpufleet.collect.roster import Roster
from gpufleet.collect.rounds import Rounds
from gpufleet.logs import OnChange
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.sources.nvml.calls import UNKNOWN
from gpufleet.sources.nvml.device import DeviceOptions
from gpufleet.sources.nvml.events import MIG_CHANGE, XID, DriverEvent

log = logging.getLogger(__name__)

GRACE_SECONDS = 0.05
"""After so much of a poll, what has come in is published without waiting for the rest."""
SECOND_SAMPLE_SECONDS = 0.2
"""After a start the second GPM sample is not waited for a whole interval: there is no activity to show before it."""


class Poller:
    """Polls until stopped. ``latest`` is the newest snapshot; reading it is safe from any thread."""

    def __init__(
        self, options: PollerOptions, world: World, numbering: Numbering, memory: Memory | None = None
    ) -> None:
        self.options = options
        self._world = world
        self._clock = world.monotonic
        self._inbox: SimpleQueue[Job] = SimpleQueue()
        self._roster = Roster(
            numbering, memory or KnownGpus(None, None), self._inbox.put, self._clock, options.interval
        )
        self._lifecycle = Lifecycle(world, self._inbox.put, self._event, self._roster.anything_out, self._poll_now)
        self._rounds = Rounds(world, self._roster, self._inbox.put, options.deadline)
        self._quiesce = Quiesce(options.quiesce_max, world, self._roster, self._lifecycle)
        self._publisher = Publisher(options, world, self._roster, self._lifecycle, self._quiesce)
        self._next_at = 0.0
        self._second_sample = False
        self._said = OnChange(log)
        self._reopen_at = self._reopen_wait = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    # --- for other threads --------------------------------------------------------------------------------------------
    @property
    def latest(self) -> Snapshot:
        """The newest snapshot."""
        return self._publisher.latest

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        """Have ``callback`` called by the poll thread after each publication. Before ``start``."""
        self._publisher.subscribers.append(callback)

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop polling and give the driver's handles back; false when a call is out and the process has to be ended.

        Waits at most ``timeout`` seconds.
        """
        done = threading.Event()
        self._inbox.put(partial(self._quiesce.begin, lambda _: done.set(), for_ever=True))
        released = done.wait(timeout)
        self._stopping = True
        self._inbox.put(lambda: None)
        return released and self._lifecycle.phase is Phase.CLOSED

    def quiesce(self, timeout: float = 10.0) -> QuiesceOutcome:
        """Release every handle of the driver, or say which call is out. Polls go on in that case."""
        outcome: list[QuiesceOutcome] = []
        done = threading.Event()

        def answer(result: QuiesceOutcome) -> None:
            outcome.append(result)
            done.set()

        self._inbox.put(partial(self._quiesce.begin, answer))
        if not done.wait(timeout):
            return QuiesceOutcome(ok=False, blocked_by=f"the poll thread did not answer in {timeout:g} s")
        return outcome[0]

    def resume(self) -> None:
        """Take the driver up again after a quiesce."""
        self._inbox.put(self._resume)

    def _resume(self) -> None:
        self._quiesce.resume()
        self._poll_now()

    def _poll_now(self) -> None:
        # Also when events can't be waited for, which most likely says that a GPU is lost: its own poll tells which.
        self._next_at = min(self._next_at, self._clock())

    def devices_changed(self) -> None:
        """Look for GPUs that came or went: the kernel said so (udev)."""
        self._inbox.put(self._lifecycle.survey_now)

    # --- the loop -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        self._next_at = self._clock()
        while not self._stopping:
            self._handle_until(lambda: min(self._next_at, self._quiesce.check_at()))
            now = self._clock()
            if self._quiesce.tick(now):
                # Until there is a poll, the node looks quiesced: with an interval of a minute, for a minute.
                self._next_at = now
            if now < self._next_at:
                continue
            # A machine that was asleep or overloaded skips the polls that it missed.
            following = self._next_at + self.options.interval
            self._next_at = following if following > now else now + self.options.interval
            self._cycle(now)
            if self._second_sample:
                self._second_sample = False
                self._next_at = min(self._next_at, now + SECOND_SAMPLE_SECONDS)
        for part in (self._roster, self._rounds, self._lifecycle):
            part.end_threads()

    def _handle_until(self, deadline: Callable[[], float]) -> None:
        while not self._stopping:
            wait = deadline() - self._clock()
            try:
                message = self._inbox.get(timeout=wait) if wait > 0 else self._inbox.get_nowait()
            except Empty:
                return
            self._handle(message)

    def _handle(self, message: Job) -> None:
        try:
            message()
        except Exception:
            # The poll thread has to outlive its own mistakes: everything else depends on it.
            log.exception("a message could not be handled")
        # Any message may have been the one that was waited for.
        self._settle()
        self._try_to_close()

    def _cycle(self, now: float) -> None:
        try:
            self._poll(now)
        except Exception:
            log.exception("a poll failed")

    def _poll(self, now: float) -> None:
        self._keep_session(now)
        opened = self._lifecycle.opened
        rounds = self._rounds
        if self._lifecycle.phase is Phase.OPEN and opened is not None:
            rounds.begin(now, None if self._lifecycle.events is None else opened.event_set)
        else:
            self._roster.unread(self._lifecycle.reason or "the driver is being opened anew")
        deadline, grace = now + self.options.deadline, now + min(GRACE_SECONDS, self.options.deadline / 2)
        shown_early = False
        while rounds.pending and not self._stopping:
            rounds.check()
            wake = min(deadline if shown_early else grace, rounds.next_check())
            try:
                message = self._inbox.get(timeout=max(0.0, wake - self._clock()))
            except Empty:
                moment = self._clock()
                if moment >= deadline:
                    rounds.give_up()
                elif not shown_early and moment >= grace:
                    shown_early = True
                    rounds.take_early()
                    self._publisher.publish(moment - now, whole=False)
            else:
                self._handle(message)
        self._after_round(now)
        self._publisher.publish(self._clock() - now)

    def _after_round(self, now: float) -> None:
        """Draw the conclusions for the session: the library failed, or no GPU is left that answers."""
        if self._lifecycle.phase is not Phase.OPEN:
            return
        failure = self._rounds.failure or self._roster.failure
        if failure is not None:
            self._lifecycle.end(NvmlState.NO_DRIVER, str(failure))
            self._roster.unread(str(failure))
            self._try_to_close()
            return
        lost = [gpu for gpu in self._roster if gpu.state in (GpuState.LOST, GpuState.RESET_REQUIRED)]
        silent = [gpu for gpu in lost if gpu.device is None or gpu.last_error == UNKNOWN]
        if any(gpu.device is not None and gpu not in silent for gpu in self._roster):
            self._reopen_wait = 0.0
        elif silent and not self._roster.openings and now >= self._reopen_at:
            # A driver that was reloaded answers "lost", or with an error that is not known, for every old handle; a new
            # session shows whether it is that.
            self._reopen_wait = min(max(self.options.interval, 2 * self._reopen_wait), LONGEST_RETRY_SECONDS)
            self._reopen_at = now + self._reopen_wait
            self._lifecycle.end(NvmlState.OK, "no GPU answers: the driver is opened anew")
            self._try_to_close()
            return
        if self._lifecycle.opened is not None:
            self._roster.open_again(self._lifecycle.opened.session, self._device_options(), now)

    # --- the session --------------------------------------------------------------------------------------------------
    def _keep_session(self, now: float) -> None:
        self._lifecycle.tick(now)
        self._roster.overdue(now, max(self.options.deadline, 1.0))
        self._settle()
        self._try_to_close()
        if self._lifecycle.due(now) and not self._quiesce.active:
            self._lifecycle.open(now, self._session_opened)

    def _session_opened(self, opened: Opened) -> None:
        self._roster.open_all(opened.session, opened.count, self._device_options())

    def _device_options(self) -> DeviceOptions:
        return self.options.device_options(self._lifecycle.versions.driver)

    def _settle(self) -> None:
        """Take in the devices that were opened, as soon as all of them are there or the rest hangs."""
        waiting = any(not opening.out for opening in self._roster.openings)
        settled = self._roster.settle(even_if_waiting=not waiting)
        self._roster.absent()
        if not settled:
            return
        # At once, and again when GPM has a window: there is no activity to show before its second sample.
        self._next_at = self._clock()
        self._second_sample = any(gpu.device is not None and gpu.device.has_gpm for gpu in self._roster)

    def _try_to_close(self) -> None:
        if self._lifecycle.phase is not Phase.ENDING or not self._lifecycle.events_ended:
            return
        if self._rounds.pending or self._roster.calls_out() or self._lifecycle.surveying:
            return
        driver_is_well = self._lifecycle.state in (NvmlState.OK, NvmlState.NO_GPU)
        reason = self._lifecycle.reason or "the driver is being opened anew"
        devices = self._roster.leave(reason, driver_is_well=driver_is_well)
        self._lifecycle.close(devices, self._session_closed)

    def _session_closed(self) -> None:
        if self._quiesce.active:
            self._quiesce.released()
            self._publisher.publish(0.0, whole=False)
        else:
            self._next_at = self._clock()

    # --- events -------------------------------------------------------------------------------------------------------
    def _event(self, event: DriverEvent) -> None:
        """Called by the thread that waits for events."""
        self._inbox.put(partial(self._take_event, event))

    def _take_event(self, event: DriverEvent) -> None:
        gpu = self._roster.by_handle.get(event.handle) or self._roster.gpus.get(event.uuid or "")
        if gpu is None:
            return
        if event.kind == XID:
            self._world.faults.feed(fault_of(event, gpu.identity, self._world.wall()), gpu.identity.uuid)
            # Each code of a GPU once: a storm of them is counted, and what it comes down to is an incident.
            self._said.failed(
                f"xid {event.data} {gpu.identity.uuid}",
                "the driver reports an Xid",
                str(event.data),
                gpu=gpu.number,
                uuid=gpu.identity.uuid,
            )
        elif event.kind == MIG_CHANGE and gpu.device is not None:
            gpu.device.mig_has_changed()
