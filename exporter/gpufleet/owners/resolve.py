"""Who holds what: the witnesses weighed."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.model.owner import Hold, Holding, Workload
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import Devices
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.identity import Identities

__all__ = ["Conflict", "Identities", "Resolution", "resolve"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that several can't have at once and do claim, with equal right; it was split among them."""

    uuid: str
    mig_uuid: str
    workloads: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Who holds what, as of one refresh."""

    holdings: tuple[Holding, ...]
    """Sorted by uuid, slice, hold and workload; the shares of each uuid sum to 1."""
    conflicts: tuple[Conflict, ...]
    unknown_devices: int = 0
    """Ids of GPUs that are not on this node."""


def resolve(
    devices: Devices, evidence: Evidence, config: OwnersConfig, identities: Identities | None = None
) -> Resolution:
    """Holders of every device. ``identities`` remembers from one refresh to the next what pods are called."""
    hold = Hold.UNKNOWN if evidence.stale else Hold.UNALLOCATED
    return Resolution(tuple(Holding(gpu.uuid, 1.0, hold=hold) for gpu in devices.gpus), ())
