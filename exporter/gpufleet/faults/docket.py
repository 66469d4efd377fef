"""The open cases and the last closed ones: opening, changing, closing, and making room. State, bounded in every way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.faults.assessment import escalates
from gpufleet.faults.case import Case
from gpufleet.faults.condition_rows import STANDING
from gpufleet.faults.identity import incident_id
from gpufleet.faults.repeats import Repeats
from gpufleet.faults.roster import Roster
from gpufleet.faults.telling import incident_of
from gpufleet.model.fault import FaultKind
from gpufleet.model.incident import NOBODY, Incident, Owner

if TYPE_CHECKING:
    from gpufleet.model.fault import FaultEvent

MOST_OPEN = 48
MOST_OPEN_OF_A_GPU = 4
"""… that need no cure: a job that fails every few minutes must not pile them up."""
MOST_ADDRESSES = 64
MOST_CLOSED = 64
OWNER_SECONDS = 60.0
"""Who holds a GPU now is not who held it when an older event happened."""


@dataclass(slots=True)
class World:
    """What the fold has to know beside the events; the ledger keeps it up to date."""

    node: str
    boot_id: str | None
    random_id: Callable[[], str]
    owner_of: Callable[[str], Owner]
    driver: str | None = None
    roster: Roster = field(default_factory=Roster)
    repeats: Repeats = field(default_factory=Repeats)


class Docket:
    """Cases by id, and by each address that has part in them."""

    def __init__(self, world: World, keep_closed: int = MOST_CLOSED) -> None:
        self.world = world
        self.revision = 0
        """Moves whenever there is a case more or less, or one is shown."""
        self.changes = 0
        """Moves whenever a case may have become due sooner."""
        self.left_out = 0
        """Events for which there was no room."""
        self.open: dict[str, Case] = {}
        self.closed: deque[Incident] = deque(maxlen=keep_closed)
        self._by_address: dict[str, list[Case]] = {}

    def of(self, address: str) -> list[Case]:
        """Open cases that an address has part in, oldest first, without those that another takes over from."""
        return [case for case in self._by_address.get(address, ()) if case.yielded_to is None]

    def start(self, event: FaultEvent, token: str, now: float) -> Case | None:
        """A case opened by an event; the open one of that name when there is one; None when there must not be one."""
        address = event.pci_bus_id or ""
        board = self.world.roster.at(address)
        uuid = None if board is None else board.uuid
        name = self._name(event, uuid, token)
        if name in self.open:
            return self.open[name]
        if event.sequence is not None and any(incident.id == name for incident in self.closed):
            return None  # the kernel's log is read again, and this was over
        if not self._make_room(address, event.at):
            self.left_out += 1
            return None
        is_known = uuid is not None and now - event.at <= OWNER_SECONDS
        case = Case(
            id=name,
            address=address,
            opened_at=event.at,
            began_at=event.at,
            last_at=event.at,
            lineage=name,
            switch=event.kind is FaultKind.SXID,
            uuid=uuid,
            gpu=None if board is None else board.gpu,
            owner=self.world.owner_of(uuid) if is_known and uuid is not None else NOBODY,
        )
        self.keep(case)
        return case

    def change(self, case: Case, change: Callable[[Case], None], event: FaultEvent, token: str) -> Case:
        """Apply ``change``, which ``event`` brings about; to a successor when that says more than what was shown.

        Returns the case that holds it now. A successor is shown in its turn, and closes this one then.
        """
        self.changes += 1
        if case.frozen is None:
            change(case)
            case.assess()
            self.index(case)
            return case
        trial = case.copy()
        trial.fresh_from = event.at
        change(trial)
        if not escalates(case.frozen, trial.assess()):
            change(case)
            case.assess()
            self.index(case)
            return case
        trial.id = self._name(event, case.uuid, token)
        if trial.id in self.open:
            trial.id = self._name(event, None, token)
        trial.frozen = None
        trial.successor_of = case.id
        trial.opened_at = event.at
        trial.assess()
        case.yielded_to = trial.id
        self.keep(trial)
        return trial

    def keep(self, case: Case) -> None:
        """Take a case in."""
        self.open[case.id] = case
        self.index(case)
        self.revision += 1

    def index(self, case: Case) -> None:
        """Find a case by its address and those of its members."""
        for address in (case.address, *case.members):
            there = self._by_address.setdefault(address, [])
            if not any(each is case for each in there):
                there.append(case)

    def drop(self, case: Case) -> None:
        """Forget a case without a word."""
        if self.open.pop(case.id, None) is None:
            return
        self._unindex(case)
        before = self.open.get(case.successor_of or "")
        if before is not None and before.yielded_to == case.id:
            before.yielded_to = None
        self.revision += 1

    def move(self, case: Case, address: str, gpu: int | None) -> None:
        """The board of a case is in another slot: what a person reads and later events have to find it there."""
        self._unindex(case)
        case.address, case.gpu = address, gpu
        self.index(case)
        self.revision += 1

    def close(self, case: Case, because: str, at: float) -> None:
        """Close a case, and keep what it was for a while."""
        self.drop(case)
        if case.frozen is not None or case.judged.root is not None:
            self.closed.append(incident_of(case, self.world.node, closed_at=at, because=because))

    def was_closed(self, address: str, token: str) -> bool:
        """Whether one of the last closed incidents of an address had such an event."""
        return any(
            incident.pci_bus_id == address and any(name == token for name, _ in incident.counts)
            for incident in self.closed
        )

    def _unindex(self, case: Case) -> None:
        for address in {case.address, *case.members}:
            there = [each for each in self._by_address.get(address, ()) if each is not case]
            if there:
                self._by_address[address] = there
            else:
                self._by_address.pop(address, None)

    def _name(self, event: FaultEvent, uuid: str | None, token: str) -> str:
        return incident_id(
            boot_id=self.world.boot_id,
            pci_bus_id=event.pci_bus_id,
            sequence=event.sequence,
            standing=(uuid, token) if token in STANDING and uuid is not None else None,
            random_id=self.world.random_id,
            taken=self.open.keys() | {incident.id for incident in self.closed},
        )

    def _make_room(self, address: str, at: float) -> bool:
        if address not in self._by_address and len(self._by_address) >= MOST_ADDRESSES:
            return False
        harmless = [case for case in self.open.values() if not case.isolates and case.yielded_to is None]
        here = [case for case in harmless if case.address == address]
        if len(here) >= MOST_OPEN_OF_A_GPU:
            self.close(here[0], "closed early: there are many newer ones on this GPU", at)
        elif len(self.open) >= MOST_OPEN:
            if not harmless:
                return False
            self.close(harmless[0], "closed early: there are many newer ones on this node", at)
        return True
