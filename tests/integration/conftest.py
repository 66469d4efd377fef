"""Fixtures that start real programs; each program ends with its test, and the session checks that none is left."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.conftest import BUILDS, built, program
from tests.integration.alertmanager_server import AlertmanagerServer
from tests.integration.chromium_browser import ChromiumBrowser
from tests.integration.prometheus_server import PrometheusServer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class StartPrometheus(Protocol):
    """The means to start a Prometheus."""

    def __call__(
        self,
        scrape_configs: Sequence[Mapping[str, object]],
        *,
        scrape_interval: str = "1s",
        config: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
    ) -> PrometheusServer:
        """Start one with these scrape configurations; it ends with the test."""


@pytest.fixture
def prometheus(prometheus_binary: Path, tmp_path: Path) -> Iterator[StartPrometheus]:
    """Start real Prometheus servers, of each version there is; they end with the test."""
    started: list[PrometheusServer] = []

    def start(
        scrape_configs: Sequence[Mapping[str, object]],
        *,
        scrape_interval: str = "1s",
        config: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
    ) -> PrometheusServer:
        server = PrometheusServer(
            prometheus_binary,
            tmp_path / f"prometheus-{len(started)}",
            scrape_configs,
            scrape_interval=scrape_interval,
            config=config,
            flags=flags,
        )
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.stop()


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The programs of one generation: Debian's, or the newest."""

    prometheus: Path
    alertmanager: Path


@pytest.fixture(params=BUILDS)
def monitoring(request: pytest.FixtureRequest) -> Monitoring:
    """Prometheus and Alertmanager of each generation there is."""
    return Monitoring(built("prometheus", request.param), built("alertmanager", request.param))


@pytest.fixture
def alertmanager(monitoring: Monitoring, tmp_path: Path) -> Iterator[AlertmanagerServer]:
    """An Alertmanager of each generation there is, that asks for nothing."""
    with AlertmanagerServer(monitoring.alertmanager, tmp_path / "alertmanager") as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> ChromiumBrowser:
    """A headless Chromium."""
    return ChromiumBrowser(program("chromium"))


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_left_running() -> Iterator[None]:
    """Whatever a test starts it ends: at the end of the session this process has no child that was not there before."""
    before = _children()
    yield
    until(lambda: _children() <= before, "every process that the tests started has ended", seconds=10)


def _children() -> set[str]:
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread or a child that ends meanwhile
            for pid in (task / "children").read_text().split():
                names.add(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}")
    return names
