"""Commands whose output can't be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
"""What is written there meets a full disk."""

CHECK = ["check", "--nvml.library=/nonexistent/libnvidia-ml.so.1"]
"""A node without a driver must not get work: status 2."""
BOOK = "currency: USD\nrules:\n  - {per_hour: 4.80}\n"


def run(arguments: list[str], output: int, state: Path) -> tuple[int, str]:
    """Exit status, and what was written on standard error."""
    if arguments[0] == "check":
        arguments = [*arguments, f"--state.dir={state}", f"--control.socket={state}/control.sock"]
    ended = subprocess.run(
        [sys.executable, "-m", "gpufleet", *arguments],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    return ended.returncode, ended.stderr


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A price book that is good."""
    file = tmp_path / "prices.yaml"
    file.write_text(BOOK)
    return file


def test_a_full_disk_leaves_the_verdict_of_a_check(tmp_path: Path) -> None:
    """A prolog that logs into a full disk must not let work onto GPUs that are unfit."""
    with FULL.open("wb") as full:
        status, said = run(CHECK, full.fileno(), tmp_path)

    assert status == 2
    assert said == "gpufleet check: standard output can't be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [CHECK, [*CHECK, "--json"]], ids=["text", "json"])
def test_a_reader_who_has_gone_leaves_the_verdict_of_a_check(arguments: list[str], tmp_path: Path) -> None:
    """``gpufleet check | head -n 0`` says nothing more, and tells the same status."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(arguments, writing, tmp_path) == (2, "")
    finally:
        os.close(writing)


def test_what_could_not_be_written_is_no_success(book: Path, tmp_path: Path) -> None:
    """A file that stayed empty because the disk was full must not look like a price book that was tried."""
    with FULL.open("wb") as full:
        status, said = run(["prices", "check", f"--prices.file={book}"], full.fileno(), tmp_path)

    assert status == 1
    assert said == "gpufleet prices: standard output can't be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["prices", "check"]], ids=" ".join)
def test_a_reader_who_has_gone_is_no_failure(arguments: list[str], book: Path, tmp_path: Path) -> None:
    """Whoever read it has seen enough: no traceback, no failure."""
    reading, writing = os.pipe()
    os.close(reading)
    if arguments[0] == "prices":
        arguments = [*arguments, f"--prices.file={book}"]
    try:
        assert run(arguments, writing, tmp_path) == (0, "")
    finally:
        os.close(writing)


def test_a_long_output_that_nobody_reads_to_its_end_ends_as_by_sigpipe(tmp_path: Path) -> None:
    """It is more than a buffer holds, so that the command meets it while it prints."""
    rules = "".join(f"  - {{name: rule {number}, gpu: model-{number}, per_hour: 1}}\n" for number in range(400))
    long_book = tmp_path / "prices.yaml"
    long_book.write_text(f"currency: USD\nrules:\n{rules}")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(["prices", "explain", f"--prices.file={long_book}", "--gpu=none"], writing, tmp_path) == (141, "")
    finally:
        os.close(writing)


def test_without_a_standard_output_a_log_is_read_all_the_same(tmp_path: Path) -> None:
    """A service may start a command with it closed; Python then has none."""
    log = tmp_path / "kern.log"
    log.write_text("[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus.\n")
    command = f"exec {sys.executable} -m gpufleet faults {log} >&-"
    ended = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (1, "")
