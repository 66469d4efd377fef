"""A simulated fleet of 2,048 nodes with 16,384 GPUs, scraped by one real Prometheus."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.bench.figures import Figures
from tests.bench.programs import BIN, ROOT, Measured, Program, free_port
from tests.conftest import program
from tests.integration.prometheus_server import PrometheusServer
from tests.waiting import until

NODES = 2048
INTERVAL = 30
OPENING_SECONDS = 240.0
"""Most that the fleet may take to read every node for the first time."""


@pytest.fixture
def newest_prometheus() -> Path:
    """The newest Prometheus where it was built, else the system's."""
    where = subprocess.run([ROOT / "tools" / "build-prometheus", "--where"], check=True, capture_output=True, text=True)
    newest = Path(where.stdout.strip()) / "prometheus"
    return newest if os.access(newest, os.X_OK) else program("prometheus")


def test_a_large_fleet(newest_prometheus: Path, figures: Figures, seconds: float, tmp_path: Path) -> None:
    """Level core, every 30 s: each scrape of each node succeeds. CPU of both over whole scrape intervals."""
    port = free_port()
    command: list[str | Path] = [
        BIN / "gpufleet",
        "simulate",
        f"--nodes={NODES}",
        "--gpus-per-node=8",
        "--metrics.level=core",
    ]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    job = {
        "job_name": "gpufleet",
        "honor_labels": True,
        "http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}],
    }
    with Program(command, tmp_path, port=port, env={}) as fleet:
        fleet.wait_until_it_listens(120.0)
        until(
            lambda: "every node has been read" in fleet.log.read_text(), "every node was read", seconds=OPENING_SECONDS
        )
        opened = time.perf_counter() - fleet.started
        with PrometheusServer(
            newest_prometheus, tmp_path / "prometheus", [job], scrape_interval=f"{INTERVAL}s"
        ) as prometheus:
            prometheus.wait_until_up(NODES, seconds=3 * INTERVAL)
            assert prometheus._process is not None
            server = Measured(prometheus._process.pid)
            used, also, begin = fleet.cpu_seconds(), server.cpu_seconds(), time.monotonic()
            length = INTERVAL * max(1, round(seconds / 2 / INTERVAL))
            time.sleep(length)
            took = time.monotonic() - begin
            figures.put("fleet.cpu", 100 * (fleet.cpu_seconds() - used) / took)
            figures.put("fleet.prometheus.cpu", 100 * (server.cpu_seconds() - also) / took)
            figures.put("fleet.memory", fleet.rss_mib(), note=f"every node opened {opened:.0f} s after exec")
            window = f"{length + INTERVAL}s"
            scrapes = prometheus.value(f"sum(count_over_time(up[{window}]))") or 0.0
            # In one expression: another second has other scrapes in its window.
            failed = prometheus.value(f"sum(count_over_time(up[{window}]) - sum_over_time(up[{window}]))")
            slowest = prometheus.value("max(scrape_duration_seconds)") or 0.0
            samples = prometheus.value("sum(scrape_samples_scraped)") or 0.0
            note = f"of {scrapes:.0f}; slowest {slowest:.2f} s; {samples:.0f} series"
            assert failed is not None
            figures.put("fleet.failed", failed, note=note)
    assert scrapes >= NODES
