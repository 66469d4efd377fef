"""One immutable picture of a node, published whole after a poll and never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpufleet.model.claims import GpuProcess
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.incident import NO_FAULTS, FaultsView
from gpufleet.model.meter import NO_METER, MeterView
from gpufleet.model.nic import NicPort
from gpufleet.model.owner import NO_OWNERS, OwnersView
from gpufleet.model.readings import Readings
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.model.training import TrainingRow


@dataclass(frozen=True, slots=True)
class SliceSnapshot:
    """A MIG slice and what it reported."""

    identity: SliceIdentity
    parts: tuple[Readings, ...]


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU: who it is, how it is, and what it reported.

    ``parts`` (driver readings) is empty unless ``state`` is ``ok``; ``standing`` (fault counts) stays while it is down.
    """

    number: int
    """Value of the label ``gpu``: kept per UUID for the boot."""
    identity: GpuIdentity
    state: GpuState
    polled_at: float | None
    """Unix time of the last poll that succeeded; ``None`` before the first."""
    parts: tuple[Readings, ...] = ()
    standing: tuple[Readings, ...] = ()
    slices: tuple[SliceSnapshot, ...] = ()
    utilization_basis: str | None = None
    """``sm``, ``gpu``, ``tensor`` or ``None`` (nothing reported): which reading stands for utilization."""
    reason: str | None = None
    """Why ``state`` is not ``ok``, for a person: the call and the driver's words."""
    processes: tuple[GpuProcess, ...] | None = None
    """Processes that have a context on it, slices included; ``None``: not told. The same object until one changes."""


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """Whether one source answered when it was last asked."""

    source: str
    up: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PollHealth:
    """How the poll itself went; counts are totals since the process started."""

    duration_seconds: float = 0.0
    nvml_errors: tuple[tuple[str, int], ...] = ()
    """(return code's name in lower case, count)."""
    invalid_readings: tuple[tuple[str, int], ...] = ()
    """(reading's name, values dropped because they can't be true)."""
    polls: int = 0
    gaps: int = 0
    """Polls that came more than five intervals after the one before; nothing is integrated over such a gap."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The machine that the snapshot is of."""

    node: str
    boot_id: str | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a scrape shows, as of one poll."""

    sequence: int
    at: float
    """Unix time at which it was published."""
    monotonic: float
    """The same moment on the monotonic clock: age is measured with this one."""
    node: NodeIdentity
    nvml_state: NvmlState
    gpus: tuple[GpuSnapshot, ...] = ()
    gpus_expected: int | None = None
    """GPUs that the kernel driver or an earlier enumeration of this boot knows."""
    gpus_visible: int | None = None
    """GPUs that answer now."""
    quiesced: bool = False
    poll: PollHealth = field(default_factory=PollHealth)
    sources: tuple[SourceHealth, ...] = ()
    faults: FaultsView = NO_FAULTS
    owners: OwnersView = NO_OWNERS
    meter: MeterView = NO_METER
    training: tuple[TrainingRow, ...] = ()
    """Training processes that report, by run and rank."""
    nics: tuple[NicPort, ...] = ()
    """Ports of RDMA adapters, by adapter and number."""
    reason: str | None = None
    """Why ``nvml_state`` is not ``ok``, for a person, with the remedy."""
