"""The faults thread as the thread that it is; what it does in each turn is tested turn by turn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.collect.fault_watch import FaultOptions, FaultWatch
from gpufleet.faults.ledger import Ledger
from tests.support.fault_rig import address
from tests.support.kmsg_records import RecordFile, xid
from tests.waiting import until


@pytest.fixture
def fifo(tmp_path: Path) -> RecordFile:
    """A log that wakes whoever waits for it."""
    os.mkfifo(tmp_path / "fifo")
    return RecordFile(tmp_path / "fifo")


@pytest.fixture
def thread(tmp_path: Path, fifo: RecordFile) -> Iterator[FaultWatch]:
    """The thread as it runs."""
    options = FaultOptions(fifo.path, state_dir=tmp_path / "state", first_poll_seconds=0.0)
    ledger = Ledger(node="node-1", boot_id="boot-1", random_id=lambda: os.urandom(8).hex())
    watch = FaultWatch(ledger, options, wall=time.time, monotonic=time.monotonic)
    watch.start()
    yield watch
    watch.stop()


def test_a_line_wakes_the_thread(thread: FaultWatch, fifo: RecordFile) -> None:
    """Nobody has to poll a GPU for it."""
    until(lambda: thread.view.xid_errors is not None, "the replay has ended")
    fifo.say(xid(79, address(0)))
    until(lambda: thread.view.active, "the incident is shown", seconds=10)


def test_the_thread_ends_and_leaves_everything_on_disk(thread: FaultWatch, fifo: RecordFile, tmp_path: Path) -> None:
    """Counts that were not due to be written, too."""
    until(lambda: thread.view.xid_errors is not None, "the replay has ended")
    for _ in range(3):
        fifo.say(xid(45, address(0)))
    until(lambda: thread._ledger._sequence == 2, "they are taken in")
    thread.stop()
    assert not thread._thread.is_alive()
    kept = json.loads((tmp_path / "state" / "faults.json").read_bytes())
    assert kept["counts"]["xids"][address(0)]["45"]["count"] == 3


def test_the_thread_outlives_a_mistake(
    thread: FaultWatch, fifo: RecordFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and takes the next fault in."""
    until(lambda: thread.view.xid_errors is not None, "the replay has ended")

    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(thread._ledger, "device", stumble)
        thread.device("remove", address(0))
        until(lambda: "a turn of the faults thread failed" in caplog.messages, "it is said")
    fifo.say(xid(79, address(0)))
    until(lambda: thread.view.active, "the incident is shown", seconds=10)
