"""Signals as a queue, so that a loop can wait for one and for time to pass."""

from __future__ import annotations

import signal
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


def taken_from_now_on(signals: AbstractSet[signal.Signals]) -> SimpleQueue[signal.struct_siginfo]:
    """Return a queue of those signals of this process that come from now on; the caller has blocked them.

    A thread of its own takes them, because ``signal.sigtimedwait`` can't be trusted with a time limit: when a process
    is stopped (SIGSTOP, a debugger, a frozen cgroup) and its limit is over as it goes on, CPython returns whatever lay
    on the stack as the signal (``signal_sigtimedwait_impl`` leaves its loop without a signal and without an error).
    ``signal.sigwaitinfo`` waits on.
    """
    received: SimpleQueue[signal.struct_siginfo] = SimpleQueue()

    def take() -> None:
        while True:
            received.put(signal.sigwaitinfo(signals))

    threading.Thread(target=take, name="signals", daemon=True).start()
    return received


def next_of(arriving: SimpleQueue[signal.struct_siginfo], seconds: float) -> signal.struct_siginfo | None:
    """Return the next signal, or None when none came in time."""
    try:
        return arriving.get(timeout=seconds)
    except Empty:
        return None
