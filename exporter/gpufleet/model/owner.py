"""Who holds a GPU or a MIG slice, and which part of the physical GPU that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpufleet.model.incident import Owner


class Hold(StrEnum):
    """What a part of a GPU is held by; the value is shown as its project, except for ``held``."""

    HELD = "held"
    UNALLOCATED = "(unallocated)"
    """Nobody has it."""
    UNSLICED = "(unsliced)"
    """The part of a GPU in MIG mode that no slice covers."""
    UNKNOWN = "(unknown)"
    """Whoever knows has not answered for too long: somebody may have it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A holder, by the names that the system which started it gave it; an empty text is unknown."""

    project: str = ""
    run: str = ""
    task: str = ""
    rank: str = ""
    attempt: str = ""
    workload_user: str = ""
    workload_job: str = ""
    """The scheduler's own number or name of the job."""
    workload_namespace: str = ""
    workload_pod: str = ""
    workload_container: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of the pod that the operator allowed, under the names that they are shown by, in their order."""

    @property
    def owner(self) -> Owner:
        """The same, as faults remember it."""
        return Owner(
            self.project,
            self.run,
            self.task,
            self.workload_namespace,
            self.workload_pod,
            self.workload_container,
        )


NOBODY = Workload()


@dataclass(frozen=True, slots=True)
class Holding:
    """A part of one GPU and its holder. The shares of one ``uuid`` sum to 1, what nobody holds included."""

    uuid: str
    """Of the physical GPU."""
    share: float
    """Of the whole GPU: the slice's fraction divided by its holders."""
    workload: Workload = NOBODY
    mig_uuid: str = ""
    """Empty for a whole GPU, and for what no slice covers."""
    hold: Hold = Hold.HELD

    @property
    def project(self) -> str:
        """What it is billed to."""
        return self.workload.project if self.hold is Hold.HELD else self.hold.value


@dataclass(frozen=True, slots=True)
class OwnersView:
    """Who holds what, as of one refresh; the same object until something changed."""

    holdings: tuple[Holding, ...] = ()
    """Sorted by uuid, slice and workload. A GPU of which there is none here has nobody who could know."""
    conflicts: int = 0
    """Refreshes of devices that two claims of equal standing could not both have; a total since the start."""
    refreshed_at: tuple[tuple[str, float], ...] = ()
    """(source, Unix time of its last answer)."""

    def owner_of(self, uuid: str) -> Owner:
        """The holder of a GPU; of several what they have in common."""
        owners = [
            holding.workload.owner for holding in self.holdings if holding.uuid == uuid and holding.hold is Hold.HELD
        ]
        if not owners:
            return Owner()
        first = owners[0]
        same = {name: all(getattr(each, name) == getattr(first, name) for each in owners) for name in _NAMES}
        return Owner(**{name: getattr(first, name) if same[name] else "" for name in _NAMES})


_NAMES = ("project", "run", "task", "workload_namespace", "workload_pod", "workload_container")
NO_OWNERS = OwnersView()
"""No source of owners is configured, or none has answered yet."""
