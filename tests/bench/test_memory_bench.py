"""Resident memory: after the imports, and after ten thousand polls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import Figures
from tests.bench.programs import HERE, ROOT, free_port, gpufleet
from tests.bench.scraping import Scraper
from tests.support.fake_nvml import FakeNvml
from tests.waiting import until

POLLS = 10_000
SCRAPES = 100
INTERVAL = 0.006
"""Seconds; a few times what a poll of eight GPUs takes."""


def imported(fake: FakeNvml, directory: Path, what: str) -> dict[str, object]:
    """Run import_cost.py as the exporter is run."""
    flags = ["--web.listen-address=127.0.0.1:0", f"--nvml.library={fake.library}", f"--state.dir={directory}"]
    command = [sys.executable, str(HERE / "import_cost.py"), what, *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_after_imports(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path) -> None:
    """Everything is imported and wired, and the port is open; no driver was touched."""
    figures.put("memory.imports", float(str(imported(fake_nvml, tmp_path, "total")["total"])) / 1024)


def test_which_imports_cost_most(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Prints the most expensive modules, each without what it imports itself."""
    found = imported(fake_nvml, tmp_path, "modules")
    modules = found["modules"]
    assert isinstance(modules, dict)
    print(f"\ninterpreter {found['interpreter']} KiB, in all {found['total']} KiB")
    for name, (kib, ms) in sorted(modules.items(), key=lambda item: -item[1][0])[:25]:
        print(f"{kib:7.0f} KiB {ms:7.1f} ms  {name}")


def test_after_many_polls(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path) -> None:
    """Ten thousand polls with every tier at its ratio, and a scrape each hundred: it is small and stays so."""
    fake_nvml.control.gpm_spacing_ms = 0
    fake_nvml.move()
    command = (sys.executable, HERE / "fast_exporter.py", str(INTERVAL))
    sizes: list[tuple[float, float]] = []
    with gpufleet(fake_nvml, tmp_path, free_port(), *command) as program, Scraper(program.port) as scraper:
        begin = time.monotonic()
        polls = 0.0
        while polls < POLLS:
            program.check()
            assert time.monotonic() - begin < 400, f"only {polls:g} polls in 400 s"
            time.sleep(POLLS / SCRAPES * INTERVAL)
            polls = scraper.scrape().value("gpufleet_polls_total")
            sizes.append((polls, program.rss_mib()))
        took = time.monotonic() - begin
        # At this interval a snapshot is old after 18 ms, so one scrape or another may come too late for it.
        until(lambda: scraper.scrape().text.count("gpu_sm_active_ratio{") == 8, "a scrape shows every GPU")
    later = [size for size in sizes if size[0] > POLLS / 2]
    largest = max(size for _, size in sizes)
    figures.put("memory.polls", sizes[-1][1], note=f"{polls:.0f} polls in {took:.0f} s, largest {largest:.1f}")
    growth = later[-1][1] / later[0][1] - 1
    figures.put("memory.growth", 100 * growth, note=f"from {later[0][1]:.2f} to {later[-1][1]:.2f} MiB")
