"""The GPM thread: one for the node, since GPM is not safe to call from several threads.

A GPU whose GPM call is overdue leaves it: the poll thread retires the sampler, whose thread ends when the call returns,
and a new one goes on with the same queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from gpufleet.collect.watched import Activity, Watched
from gpufleet.sources.nvml.calls import NvmlError
from gpufleet.sources.nvml.device import GpmSample

Queue = SimpleQueue[tuple[Watched, int] | None]
Outcome = GpmSample | NvmlError
Report = Callable[[Watched, int, Outcome], None]


class Sampler:
    """Takes GPUs from a queue, reads their activity, and reports each by ``report`` (called by the sampler's
    thread).
    """

    def __init__(self, queue: Queue, report: Report, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._report = report
        self._clock = clock
        self.current: Watched | None = None
        """The GPU that the thread is in the driver for."""
        self.retired = False
        self._thread = threading.Thread(target=self._run, name="gpm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.retired and (entry := self._queue.get()) is not None:
            if self._is_retired():
                # Another sampler has the queue by now.
                self._queue.put(entry)
                return
            gpu, generation = entry
            self._take(gpu, generation)

    def _is_retired(self) -> bool:
        return self.retired

    def _take(self, gpu: Watched, generation: int) -> None:
        device, now = gpu.device, self._clock()
        if device is None or not gpu.claim.move(generation, Activity.SAMPLING, now):
            return
        self.current = gpu
        outcome: Outcome
        try:
            outcome = device.sample(now)
        except NvmlError as error:
            outcome = error
        self.current = None
        self._report(gpu, generation, outcome)
