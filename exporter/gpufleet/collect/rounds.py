"""One round after another: each GPU that is free is read, then sampled by the GPM thread.

A call that is overdue costs its own GPU. Nothing replaces the thread that is in it: the GPU is ``out``, and nothing is
asked of it until the call returns; what it then brings is dropped. Used by the poll thread alone; jobs report back as
messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from gpufleet.collect.lanes import Job, Lane
from gpufleet.collect.options import World
from gpufleet.collect.relay import Entry, Reader, Relay
from gpufleet.collect.roster import Roster
from gpufleet.collect.sampler import Sampler, Work
from gpufleet.collect.watched import Activity, Watched
from gpufleet.logs import OnChange
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    INVALID_ARGUMENT,
    LIBRARY_DOWN,
    NO_PERMISSION,
    UNKNOWN,
    NvmlError,
)
from gpufleet.sources.nvml.device import Device, DeviceReading
from gpufleet.sources.nvml.events import EventSet
from gpufleet.sources.nvml.plan import Abandoned

log = logging.getLogger(__name__)

Result = DeviceReading | NvmlError | Abandoned

LONGEST_PATIENCE_SECONDS = 0.02
"""A GPU that takes longer has the next one's worker started beside it. Real drivers take about 3 ms a GPU."""


class Rounds:
    """Which GPUs are being read now, which are out, and what the driver as a whole has come to."""

    def __init__(self, world: World, roster: Roster, post: Callable[[Job], None], deadline: float) -> None:
        self.pending: set[Watched] = set()
        self.failure: NvmlError | None = None
        """A call said that the library as a whole is down."""
        self.number = 0
        self._world = world
        self._clock = world.monotonic
        self._roster = roster
        self._deadline = deadline
        # Half of a round, so that the GPUs queued behind one that hangs are still sampled within the same round.
        self._sample_deadline = deadline / 2
        self._patience = 0.0
        self._relay = Relay((), self._start, 0.0)
        self._reader = Reader(Lane("reader"))
        self._events: EventSet | None = None
        self._read: deque[tuple[Watched, int, Result, float]] = deque()
        self._collect_soon = partial(post, self._collect)
        self._work = Work(on_done=self._collect_soon)
        self._sampler = Sampler(self._work, self._clock)
        self._said = OnChange(log)

    # --- starting -----------------------------------------------------------------------------------------------------
    def begin(self, now: float, events: EventSet | None) -> None:
        """Start a round: every free GPU is to be read."""
        self.number += 1
        self.failure = None
        self._events = events
        self.check()
        free = [
            gpu
            for gpu in self._roster
            if gpu.device is not None and not gpu.out and gpu.claim.activity is Activity.IDLE
        ]
        if not free:
            return
        self.pending.update(free)
        self._patience = min(LONGEST_PATIENCE_SECONDS, self._deadline / (2 * len(free)))
        self._relay = Relay([(gpu, gpu.claim.begin(now)) for gpu in free], self._start, now)
        self._reader.lane.submit(partial(self._read_all, self._reader, self._relay))

    def _start(self, entry: Entry) -> None:
        gpu, generation = entry
        gpu.lane.submit(partial(self._read_job, gpu, generation, self._relay))

    def _read_all(self, reader: Reader, relay: Relay) -> None:
        """By the reader: GPU after GPU, for as long as there are any."""
        while (entry := relay.take(self._clock())) is not None:
            reader.current = entry[0]
            self._read_one(*entry)
            reader.current = None
        self._collect_soon()

    def _read_job(self, gpu: Watched, generation: int, relay: Relay) -> None:
        """By the GPU's worker, beside a reader that takes long: one poll; then the next worker is started, or the poll
        thread told that this was the last.
        """
        self._read_one(gpu, generation)
        if not relay.go_on(self._clock()):
            self._collect_soon()

    def _read_one(self, gpu: Watched, generation: int) -> None:
        device, now = gpu.device, self._clock()
        if device is not None and gpu.claim.move(generation, Activity.READING, now):
            result: Result
            try:
                self._register(gpu, device)
                result = device.read(now)
            except (NvmlError, Abandoned) as error:
                result = error
            except Exception:
                log.exception("a GPU could not be read", extra={"gpu": gpu.number})
                result = NvmlError(device.trace.last, UNKNOWN)
            gpu.claim.move(generation, Activity.QUEUED, now)
            self._read.append((gpu, generation, result, now))

    def _register(self, gpu: Watched, device: Device) -> None:
        # By the worker, so that a registration that hangs costs this GPU only.
        events = self._events
        if events is None or gpu.registered_with is events:
            return
        if events.register(device.handle, device.trace):
            gpu.registered_with = events

    # --- results ------------------------------------------------------------------------------------------------------
    def _collect(self) -> None:
        """Take what workers and the GPM thread have brought; send on to the GPM thread what has been read."""
        to_sample: list[Entry] = []
        while self._read:
            gpu, generation, result, now = self._read.popleft()
            if not self._wanted(gpu, generation):
                continue
            if isinstance(result, DeviceReading):
                self._accept(gpu, result, now)
                if gpu.device is not None and gpu.device.samples_gpm:
                    to_sample.append((gpu, generation))
                    continue
            self._finish(gpu)
            if isinstance(result, NvmlError):
                self._fail(gpu, result)
        if to_sample:
            self._work.add(to_sample)
        while self._work.done:
            gpu, generation, outcome = self._work.done.popleft()
            if not self._wanted(gpu, generation):
                continue
            self._finish(gpu)
            if isinstance(outcome, NvmlError):
                self._fail(gpu, outcome)
            else:
                gpu.take_sample(outcome, self._clock())

    def _wanted(self, gpu: Watched, generation: int) -> bool:
        """Whether this is the poll that is waited for; a GPU that was out is back with whatever it brings."""
        if gpu.out:
            self._back(gpu)
            return False
        return generation == gpu.claim.generation

    def _finish(self, gpu: Watched) -> None:
        gpu.claim.end()
        self.pending.discard(gpu)

    def take_early(self) -> None:
        """Take what is there already, without waiting for the rest of the round."""
        self._collect()

    def _accept(self, gpu: Watched, reading: DeviceReading, now: float) -> None:
        gpu.take_reading(reading, now, self._world.wall())
        self._said.over(gpu.identity.uuid, "the GPU answers again", gpu=gpu.number, uuid=gpu.identity.uuid)

    def _fail(self, gpu: Watched, error: NvmlError) -> None:
        gpu.failed(error.code)
        if error.code in LIBRARY_DOWN:
            self.failure = error
            gpu.down(GpuState.GONE, str(error))
            return
        self._say(gpu, str(error))
        if error.code in DEVICE_DOWN or error.code in (NO_PERMISSION, INVALID_ARGUMENT):
            self._roster.lost(gpu, error)
            if error.code == INVALID_ARGUMENT:
                # The handle went stale while the GPU may be well: look for it at once.
                gpu.retry_at = 0.0
        else:
            # A passing error: this poll is lost, the next one asks again.
            gpu.down(GpuState.LOST, str(error))

    def _say(self, gpu: Watched, reason: str) -> None:
        self._said.failed(gpu.identity.uuid, "a GPU does not answer", reason, gpu=gpu.number, uuid=gpu.identity.uuid)

    def end_threads(self) -> None:
        """Let the GPM thread and the reader end."""
        self._work.end()
        self._reader.lane.end()

    # --- deadlines ----------------------------------------------------------------------------------------------------
    def next_check(self) -> float:
        """When ``check`` has to look again."""
        gpu = self._sampler.current
        sampler = inf if gpu is None else gpu.claim.since + self._sample_deadline
        return min(sampler, self._relay.last_start + self._patience if self._relay else inf)

    def check(self) -> None:
        """Go round who takes long: start the next worker, or have another thread go on with the sampling."""
        now = self._clock()
        if self._relay and now - self._relay.last_start >= self._patience:
            self._relay.go_on(now)
        gpu = self._sampler.current
        if gpu is None or gpu.claim.activity is not Activity.SAMPLING or now - gpu.claim.since < self._sample_deadline:
            return
        if not self._sampler.retire(gpu):
            return
        self._sampler = Sampler(self._work, self._clock)
        self._work.wake.put(None)
        self._overdue([gpu])

    def give_up(self) -> None:
        """The round's deadline has passed: who is in the driver is out; who waits for others is taken back."""
        self._collect()
        in_driver = [gpu for gpu in self.pending if not gpu.claim.withdraw()]
        late = [gpu for gpu in in_driver if gpu.claim.activity is Activity.READING]
        # The GPM thread may have come to a GPU a moment ago, after it was held up by others. That GPU has still its
        # own time, but no longer a round that waits for it.
        self.pending.clear()
        self._overdue(late)

    def _overdue(self, late: Iterable[Watched]) -> None:
        for gpu in late:
            gpu.out, gpu.out_since = True, self.number
            self.pending.discard(gpu)
            if self._reader.current is gpu:
                self._reader = self._reader.successor(gpu)
            if gpu.device is not None:
                gpu.device.abandon(given_up=True)
            reason = f"{gpu.call} has not returned"
            self._say(gpu, reason)
            gpu.down(GpuState.HUNG, reason)
        self._judge()

    def _judge(self) -> None:
        """When every GPU is out, those that followed are held by the driver's own lock, not by themselves."""
        opened = [gpu for gpu in self._roster if gpu.device is not None]
        if len(opened) < 2 or not all(gpu.out for gpu in opened):
            return
        first = min(gpu.out_since for gpu in opened)
        together = all(gpu.out_since == first for gpu in opened)
        for gpu in opened:
            if together or gpu.out_since > first:
                gpu.down(GpuState.DRIVER_BLOCKED, f"{gpu.call} has not returned, and no other GPU answers either")

    def _back(self, gpu: Watched) -> None:
        gpu.out = False
        gpu.claim.end()
        if gpu.device is not None:
            gpu.device.abandon(given_up=False)
        gpu.down(gpu.state, f"{gpu.call} returned late; the next poll tells more")
