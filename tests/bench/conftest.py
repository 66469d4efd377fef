"""Options, the stand-in driver and the exporters on it, and the table at the end of a run."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.figures import Figures, markdown_table, plain_table
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import nvml_build
from tests.support.fake_nvml_profiles import SEVEN_SLICES

__all__ = ["nvml_build"]

GPUS = 8
_LOAD_AT_START = os.getloadavg()[0]
_FIGURES = pytest.StashKey[Figures]()

_PAGE = """\
# Benchmarks

Measured on {at} by `make bench ARGS=--bench-document=docs/benchmarks.md`:
{machine}; load average {load}; {priority} priority.

gpufleet, a *naive* exporter (prometheus_client and scalar pynvml calls at scrape time, `tests/bench/naive_exporter.py`)
and nvitop-exporter, in one run on the same stand-in for the driver's library: 8 × H100, whose calls take no time unless
a row says otherwise. "As slow as a driver's" is 5 to 50 µs for most calls, 50 to 500 µs for power and clocks, 20 ms a
direction for PCIe throughput. A number in brackets is the multiple of gpufleet's value: absolute values are of this
machine, the multiples are the message. Resident memory leaves out the driver's library.

The naive exporter asks the driver when it is scraped and at no other time, so its CPU share is small where scrapes are
rare, and so is what it knows. Scrapes keep their connection; the naive exporter's server closes it each time.

{tables}
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long to measure, and where to write what was found."""
    group = parser.getgroup("bench", "measurements of gpufleet")
    group.addoption(
        "--bench-seconds", type=float, default=60.0, help="length of the longest measurement; others follow it (60)"
    )
    group.addoption("--bench-json", default="bench-results.json", help="file for the figures (bench-results.json)")
    group.addoption("--bench-document", help="also write the table as Markdown, as in docs/benchmarks.md")


def pytest_configure(config: pytest.Config) -> None:
    """Begin an empty table."""
    config.stash[_FIGURES] = Figures()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure rendering last: it is of no subject but gpufleet, and the table is read from the top."""
    items.sort(key=lambda item: item.path.name == "test_render_bench.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and write it where it was asked for. A target that was missed fails no run: it is shown."""
    figures = config.stash[_FIGURES]
    lines = figures.lines()
    if not lines:
        return
    about = machine()
    path = config.invocation_params.dir / config.getoption("--bench-json")
    path.write_text(json.dumps(figures.as_json(**about), indent=1) + "\n")
    terminalreporter.section("gpufleet beside what one would use instead")
    terminalreporter.write_line(
        f"{about['machine']}; {about['at']}; load {about['load']}; {about['priority']} priority"
    )
    terminalreporter.write_line("n× is a multiple of gpufleet's\n")
    terminalreporter.write_line(plain_table(lines))
    missed = figures.missed()
    terminalreporter.write_line("")
    terminalreporter.write_line(
        "every target that was measured is met" if not missed else f"missed: {', '.join(row.key for row in missed)}",
        red=bool(missed),
        green=not missed,
    )
    document = config.getoption("--bench-document")
    if document:
        (config.invocation_params.dir / document).write_text(as_document(markdown_table(lines), about))


def machine() -> dict[str, str]:
    """What the figures were measured on, and when."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "at": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} × {processor}, Linux {platform.release()}, Python {platform.python_version()}",
        "priority": "ordinary" if os.sched_getscheduler(0) == os.SCHED_OTHER else "real-time",
        # A busy machine makes percentiles of times meaningless, and caches cold for everybody.
        "load": f"{_LOAD_AT_START:.2f} before, {os.getloadavg()[0]:.2f} after",
    }


def as_document(tables: str, about: dict[str, str]) -> str:
    """The tables as a page of their own."""
    return _PAGE.format(tables=tables, **about)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """The table that is printed at the end."""
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="session")
def seconds(pytestconfig: pytest.Config) -> float:
    """Length of the longest measurement."""
    return float(pytestconfig.getoption("--bench-seconds"))


@pytest.fixture
def fake_nvml(nvml_build: Path) -> Iterator[FakeNvml]:  # noqa: ARG001 - for its skip
    """Eight H100 whose calls take no time."""
    with FakeNvml() as fake:
        fake.set_gpus(GPUS)
        fake.set_latency(model=False)
        yield fake


def cut(fake: FakeNvml) -> None:
    """Cut every GPU into seven slices."""
    for gpu in range(GPUS):
        fake.set_mig(gpu, SEVEN_SLICES, notify=False)
