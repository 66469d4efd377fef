"""What a poll costs, hand-over between threads included, beside a bare loop that makes the same calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pytest_benchmark.fixture import BenchmarkFixture

from gpufleet.sources.nvml.plan import Pace
from tests.abi.opened import device
from tests.bench.bare_loop import NEVER
from tests.bench.figures import Figures
from tests.bench.programs import HERE, ROOT
from tests.support.fake_nvml import FakeNvml


def test_cost_of_a_poll(fake_nvml: FakeNvml, figures: Figures, seconds: float) -> None:
    """In one process by turns: a bare loop, and the poller with its threads. Both cold (each second) and warm."""
    fake_nvml.control.gpm_spacing_ms = 0
    command = [sys.executable, str(HERE / "poll_cost.py"), str(fake_nvml.library), str(max(5.0, seconds / 5))]
    environment = {**os.environ, **fake_nvml.environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout)

    assert found["values"] > 40
    for key, name in (("poll.warm", "warm"), ("poll.second", "second")):
        cost = found[name]
        threads = ", ".join(f"{thread} {1e6 * cost['threads'][thread]:.0f}" for thread in ("poll", "reader", "gpm"))
        figures.put(key, 1e6 * cost["poller"], note=f"threads: {threads}")
        bare = f"bare loop {1e6 * cost['bare']:.1f} µs: {found['calls']} calls, {found['values']} values"
        figures.put(f"{key}.bare", cost["poller"] / cost["bare"], note=bare)


def test_read_of_one_gpu(benchmark: BenchmarkFixture, fake_nvml: FakeNvml) -> None:
    """The worker's part alone, on one thread: calls of the fast tier, values checked and scaled."""
    with device(fake_nvml, pace=Pace(1.0, NEVER, NEVER)) as watched:
        benchmark(watched.poll)


def test_sample_of_one_gpu(benchmark: BenchmarkFixture, fake_nvml: FakeNvml) -> None:
    """The GPM thread's part alone."""
    with device(fake_nvml, pace=Pace(1.0, NEVER, NEVER)) as watched:

        def sample() -> object:
            watched.now += 1.0
            return watched.device.sample(watched.now)

        assert sample() is not None
        benchmark(sample)
