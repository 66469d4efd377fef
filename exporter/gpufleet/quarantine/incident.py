"""Incidents as alerts tell of them: what broke, and who held it at that moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

EARLY_SECONDS = 5.0
"""A program may have ended so long before its exporter knew of the fault: it often sees it first."""


class Scope(StrEnum):
    """What a fault takes with it."""

    GPU = "gpu"
    """The pods that held the GPU."""
    NODE = "node"
    """Every pod on the node that holds a GPU: the bus, a switch or the driver itself is broken."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What tells incidents apart. Alertmanager's fingerprint does not: it changes with any label."""

    cluster: str
    """Empty where alerts name none."""
    node: str
    """As the alert has it, before the policy has turned it into a node's name."""
    incident: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.cluster, self.node, self.incident) if part)


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """Who held the GPU as of the fault; an empty text is unknown."""

    project: str = ""
    run: str = ""
    task: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""

    @property
    def is_pod(self) -> bool:
        """Whether it can be found in Kubernetes."""
        return bool(self.namespace and self.pod)

    @property
    def tenant(self) -> str:
        """Who answers for what runs there: the project, else the namespace."""
        return self.project or self.namespace


@dataclass(frozen=True, slots=True)
class Incident:
    """One hardware incident. Several alerts may tell of one, each with another holder."""

    key: Key
    since: float
    """When it was opened, Unix time: the alert's startsAt, which is only what its sender last claimed."""
    fault: str = ""
    """The root: an Xid (``79``), ``sxid_20034``, ``gpu_lost``, the name of a condition."""
    blame: str = ""
    """The label ``class``: hardware, application, driver or unknown."""
    action: str = ""
    isolate: bool = False
    refund: bool = False
    uuid: str = ""
    pci_bus_id: str = ""
    gpu: str = ""
    """The number of the GPU on its node; empty for a fault of the node."""
    holders: tuple[Holder, ...] = ()
    """Sorted, without doubles and without those of whom nothing is known."""
    labels: tuple[tuple[str, str], ...] = ()
    """All labels of the alert that told of it first, sorted: what a policy's matchers look at."""

    def joined(self, other: Incident) -> Incident:
        """The same incident with the holders of both tellings, and the earlier time."""
        return replace(self, since=min(self.since, other.since), holders=tuple(sorted({*self.holders, *other.holders})))
