"""The kernel's log, followed through files, FIFOs, devices and whatever goes wrong with them."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.sources import kmsg
from gpufleet.sources.errors import SourceError
from gpufleet.sources.kmsg import Follower, RecordClock
from gpufleet.sources.kmsg_lines import parse_record

KMSG = Path("/dev/kmsg")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A log with two records."""
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,10,-;one\n6,2,20,-;two\n")
    return path


def test_a_file_is_read_from_its_beginning_and_then_as_it_grows(written: Path) -> None:
    """Its end is the end of the replay, not of the log."""
    follower = Follower(written)
    assert (follower.caught_up, follower.at_end) == (False, False)
    assert follower.read() == [b"6,1,10,-;one", b"6,2,20,-;two"]
    assert (follower.caught_up, follower.at_end) == (True, True)
    with written.open("ab") as log:
        log.write(b"6,3,30,-;three\n6,4,")
        log.flush()
        assert follower.read() == [b"6,3,30,-;three"]
        log.write(b"40,-;four\n")
        log.flush()
        assert follower.read() == [b"6,4,40,-;four"]
    assert follower.read() == []
    follower.close()


def test_a_file_is_looked_at_now_and_then(written: Path) -> None:
    """For poll(2) it is readable always: waiting with it would be a busy loop."""
    follower = Follower(written)
    assert not follower.waits_by_poll
    follower.close()


def test_a_fifo_outlives_its_writers(tmp_path: Path) -> None:
    """The end of one writer is not the end of the log, and nobody has to write for it to be opened."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    follower = Follower(path)
    assert (follower.read(), follower.caught_up) == ([], True)
    for number in (1, 2):
        path.write_bytes(f"6,{number},1,-;from writer {number}\n".encode())
        assert readable(follower)
        assert follower.read() == [f"6,{number},1,-;from writer {number}".encode()]
    assert not readable(follower)
    follower.close()


def readable(follower: Follower) -> bool:
    """What poll(2) says of it now."""
    assert follower.waits_by_poll
    waiting = select.poll()
    waiting.register(follower.descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def test_a_line_without_end_takes_no_memory_and_forges_nothing(tmp_path: Path) -> None:
    """Whatever comes after the cut is the rest of that line, and no record of its own."""
    path = tmp_path / "kmsg"
    forged = b"2,9,9,-;NVRM: Xid (PCI:0000:01:00): 79, forged"
    path.write_bytes(b"6,1,10,-;" + b"x" * 70_000 + forged * 4_000 + b"\n6,2,20,-;two\n")
    follower = Follower(path)
    records = []
    while not follower.at_end:
        records += follower.read()
        assert len(follower._rest) <= kmsg._LONGEST_LINE
    assert [record[:9] for record in records] == [b"6,1,10,-;", b"6,2,20,-;"]
    assert len(records[0]) == kmsg._LONGEST_LINE
    follower.close()


def test_a_flood_is_handed_over_in_portions(tmp_path: Path) -> None:
    """Between two of them its reader does what else there is to do; none is lost."""
    path = tmp_path / "kmsg"
    lines = [f"6,{number},{number},-;line".encode() for number in range(20_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    follower = Follower(path)
    portions = []
    while not follower.caught_up:
        portions.append(follower.read())
    assert [line for portion in portions for line in portion] == lines
    assert max(len(portion) for portion in portions) < 2 * kmsg._MOST_AT_ONCE
    follower.close()


def test_a_device_that_is_always_at_its_end_is_no_busy_loop() -> None:
    """Some mount /dev/null over the log to hide it from a container."""
    follower = Follower(Path(os.devnull))
    assert (follower.read(), follower.caught_up, follower.waits_by_poll) == ([], True, False)
    follower.close()


def test_a_missing_log_says_what_to_mount(tmp_path: Path) -> None:
    """And the option that names another."""
    with pytest.raises(SourceError, match=r"does not exist: mount the host's /dev/kmsg there or .* --kmsg\.path") as it:
        Follower(tmp_path / "kmsg")
    assert it.value.source == "kmsg"


def test_a_directory_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """Not at the first read: until then it would count as followed."""
    with pytest.raises(SourceError, match="can't be read: Is a directory"):
        Follower(tmp_path)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    """Whatever the kernel says to it."""
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(SourceError, match="can't be read: No such device or address"):
            Follower(tmp_path / "socket")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES])
def test_a_refusal_says_what_to_grant(code: int, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capability, the device of a container, and what is not seen without."""

    def refuse(*_: object) -> int:
        raise PermissionError(code, os.strerror(code))

    monkeypatch.setattr("gpufleet.sources.kmsg.os.open", refuse)
    with pytest.raises(SourceError) as refused:
        Follower(written)
    for word in ("CAP_SYSLOG", "dmesg_restrict", "c 1:11", "79, 119 and 120", os.strerror(code)):
        assert word in refused.value.reason


class Answers:
    """What the kernel answers to reads, in turn; then that there is nothing more."""

    def __init__(self, *answers: bytes | int) -> None:
        self._answers: Iterator[bytes | int] = iter(answers)

    def __call__(self, _descriptor: int, size: int) -> bytes:
        answer = next(self._answers, errno.EAGAIN)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        assert size >= 8192, "the kernel refuses a buffer that is shorter than its longest record"
        return answer


def records_of(monkeypatch: pytest.MonkeyPatch, *answers: bytes | int) -> Follower:
    """A follower of a device that answers so."""
    follower = Follower(Path(os.devnull))
    follower._is_records = True
    monkeypatch.setattr("gpufleet.sources.kmsg.os.read", Answers(*answers))
    return follower


def test_one_read_of_the_device_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key-value lines that the kernel puts after it."""
    answers = (b"6,1,10,-;one\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n", b"6,2,20,-;two\n")
    follower = records_of(monkeypatch, *answers)
    assert follower.read() == [answer.rstrip(b"\n") for answer in answers]
    assert follower.caught_up


def test_an_overrun_is_counted_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """EPIPE: records were overwritten before they were read; the next read gives the oldest that is left."""
    follower = records_of(monkeypatch, b"6,1,10,-;one\n", errno.EPIPE, b"6,900,20,-;two\n", errno.EPIPE, errno.EPIPE)
    assert follower.read() == [b"6,1,10,-;one", b"6,900,20,-;two"]
    assert follower.overruns == 3
    assert follower.at_end


def test_what_was_read_before_an_error_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes again at the next read."""
    follower = records_of(monkeypatch, b"6,1,10,-;one\n", errno.EIO, errno.EIO)
    assert follower.read() == [b"6,1,10,-;one"]
    assert not follower.at_end
    with pytest.raises(SourceError, match="can't be read: Input/output error"):
        follower.read()


def test_the_log_of_this_machine_is_read_to_its_end() -> None:
    """Where it may be read: every read is a record, and numbers go up."""
    if not os.access(KMSG, os.R_OK):
        pytest.skip("/dev/kmsg may not be read here")
    try:
        follower = Follower(KMSG)
    except SourceError as error:
        pytest.skip(error.reason)
    assert follower.waits_by_poll
    numbers = []
    while not follower.caught_up:
        for raw in follower.read():
            record = parse_record(raw)
            assert record is not None, raw
            numbers.append(record.sequence)
    assert numbers == sorted(set(numbers))
    assert follower.overruns == 0
    follower.close()


def test_a_record_of_the_replay_was_written_when_its_stamp_says() -> None:
    """Seconds after boot, like CLOCK_MONOTONIC."""
    clock = RecordClock()
    assert clock.time(12_500_000, since=-float("inf"), now=100.0) == 12.5


def test_a_log_clock_that_is_behind_is_found_out_by_the_first_new_record() -> None:
    """It came after the log was read to its end; those that are read with it keep their distance."""
    clock = RecordClock()
    assert clock.time(1_000_000_000, since=5_000.0, now=5_001.0) == 5_000.0
    assert clock.time(1_000_300_000, since=5_000.0, now=5_001.0) == pytest.approx(5_000.3)
    assert clock.time(1_500_000_000, since=5_500.0, now=5_500.5) == 5_500.0


def test_a_log_clock_that_is_ahead_tells_no_future() -> None:
    """What is read now was not written later."""
    clock = RecordClock()
    assert clock.time(9_000_000_000, since=50.0, now=51.0) == 51.0
    assert clock.time(9_000_100_000, since=51.0, now=52.0) == pytest.approx(51.1)


@given(
    st.lists(st.tuples(st.integers(0, 2**63), st.floats(0, 1e9), st.floats(0, 60)), max_size=20),
)
def test_a_record_is_never_of_the_future_nor_older_than_the_last_look(reads: list[tuple[int, float, float]]) -> None:
    """Whatever the stamps and the clock say."""
    clock, now = RecordClock(), 0.0
    for stamp, later, between in reads:
        since, now = now, max(now, later) + between
        assert since <= clock.time(stamp, since=since, now=now) <= now
