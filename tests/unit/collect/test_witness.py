"""A source of owners on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpufleet.collect.witness import Witness
from tests.waiting import until


class SourceError(Exception):
    """What a source raises in words for a person."""


@contextmanager
def asked(ask: Callable[[], int], *, interval: float = 0.01) -> Iterator[tuple[Witness[int], threading.Semaphore]]:
    """A witness that asks, and a semaphore that counts its new answers."""
    answered = threading.Semaphore(0)
    witness = Witness(
        "kubelet",
        ask,
        errors=lambda: SourceError,
        interval=interval,
        answered=answered.release,
        monotonic=time.monotonic,
        wall=lambda: 1000.0,
    )
    witness.start()
    try:
        yield witness, answered
    finally:
        witness.stop()


def test_the_last_answer_is_kept_with_its_age() -> None:
    """It is told once while it stays the same, and its age goes on."""
    with asked(lambda: 7) as (witness, answered):
        assert answered.acquire(timeout=10)
        first = witness.answer
        assert first is not None
        assert (first.value, first.at) == (7, 1000.0)
        until(lambda: witness.answer is not None and witness.answer.monotonic > first.monotonic, "it is asked again")
        assert not answered.acquire(timeout=0.05)
        assert witness.health.up


def test_a_failure_keeps_the_answer_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is shown; one line in the log, however often it fails, and one when it is over."""
    broken = threading.Event()
    asked_while_broken = threading.Semaphore(0)

    def ask() -> int:
        if broken.is_set():
            asked_while_broken.release()
            raise SourceError("there is no socket: mount its directory")
        return 1

    with caplog.at_level(logging.INFO), asked(ask) as (witness, answered):
        assert answered.acquire(timeout=10)
        broken.set()
        for _ in range(3):
            assert asked_while_broken.acquire(timeout=10)
        until(lambda: not witness.health.up, "it is known to fail")
        assert witness.health.reason == "there is no socket: mount its directory"
        assert witness.answer is not None
        broken.clear()
        until(lambda: witness.health.up, "it answers again")
        until(lambda: "answers again" in caplog.text, "it is said")
    assert [record.message for record in caplog.records] == [
        "a source of owners does not answer",
        "a source of owners answers again",
    ]


def test_a_mistake_of_ours_is_a_failure_like_any_other() -> None:
    """The thread outlives it."""
    questions = iter(range(100))

    def ask() -> int:
        if next(questions) == 0:
            raise ZeroDivisionError("oh")
        return 3

    with asked(ask) as (witness, answered):
        assert answered.acquire(timeout=10)
        assert witness.answer is not None


def test_a_question_that_hangs_is_known_to_be_overdue() -> None:
    """Whoever looks sees it, and it costs nobody else's time."""
    release = threading.Event()
    entered = threading.Event()

    def ask() -> int:
        entered.set()
        release.wait(30)
        return 1

    with asked(ask) as (witness, answered):
        assert entered.wait(10)
        now = time.monotonic()
        assert not witness.overdue(now, 5.0)
        assert witness.overdue(now + 6.0, 5.0)
        release.set()
        assert answered.acquire(timeout=10)
        until(lambda: not witness.overdue(time.monotonic() + 6.0, 5.0) or witness.answer is not None, "it is back")


def test_whoever_wakes_it_is_answered_before_the_interval_is_over() -> None:
    """With an interval of five minutes, a second question comes when somebody says that there is something new."""
    count = iter(range(100))
    with asked(lambda: next(count), interval=300.0) as (witness, answered):
        assert answered.acquire(timeout=10)
        witness.wake()
        assert answered.acquire(timeout=10)
