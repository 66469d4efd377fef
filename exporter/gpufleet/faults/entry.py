"""The terms of the catalogue: how a code is classed, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpufleet.model.fault import Action, Blame


class FaultClass(StrEnum):
    """How a code is classed, by the code alone. ``gpufleet faults --json`` prints these words."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    DRIVER_OR_FIRMWARE = "driver_or_firmware"
    EITHER = "either"
    """The code cannot tell: the application's fault or the GPU's."""
    INFORMATIONAL = "informational"
    """A consequence, a notice or a test: nobody's fault."""
    UNKNOWN = "unknown"
    """A code that is in no list."""


BLAMES = {
    FaultClass.HARDWARE: Blame.HARDWARE,
    FaultClass.APPLICATION: Blame.APPLICATION,
    FaultClass.DRIVER_OR_FIRMWARE: Blame.DRIVER,
    FaultClass.EITHER: Blame.UNKNOWN,
    FaultClass.INFORMATIONAL: Blame.UNKNOWN,
    FaultClass.UNKNOWN: Blame.UNKNOWN,
}
"""The one place where the words of the catalogue become those of incidents."""

METRIC_CLASSES = {
    **{each: blame.value for each, blame in BLAMES.items()},
    # Kept apart, so that a storm of consequences (Xid 45) does not look like one of unknown faults.
    FaultClass.INFORMATIONAL: "informational",
}
"""The words of the label ``class`` of the counters: those of incidents, and ``informational``."""


class Severity(StrEnum):
    """How far the damage goes."""

    BENIGN = "benign"
    CONTAINED = "contained"
    """One job is lost, the GPU goes on."""
    DEGRADED = "degraded"
    """Work goes on, with less or on borrowed time."""
    FATAL = "fatal"
    """The GPU, or everything on it, is lost."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a code means and what to do about it."""

    code: int | None
    name: str
    """A few words."""
    summary: str
    """One or two sentences: what happened."""
    fault_class: FaultClass
    action: Action
    severity: Severity
    remedy: str
    """What a person should do."""
    source: str
    """Where the facts are from."""
    isolates: bool = False
    """The GPU is of no use until the action is taken, whoever is to blame."""
    rank: int | None = None
    """Place in the order of roots: of the codes of one incident the one with the lowest number is the root. ``None``
    is never a root: it opens no incident by itself."""
    sticky: bool = False
    """Its echoes come for hours."""
    needs_repeat: bool = False
    """Says something about the hardware only when it comes again, with other work on the same GPU."""
    needs_victim: bool = False
    """A switch's word: isolates only when a GPU of that link reported it too (Xid 74 or 45, a link that is down)."""

    @property
    def blame(self) -> Blame:
        """Whose fault it is."""
        return BLAMES[self.fault_class]

    @property
    def refundable(self) -> bool:
        """Whether a run that it ended gets its retry back: only what no tenant can cause."""
        return self.fault_class is FaultClass.HARDWARE


_WEIGHT = {action: weight for weight, action in enumerate(Action)}


def heaviest(*actions: Action) -> Action:
    """The action that includes the others; none for none."""
    return max(actions, key=_WEIGHT.__getitem__, default=Action.NONE)
