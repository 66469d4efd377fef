"""The GPM thread: one for the node, since GPM is not safe to call from several threads.

A GPU whose GPM call is overdue leaves it: the poll thread retires the sampler, whose thread ends when the call returns,
and a new one goes on with what is still to be sampled.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from gpufleet.collect.relay import Entry
from gpufleet.collect.watched import Activity, Watched
from gpufleet.sources.nvml.calls import UNKNOWN, NvmlError
from gpufleet.sources.nvml.device import GpmSample

log = logging.getLogger(__name__)

Outcome = GpmSample | NvmlError


class Work:
    """What is to be sampled, and what was; shared by a sampler and its successors."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        """``on_done`` is called by the sampling thread when nothing is left to do."""
        self.todo: deque[Entry] = deque()
        self.done: deque[tuple[Watched, int, Outcome]] = deque()
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.on_done = on_done
        self.ended = False

    def end(self) -> None:
        """Let the sampling thread end when nothing is left to do."""
        self.ended = True
        self.wake.put(None)

    def add(self, entries: list[Entry]) -> None:
        """Have these GPUs sampled."""
        self.todo.extend(entries)
        self.wake.put(None)


class Sampler:
    """Samples one GPU after another until it is retired."""

    def __init__(self, work: Work, clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self.current: Watched | None = None
        """The GPU that the thread is in the driver for."""
        self._lock = threading.Lock()
        self._retired = False
        self._thread = threading.Thread(target=self._run, name="gpm", daemon=True)
        self._thread.start()

    def retire(self, gpu: Watched) -> bool:
        """End when the present call, which is for ``gpu``, returns: a successor has the rest.

        False when the call has returned by now: the thread may be in the driver for the next GPU already, and a
        successor would be there beside it.
        """
        with self._lock:
            self._retired = self._retired or self.current is gpu
            return self._retired

    def _run(self) -> None:
        work = self._work
        while True:
            work.wake.get()
            while self._sample_next():
                if self._retired:
                    work.on_done()
                    return
            if work.ended:
                return
            work.on_done()

    def _sample_next(self) -> bool:
        try:
            gpu, generation = self._work.todo.popleft()
        except IndexError:
            return False
        device, now = gpu.device, self._clock()
        if device is not None and gpu.claim.move(generation, Activity.SAMPLING, now):
            self._set_current(gpu)
            outcome: Outcome
            try:
                outcome = device.sample(now)
            except NvmlError as error:
                outcome = error
            except Exception:
                # A mistake of ours costs this GPU, not the thread that all the others need.
                log.exception("activity could not be sampled", extra={"gpu": gpu.number})
                outcome = NvmlError("nvmlGpmSampleGet", UNKNOWN)
            self._set_current(None)
            self._work.done.append((gpu, generation, outcome))
        return True

    def _set_current(self, gpu: Watched | None) -> None:
        with self._lock:
            self.current = gpu
