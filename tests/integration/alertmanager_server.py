"""A real Alertmanager on a free loopback port, started for one test and ended with it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import yaml

from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

CONFIG: Mapping[str, object] = {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}


class AlertmanagerServer:
    """An Alertmanager; a context manager that is ready on entry. It keeps its port when it is started again.

    ``directory`` gets the configuration, the data and the log. ``headers`` and ``context`` are what its own web
    configuration asks of a client.
    """

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *,
        config: Mapping[str, object] = CONFIG,
        web_config: Path | None = None,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._binary = binary
        self._directory = directory
        self._flags = list(flags)
        self._headers = dict(headers or {})
        # Loopback is asked directly, whatever proxy the environment names.
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
        self._opener = urllib.request.build_opener(*handlers)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
        if web_config is not None:
            self._flags.append(f"--web.config.file={web_config}")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"{'http' if context is None else 'https'}://localhost:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        with (self._directory / "alertmanager.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--config.file={self._directory / 'alertmanager.yml'}",
                    f"--storage.path={self._directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--cluster.listen-address=",
                    *self._flags,
                ],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            until(self._is_ready, f"{self._binary} is ready", seconds=60)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process, by force after 15 s; it remembers no alert."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=15)

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are not over: ``labels``, ``annotations``, ``startsAt``, ``endsAt`` and more of each."""
        found: list[dict[str, Any]] = json.loads(self._get("/api/v2/alerts"))
        return found

    def post(self, alerts: Sequence[Mapping[str, object]]) -> None:
        """Send it alerts, as a Prometheus does."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts",
            data=json.dumps(alerts).encode(),
            headers={**self._headers, "Content-Type": "application/json"},
        )
        with self._opener.open(request, timeout=30):
            pass

    def incidents(self) -> list[str]:
        """The incidents of these alerts, in order; two alerts of one incident are two."""
        return sorted(each["labels"].get("incident", "") for each in self.alerts())

    def received(self) -> int:
        """How many alerts it was sent, valid ones that fire, since it was started."""
        counts = re.findall(
            r'^alertmanager_alerts_received_total\{status="firing".*\} (\S+)', self._get("/metrics"), re.MULTILINE
        )
        return sum(int(float(count)) for count in counts)

    def log(self) -> str:
        """What it has logged."""
        return (self._directory / "alertmanager.log").read_text(errors="replace")

    def _get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path, headers=self._headers)
        with self._opener.open(request, timeout=30) as response:
            text: str = response.read().decode()
        return text

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(f"{self._binary} ended at once:\n{self.log()[-2000:]}")
        try:
            return bool(self._get("/-/ready"))
        except OSError:
            return False
