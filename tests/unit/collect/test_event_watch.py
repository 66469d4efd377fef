"""The thread that waits for the driver's events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from gpufleet.collect.event_watch import OVERDUE_SECONDS, WAIT_MILLISECONDS, EventWatch
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.sources.nvml.calls import GPU_IS_LOST, UNINITIALIZED, UNKNOWN, Calls, NvmlError
from gpufleet.sources.nvml.events import XID, DriverEvent, EventSet
from tests.support.poller_rig import HandClock
from tests.waiting import until

Answer = Callable[[], DriverEvent | None]


def event(xid: int) -> DriverEvent:
    """An Xid of some GPU."""
    return DriverEvent(0x1000, XID, xid, None, None)


def failing(code: int) -> Answer:
    """A wait that ends with a code."""

    def fail() -> DriverEvent | None:
        raise NvmlError("nvmlEventSetWait_v2", code)

    return fail


class Answers(EventSet):
    """An event set whose waits end as they are told to, one after the other."""

    def __init__(self) -> None:
        driver = ScriptedDriver([])
        Calls(driver)["nvmlInitWithFlags"](0)
        super().__init__(Calls(driver))
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        self.waits = 0

    def wait(self, milliseconds: int) -> DriverEvent | None:
        assert milliseconds == WAIT_MILLISECONDS
        self.waits += 1
        return self.answers.get()()


class Watching:
    """A watch, and what came of it."""

    def __init__(self) -> None:
        self.events = Answers()
        self.clock = HandClock()
        self.delivered: list[int] = []
        self.ended = threading.Event()
        self.errors = 0
        self.watch = EventWatch(
            self.events, lambda event: self.delivered.append(event.data), self.ended.set, self.clock, self._failed
        )

    def _failed(self) -> None:
        self.errors += 1

    def answer(self, answer: Answer) -> None:
        """End the present wait, and see the next one begin or the thread end."""
        waits = self.events.waits
        self.events.answers.put(answer)
        until(lambda: self.events.waits > waits or self.watch.ended, "the wait ends", every=0.001)

    def end(self) -> None:
        """End the watch in the middle of a wait."""
        self.watch.end()
        self.events.answers.put(lambda: None)
        assert self.ended.wait(10)


@pytest.fixture
def watching() -> Watching:
    """A watch that has begun to wait."""
    started = Watching()
    until(lambda: started.events.waits, "it waits", every=0.001)
    return started


def test_events_are_delivered_in_their_order(watching: Watching) -> None:
    """A wait that ends without one delivers nothing."""
    for answer in (lambda: event(31), lambda: None, lambda: event(79)):
        watching.answer(answer)

    assert watching.delivered == [31, 79]
    assert watching.watch.error is None
    watching.end()


def test_an_end_is_waited_for_no_longer_than_a_wait(watching: Watching) -> None:
    """The thread says when nobody waits any more: only then may the set be freed."""
    watching.watch.end()
    assert not watching.watch.ended

    watching.events.answers.put(lambda: event(48))

    assert watching.ended.wait(10)
    assert (watching.watch.ended, watching.delivered) == (True, [48])


def test_an_end_that_is_taken_back_leaves_it_waiting(watching: Watching) -> None:
    """A release that was refused costs no event."""
    watching.watch.end()
    watching.watch.go_on()
    watching.answer(lambda: event(48))

    assert not watching.watch.ended
    assert watching.delivered == [48]
    watching.end()


@pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN])
def test_a_failed_wait_is_told_and_followed_by_a_pause(watching: Watching, code: int) -> None:
    """A lost GPU makes the driver's wait fail at once, every time; an end is not kept by the pause."""
    watching.events.answers.put(failing(code))
    until(lambda: watching.watch.error, "the error is noted", every=0.001)

    assert watching.watch.error is not None
    assert watching.watch.error.code == code
    assert watching.events.waits == 1
    watching.watch.end()
    assert watching.ended.wait(0.5)


def test_a_wait_that_succeeds_again_clears_the_error(watching: Watching) -> None:
    """And events of the other GPUs came in between."""
    watching.answer(failing(UNKNOWN))
    watching.answer(lambda: event(31))

    assert watching.watch.error is None
    assert watching.delivered == [31]
    watching.end()


def test_each_new_error_is_told_once(watching: Watching) -> None:
    """It is the first word of a GPU that was lost; for as long as it is, each wait says the same."""
    watching.watch._end.wait = lambda _=None: False  # type: ignore[assignment, method-assign] # no pause
    for answer in (failing(GPU_IS_LOST), failing(GPU_IS_LOST), failing(UNKNOWN), lambda: None, failing(UNKNOWN)):
        watching.answer(answer)

    assert watching.errors == 3
    watching.end()


def test_a_library_that_went_ends_the_watch(watching: Watching) -> None:
    """The set is void; a new session has a new one."""
    watching.events.answers.put(failing(UNINITIALIZED))

    assert watching.ended.wait(10)
    assert watching.watch.error is not None
    assert watching.watch.error.code == UNINITIALIZED


def test_a_wait_that_does_not_return_is_overdue(watching: Watching) -> None:
    """After the time that it was asked to take, and some."""
    allowed = WAIT_MILLISECONDS / 1000 + OVERDUE_SECONDS
    assert not watching.watch.is_overdue(allowed)
    assert watching.watch.is_overdue(allowed + 0.01)

    watching.clock.now = 100.0
    watching.answer(lambda: None)
    assert not watching.watch.is_overdue(100.0 + allowed)
    watching.end()
    assert not watching.watch.is_overdue(10_000.0)
