"""How fast kernel lines are read, on a log as nodes have them: most lines are not the driver's."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpufleet.sources.kmsg_lines import Lines, believable, parse_driver_text, parse_record, parse_saved_line, saved_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

FIXTURE = Path(__file__).parents[1] / "fixtures" / "kmsg-lines.jsonl"
REAL = [case["line"] for case in map(json.loads, FIXTURE.read_text().splitlines())]
FAULTS = [line for line in REAL if parse_saved_line(line) is not None]
ORDINARY = [
    "usb 1-1: new high-speed USB device number 4 using xhci_hcd",
    "docker0: port 1(veth1a2b3c4) entered forwarding state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:123456kB, anon-rss:65432kB, file-rss:0kB",
    "nvme nvme0: I/O 12 QID 3 timeout, completion polled",
    "mlx5_core 0000:1a:00.0 ens1np0: Link up",
    "nvidia-nvswitch2: open (major=510)",
    "nvidia 0000:01:00.0: irq 52 for MSI/MSI-X",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
]
LINES = 100_000
FAULT_SHARE = 0.05
"""Many times what even a failing node writes."""
ENOUGH = 100_000
"""Lines a second of one core."""
CPU_TIME = pytest.mark.benchmark(timer=time.process_time)
"""What else runs on the machine does not count."""
HOSTILE = ("NVRM: ", "NVRM: Xid (", "NVRM: GPU ", "NVRM: The NVIDIA GPU 0000:01:00.0 ", "nvidia_dev_xid: Xid (", "[1.")


def saved_log() -> list[str]:
    """A saved log, the same at each run."""
    chance = random.Random(1)
    return [
        chance.choice(FAULTS)
        if chance.random() < FAULT_SHARE
        else f"May 21 23:35:29 node-17 kernel: [{number:6}.900048] {chance.choice(ORDINARY)}"
        for number in range(LINES)
    ]


def live_log() -> list[bytes]:
    """The same as records of /dev/kmsg."""
    chance = random.Random(1)
    faults = [line[line.index("NVRM: ") :] for line in FAULTS if "NVRM: " in line]
    return [
        f"4,{number},{number * 1000},-,caller=T1;"
        f"{chance.choice(faults if chance.random() < FAULT_SHARE else ORDINARY)}\n".encode()
        for number in range(LINES)
    ]


def rate(benchmark: BenchmarkFixture, read: Callable[[], int], name: str) -> None:
    """Measure, print, and hold the figure that the project states."""
    found: int = benchmark(read)
    assert found > LINES * FAULT_SHARE / 2
    if benchmark.stats is None:  # --benchmark-disable
        return
    lines_a_second = LINES / benchmark.stats.stats.median
    benchmark.extra_info["lines_a_second"] = round(lines_a_second)
    print(f"\n{name}: {lines_a_second:,.0f} lines/s, {found} faults among {LINES} lines")
    assert lines_a_second >= ENOUGH


@CPU_TIME
def test_saved_lines_a_second(benchmark: BenchmarkFixture) -> None:
    """A saved log is read line by line, as ``gpufleet faults`` does."""
    log = saved_log()

    def read() -> int:
        lines = Lines()
        return sum(lines.saved(line, year=2025) is not None for line in log)

    rate(benchmark, read, "saved lines")


@CPU_TIME
def test_live_records_a_second(benchmark: BenchmarkFixture) -> None:
    """Records of /dev/kmsg are taken apart, checked and read, as the follower does."""
    log = live_log()

    def read() -> int:
        lines = Lines()
        found = 0
        for raw in log:
            record = parse_record(raw)
            if record is not None and believable(record) and lines.record(record, at=1.0) is not None:
                found += 1
        return found

    rate(benchmark, read, "live records")


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_line_takes_time_in_proportion(piece: str) -> None:
    """A line four times as long takes about four times as long, not sixteen times."""

    def seconds(length: int) -> float:
        line = piece * (length // len(piece))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            parse_saved_line(line, year=2025)
            parse_driver_text("NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=" + line, at=0.0, source="kmsg")
            saved_time(line)
            best = min(best, time.process_time() - start)
        return best

    short, long = seconds(1 << 18), seconds(1 << 20)
    print(f"\n{piece!r}: {short * 1e3:.1f} ms for 256 KiB, {long * 1e3:.1f} ms for 1 MiB")
    assert long < 10 * short + 0.05
