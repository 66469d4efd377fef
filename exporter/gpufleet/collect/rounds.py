"""One round after another: each GPU that is free is read by its worker, then sampled by the GPM thread.

A call that is overdue costs its own GPU. Nothing replaces its worker: the GPU is ``out``, and nothing is asked of it
until the call returns; what it then brings is dropped. Used by the poll thread alone; jobs report back as messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue

from gpufleet.collect.lanes import Job
from gpufleet.collect.options import World
from gpufleet.collect.roster import Roster
from gpufleet.collect.sampler import Outcome, Queue, Sampler
from gpufleet.collect.watched import Activity, Watched
from gpufleet.logs import OnChange
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    INVALID_ARGUMENT,
    LIBRARY_DOWN,
    NO_PERMISSION,
    NvmlError,
)
from gpufleet.sources.nvml.device import DeviceReading
from gpufleet.sources.nvml.events import EventSet
from gpufleet.sources.nvml.plan import Abandoned

log = logging.getLogger(__name__)

Failed = NvmlError | Abandoned


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
        self._post = post
        self._deadline = deadline
        # Half of a round, so that the GPUs queued behind one that hangs are still sampled within the same round.
        self._sample_deadline = deadline / 2
        self._queue: Queue = SimpleQueue()
        self._sampler = self._new_sampler()
        self._said = OnChange(log)

    def _new_sampler(self) -> Sampler:
        return Sampler(self._queue, lambda *result: self._post(partial(self._sampled, *result)), self._clock)

    # --- starting -----------------------------------------------------------------------------------------------------
    def begin(self, now: float, events: EventSet | None) -> None:
        """Start a round: give every free GPU to its worker."""
        self.number += 1
        self.failure = None
        for gpu in self._roster:
            if gpu.device is not None and not gpu.out and gpu.claim.activity is Activity.IDLE:
                generation = gpu.claim.begin(now)
                self.pending.add(gpu)
                gpu.lane.submit(partial(self._read_job, gpu, generation, events))

    def _read_job(self, gpu: Watched, generation: int, events: EventSet | None) -> None:
        device = gpu.device
        if device is None:
            return
        try:
            if events is not None and gpu.registered_with is not events:
                # Here, so that a registration that hangs costs this GPU only.
                gpu.registered_with = events
                device.trace.last = "nvmlDeviceRegisterEvents"
                events.register(device.handle)
            now = self._clock()
            reading = device.read(now)
        except (NvmlError, Abandoned) as error:
            self._post(partial(self._read_failed, gpu, generation, error))
            return
        gpu.fresh = (generation, reading, now)
        if device.samples_gpm and gpu.claim.move(generation, Activity.QUEUED, now):
            self._queue.put((gpu, generation))
        else:
            self._post(partial(self._read, gpu, generation))

    # --- results ------------------------------------------------------------------------------------------------------
    def _returned(self, gpu: Watched, generation: int) -> bool:
        """Nobody is in the driver for this GPU any more; true when the result is still wanted."""
        if gpu.out:
            self._back(gpu)
            return False
        if generation != gpu.claim.generation:
            return False
        gpu.claim.end()
        self.pending.discard(gpu)
        return True

    def _read(self, gpu: Watched, generation: int) -> None:
        if self._returned(gpu, generation):
            self._take(gpu, generation)

    def _read_failed(self, gpu: Watched, generation: int, error: Failed) -> None:
        if self._returned(gpu, generation) and isinstance(error, NvmlError):
            self._fail(gpu, error)

    def _sampled(self, gpu: Watched, generation: int, outcome: Outcome) -> None:
        if not self._returned(gpu, generation):
            return
        self._take(gpu, generation)
        if isinstance(outcome, NvmlError):
            self._fail(gpu, outcome)
        else:
            gpu.take_sample(outcome, self._clock())

    def _take(self, gpu: Watched, generation: int) -> None:
        fresh, gpu.fresh = gpu.fresh, None
        if fresh is not None and fresh[0] == generation:
            self._accept(gpu, fresh[1], fresh[2])

    def take_early(self) -> None:
        """Show what workers have read already, though the GPM thread is not done with it."""
        for gpu in self.pending:
            if gpu.claim.activity in (Activity.QUEUED, Activity.SAMPLING):
                self._take(gpu, gpu.claim.generation)

    def _accept(self, gpu: Watched, reading: DeviceReading, now: float) -> None:
        gpu.take_reading(reading, now, self._world.wall())
        self._said.over(gpu.identity.uuid, "the GPU answers again", gpu=gpu.number, uuid=gpu.identity.uuid)

    def _fail(self, gpu: Watched, error: NvmlError) -> None:
        if error.code in LIBRARY_DOWN:
            self.failure = error
            return
        self._say(gpu, str(error))
        if error.code in DEVICE_DOWN or error.code in (NO_PERMISSION, INVALID_ARGUMENT):
            self._roster.lost(gpu, error)
            if error.code == INVALID_ARGUMENT:
                # The handle went stale while the GPU may be well: look for it at once.
                gpu.retry_at = 0.0
        else:
            # A passing error: this poll is lost, the next one asks again.
            gpu.tally_error(error.code)
            gpu.down(GpuState.LOST, str(error))

    def _say(self, gpu: Watched, reason: str) -> None:
        self._said.failed(gpu.identity.uuid, "a GPU does not answer", reason, gpu=gpu.number, uuid=gpu.identity.uuid)

    # --- deadlines ----------------------------------------------------------------------------------------------------
    def next_check(self) -> float:
        """When ``check_sampler`` has to look again."""
        gpu = self._sampler.current
        return float("inf") if gpu is None else gpu.claim.since + self._sample_deadline

    def check_sampler(self) -> None:
        """When the GPM thread hangs on a GPU, that GPU is out, and a new thread goes on with the others."""
        gpu = self._sampler.current
        if gpu is None or gpu.claim.activity is not Activity.SAMPLING:
            return
        if self._clock() - gpu.claim.since < self._sample_deadline:
            return
        self._sampler.retired = True
        self._sampler = self._new_sampler()
        self._overdue([gpu])

    def give_up(self) -> None:
        """The round's deadline has passed: who is in the driver is out; who waits for the GPM thread is taken back."""
        late = []
        for gpu in list(self.pending):
            self._take(gpu, gpu.claim.generation)
            if gpu.claim.withdraw():
                self.pending.discard(gpu)
            elif gpu.claim.activity is Activity.READING:
                late.append(gpu)
        self._overdue(late)

    def _overdue(self, late: Iterable[Watched]) -> None:
        for gpu in late:
            gpu.out, gpu.out_since = True, self.number
            self.pending.discard(gpu)
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
        gpu.fresh = None
        gpu.claim.end()
        if gpu.device is not None:
            gpu.device.abandon(given_up=False)
        gpu.down(gpu.state, f"{gpu.call} returned late; the next poll tells more")
