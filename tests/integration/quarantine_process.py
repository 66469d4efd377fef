"""``gpufleet quarantine serve`` as a process, started as a person starts it, and its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import until

TOKEN = "token-of-the-tests"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def gpufleet(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [Path(sys.executable).with_name("gpufleet"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class QuarantineProcess:
    """The service on a free port; a context manager that is ready on entry and gone on exit."""

    def __init__(self, directory: Path, policy: Path, *flags: str | Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.token = directory / "token"
        self.token.write_text(TOKEN)
        self.audit = directory / "audit.jsonl"
        self._log = directory / "log"
        self._command = [
            Path(sys.executable).with_name("gpufleet"),
            "quarantine",
            "serve",
            f"--policy.file={policy}",
            f"--web.bearer-token-file={self.token}",
            "--web.listen-address=127.0.0.1:0",
            f"--audit.file={self.audit}",
            "--log.format=json",
            *flags,
        ]
        self.address = ""

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=os.environ)
        try:
            self.address = until(self._listens, "the quarantine listens", seconds=60)
            until(lambda: self.ask("/-/ready")[0] == 200, "the quarantine is ready", seconds=60)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it at once, wherever it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    @property
    def url(self) -> str:
        """Where Alertmanager posts."""
        return f"http://{self.address}/v1/alerts"

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Status and text of an answer."""
        request = urllib.request.Request(
            f"http://{self.address}{path}", data=body, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with _DIRECT.open(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def log(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def _listens(self) -> str:
        if self.process.poll() is not None:
            raise ChildProcessError(f"it has ended with {self.process.returncode}: {self._log.read_text()[-2000:]}")
        lines = [each for each in self.log() if each["msg"] == "listening" and "addresses" in each]
        return str(lines[-1]["addresses"]) if lines else ""
