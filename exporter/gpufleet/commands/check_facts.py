"""What is known of a node's GPUs when somebody asks whether they may get work. Facts only; the verdict is elsewhere.

They go over the control socket as JSON (``faults.stored``), so that the exporter and one that looks by itself give the
same to the same judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpufleet.faults.readouts import RECOVERY_MEMBERS, Readouts
from gpufleet.faults.stored import LONGEST_TEXT
from gpufleet.model.incident import NOBODY, FaultsView, Incident
from gpufleet.model.readings import Key, Number
from gpufleet.model.snapshot import GpuSnapshot, Snapshot
from gpufleet.model.state import GpuState, NvmlState

SLOWDOWNS = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown")
"""Reasons for a low clock that are no ordinary ones; the power cap is."""
_LINKS_UP = (Key("nvlink_links", ("active",)), Key("nvlink_links", ("sleep",)))
_LINKS_DOWN = Key("nvlink_links", ("inactive",))
_WIDTH, _WIDEST = Key("pcie_link_width", ("current",)), Key("pcie_link_width", ("max",))
_BANKS_EMPTY = Key("row_remap_banks", ("none",))
_SLOW = {Key("clock_event_active", (reason,)): reason for reason in SLOWDOWNS}
_WANTED = frozenset({*_LINKS_UP, _LINKS_DOWN, _WIDTH, _WIDEST, _BANKS_EMPTY, *_SLOW})
MOST_INCIDENTS = 256


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU; ``None`` is not reported."""

    number: int
    uuid: str
    """Empty for one that the driver counts and can't open, and nobody knows."""
    pci_bus_id: str
    name: str
    state: GpuState
    minor: int | None = None
    """N of ``/dev/nvidiaN``."""
    reason: str | None = None
    recovery: str | None = None
    """The driver's recovery action, by its name in ``gpu_recovery_action``."""
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    sram_threshold: bool | None = None
    banks_empty: int | None = None
    """Banks of memory that have no spare row left."""
    fabric: tuple[str, ...] = ()
    """What the fabric says is wrong."""
    slowdowns: tuple[str, ...] = ()
    links_up: int | None = None
    links_down: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """One node."""

    node: str
    nvml_state: NvmlState
    reason: str | None
    quiesced: bool
    age_seconds: float
    """Since the last poll."""
    interval_seconds: float
    """Between polls; 0 for a look that was taken for this question."""
    expected: int | None
    gpus: tuple[GpuFacts, ...]
    active: tuple[Incident, ...]
    """Open incidents that are shown."""
    settling: tuple[Incident, ...]
    """… and those of which it is not certain yet what they come down to."""
    flaws: tuple[str, ...] = ()
    """What could not be looked at: without it nobody can say that all is well."""


def facts_of(snapshot: Snapshot, faults: FaultsView, *, now: float, interval: float) -> Facts:
    """The facts in a snapshot and what is shown of faults; ``now`` is on the snapshot's monotonic clock."""
    readouts = Readouts()
    return Facts(
        node=snapshot.node.node,
        nvml_state=snapshot.nvml_state,
        reason=_cut(snapshot.reason),
        quiesced=snapshot.quiesced,
        age_seconds=max(0.0, now - snapshot.monotonic),
        interval_seconds=interval,
        expected=snapshot.gpus_expected,
        gpus=tuple(_gpu(gpu, readouts) for gpu in snapshot.gpus),
        active=_short(faults.active),
        settling=_short(faults.settling),
    )


def _short(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    """Without what a verdict has no use for, isolating ones first."""
    ordered = sorted(incidents, key=lambda incident: not incident.isolate)
    return tuple(
        replace(incident, owner=NOBODY, victims=(), lines=(), notes=()) for incident in ordered[:MOST_INCIDENTS]
    )


def _gpu(gpu: GpuSnapshot, readouts: Readouts) -> GpuFacts:
    readout = readouts.read(gpu.parts)
    values: dict[Key, Number] = {
        key: value
        for part in gpu.parts
        for key, value in zip(part.keys, part.values, strict=True)
        if value is not None and key in _WANTED
    }
    up = [int(values[key]) for key in _LINKS_UP if key in values]
    return GpuFacts(
        number=gpu.number,
        uuid=gpu.identity.uuid,
        pci_bus_id=gpu.identity.pci_bus_id,
        name=gpu.identity.name,
        state=gpu.state,
        minor=gpu.identity.minor,
        reason=_cut(gpu.reason),
        recovery=_recovery(readout.recovery),
        remap_pending=readout.remap_pending,
        remap_failure=readout.remap_failure,
        sram_threshold=readout.sram_threshold,
        banks_empty=_whole(values.get(_BANKS_EMPTY)),
        fabric=tuple(issue for issue, holds in readout.fabric if holds),
        slowdowns=tuple(reason for key, reason in _SLOW.items() if values.get(key)),
        links_up=sum(up) if up else None,
        links_down=_whole(values.get(_LINKS_DOWN)),
        pcie_width=_whole(values.get(_WIDTH)),
        pcie_width_max=_whole(values.get(_WIDEST)),
    )


def _recovery(code: int | None) -> str | None:
    if code is None:
        return None
    return RECOVERY_MEMBERS[code] if code < len(RECOVERY_MEMBERS) else "unknown"


def _whole(value: Number | None) -> int | None:
    return None if value is None else int(value)


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:LONGEST_TEXT]
