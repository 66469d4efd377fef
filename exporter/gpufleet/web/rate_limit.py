"""A token bucket."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """Allows burst requests at once and in the long run one per interval_seconds."""

    def __init__(self, interval_seconds: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval_seconds
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a token; False when there is none."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
