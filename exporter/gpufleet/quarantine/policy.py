"""What the quarantine may do: the one file that its operator writes, as facts. Pure; policy_file reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpufleet.quarantine.incident import Incident, Scope
from gpufleet.quarantine.matchers import Matcher

if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR, DAY = 3600.0, 86400.0


class Mode(StrEnum):
    """Whether anything is written outside the ledger."""

    DRY_RUN = "dry-run"
    ACT = "act"


class Platform(StrEnum):
    """What runs the nodes."""

    KUBERNETES = "kubernetes"
    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class AlertRules:
    """Which alerts are the quarantine's, and how they name things."""

    matchers: tuple[Matcher, ...] = (
        Matcher("alertname", "=", "GpuHardwareIncident"),
        Matcher("quarantine", "=", "node"),
    )
    """All must hold."""
    cluster_label: str = "cluster"
    cluster: str = ""
    """Alerts of other clusters are left to others; empty takes those of all."""
    node_label: str = "node"
    short_names: bool = False
    """A node's name ends at its first dot, though alerts say more."""
    stale_after: float = DAY
    """Seconds; an incident that is older than this when it is first heard of is not acted on."""

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert with such labels is the quarantine's."""
        return all(matcher.matches(labels) for matcher in self.matchers) and (
            not self.cluster or labels.get(self.cluster_label, "") == self.cluster
        )

    def node_name(self, label: str) -> str:
        """The node's name of what the alert's label says."""
        return label.partition(".")[0] if self.short_names else label


@dataclass(frozen=True, slots=True)
class Budget:
    """How many nodes of one pool may be out."""

    share: float = 0.10
    """Ours at once, of the pool …"""
    most: int = 3
    """… but at most so many …"""
    most_share: float = 0.02
    """… or this share of the pool, where that is more."""
    out_share: float = 0.20
    """Out by anyone, ours included."""
    new: int = 2
    """New ones in ``window``, in all pools together."""
    window: float = 600.0
    """Seconds."""

    def ours(self, pool: int) -> int:
        """Nodes of a pool of this size that may be quarantined at once. One is always possible."""
        return max(1, min(int(self.share * pool + _EPSILON), max(self.most, int(self.most_share * pool + _EPSILON))))

    def out(self, pool: int) -> int:
        """Nodes of a pool of this size that may be out by anyone when one more is taken."""
        return max(1, int(self.out_share * pool + _EPSILON))


@dataclass(frozen=True, slots=True)
class Breaker:
    """When faults are too many to be faults of single nodes."""

    same_fault_nodes: int = 3
    """Distinct nodes with one fault within the window."""
    pool_share: float = 0.20
    """More than this share of a pool's nodes with any fault within the window; two nodes at least."""
    window: float = 600.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Owners:
    """What one tenant can bring about."""

    most_nodes: int = 1
    """Nodes within ``window`` that go out for one tenant's faults, where the fault's class is not hardware."""
    window: float = DAY
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Retries:
    """What is done for the runs on a broken GPU."""

    move: bool = True
    """Evict the pods that held it, or requeue the job."""
    strip_finalizer: bool = True
    """For Jobs without a policy for disruptions: take the pod out of the Job's count first."""
    refund: bool = True
    """Give back retries that are lost already."""
    most_per_incident: int = 8
    most_per_job: int = 24
    peer_seconds: float = 60.0
    """A peer of the run that failed so soon after the fault failed of it."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """How nodes are known."""

    pool_label: str = "gpufleet.io/pool"
    """Nodes with one value of it are one pool; those without it are one, too."""
    gpu_label: str = "nvidia.com/gpu.present"
    """Has the value true on a node with GPUs whose capacity does not say so (the device plugin is down)."""
    opt_out_label: str = "gpufleet.io/quarantine"
    """With the value ``ignore`` a node or a namespace is left alone."""
    taint: str = "gpufleet.io/quarantine"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the ledger lies."""

    namespace: str = ""
    """Of the ConfigMaps; empty: the service's own."""
    name: str = "gpufleet-quarantine"
    file: str = "/var/lib/gpufleet/quarantine/ledger.json"
    """On Slurm."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole file. Without one, everything is looked at and nothing done."""

    mode: Mode = Mode.DRY_RUN
    platform: Platform = Platform.KUBERNETES
    alerts: AlertRules = field(default_factory=AlertRules)
    node_faults: tuple[str, ...] = ("sxid_*", "gpu_missing")
    """Patterns of faults that take the whole node with them."""
    nodes: Nodes = field(default_factory=Nodes)
    budget: Budget = field(default_factory=Budget)
    breaker: Breaker = field(default_factory=Breaker)
    owners: Owners = field(default_factory=Owners)
    retries: Retries = field(default_factory=Retries)
    ledger: Ledger = field(default_factory=Ledger)

    def scope(self, incident: Incident) -> Scope:
        """What the fault takes with it: without a GPU in the alert it is the node, too."""
        of_node = not incident.uuid or any(fnmatchcase(incident.fault, pattern) for pattern in self.node_faults)
        return Scope.NODE if of_node else Scope.GPU


# 0.1 * 30 is a hair less than 3 in binary; a share that is meant to be whole is.
_EPSILON = 1e-9
