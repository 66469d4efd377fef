"""``gpufleet faults`` as a person runs it: the installed program, on real lines."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

GPUFLEET = str(Path(sys.executable).with_name("gpufleet"))
FIXTURE = Path(__file__).parents[1] / "fixtures" / "kmsg-lines.jsonl"
CASES = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
KEYS = ("kind", "pci", "code", "pid", "process", "mig_gi", "class")
LOST = "[ 1160.900048] NVRM: Xid (PCI:0000:4b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"


def faults(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command with ``given`` on standard input."""
    return subprocess.run([GPUFLEET, "faults", *arguments], input=given, capture_output=True, check=False, timeout=60)


def test_every_given_line_has_its_answer(tmp_path: Path) -> None:
    """154 lines from reports in one log: an object for each that tells of a fault, exactly as it is meant."""
    file = tmp_path / "kern.log.gz"
    file.write_bytes(gzip.compress("".join(f"{case['line']}\n" for case in CASES).encode()))
    done = faults("--json", str(file))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [{key: case["expect"][key] for key in KEYS} for case in CASES if case["expect"]["kind"] != "none"]
    assert len(told) == 117
    assert (done.returncode, done.stderr) == (1, b"")


def test_each_given_line_by_itself_is_taken_from_standard_input() -> None:
    """What stands before a line does not decide what it says."""
    for case in CASES[::13]:
        done = faults("--json", given=case["line"].encode())
        expected = case["expect"]
        objects = [json.loads(line) for line in done.stdout.splitlines()]
        assert objects == ([] if expected["kind"] == "none" else [{key: expected[key] for key in KEYS}]), case["line"]


def test_all_given_lines_are_explained() -> None:
    """In words, with the whole in the last line."""
    done = faults(given="".join(f"{case['line']}\n" for case in CASES).encode())
    last = done.stdout.decode().splitlines()[-1]
    assert " incidents from 117 of " in last
    assert "must not get work: " in last
    assert done.returncode == 1


def test_a_reader_that_has_seen_enough_ends_it_without_a_traceback() -> None:
    """``gpufleet faults --json | head -n 1``."""
    with subprocess.Popen(
        [GPUFLEET, "faults", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(LOST.encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["code"] == 79
        process.stdout.close()
        try:
            process.stdin.write(LOST.encode() * 10_000)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.stderr.read() == b""
        assert process.wait(30) == 2


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_name_can_be_printed_anywhere(encoding: str) -> None:
    """A terminal that knows only ASCII shows the rest escaped."""
    done = subprocess.run(
        [GPUFLEET, "faults"],
        input=LOST.replace("python3", "naïve-ü").encode(),
        capture_output=True,
        check=False,
        timeout=60,
        env={"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 1
    assert done.stderr == b""
    assert "naïve-ü".encode(encoding, "backslashreplace") in done.stdout


def test_it_needs_neither_driver_nor_configuration(tmp_path: Path) -> None:
    """On the laptop of whoever was sent the log."""
    file = tmp_path / "dmesg.txt"
    file.write_text(LOST)
    done = subprocess.run(
        [GPUFLEET, "faults", str(file)], capture_output=True, text=True, check=False, timeout=60, env={}, cwd="/"
    )
    assert done.returncode == 1
    assert done.stdout.startswith("GPU at 0000:4b:00.0: Xid 79, hardware; reboot the node, no work until then\n")
