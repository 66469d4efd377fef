"""What happened to connections and requests since start, for a program's own metrics."""

from __future__ import annotations

import threading
from typing import Literal, get_args

Event = Literal[
    "accepted",  # connections taken in
    "requests",  # complete heads, refused ones included
    "refused",  # requests that are no HTTP, too large or too late
    "timeouts",  # connections closed because the peer was too slow
    "handshake_failures",  # TLS that did not come to stand
    "evicted",  # connections given up for a newcomer
    "overloaded",  # connections turned away
]


class Tally:
    """Counts by event."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(get_args(Event), 0)
        # An unlocked += of two threads can write back an older number: a counter that falls looks like a restart.
        self._lock = threading.Lock()

    def count(self, event: Event) -> None:
        """Add one to event."""
        with self._lock:
            self._counts[event] += 1

    def counts(self) -> dict[str, int]:
        """Return a copy of all counts; every event is there from the start."""
        with self._lock:
            return dict(self._counts)
