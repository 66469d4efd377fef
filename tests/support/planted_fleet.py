"""A fleet in which all is well but for planted faults, and which alert each of them is expected to raise.

It is made up as ``gpufleet simulate --nodes`` does, without that one's mishaps and without runs that do nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.metrics.family import Level
from gpufleet.simulate.generate import DEFAULT_PROFILE, extend
from gpufleet.simulate.scenario import (
    Duration,
    Ecc,
    Event,
    Hang,
    Heat,
    Loss,
    Nic,
    Nvlink,
    PowerBrake,
    Run,
    Scenario,
    Xid,
)

_MINUTE = 60_000
_SOON = Duration(2 * _MINUTE)
"""From then on: a fleet's nodes have all been scraped once, so that counters are seen to rise."""
_LONG = Duration(24 * 60 * _MINUTE)
_PEERS = 4
"""Nodes that a training run needs to have a straggler."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and the labels by which the alert that it raises is told from others."""

    event: Event
    alert: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlantedFleet:
    """The scenario, and what is in it."""

    scenario: Scenario
    faults: tuple[Planted, ...]

    def file(self) -> bytes:
        """The scenario as a file for ``--scenario.file``; JSON is YAML."""
        return json.dumps(_written(self.scenario), separators=(",", ":")).encode()


def planted_fleet(nodes: int, level: Level, *, starting: int = _SOON, seed: int = 0) -> PlantedFleet:
    """Twenty faults that the level shows, each on a node of its own, that begin after ``starting`` milliseconds.

    ValueError where the fleet is too small to have a place for each.
    """
    made = extend(None, nodes, gpus=8, profile=DEFAULT_PROFILE, seed=seed)
    calm = msgspec.structs.replace(
        made,
        name="a fleet with planted faults",
        repeat=None,
        runs=tuple(run for run in made.runs if run.pattern != "sandbox"),
        events=(),
    )
    faults = tuple(_faults(_Places(calm), level, Duration(starting)))
    return PlantedFleet(msgspec.structs.replace(calm, events=tuple(fault.event for fault in faults)), faults)


class _Places:
    """Nodes for faults: each gets one, and so does a training run, whose nodes wait for each other."""

    def __init__(self, scenario: Scenario) -> None:
        cut = {node.name for node in scenario.nodes if node.mig}
        self._trained = [run for run in scenario.runs if run.pattern == "train" and len(run.nodes) >= _PEERS]
        apart = [run for run in scenario.runs if run.pattern in ("inference", "data_bound", "evals")]
        used = {node for run in scenario.runs for node in run.nodes}
        # Empty ones last: what hinders work shows only where there is some.
        self._apart = [node for run in apart for node in run.nodes if node not in cut]
        self._apart += [node.name for node in scenario.nodes if node.name not in used]

    def run(self) -> Run:
        """A training run with nodes enough to tell one from the others."""
        if not self._trained:
            raise ValueError("no further training run for a fault: the fleet is too small")
        return self._trained.pop(0)

    def node(self) -> str:
        """A node for which no other waits."""
        if not self._apart:
            raise ValueError("no further node for a fault: the fleet is too small")
        return self._apart.pop(0)


def _faults(places: _Places, level: Level, at: Duration) -> Iterator[Planted]:
    incident = "GpuHardwareIncident"

    def on(node: str, gpu: int) -> Mapping[str, str]:
        return {"node": node, "gpu": str(gpu)}

    standard = level is Level.STANDARD
    for _ in range(1 if standard else 3):
        run = places.run()
        node = run.nodes[1]
        straggler = {"node": node, "run": run.name}
        yield Planted(Heat(node=node, gpu=5, at=at, lasts=_LONG), "GpuRunStragglerNode", straggler)
    for gpu in (2,) if standard else (2, 6):
        node = places.node()
        yield Planted(Heat(node=node, gpu=gpu, at=at, lasts=_LONG), "GpuThermalThrottling", on(node, gpu))
    for gpu in (2,) if standard else (2, 3):
        node = places.node()
        yield Planted(PowerBrake(node=node, at=at, lasts=_LONG, gpus=(gpu,)), "GpuPowerBrake", on(node, gpu))
    run = places.run()
    yield Planted(Xid(node=run.nodes[0], gpu=6, at=at, code=79, lost=True), incident, on(run.nodes[0], 6))
    node = places.node()
    yield Planted(Xid(node=node, gpu=1, at=at, code=79, lost=True), incident, on(node, 1))
    node = places.node()
    yield Planted(Loss(node=node, gpu=3, at=at), incident, on(node, 3))
    for gpu in (0, 4):
        node = places.node()
        yield Planted(Hang(node=node, gpu=gpu, at=at, lasts=_LONG), incident, on(node, gpu))
    for gpu in (2, 7):
        node = places.node()
        row = Ecc(node=node, gpu=gpu, at=at, uncorrectable=1, remapped_rows=1, remap_pending=True)
        yield Planted(row, incident, on(node, gpu))
    node = places.node()
    yield Planted(Ecc(node=node, gpu=1, at=at, uncorrectable=1, remap_failed=True), incident, on(node, 1))
    node = places.node()
    sram = Ecc(node=node, gpu=6, at=at, location="sram", uncorrectable=3, threshold_exceeded=True)
    yield Planted(sram, incident, on(node, 6))
    node = places.node()
    yield Planted(Xid(node=node, gpu=5, at=at, code=154, recovery="node_reboot"), incident, on(node, 5))
    for code in (31, 43):
        node = places.node()
        yield Planted(Xid(node=node, gpu=1, at=at, code=code), "GpuApplicationFault", on(node, 1))
    node = places.node()
    yield Planted(Nvlink(node=node, gpu=3, at=at, links_down=2), "GpuNvlinkDegraded", on(node, 3))
    if not standard:
        return
    for per_hour in (20_000, 50_000):
        node = places.node()
        yield Planted(Nvlink(node=node, gpu=4, at=at, link=7, per_hour=per_hour), "GpuNvlinkErrors", on(node, 4))
    node = places.run().nodes[2]
    resent = Nic(node=node, nic=2, at=at, lasts=_LONG, retransmits_per_hour=3_600_000_000)
    yield Planted(resent, "RdmaRetransmitsHigh", {"node": node})
    node = places.run().nodes[3]
    flaps = Nic(node=node, nic=1, at=at, lasts=Duration(60 * _MINUTE), flaps=30, down=Duration(40_000))
    yield Planted(flaps, "RdmaPortFlapping", {"node": node})


def _written(part: object) -> Any:  # noqa: ANN401 - any of JSON's types
    """A scenario's part as its file has it: durations with their unit, what is left out by default left out."""
    if isinstance(part, Duration):
        return f"{int(part)}ms"
    if isinstance(part, (tuple, list)):
        return [_written(each) for each in part]
    if isinstance(part, dict):
        return {key: _written(each) for key, each in part.items()}
    if isinstance(part, msgspec.Struct):
        kind = {"kind": part.__struct_config__.tag} if part.__struct_config__.tag else {}
        fields = msgspec.structs.fields(type(part))
        values = [(field.encode_name, getattr(part, field.name), field.default) for field in fields]
        return {**kind, **{name: _written(value) for name, value, default in values if value != default}}
    return part
