"""Who reads the next GPU: while all is well one thread reads them all, and no GPU waits for one that takes long.

Every driver call lets go of the interpreter's lock and takes it back; workers that run at once make each of those a
context switch and cost four times the CPU, and waking one after the other still costs as much as reading does. So one
reader takes GPU after GPU. One that takes long is not waited for: the poll thread has the next GPU's own worker go on
beside it, which passes the baton to the worker after it. A reader that is stuck stays with its GPU, as its worker.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from gpufleet.collect.lanes import Lane
from gpufleet.collect.watched import Watched

Entry = tuple[Watched, int]
"""A GPU and the generation of its poll."""


class Relay:
    """The GPUs of one round that have not been started yet."""

    __slots__ = ("_lock", "_start", "_waiting", "last_start")

    def __init__(self, entries: Iterable[Entry], start: Callable[[Entry], None], now: float) -> None:
        """``start`` hands one GPU to its worker; it is called by whichever thread has the baton."""
        self._waiting = deque(entries)
        self._start = start
        self._lock = threading.Lock()
        self.last_start = now
        """Monotonic time at which the reading of a GPU was last begun."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, now: float) -> Entry | None:
        """The next GPU, to be read by the thread that asks; ``None`` when there is none left."""
        with self._lock:
            if not self._waiting:
                return None
            self.last_start = now
            return self._waiting.popleft()

    def go_on(self, now: float) -> bool:
        """Start the next GPU's own worker; false when there is none left."""
        entry = self.take(now)
        if entry is None:
            return False
        self._start(entry)
        return True


class Reader:
    """The thread that reads GPU after GPU. Owned by the poll thread; ``current`` is the thread's own."""

    __slots__ = ("current", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.current: Watched | None = None
        """The GPU that it is in the driver for."""

    def successor(self, gpu: Watched) -> Reader:
        """A call for ``gpu`` does not return: the thread stays with that GPU as its worker, and the worker that the GPU
        had reads the others from now on. So there is still one worker a GPU, and none replaces the stuck one.
        """
        gpu.lane, free = self.lane, gpu.lane
        return Reader(free)
