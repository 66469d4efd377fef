"""The exporters that are measured, each as a process of its own on the same stand-in driver."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.figures import GPUFLEET, NAIVE, NVITOP
from tests.support.fake_nvml import FakeNvml
from tests.waiting import until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(sys.executable).parent

LIBRARY = "libnvidia-ml"
_CLOCK_OF_PROCESS = 2
"""clock_getcpuclockid(3): the CPU time of another process, in nanoseconds, threads that have ended included."""


def why_missing(subject: str) -> str | None:
    """Why a subject can't be measured here, if it can't."""
    if subject == NVITOP and importlib.util.find_spec("nvitop_exporter") is None:
        return "nvitop-exporter is not installed (make bench installs the extra bench-peers)"
    return None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


class Measured:
    """A running process: how much CPU it has used, how much memory it has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        return time.clock_gettime((~self.pid << 3) | _CLOCK_OF_PROCESS)

    def rss_mib(self) -> float:
        """Resident memory; mappings of the driver's library, which is not ours, are left out."""
        total, counted = 0, True
        for line in Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                counted = LIBRARY not in line
            elif counted and line.startswith("Rss:"):
                total += int(line.split()[1])
        return total / 1024

    def cpu_by_thread(self) -> dict[int, float]:
        """CPU seconds of each thread that is there now."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return found


class Program(Measured):
    """A process that listens on ``port`` of the loopback; a context manager that ends it."""

    def __init__(self, command: Sequence[str | Path], directory: Path, *, port: int, env: Mapping[str, str]) -> None:
        self.port = port
        self.log = directory / f"{Path(command[0]).name}-{port}.log"
        self.started = time.perf_counter()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        super().__init__(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, by force after 15 s."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=15)

    def check(self) -> None:
        """Raise with its last words when it has ended."""
        if self._process.poll() is not None:
            raise ChildProcessError(f"{self._process.args!r} ended:\n{self.log.read_text(errors='replace')[-2000:]}")

    def wait_until_it_listens(self, seconds: float = 30.0) -> None:
        """Until a connection is taken."""

        def listens() -> bool:
            self.check()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                return False
            return True

        until(listens, f"{self.log.name} listens", seconds=seconds, every=0.002)


def start(subject: str, fake: FakeNvml, directory: Path, *flags: str) -> Program:
    """Start one of the subjects on a stand-in driver, scraping and polling at its defaults (1 s)."""
    port = free_port()
    if subject == GPUFLEET:
        return gpufleet(fake, directory, port, BIN / "gpufleet", "exporter", *flags)
    command: list[str | Path]
    if subject == NAIVE:
        command = [sys.executable, HERE / "naive_exporter.py", str(port)]
    else:
        command = [BIN / "nvitop-exporter", "--bind-address=127.0.0.1", f"--port={port}", "--hostname=bench"]
    program = Program(command, directory, port=port, env=fake.environment())
    program.wait_until_it_listens()
    return program


def gpufleet(fake: FakeNvml, directory: Path, port: int, *command: str | Path) -> Program:
    """Start gpufleet's exporter; ``command`` is what runs it, further flags included."""
    places = [f"--web.listen-address=127.0.0.1:{port}", f"--nvml.library={fake.library}", f"--state.dir={directory}"]
    places += [f"--control.socket={directory / f'{port}.sock'}", f"--path.procfs={proc_beside(fake)}"]
    program = Program([*command, *places], directory, port=port, env=fake.environment())
    program.wait_until_it_listens()
    return program


def proc_beside(fake: FakeNvml) -> Path:
    """The stand-in's /proc, with what else the exporter reads there."""
    boot = fake.procfs / "sys" / "kernel" / "random"
    boot.mkdir(parents=True, exist_ok=True)
    (boot / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
    return fake.procfs
