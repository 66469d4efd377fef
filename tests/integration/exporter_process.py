"""The exporter as a process on the stand-in driver: started as a person starts it, asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.fake_nvml import FakeNvml
from tests.waiting import until

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ExporterProcess:
    """``gpufleet exporter`` on a free port. A context manager that answers on entry and is gone on exit."""

    def __init__(
        self,
        nvml: FakeNvml,
        directory: Path,
        *flags: str,
        control: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.control = control or directory / "control.sock"
        self._errors = directory / "log"
        # The stand-in has the kernel module's version; the boot id is the real one.
        boot_id = nvml.procfs / "sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_bytes(Path("/proc/sys/kernel/random/boot_id").read_bytes())
        self.arguments = [
            str(Path(sys.executable).with_name("gpufleet")),
            "exporter",
            f"--nvml.library={nvml.library}",
            f"--path.procfs={nvml.procfs}",
            f"--state.dir={directory / 'state'}",
            f"--control.socket={self.control}",
            "--web.listen-address=127.0.0.1:0",
            "--node.name=node-1",
            "--log.format=json",
            *flags,
        ]
        self._environ = {**os.environ, **(environ or {})}

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(self.arguments, stdout=errors, stderr=errors, env=self._environ)
        try:
            self.wait_for_start(1)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def log(self) -> list[dict[str, object]]:
        """Every line of the log."""
        return [json.loads(line) for line in self._errors.read_text().splitlines() if line.startswith("{")]

    def said(self, message: str) -> list[dict[str, object]]:
        """Lines of the log with that message."""
        return [line for line in self.log() if line["msg"] == message]

    def wait_for_start(self, times: int) -> None:
        """Wait until it has begun to listen so many times; the address is that of the last."""

        def listening() -> list[dict[str, object]]:
            assert self.process.poll() is None, self._errors.read_text()
            return self.said("listening") if len(self.said("listening")) >= times else []

        self.address = str(until(listening, f"listens {times} times")[-1]["address"])

    def url(self, path: str) -> str:
        """The whole address of a path."""
        return f"http://{self.address}{path}"

    def get(self, path: str = "/metrics", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and body."""
        request = urllib.request.Request(self.url(path), headers=dict(headers or {}))
        try:
            with _DIRECT.open(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> str:
        """The exposition."""
        status, body = self.get()
        assert status == 200
        return body

    def wait_for(self, pattern: str, *, seconds: float = 30.0) -> str:
        """Wait until a line of the exposition begins with the pattern; returns that exposition."""
        regex = re.compile(pattern, re.MULTILINE)

        def found() -> str:
            exposition = self.metrics()
            return exposition if regex.search(exposition) else ""

        return until(found, pattern, seconds=seconds)

    def gpufleet(self, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run another command against this exporter."""
        return subprocess.run(
            [self.arguments[0], command, f"--control.socket={self.control}", *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
