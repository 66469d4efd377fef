"""A real Prometheus on a free loopback port, started for one test and ended with it."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import yaml

from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_PORT_TRIES = 5
# Loopback is asked directly, whatever proxy the environment names.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PrometheusServer:
    """A Prometheus with the given scrape configurations; a context manager that is ready on entry.

    ``directory`` gets the configuration, the data and the log. ``config`` holds further top-level sections
    (``rule_files``, ``alerting``, …).
    """

    def __init__(
        self,
        binary: Path,
        directory: Path,
        scrape_configs: Sequence[Mapping[str, object]],
        *,
        scrape_interval: str = "1s",
        config: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._binary = binary
        self._directory = directory
        self._flags = tuple(flags)
        self._config = {
            "global": {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval},
            "scrape_configs": [dict(each) for each in scrape_configs],
            **(config or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        for last in (False,) * (_PORT_TRIES - 1) + (True,):
            self._start()
            try:
                until(self._is_ready, f"{self._binary} is ready", seconds=60)
            except ChildProcessError:  # another process may have taken the port in between
                if last or "address already in use" not in self.log():
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, by force after 15 s; its data and log stay in the directory."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=15)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of a PromQL expression: ``metric`` (labels) and ``value`` (time, text) of each series."""
        data = self._api("query", query=expression)
        assert data["resultType"] == "vector", f"{expression} is a {data['resultType']}"
        result: list[dict[str, Any]] = data["result"]
        return result

    def query_range(self, expression: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """The matrix of an expression: ``metric`` (labels) and ``values`` (pairs of time and text) of each series."""
        data = self._api("query_range", query=expression, start=f"{begin}", end=f"{end}", step=f"{step}")
        result: list[dict[str, Any]] = data["result"]
        return result

    def value(self, expression: str) -> float | None:
        """The value of an expression with one series; None when it has none yet."""
        series = self.query(expression)
        assert len(series) <= 1, f"{expression} has {len(series)} series"
        return float(series[0]["value"][1]) if series else None

    def targets(self) -> list[dict[str, Any]]:
        """The active targets: ``scrapeUrl``, ``health``, ``lastError``, ``labels`` and more of each."""
        active: list[dict[str, Any]] = self._api("targets", state="active")["activeTargets"]
        return active

    def wait_until_up(self, count: int, *, seconds: float = 60.0) -> list[dict[str, Any]]:
        """The targets, once ``count`` of them were scraped without an error."""

        def all_up() -> list[dict[str, Any]]:
            targets = self.targets()
            return targets if [each["health"] for each in targets] == ["up"] * count else []

        try:
            return until(all_up, f"{count} targets are up", seconds=seconds, every=0.1)
        except TimeoutError as failure:
            errors = sorted({str(each["lastError"]) for each in self.targets()})
            raise TimeoutError(f"{failure}; errors: {errors}") from None

    def log(self) -> str:
        """What Prometheus has logged."""
        return (self._directory / "prometheus.log").read_text(errors="replace")

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config, sort_keys=False))
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    *self._flags,
                ],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(f"{self._binary} ended at once:\n{self.log()[-2000:]}")
        try:
            with _DIRECT.open(f"{self.url}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:  # not listening yet, or listening and not ready (503)
            return False

    def _api(self, endpoint: str, **parameters: str) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"
        try:
            with _DIRECT.open(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise AssertionError(f"{url}: {refusal.status} {refusal.read().decode(errors='replace')}") from None
        data: dict[str, Any] = answer["data"]
        return data
