"""RDMA adapters of a node: one beside each GPU that has one, which carries what its training run exchanges. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.model.nic import NicIdentity, NicPort
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.health import Tally, Window
from gpufleet.simulate.profiles import Network
from gpufleet.simulate.scenario import Nic
from gpufleet.simulate.scenario_checks import adapters
from gpufleet.simulate.staging import NodeScript, Stage
from gpufleet.simulate.timeline import NVLINK_TRANSMIT, Timeline

_RETRANSMITS = (("local_ack_timeout", 3), ("packet_sequence", 6), ("out_of_sequence", 1))
"""What shows a lost packet, and how many of ten it shows."""
_BYTES_A_LOSS = 4 * 10**12
"""A healthy fabric loses a packet now and then."""
# Gradients go over NVLink in the node and over the adapters between nodes at the same time, and both are then about as
# busy: NVLink's bytes, scaled to the slower link.
_SHARE = 0.75


class NodeNics:
    """The adapters of one node."""

    def __init__(self, stage: Stage, script: NodeScript) -> None:
        across = {run.name for run in stage.runs_on(script.name) if run.pattern == "train" and len(set(run.nodes)) > 1}
        events = [event for event in stage.events_on(script.name) if isinstance(event, Nic)]
        numbers = adapters([gpu.profile for gpu in script.gpus])
        self._ports = [
            _Port(
                script.gpus[number],
                (place, number, len(script.gpus)),
                [event for event in events if event.nic == place],
                stage.period,
                busy=script.gpus[number].run in across and not script.gpus[number].mig,
            )
            for place, number in enumerate(numbers)
        ]

    def ports(self, moment: int) -> tuple[NicPort, ...]:
        """All ports as of ``moment``."""
        return tuple([port.at(moment) for port in self._ports])


class _Port:
    __slots__ = ("_carried", "_downs", "_identity", "_rate", "_tallies")

    def __init__(
        self, gpu: GpuScript, places: tuple[int, int, int], events: Sequence[Nic], period: int, *, busy: bool
    ) -> None:
        place, number, gpus = places
        network = gpu.profile.network
        if network is None:
            raise AssertionError(gpu.profile.key)
        self._identity = _identity(gpu, network, place, number, gpus)
        self._rate = network.gigabits_per_second * 1e9 / 8
        self._downs = _downs(events, period)
        self._tallies = {
            kind: [
                Tally(kind, event.at, event.at + event.lasts, 0, event.retransmits_per_hour * tenths // 10, 0, period)
                for event in events
            ]
            for kind, tenths in _RETRANSMITS
        }
        self._carried = None
        if busy and gpu.profile.nvlink is not None:
            per_mille = round(1000 * _SHARE * self._rate / gpu.profile.nvlink.bytes_per_second)
            self._carried = _Carried(gpu.timeline, per_mille, self._downs, period)

    def at(self, moment: int) -> NicPort:
        """The port as of ``moment``."""
        carried = 0 if self._carried is None else self._carried.by(moment)
        usual = carried // _BYTES_A_LOSS
        return NicPort(
            self._identity,
            link_up=not any(down.holds(moment) for down in self._downs),
            rate=self._rate,
            # All-reduce gives each what it takes, but for headers and acknowledgements.
            received=carried - carried // 997,
            transmitted=carried,
            retransmits=tuple(
                [
                    (
                        kind,
                        sum([tally.count(moment) for tally in tallies]) + (usual if kind == "packet_sequence" else 0),
                    )
                    for kind, tallies in self._tallies.items()
                ]
            ),
        )


class _Carried:
    """Bytes over one link: those of the run, without the times in which the link was down."""

    __slots__ = ("_downs", "_lost", "_per_mille", "_period", "_timeline")

    def __init__(self, timeline: Timeline, per_mille: int, downs: Sequence[Window], period: int) -> None:
        self._timeline = timeline
        self._per_mille = per_mille
        self._downs = downs
        self._period = period
        self._lost = [(self._moved(down.start), self._moved(down.end)) for down in downs]

    def by(self, moment: int) -> int:
        """Bytes from 0 to ``moment``."""
        moved = self._moved(moment)
        if not self._downs:
            return moved
        rounds, local = divmod(moment, self._period) if self._period else (0, moment)
        here = self._moved(local)
        lost = sum([min(here, after) - before for before, after in self._lost if here > before])
        return moved - lost - rounds * sum([after - before for before, after in self._lost])

    def _moved(self, moment: int) -> int:
        return self._timeline.totals(moment)[NVLINK_TRANSMIT] * self._per_mille // 1000


def _downs(events: Sequence[Nic], period: int) -> list[Window]:
    """When the link is down: one time after the other, also where two events overlap."""
    starts = [(event.at + event.lasts * turn // event.flaps, event) for event in events for turn in range(event.flaps)]
    windows: list[Window] = []
    for start, end in sorted((start, start + event.down) for start, event in starts):
        if windows and start <= windows[-1].end:
            end, start = max(end, windows[-1].end), windows.pop().start  # noqa: PLW2901 - the two are one now
        windows.append(Window(start, end, period))
    return windows


def _identity(gpu: GpuScript, network: Network, place: int, number: int, gpus: int) -> NicIdentity:
    # The adapter sits under the same switch, some bus numbers before its GPU.
    bus = (gpu.bus - 3) & 0xFF
    ethernet = network.link_layer == "Ethernet"
    return NicIdentity(
        nic=f"mlx5_{place}",
        port="1",
        netdev=f"enp{bus}s0np0" if ethernet else f"ibp{bus}s0",
        link_layer=network.link_layer,
        pci_bus_id=f"0000:{bus:02x}:00.0",
        numa_node=str(int(2 * number >= gpus)),
        gpu=str(number),
    )
