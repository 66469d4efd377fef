"""A lane: one daemon thread that does one job at a time, and that nobody has to wait for.

Executors are not used: they join their threads at exit, so a call that hangs in the driver would hold the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

Job = Callable[[], None]


class Lane:
    """Jobs are run in order by a thread of the lane's own; a job reports by itself, through a queue of its owner's."""

    __slots__ = ("_jobs", "_started", "_thread")

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def submit(self, job: Job) -> None:
        """Run ``job`` after those submitted before; the first starts the thread. By one thread."""
        if not self._started:
            # Where no thread is to be had the next job tries again.
            self._thread.start()
            self._started = True
        self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end after the jobs that it has. Does not wait; nothing may be submitted any more."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                # A job translates the driver's errors itself; whatever still comes here is a mistake of ours, and the
                # lane has to outlive it.
                log.exception("a job failed", extra={"lane": self._thread.name})
