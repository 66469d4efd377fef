"""Reused threads."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

from gpufleet import logs
from gpufleet.web.workers import STACK_BYTES, Workers
from tests.waiting import until

if TYPE_CHECKING:
    import pytest


def test_jobs_run_at_the_same_time() -> None:
    """Ten jobs that wait for each other all end."""
    workers = Workers("test")
    barrier = threading.Barrier(11)
    for _ in range(10):
        assert workers.submit(lambda: void(barrier.wait(20)))
    barrier.wait(20)

    assert len(workers) == 10
    workers.stop()
    until(lambda: len(workers) == 0, "the threads to end")


def test_a_spare_thread_is_used_again() -> None:
    """One job after another needs one thread."""
    workers = Workers("test")
    names = []
    for _ in range(5):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            names.append(threading.current_thread().name + str(threading.get_ident()))
            done.set()

        until(lambda: workers._spare == len(workers), "the thread to be spare")
        assert workers.submit(job)
        assert done.wait(20)

    assert len(set(names)) == 1
    workers.stop()


def test_a_spare_thread_ends_after_a_while() -> None:
    """A burst of connections does not leave its threads behind; the next job gets a new one."""
    workers = Workers("test", spare_seconds=0.01)
    for _ in range(2):
        done = threading.Event()
        assert workers.submit(done.set)
        assert done.wait(20)
        until(lambda: len(workers) == 0, "the thread to end")


def test_a_job_that_fails_costs_no_thread() -> None:
    """Even SystemExit: the error is in the log, the thread takes the next job."""
    stream = io.StringIO()
    logs.setup("info", "logfmt", stream)
    workers = Workers("test")

    def fails() -> None:
        raise SystemExit("no")

    done = threading.Event()
    assert workers.submit(fails)
    until(lambda: workers._spare == 1, "the thread to be spare again")
    assert workers.submit(done.set)
    assert done.wait(20)

    assert len(workers) == 1
    assert "a connection ended by an unexpected error" in stream.getvalue()
    workers.stop()


def test_without_a_thread_the_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup's limit of processes counts threads; the caller hears of it and nothing is lost."""
    workers = Workers("test")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert not workers.submit(lambda: None)
    assert len(workers) == 0
    done = threading.Event()
    assert workers.submit(done.set)
    assert done.wait(20)
    workers.stop()


def test_the_processs_stack_size_is_left_as_it_was() -> None:
    """Threads that others start, such as those that call the driver, keep their stacks; huge pages stay out of ours."""
    before = threading.stack_size()
    workers = Workers("test")
    assert workers.submit(lambda: None)

    assert threading.stack_size() == before
    assert STACK_BYTES < 2 * 1024 * 1024
    workers.stop()


def void(_: object) -> None:
    """Take a value and return nothing."""
