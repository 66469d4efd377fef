"""Reused threads, one per connection being served. No executor: its threads are joined at exit, so one slow peer would
keep the process from ending.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange

if TYPE_CHECKING:
    from collections.abc import Callable

_flaws = OnChange(logging.getLogger(__name__))

# Under 2 MiB: where transparent huge pages are "always" (RHEL's default), the kernel backs the first touch of a larger
# stack with a whole huge page, and each of glibc's 8 MiB stacks costs 2 MiB of real memory. Handlers run pure Python,
# whose own frames are not on this stack since 3.11.
STACK_BYTES = 1024 * 1024
_SPARE_SECONDS = 10.0


class Workers:
    """Runs jobs on daemon threads; a thread without work waits a while for the next before it ends."""

    def __init__(self, name: str, *, spare_seconds: float = _SPARE_SECONDS) -> None:
        self._name = name
        self._spare_seconds = spare_seconds
        self._jobs: deque[Callable[[], None]] = deque()
        self._spare = 0
        self._threads = 0
        self._stopping = False
        self._wake = threading.Condition()

    def __len__(self) -> int:
        """Return the number of threads."""
        return self._threads

    def submit(self, job: Callable[[], None]) -> bool:
        """Run job on a spare thread or a new one; False when the system gives no thread."""
        with self._wake:
            if self._spare > len(self._jobs):
                self._jobs.append(job)
                self._wake.notify()
                return True
            self._threads += 1
        previous = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._run, args=(job,), name=self._name, daemon=True).start()
        except RuntimeError:  # "can't start new thread": the cgroup's pids.max or RLIMIT_NPROC is reached
            with self._wake:
                self._threads -= 1
            return False
        finally:
            threading.stack_size(previous)
        return True

    def stop(self) -> None:
        """Let threads end as soon as they have no work."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def _run(self, first: Callable[[], None]) -> None:
        job: Callable[[], None] | None = first
        while job is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - the last line: a flaw costs a connection, not a thread
                _flaws.failed("job", "a connection ended by an unexpected error", repr(error), exc_info=error)
            job = self._next()

    def _next(self) -> Callable[[], None] | None:
        with self._wake:
            self._spare += 1
            while not self._jobs:
                if self._stopping or not self._wake.wait(self._spare_seconds):
                    if self._jobs:
                        break
                    self._spare -= 1
                    self._threads -= 1
                    return None
            self._spare -= 1
            return self._jobs.popleft()
