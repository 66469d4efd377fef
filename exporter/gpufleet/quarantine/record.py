"""What was decided of an incident, and how far it was carried out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpufleet.quarantine.incident import Incident, Key, Scope


class Verdict(StrEnum):
    """The decision; the label ``decision`` of gpufleet_quarantine_decisions_total."""

    QUARANTINE = "quarantine"
    """A place within the budget is taken: the node goes out, or is out already."""
    JOIN = "join"
    """The node is out for another incident of ours: this one adds its holders and its reason, and no place."""
    PLAN = "plan"
    """The policy does not act: this is what would be done."""
    DEFER = "defer"
    """Not now (budget, breaker, a cap, a node that cannot be seen); asked again with each round."""
    REFUSE = "refuse"
    """Never: the node is unknown or opted out, the fault is too old, the alert is not one of the policy's."""
    SUPPRESS = "suppress"
    """A person has released this incident before."""


class Stage(StrEnum):
    """How far a quarantine is."""

    NONE = "none"
    """Nothing is to be done."""
    RESERVED = "reserved"
    """The place is taken and the node is not marked yet."""
    MARKED = "marked"
    """The node bears our mark; its pods are not all dealt with."""
    HELD = "held"
    """Everything is done that can be; it stays until a person acts."""
    RELEASING = "releasing"
    """A person wants it back; our mark is not off yet."""
    RELEASED = "released"
    """Our mark is off. The incident is remembered and never comes back."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and why."""

    verdict: Verdict
    reason: str
    """A word in snake case: a label's value."""
    detail: str = ""
    """A sentence with the figures, for people."""


@dataclass(frozen=True, slots=True)
class Step:
    """One write, or one that was not made, and what came of it."""

    action: str
    """``cordon``, ``condition``, ``event``, ``evict``, ``strip_finalizer``, ``refund``, ``requeue``, ``drain``, …"""
    target: str
    """``node/NAME``, ``pod/NAMESPACE/NAME@UID``, ``job/NAMESPACE/NAME``, ``slurm-job/NUMBER``."""
    outcome: Outcome
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it need not be tried again."""
        return self.outcome not in {Outcome.BLOCKED, Outcome.FAILED}


class Outcome(StrEnum):
    """What came of a write; the label ``outcome`` of gpufleet_quarantine_actions_total."""

    DONE = "done"
    ALREADY = "already"
    """It was so before: nothing was written."""
    GONE = "gone"
    """What it was meant for is no longer there: the goal is reached."""
    BLOCKED = "blocked"
    """Not now (a disruption budget); tried again."""
    REFUSED = "refused"
    """Never: a rule of ours forbids it (a DaemonSet's pod, a foreign reason, a cap)."""
    FAILED = "failed"
    """The other side could not be reached or said no; tried again."""
    PLANNED = "planned"
    """Dry run: it would have been written."""


@dataclass(frozen=True, slots=True)
class Record:
    """An incident in the ledger."""

    incident: Incident
    decision: Decision
    decided_at: float
    """Unix time; of the last decision."""
    heard_at: float = 0.0
    """When its alert was last told as firing, to a day."""
    node: str = ""
    """The node's name, by the policy's rule."""
    pool: str = ""
    scope: Scope | None = None
    stage: Stage = Stage.NONE
    changed_at: float = 0.0
    """When the stage last changed."""
    resolved_at: float | None = None
    """When the alert was last told as resolved: never a reason to act."""
    marked_at: float | None = None
    """When the node was marked."""
    was_cordoned: bool = False
    """Somebody else had taken the node out before: it stays so after our release."""
    refunded: tuple[str, ...] = ()
    """UIDs of pods whose lost retry was given back, sorted."""
    steps: tuple[Step, ...] = ()
    """The last outcome of each (action, target), oldest first."""
    released_by: str = ""

    @property
    def key(self) -> Key:
        """Whose record it is."""
        return self.incident.key

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is to be done for it, unless it is told of again."""
        waits = self.stage is Stage.NONE and self.decision.verdict is Verdict.DEFER
        return self.stage in {Stage.NONE, Stage.RELEASED} and not waits

    @property
    def takes_place(self) -> bool:
        """Whether it counts against the budget."""
        return self.stage in {Stage.RESERVED, Stage.MARKED, Stage.HELD, Stage.RELEASING}
