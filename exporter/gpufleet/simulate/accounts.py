"""Holders and cost of a scripted node that is polled by its reader, without any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpufleet.cost.meter import Meter
from gpufleet.cost.node_facts import NodeFacts
from gpufleet.cost.pricer import Pricer
from gpufleet.cost.prices import PriceBook
from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.meter import MeterView
from gpufleet.model.owner import NO_OWNERS, OwnersView
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import devices_of
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.resolve import resolve
from gpufleet.simulate.holders import containers_of, pods_of
from gpufleet.simulate.scenario import Scenario
from gpufleet.simulate.staging import NodeScript


class ScriptedAccounts:
    """Works holders out as a real exporter does, from what a kubelet and an API server would say."""

    def __init__(
        self,
        script: NodeScript,
        scenario: Scenario,
        prices: PriceBook,
        *,
        interval: float,
        wall: Callable[[], float],
    ) -> None:
        """``interval`` is the usual time between two polls in seconds."""
        containers = containers_of(script.gpus, scenario, script.name)
        self._evidence = Evidence(
            containers=containers,
            pods=pods_of(containers, script.gpus, scenario, script.name),
            pods_known=True,
            allocations_expected=True,
        )
        self._meter = Meter(
            interval=interval,
            utilization="auto",
            price_of=Pricer(prices, NodeFacts(script.name), wall).price_of,
        )
        self._gpus: dict[str, GpuSnapshot] = {}
        self._seen: tuple[tuple[object, tuple[SliceIdentity, ...]], ...] = ()
        self._owners = NO_OWNERS

    def take(
        self,
        gpus: Sequence[GpuSnapshot],
        *,
        monotonic: float,
        whole: bool,  # noqa: ARG002 - as the protocol says: here each poll is a whole one
        quiesced: bool,
    ) -> tuple[OwnersView, MeterView]:
        """See ``collect.accounting.Accounting``."""
        for gpu in gpus:
            if gpu.state is GpuState.OK or gpu.identity.uuid not in self._gpus:
                self._gpus[gpu.identity.uuid] = gpu
        seen = tuple([(gpu.identity, tuple([part.identity for part in gpu.slices])) for gpu in self._gpus.values()])
        if seen != self._seen:
            self._seen = seen
            resolution = resolve(devices_of(tuple(self._gpus.values())), self._evidence, OwnersConfig())
            self._owners = OwnersView(resolution.holdings)
        return self._owners, self._meter.poll(gpus, self._owners, monotonic=monotonic, quiesced=quiesced)
