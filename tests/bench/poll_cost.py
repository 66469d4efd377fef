"""Measures what a poll costs, and what a bare loop over the same calls costs in the same process; prints JSON.

Usage: poll_cost.py LIBRARY SECONDS

SECONDS is how long each of the blocks at one poll a second takes; there are four, the loop's and the poller's by turns,
so that both see the same machine.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import PollerOptions, World
from gpufleet.collect.poller import Poller
from gpufleet.sources.nvml import gpm
from gpufleet.sources.nvml.calls import Driver
from gpufleet.sources.nvml.session import open_library
from tests.bench.bare_loop import NEVER, BareLoop
from tests.waiting import until

BACK_TO_BACK = 0.001
"""Seconds: shorter than a poll takes, so that the next follows at once."""
WARM_SECONDS = 3.0
SECOND = 1.0
BESIDE_THE_POLL = ("MainThread", "nvml-events")
"""This script, and the thread that waits for the driver's events: it would wait however rarely one polls."""


class Polling:
    """The exporter's poller with nobody who reads its snapshots, reading only the fast tier."""

    def __init__(self, driver: Driver, period: float) -> None:
        options = PollerOptions(
            node="bench", interval=period, medium_seconds=NEVER, slow_seconds=NEVER, deadline=max(period, 0.5)
        )
        self._poller = Poller(options, World(open_driver=lambda: driver), Numbers(None, None))
        self._poller.start()
        until(lambda: self._gpus() and self._poller.latest.sequence > 5, "polls", seconds=30, every=period)

    def _gpus(self) -> int:
        return sum(len(gpu.parts) >= 5 for gpu in self._poller.latest.gpus)

    def cost(self, seconds: float) -> tuple[float, dict[str, float]]:
        """CPU seconds a GPU and poll; and by thread."""
        before, begin = _cpu_by_thread(), self._poller.latest.sequence
        time.sleep(seconds)
        after, polls = _cpu_by_thread(), self._poller.latest.sequence - begin
        each = polls * len(self._poller.latest.gpus)
        used = {name: (after[name] - before.get(name, 0.0)) / each for name in after}
        return sum([share for name, share in used.items() if name not in BESIDE_THE_POLL]), used

    def stop(self) -> None:
        """End it."""
        assert self._poller.stop(), "a call is out"


def _cpu_by_thread() -> dict[str, float]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: defaultdict[str, float] = defaultdict(float)
    for task in Path("/proc/self/task").iterdir():
        used[names.get(int(task.name), "others")] += float((task / "schedstat").read_text().split()[0]) / 1e9
    return dict(used)


def main() -> None:
    """Measure and print."""
    library, seconds = sys.argv[1], float(sys.argv[2])
    # Polled faster than real GPUs are sampled; the stand-in driver is told to take that.
    gpm.SHORTEST_SECONDS = 0.0
    driver = open_library(library)
    loop = BareLoop(driver)
    gc.collect()
    gc.freeze()
    values = len(loop.poll()[0])
    warm_bare = loop.cost(0.0, WARM_SECONDS)
    polling = Polling(driver, BACK_TO_BACK)
    warm, warm_threads = polling.cost(WARM_SECONDS)
    polling.stop()
    bare: list[float] = []
    own: list[float] = []
    threads: defaultdict[str, float] = defaultdict(float)
    for _ in range(2):
        bare.append(loop.cost(SECOND, seconds))
        polling = Polling(driver, SECOND)
        cost, by_thread = polling.cost(seconds)
        polling.stop()
        own.append(cost)
        for name, share in by_thread.items():
            threads[name] += share / 2
    result = {
        "calls": loop.calls_each,
        "values": values,
        "warm": {"bare": warm_bare, "poller": warm, "threads": warm_threads},
        "second": {
            "bare": sum(bare) / 2,
            "poller": sum(own) / 2,
            "threads": threads,
        },
    }
    json.dump(result, sys.stdout)
    # The loop's session is left to the end of the process: the pollers have shut the library down beside it.


if __name__ == "__main__":
    main()
