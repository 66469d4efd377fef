"""A fleet of short runs on a clock that goes faster than ours, metered by real meters, served as exporters do.

A node is taken forward, poll by poll, whenever it is scraped: what it shows depends on time and seed alone.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from gpufleet.cost.meter import Meter
from gpufleet.cost.meter_bytes import decode_file, encode_file
from gpufleet.metrics.render import Renderer
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.meter import Price
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, Snapshot
from gpufleet.model.state import GpuState, NvmlState

PER_HOUR = 4.8
PROJECT = "short-runs"
SHORT, LONGER = "under-a-minute", "longer"
GROUPS = ((0, 1, 2, 3), (4, 5), (6,), (7,))
"""GPUs of a node that runs get together."""
_BEGIN = 60
_KEYS = (Key("sm_active_ratio"),)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, on GPUs of one node, in seconds of the fleet's clock."""

    name: str
    node: int
    gpus: tuple[int, ...]
    begin: int
    end: int
    utilization: float

    @property
    def task(self) -> str:
        """Whether it is a short one."""
        return SHORT if self.end - self.begin < 60 else LONGER

    @property
    def cost(self) -> float:
        """In truth."""
        return (self.end - self.begin) * len(self.gpus) * PER_HOUR / 3600

    @property
    def unused(self) -> float:
        """In truth."""
        return self.cost * (1 - self.utilization)


def plan(rng: random.Random, *, nodes: int, runs: int) -> list[Run]:
    """Runs of 20 s to 10 min, most of them short; one in ten is another try of the one before on the same GPUs."""
    free = [(_BEGIN + rng.randrange(60), node, group) for node in range(nodes) for group in range(len(GROUPS))]
    heapq.heapify(free)
    before: dict[tuple[int, int], Run] = {}
    found = []
    for number in range(runs):
        at, node, group = heapq.heappop(free)
        seconds = round(20 * math.exp(rng.random() * math.log(30)))
        run = Run(f"run-{number:04d}", node, GROUPS[group], at, at + seconds, rng.randrange(1, 16) / 16)
        last = before.get((node, group))
        if last is not None and last.task == run.task and rng.random() < 0.2:
            run = Run(last.name, node, run.gpus, run.begin, run.end, run.utilization)
        before[node, group] = run
        found.append(run)
        # Mostly the next one waits already. Sometimes nothing comes for longer than an account stays.
        gap = rng.choice((0, 0, 1, 5, 30, 60, 420))
        heapq.heappush(free, (run.end + gap, node, group))
    return found


class Node:
    """One exporter: killed and started again at the times given, with its state as its file keeps it."""

    def __init__(self, number: int, runs: Sequence[Run], away: Sequence[tuple[int, int]]) -> None:
        """``away``: from the first second without a poll to the first one with a poll again."""
        self._name = f"node-{number:02d}"
        self._identities = [GpuIdentity(f"GPU-{number:02d}-{at}", "NVIDIA H100 80GB HBM3", "") for at in range(8)]
        self._runs = sorted(runs, key=lambda run: run.begin)
        self._away = list(away)
        self._lock = threading.Lock()
        self._now = 0
        self._state = b""
        self._meter: Meter | None = self._started()
        self._renderer = Renderer()
        self._owners = OwnersView()
        self._gpus: tuple[GpuSnapshot, ...] = ()
        self._holders: tuple[Run | None, ...] | None = None

    def _started(self) -> Meter:
        price = Price("", PER_HOUR, "USD", "4.8")
        meter = Meter(interval=1.0, utilization="auto", price_of=lambda _: price)
        if self._state:
            meter.load(decode_file(self._state).state, same_boot=True)
        return meter

    def text(self, now: float) -> str | None:
        """What it shows at a time of the fleet's clock; ``None`` while it is away."""
        with self._lock:
            while self._now < math.floor(now):
                self._now += 1
                self._poll()
            if self._meter is None:
                return None
            return self._renderer.text(
                Snapshot(
                    self._now,
                    float(self._now),
                    float(self._now),
                    NodeIdentity(self._name),
                    NvmlState.OK,
                    owners=self._owners,
                    meter=self._meter.view,
                )
            )

    def _poll(self) -> None:
        if self._away and self._away[0][0] <= self._now:
            if self._meter is not None:
                # What a kill leaves behind is what the last poll had kept.
                self._state = encode_file(self._meter.dump(), "boot", self._now)[0]
                self._meter = None
            if self._now < self._away[0][1]:
                return
            self._away.pop(0)
            self._meter, self._renderer, self._holders = self._started(), Renderer(), None
        assert self._meter is not None
        self._hold()
        self._meter.poll(self._gpus, self._owners, monotonic=float(self._now), quiesced=False)

    def _hold(self) -> None:
        holders: list[Run | None] = [None] * 8
        for run in self._runs:
            if run.begin >= self._now:
                break
            if self._now <= run.end:
                for gpu in run.gpus:
                    holders[gpu] = run
        while self._runs and self._runs[0].end < self._now:
            self._runs.pop(0)
        if tuple(holders) == self._holders:
            return
        self._holders = tuple(holders)
        holdings = []
        for identity, holder in zip(self._identities, holders, strict=True):
            if holder is None:
                holdings.append(Holding(identity.uuid, 1.0, hold=Hold.UNALLOCATED))
            else:
                holdings.append(Holding(identity.uuid, 1.0, Workload(PROJECT, holder.name, holder.task)))
        self._owners = OwnersView(tuple(holdings))
        self._gpus = tuple(
            [
                GpuSnapshot(
                    at,
                    self._identities[at],
                    GpuState.OK,
                    1.0,
                    parts=(Readings(_KEYS, (0.0 if holder is None else holder.utilization,)),),
                    utilization_basis="sm",
                )
                for at, holder in enumerate(holders)
            ]
        )


class Fleet:
    """All nodes behind one address: /0, /1, … A scrape is lost with the probability ``lost``."""

    def __init__(self, nodes: Sequence[Node], *, speed: float, lost: float, rng: random.Random) -> None:
        self._nodes = nodes
        self._speed = speed
        self._began: float | None = None
        self.scrapes = self.lost = self.refused = 0
        counting = threading.Lock()

        def answer(path: str) -> str | None:
            node = nodes[int(path.strip("/"))]
            with counting:
                self.scrapes += 1
                if rng.random() < lost:
                    self.lost += 1
                    return None
            text = node.text(self.now())
            if text is None:
                with counting:
                    self.refused += 1
            return text

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def begin(self) -> None:
        """Let time begin to pass."""
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds of the fleet's clock."""
        return 0.0 if self._began is None else (time.monotonic() - self._began) * self._speed

    def scrape_config(self) -> dict[str, object]:
        """A job for each node, since each has a path of its own."""
        address = f"127.0.0.1:{self._server.server_address[1]}"
        labels = [
            {"targets": [address], "labels": {"__metrics_path__": f"/{number}", "instance": f"node-{number:02d}"}}
            for number in range(len(self._nodes))
        ]
        return {"job_name": "gpufleet", "honor_labels": True, "static_configs": labels}


def _handler(answer: Callable[[str], str | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = answer(self.path)
            if text is None:  # the connection ends without an answer, as when a process dies
                self.close_connection = True
                return
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
