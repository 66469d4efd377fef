"""Fixtures that every test may use: outside programs, golden files, and logging left as it was found."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.promtool import Promtool

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
COMPONENT_FIXTURES = frozenset(
    ["prometheus", "prometheus_binary", "promtool", "alertmanager", "monitoring", "curl", "gcc", "chromium", "openssl"]
)
ON_DEBIAN = {"prometheus": "prometheus", "promtool": "prometheus", "chromium": "chromium"}
BUILDS = ("debian", "newest")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites golden files; the diff is then the review."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs outside programs, and skip what needs a GPU where there is none."""
    no_gpu = pytest.mark.skip(reason="needs a real NVIDIA GPU: there is no /dev/nvidiactl")
    for item in items:
        if not COMPONENT_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.component)
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(no_gpu)


def require(found: Path | str | None, name: str, remedy: str) -> Path:
    """The component's path; without one the test skips and says the remedy, or fails where CI=true."""
    if found is not None and os.access(found, os.X_OK):
        return Path(found)
    message = f"{name} is not here: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def program(name: str) -> Path:
    """A program of the system's, found on PATH."""
    return require(shutil.which(name), name, f"install it (Debian: apt-get install {ON_DEBIAN.get(name, name)})")


def built(name: str, which: str) -> Path:
    """A program of the Prometheus project: Debian's, or the newest as pinned by tools/go.mod."""
    if which == "debian":
        return program("prometheus-alertmanager" if name == "alertmanager" else name)
    where = subprocess.run([ROOT / "tools" / "build-prometheus", "--where"], check=True, capture_output=True, text=True)
    return require(Path(where.stdout.strip()) / name, f"the newest {name}", "install Go and run tools/build-prometheus")


@pytest.fixture(scope="session", params=BUILDS)
def prometheus_binary(request: pytest.FixtureRequest) -> Path:
    """Each Prometheus there is: Debian's 2.x and the newest 3.x."""
    return built("prometheus", request.param)


@pytest.fixture(scope="session", params=BUILDS)
def promtool(request: pytest.FixtureRequest) -> Promtool:
    """Each promtool there is: Debian's 2.x and the newest 3.x."""
    return Promtool(built("promtool", request.param))


@pytest.fixture(scope="session")
def curl() -> Path:
    """The curl of the system."""
    return program("curl")


@pytest.fixture(scope="session")
def gcc() -> Path:
    """A C compiler."""
    return program("gcc")


@pytest.fixture(scope="session")
def openssl() -> Path:
    """The openssl of the system."""
    return program("openssl")


class Golden(Protocol):
    """The comparison with golden files."""

    def __call__(self, name: str, actual: bytes) -> None:
        """Compare ``actual`` byte for byte with the file ``name`` of tests/golden."""


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The comparison with golden files; with ``--update-golden`` it writes them."""

    def compare(name: str, actual: bytes) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(actual)
        expected = path.read_bytes() if path.exists() else b""
        assert actual.decode() == expected.decode(), f"differs from {path}; if it should, run pytest --update-golden"
        assert actual == expected

    return compare


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Handlers and level of the root logger are the process's: a test that sets them up must not reach the next."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
