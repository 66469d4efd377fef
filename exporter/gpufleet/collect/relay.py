"""Passes the baton from worker to worker, so that they don't fight for the interpreter's lock.

Every driver call lets go of that lock and takes it back; eight workers that run at once make each of those a context
switch and cost four times the CPU. So each worker starts the next when it is done. One that takes long is not waited
for: the poll thread then starts the next one beside it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

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
        """Monotonic time at which a worker was last started."""

    def __len__(self) -> int:
        return len(self._waiting)

    def go_on(self, now: float) -> bool:
        """Start the next worker; false when there is none left."""
        with self._lock:
            if not self._waiting:
                return False
            entry = self._waiting.popleft()
            self.last_start = now
        self._start(entry)
        return True
