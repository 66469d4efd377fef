"""A fleet of simulated nodes in one process: each is computed when somebody asks for it, by the code of a real one.

A node costs nothing until it is first read. What nodes have in common (profiles, timelines, request layouts) they
share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpufleet.collect.options import PollerOptions
from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.cost.prices import PriceBook
from gpufleet.metrics.family import Level
from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.accounts import ScriptedAccounts
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import uuid_from
from gpufleet.simulate.nics import NodeNics
from gpufleet.simulate.prices import scripted_prices
from gpufleet.simulate.quarantine import Quarantine
from gpufleet.simulate.serving import NodeServer
from gpufleet.simulate.staging import Stage
from gpufleet.simulate.training import NodeTraining

EXPECTED_INTERVAL = 30.0
"""Seconds between two scrapes of a node; what is sampled over an interval is shown up to twice that."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How nodes are shown, and how fast their time runs."""

    level: Level = Level.STANDARD
    each_link: bool = False
    speed: float = 1.0


class _Node:
    """One node that has been read at least once."""

    __slots__ = ("lock", "nics", "renderer", "synchronous", "training")

    def __init__(
        self, synchronous: SynchronousNode, renderer: Renderer, training: NodeTraining, nics: NodeNics
    ) -> None:
        self.synchronous = synchronous
        self.renderer = renderer
        self.training = training
        self.nics = nics
        # A renderer remembers the text before, so two scrapes of one node take turns.
        self.lock = threading.Lock()


class Fleet:
    """All nodes of a stage. Safe to use from any thread."""

    def __init__(
        self,
        stage: Stage,
        options: FleetOptions,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        prices: PriceBook | None = None,
    ) -> None:
        """``prices`` are what GPUs cost; those that come with gpufleet where there are none."""
        self._stage = stage
        self._options = options
        self._clock = clock
        self._wall = wall
        # One origin for all: a run's nodes are at the same step, whenever each is read for the first time.
        self._origin = clock()
        self._started_at = wall()
        self._scale = 1000 * options.speed
        self._nodes: dict[str, _Node] = {}
        self._servers: dict[tuple[str, str], NodeServer] = {}
        self._quarantine = Quarantine(stage.scenario) if stage.scenario.quarantine else None
        self._lock = threading.Lock()
        self._prices = scripted_prices() if prices is None else prices
        self.names = stage.names

    def text(self, name: str, *, openmetrics: bool = False) -> bytes:
        """The exposition of a node as of now; KeyError when there is none of that name."""
        node = self._node(name)
        with node.lock:
            snapshot = self._whole(node)
            if openmetrics:
                return (node.renderer.openmetrics(snapshot) + OPENMETRICS_END).encode()
            return node.renderer.text(snapshot).encode()

    def snapshot(self, name: str) -> Snapshot:
        """A node as of now; KeyError when there is none of that name."""
        return self._whole(self._node(name))

    def server(self, name: str, kind: str) -> bytes | None:
        """What the model server of a node says of itself; None while none of its replicas is there.

        KeyError when the node has no server of that kind.
        """
        server = self._servers.get((name, kind))
        if server is None:
            server = self._servers[name, kind] = NodeServer(self._stage, name, kind)
        return server.text(self._moment(self._clock()))

    def quarantine(self) -> bytes:
        """What the quarantine service says of itself; KeyError when the scenario has none."""
        if self._quarantine is None:
            raise KeyError("quarantine")
        return self._quarantine.text(self._moment(self._clock()))

    def _whole(self, node: _Node) -> Snapshot:
        """The GPUs as the driver shows them, and beside them what needs no driver."""
        snapshot = node.synchronous.poll()
        moment = self._moment(snapshot.monotonic)
        return replace(snapshot, training=node.training.rows(moment, self._unix), nics=node.nics.ports(moment))

    def _moment(self, monotonic: float) -> int:
        return int((monotonic - self._origin) * self._scale)

    def _unix(self, moment: int) -> float:
        return round(self._started_at + moment / self._scale, 3)

    @property
    def opened(self) -> int:
        """Nodes that have been read at least once."""
        return len(self._nodes)

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            with self._lock:
                node = self._nodes.get(name)
                if node is None:
                    node = self._nodes[name] = self._open(name)
        return node

    def _open(self, name: str) -> _Node:
        script = self._stage.node(name)
        driver = ScriptedDriver(
            script.gpus,
            clock=self._clock,
            speed=self._options.speed,
            origin=self._origin,
            started_at=self._started_at,
            driver_version=script.driver_version,
            restarts=script.restarts,
            blocking=False,
        )
        options = PollerOptions(
            node=name,
            interval=EXPECTED_INTERVAL,
            each_link=self._options.each_link,
            boot_id=uuid_from("", script.gpus[0].seed >> 32, 7),
        )
        accounts = ScriptedAccounts(
            script, self._stage.scenario, self._prices, interval=EXPECTED_INTERVAL, wall=self._wall
        )
        node = SynchronousNode(driver, options, self._clock, self._wall, accounts)
        training = NodeTraining(self._stage, name, len(script.gpus))
        return _Node(node, Renderer(self._options.level), training, NodeNics(self._stage, script))
