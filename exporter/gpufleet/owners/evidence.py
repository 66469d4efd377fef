"""Everything that witnesses said, as of one refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.model.claims import ContainerDevices, GpuProcess, JobDevice, Pod, ProcessFacts


@dataclass(frozen=True, slots=True)
class Evidence:
    """The witnesses' last words."""

    containers: tuple[ContainerDevices, ...] | None = None
    """What the kubelet gave to containers; ``None``: nobody was asked, or the answer is too old."""
    pods: Mapping[tuple[str, str], Pod] = field(default_factory=dict)
    """By namespace and name."""
    pods_known: bool = False
    """``pods`` holds every pod of this node: one that is not in it does not exist (any more, or yet)."""
    jobs: tuple[JobDevice, ...] | None = None
    """Of jobs that run; ``None``: nobody was asked, or the answer is too old."""
    processes: Mapping[str, tuple[tuple[GpuProcess, ProcessFacts], ...]] = field(default_factory=dict)
    """By UUID of the physical GPU."""
    allocations_expected: bool = False
    """Somebody who hands GPUs out is asked: a GPU that nobody claims is then nobody's. Otherwise processes decide."""
    stale: bool = False
    """One of those has not answered for too long: a GPU that nobody claims may be somebody's."""
