"""A case: everything that is known of one incident while it is open. State only; what follows from it is elsewhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from gpufleet.faults.assessment import Assessment, assess
from gpufleet.faults.verdict import Verdict
from gpufleet.model.fault import Action, Blame, FaultEvent
from gpufleet.model.incident import NOBODY, Owner, Victim

MOST_VICTIMS = 16
MOST_TOKENS = 8
MOST_MEMBERS = 24
_MOST_LINKS = 18
"""What one case keeps of each; a flood of different things is counted, not kept."""
OTHER = "other"
"""What peers say beyond ``MOST_TOKENS`` is counted under this."""
_LONGEST_TEXT = 200
_LONGEST_NAME = 64


@dataclass(slots=True)
class Seen:
    """Events of one token."""

    verdict: Verdict
    """The heaviest of theirs."""
    count: int
    first_at: float
    last_at: float
    text: str = ""
    """Of the first."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What was shown: it stays so."""

    at: float
    fault: str
    blame: Blame
    action: Action
    isolate: bool
    refund: bool


@dataclass(slots=True)
class Case:
    """One open incident."""

    id: str
    address: str
    """PCI address of the GPU or the switch; empty for the node."""
    opened_at: float
    began_at: float
    last_at: float
    lineage: str = ""
    """The first id of this incident and of those that took over from it."""
    switch: bool = False
    uuid: str | None = None
    gpu: int | None = None
    owner: Owner = NOBODY
    seen: dict[str, Seen] = field(default_factory=dict)
    rest: int = 0
    """Events of kinds that are not told apart any more."""
    echoes: dict[str, int] = field(default_factory=dict)
    """Events of peers that only follow from this fault, by token."""
    members: list[str] = field(default_factory=list)
    """Addresses of those peers."""
    victims: dict[str, Victim] = field(default_factory=dict)
    victims_left_out: int = 0
    asking: dict[str, float] = field(default_factory=dict)
    """GPUs for which the driver asks for a recovery action, and since when."""
    cured: list[str] = field(default_factory=list)
    """GPUs that have been reset since their last event."""
    unit: str = ""
    """Place in the GPU that its first exception names."""
    links: list[int] = field(default_factory=list)
    """Numbers of the links that its own lines name."""
    fresh_from: float = 0.0
    """Of one that takes over: what happened before has been shown already."""
    earlier_boot: bool = False
    """Nothing of it happened in this boot."""
    assessed: Assessment | None = field(default=None, compare=False, metadata={"stored": False})
    frozen: Frozen | None = None
    successor_of: str | None = None
    yielded_to: str | None = None
    """A case that takes over from this one as soon as it is shown."""
    part_of: str | None = None
    of_node: bool = False
    """Several GPUs fell off the bus together."""
    of_application: bool = False
    """One program's fault on several GPUs."""
    confirmed: bool = False
    """A GPU reported what a switch reports."""
    suspect: bool = False
    """Faults of several tenants point to the GPU."""
    capped: bool = False
    """Would isolate, but this owner has had enough of that."""

    def note(self, event: FaultEvent, verdict: Verdict, count: int = 1) -> None:
        """Add an event; ``count`` is 0 for one that was counted already."""
        seen = self.seen.get(verdict.token)
        if seen is None:
            if not self._has_room(verdict):
                self.rest += count
                self.touch(event)
                return
            seen = Seen(verdict, 0, event.at, event.at, event.text[:_LONGEST_TEXT])
            self.seen[verdict.token] = seen
        if verdict is not seen.verdict and verdict.weight > seen.verdict.weight:
            seen.verdict = verdict
        seen.count += count
        if event.at < seen.first_at:
            seen.first_at, seen.text = event.at, event.text[:_LONGEST_TEXT]
        seen.last_at = max(seen.last_at, event.at)
        if event.link is not None and event.link not in self.links and len(self.links) < _MOST_LINKS:
            self.links.append(event.link)
        if event.unit is not None and not self.unit:
            self.unit = event.unit[:_LONGEST_NAME]
        self.touch(event)

    def knows(self, event: FaultEvent, verdict: Verdict) -> bool:
        """Whether an event is one more of the same: it changes nothing but the count."""
        seen = self.seen.get(verdict.token)
        if seen is None:
            return len(self.seen) >= MOST_TOKENS and verdict.weight <= self._lightest().verdict.weight
        if event.at < seen.first_at:
            return False
        return verdict is seen.verdict or verdict.weight <= seen.verdict.weight

    def _lightest(self) -> Seen:
        return min(self.seen.values(), key=lambda seen: seen.verdict.weight)

    def _has_room(self, verdict: Verdict) -> bool:
        """Whether another kind of event can be told apart: what asks for least gives way."""
        if len(self.seen) < MOST_TOKENS:
            return True
        lightest = self._lightest()
        if verdict.weight <= lightest.verdict.weight:
            return False
        self.rest += self.seen.pop(lightest.verdict.token).count
        return True

    def note_echo(self, event: FaultEvent, token: str, count: int = 1) -> None:
        """Add an event of a peer that follows from this fault."""
        self.add_echoes(token, count)
        self.touch(event)

    def add_echoes(self, token: str, count: int) -> None:
        """Count events of a peer."""
        if token not in self.echoes and len(self.echoes) >= MOST_TOKENS:
            token = OTHER
        self.echoes[token] = self.echoes.get(token, 0) + count

    def touch(self, event: FaultEvent) -> None:
        """Something happened: move the time on, and keep who was hit."""
        self.began_at = min(self.began_at, event.at)
        self.last_at = max(self.last_at, event.at)
        self.earlier_boot = False
        address = event.pci_bus_id or ""
        if address in self.cured:
            self.cured.remove(address)
        if event.pid is not None:
            self.add_victim(
                Victim(
                    event.pci_bus_id,
                    event.pid,
                    None if event.process is None else event.process[:_LONGEST_NAME],
                    event.gpu_instance,
                )
            )

    def add_victim(self, victim: Victim) -> None:
        """Keep a victim once; of a flood the first are kept."""
        key = f"{victim.pci_bus_id} {victim.pid} {victim.process}"
        if key in self.victims:
            return
        if len(self.victims) >= MOST_VICTIMS:
            self.victims_left_out += 1
        else:
            self.victims[key] = victim

    def add_member(self, address: str) -> bool:
        """Take a peer in; false when there are too many."""
        if address in self.members or address == self.address:
            return True
        if len(self.members) >= MOST_MEMBERS:
            return False
        self.members.append(address)
        return True

    def copy(self) -> Case:
        """A case of its own with the same facts."""
        return copy.deepcopy(self)

    def assess(self) -> Assessment:
        """Judge it anew."""
        self.assessed = assessed = assess(self)
        return assessed

    @property
    def judged(self) -> Assessment:
        """What it comes down to."""
        return self.assessed or self.assess()

    def fresh(self) -> dict[str, Seen]:
        """What has happened since it was opened: for one that takes over, without what had been shown before."""
        return {token: seen for token, seen in self.seen.items() if seen.last_at >= self.fresh_from}

    @property
    def started_at(self) -> float:
        """When what is its own began."""
        return self.began_at if self.successor_of is None else self.opened_at

    @property
    def due(self) -> float | None:
        """When it is to be shown; ``None`` when it was, or when nothing in it makes an incident."""
        return None if self.frozen is not None else self.judged.due

    @property
    def action(self) -> Action:
        """What cures it: what was shown, as long as that holds."""
        return self.frozen.action if self.frozen is not None else self.judged.action

    @property
    def isolates(self) -> bool:
        """Whether the GPU waits for a cure."""
        return self.frozen.isolate if self.frozen is not None else self.judged.isolate

    @property
    def texts(self) -> list[str]:
        """The first line of each kind, in the order of their times."""
        return [seen.text for seen in sorted(self.seen.values(), key=lambda seen: seen.first_at) if seen.text]
