"""Incidents: what a burst of events comes down to, as it is shown to people, rules and receivers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpufleet.model.fault import Action, Blame


class Scope(StrEnum):
    """The part that is to blame."""

    GPU = "gpu"
    SWITCH = "switch"
    NODE = "node"
    """Not one board: power, PCIe switch or baseboard, or a program that runs on all of them."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who held a GPU, as far as it is known; an empty text is unknown."""

    project: str = ""
    run: str = ""
    task: str = ""
    workload_namespace: str = ""
    workload_pod: str = ""
    workload_container: str = ""

    @property
    def tenant(self) -> str:
        """Who answers for what runs there: the project, else the namespace."""
        return self.project or self.workload_namespace


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class Victim:
    """Something that an incident took down or held up: a process, a GPU, or a process on a GPU."""

    pci_bus_id: str | None
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class FaultLabels:
    """The labels of ``gpu_fault_active`` in their order, and of the alert made of it; ``class_`` is ``class``."""

    node: str
    gpu: str
    uuid: str
    pci_bus_id: str
    incident: str
    fault: str
    class_: str
    action: str
    isolate: str
    refund: str
    project: str
    run: str
    task: str
    workload_namespace: str
    workload_pod: str
    workload_container: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One root cause, what it did, and what to do about it.

    Once it was shown (``shown_at``) everything that is in ``labels`` stays as it was; the rest goes on counting. Times
    are Unix times.
    """

    id: str
    """16 hexadecimal digits, fixed when the incident is opened."""
    node: str
    fault: str
    """The root: an Xid (``79``), ``sxid_20034``, ``gpu_lost``, or the name of a condition."""
    blame: Blame
    action: Action
    isolate: bool
    """The GPU can be used only after a reset, a reboot or a replacement, whoever is to blame."""
    refund: bool
    """A run that it ended gets its retry back."""
    opened_at: float
    """When the event happened that opened it."""
    last_at: float
    """Of the last event that belongs to it."""
    began_at: float
    """When the trouble began: before ``opened_at`` for one that took over from another."""
    root: str = ""
    """The root as it is seen now; ``fault`` is the one that was shown."""
    gpu: int | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    owner: Owner = NOBODY
    scope: Scope = Scope.GPU
    shown_at: float | None = None
    closed_at: float | None = None
    closed_because: str | None = None
    """For a person."""
    successor_of: str | None = None
    """The incident that this one took over from."""
    part_of: str | None = None
    """The first of the incidents that have one cause in the node."""
    counts: tuple[tuple[str, int], ...] = ()
    """Events by what they said, in the order of their coming; a peer's that only echo it begin with ``echo:``."""
    victims: tuple[Victim, ...] = ()
    """In the order of their coming, at most as many as are kept."""
    victims_left_out: int = 0
    text: str = ""
    """What the first line said."""
    lines: tuple[str, ...] = ()
    """The first line of each kind."""
    summary: str = ""
    """What the root means, in a sentence."""
    remedy: str = ""
    """What a person should do about the root."""
    notes: tuple[str, ...] = ()
    """What decided beside the root, in the order of weight: for a person."""

    @property
    def events(self) -> int:
        """How many lines and readings it stands for."""
        return sum(count for _, count in self.counts)

    def labels(self) -> FaultLabels:
        """What rules and receivers see."""
        owner = self.owner
        return FaultLabels(
            node=self.node,
            gpu="" if self.gpu is None else str(self.gpu),
            uuid=self.uuid or "",
            pci_bus_id=self.pci_bus_id or "",
            incident=self.id,
            fault=self.fault,
            class_=self.blame.value,
            action=self.action.value,
            isolate="true" if self.isolate else "false",
            refund="true" if self.refund else "false",
            project=owner.project,
            run=owner.run,
            task=owner.task,
            workload_namespace=owner.workload_namespace,
            workload_pod=owner.workload_pod,
            workload_container=owner.workload_container,
        )


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """How often a code was told since the node was booted."""

    code: int | None
    """``None`` stands for all codes beyond those that are told apart."""
    fault_class: str
    count: int
    uuid: str | None = None
    """``None`` for a switch, and for a GPU that was never enumerated in this boot."""
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True)
class FaultsView:
    """Everything about faults that is shown, as of one moment."""

    active: tuple[Incident, ...] = ()
    """Shown and not closed, in the order in which they were opened."""
    settling: tuple[Incident, ...] = ()
    """Open, and not shown yet: what they come down to is not certain."""
    closed: tuple[Incident, ...] = ()
    """The last ones that were closed or came to nothing, newest last."""
    xid_errors: tuple[ErrorCount, ...] | None = None
    """``None`` until everything that the kernel's log still has was read."""
    switch_errors: tuple[ErrorCount, ...] | None = None
    last_fault_at: tuple[tuple[str, float], ...] = ()
    """(UUID, Unix time of the last event that belongs to an incident)."""
    left_out: int = 0
    """Events that could not be followed because there were too many different ones."""


NO_FAULTS = FaultsView()
"""Nothing is known of faults."""
