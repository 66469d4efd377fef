"""Waiting for a condition, with a limit: no test guesses how long something takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, seconds: float = 30.0, every: float = 0.02) -> T:
    """Return the first true value of ``condition``, asked every ``every`` seconds; TimeoutError names ``what``.

    The last value goes into the message, so that a condition may return what it saw so far as a falsy value.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s (last: {value!r})")
        time.sleep(every)
