"""Totals on disk: written at each poll, found again, and a sick disk that nobody waits for."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.collect.meter_file import NAME, OVERDUE_SECONDS, SOURCE, MeterFile
from gpufleet.cost.meter_bytes import decode_file
from gpufleet.model.snapshot import SourceHealth
from tests.support.metered import Node, gpu, held, owners, row
from tests.waiting import until


@pytest.fixture
def files() -> Iterator[list[MeterFile]]:
    """Files that are stopped at the end."""
    opened: list[MeterFile] = []
    yield opened
    for file in opened:
        file.stop()


def start(files: list[MeterFile], directory: Path | None, boot_id: str | None = "boot") -> tuple[Node, MeterFile]:
    """A meter that goes on from what is kept in a directory."""
    node, file = Node(), MeterFile(directory, boot_id)
    files.append(file)
    file.load(node.meter)
    return node, file


def on_disk(directory: Path) -> float | None:
    """Allocated seconds of the first account in the file; 0 while there is none."""
    path = directory / NAME
    values = decode_file(path.read_bytes()).state.values if path.exists() else ()
    return values[0] if values else 0.0


def test_a_process_that_is_killed_loses_nothing(files: list[MeterFile], tmp_path: Path) -> None:
    """What a poll has handed over is on disk without anybody stopping or syncing anything."""
    node, file = start(files, tmp_path)
    for _ in range(5):
        node.poll([gpu()], owners(held()))
        file.keep(node.meter)
    until(lambda: on_disk(tmp_path) == 4.0, "the totals are written")

    again, _ = start(files, tmp_path)
    again.now = node.now

    assert row(again.poll([gpu()], owners(held())))[0] == 5.0


def test_only_numbers_are_written_while_the_accounts_stay(files: list[MeterFile], tmp_path: Path) -> None:
    """The file is the same one until an account comes or goes."""
    node, file = start(files, tmp_path)

    def keep(run: str, seconds: float) -> int:
        node.poll([gpu()], owners(held(run=run)))
        file.keep(node.meter)
        until(lambda: decode_state_monotonic(tmp_path) == node.now, f"{seconds} are written")
        return (tmp_path / NAME).stat().st_ino

    first, second = keep("a", 1.0), keep("a", 2.0)
    third = keep("b", 3.0)

    assert first == second != third


def decode_state_monotonic(directory: Path) -> float | None:
    """Time of the newest state in the file."""
    path = directory / NAME
    return decode_file(path.read_bytes()).state.monotonic if path.exists() else None


@pytest.mark.parametrize(("before", "after", "billed"), [("a", "a", 3.0), ("a", "b", 1.0), (None, None, 1.0)])
def test_time_between_is_billed_in_the_same_boot(
    files: list[MeterFile], tmp_path: Path, before: str | None, after: str | None, billed: float
) -> None:
    """Another boot has another clock, and so may have one that nobody knows."""
    node, file = start(files, tmp_path, before)
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))
    file.keep(node.meter)
    file.stop()

    again, _ = start(files, tmp_path, after)
    again.now = node.now

    assert row(again.poll([gpu()], owners(held()), 2.0))[0] == billed


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(10_000), b"GPUMETR1" + b"\xff" * 5000, b"x" * (9 << 20)])
def test_a_file_that_is_none_is_moved_aside(
    files: list[MeterFile], tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The meter begins anew, the log says so once, and the file is kept for whoever wants to know."""
    (tmp_path / NAME).write_bytes(content)

    node, file = start(files, tmp_path)
    node.poll([gpu()], owners(held()))
    file.keep(node.meter)
    file.stop()

    assert (tmp_path / f"{NAME}.bad").read_bytes() == content
    assert [record.getMessage() for record in caplog.records] == ["the kept totals can't be used: beginning anew"]
    assert decode_state_monotonic(tmp_path) == node.now


def test_a_pipe_in_its_place_holds_nothing_up(files: list[MeterFile], tmp_path: Path) -> None:
    """Opening one would wait for a writer."""
    os.mkfifo(tmp_path / NAME)

    start(files, tmp_path)

    assert (tmp_path / f"{NAME}.bad").is_fifo()


def test_a_directory_that_is_not_there_is_made(files: list[MeterFile], tmp_path: Path) -> None:
    """As the first start on a new node finds it."""
    node, file = start(files, tmp_path / "a" / "b")
    node.poll([gpu()], owners(held()))
    file.keep(node.meter)
    file.stop()

    assert decode_state_monotonic(tmp_path / "a" / "b") == node.now


def test_without_a_directory_nothing_is_kept(files: list[MeterFile]) -> None:
    """And nothing is said of it."""
    node, file = start(files, None)
    node.poll([gpu()], owners(held()))
    file.keep(node.meter)

    assert file.health() == ()


def test_a_directory_that_cannot_be_written_is_told_once_and_tried_again(
    files: list[MeterFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the remedy; metering goes on, and so does keeping once it can."""
    caplog.set_level(logging.INFO)
    place = tmp_path / "state"
    place.write_text("a file where the directory should be")
    node, file = start(files, place)

    def is_up() -> bool:
        node.poll([gpu()], owners(held()))
        file.keep(node.meter)
        return file.health() == (SourceHealth(SOURCE, up=True),)

    until(lambda: not is_up(), "the failure is seen")
    for _ in range(20):
        is_up()
    place.unlink()
    until(is_up, "it is kept again")
    file.stop()

    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "make --state.dir writable" in line] == [lines[-2]]
    assert lines[-1] == "totals are kept again"
    assert decode_state_monotonic(place) == node.now


def test_a_file_that_somebody_removed_is_written_anew(
    files: list[MeterFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a minute of polls, though the old one is still open."""
    node, file = start(files, tmp_path)

    def is_there() -> bool:
        node.poll([gpu()], owners(held()))
        file.keep(node.meter)
        return (tmp_path / NAME).exists()

    until(is_there, "the file is written")
    (tmp_path / NAME).unlink()

    until(is_there, "it is written again")
    assert "--state.dir" not in caplog.text


def test_two_that_keep_totals_in_one_directory_are_told_of(
    files: list[MeterFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They put their files in each other's place, and nothing else would show it."""
    (first, one), (second, other) = start(files, tmp_path), start(files, tmp_path)

    def is_told() -> bool:
        for node, file in ((first, one), (second, other)):
            node.poll([gpu()], owners(held()))
            file.keep(node.meter)
        return "each needs its own --state.dir" in caplog.text

    until(is_told, "one of them says so")
    until(lambda: (on_disk(tmp_path) or 0) > 0.0, "totals are kept all the same")


def test_a_disk_that_hangs_holds_up_no_poll_and_is_told(
    files: list[MeterFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handing over never waits; the newest totals are written when the disk is back."""
    clock = [0.0]
    release, entered = threading.Event(), threading.Event()
    real = os.pwrite

    def slow(descriptor: int, content: bytes, offset: int) -> int:
        entered.set()
        assert release.wait(30.0)
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    node, file = Node(), MeterFile(tmp_path, "boot", monotonic=lambda: clock[0])
    files.append(file)
    for _ in range(100):
        node.poll([gpu()], owners(held()))
        file.keep(node.meter)
        assert entered.wait(10.0)
    assert file.health() == (SourceHealth(SOURCE, up=True),)
    clock[0] = OVERDUE_SECONDS + 1

    (told,) = file.health()
    assert not told.up
    assert "has taken longer than 30 seconds" in (told.reason or "")
    release.set()
    until(lambda: decode_state_monotonic(tmp_path) == node.now, "the newest totals are written")
    assert file.health() == (SourceHealth(SOURCE, up=True),)


def test_a_full_disk_leaves_what_was_there(
    files: list[MeterFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that ends early is a failure, and no half of a file takes the place of a whole one."""
    node, file = start(files, tmp_path)
    node.poll([gpu()], owners(held()))
    file.keep(node.meter)
    until(lambda: decode_state_monotonic(tmp_path) == node.now, "the totals are written")
    kept = node.now
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, offset: real(fd, content[: len(content) // 2], offset))
    node.poll([gpu()], owners(held(run="another")))
    file.keep(node.meter)
    until(lambda: not file.health()[0].up, "the failure is seen")

    assert decode_state_monotonic(tmp_path) == kept
    assert "no space left" in (file.health()[0].reason or "")
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_the_disk_is_waited_for_once_a_minute(
    files: list[MeterFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread than the one that writes; a failure is told and over when it is."""
    clock, synced, fails = [0.0], [0], [True]

    def fsync(_: int) -> None:
        synced[0] += 1
        if fails[0]:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    node, file = Node(), MeterFile(tmp_path, "boot", monotonic=lambda: clock[0])
    files.append(file)

    def poll() -> None:
        node.poll([gpu()], owners(held()))
        file.keep(node.meter)
        until(lambda: decode_state_monotonic(tmp_path) == node.now, "the totals are written")

    poll()
    assert synced[0] == 0
    clock[0] += 61
    poll()
    until(lambda: file.health() == (SourceHealth(SOURCE, up=False, reason="input/output error"),), "it is told")
    fails[0] = False
    clock[0] += 61
    poll()
    until(lambda: file.health() == (SourceHealth(SOURCE, up=True),), "it is over")
