"""Brings together what is one fault on several GPUs: echoes, one program on many, several GPUs off the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults import peers
from gpufleet.faults.condition_rows import RECOVERY
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import NOBODY, Victim

if TYPE_CHECKING:
    from gpufleet.faults.case import Case
    from gpufleet.faults.docket import Docket


def look_around(docket: Docket, case: Case) -> None:
    """See what a case that has just changed has to do with the others."""
    if case.frozen is None and settle_among(docket, case):
        return
    for other in list(docket.open.values()):
        if other is not case and other.frozen is None and peers.source_of(other, (case,)) is not None:
            case = absorb(docket, other, case)
    together = peers.off_the_bus_together(case, docket.open.values())
    for each in together:
        each.of_node = True
        each.part_of = None if each.id == together[0].id else together[0].id


def settle_among(docket: Docket, case: Case) -> bool:
    """Give a case that isn't shown yet to the one that it is part of; false when it stands for itself."""
    source = peers.source_of(case, docket.open.values())
    if source is not None:
        absorb(docket, case, source)
        return True
    same = peers.program_on_many(case, docket.open.values())
    if not same:
        return False
    first = same[0]
    first.of_application = True
    first.assess()
    for each in same[1:]:
        first = absorb(docket, each, first)
    return case.id not in docket.open


def absorb(docket: Docket, case: Case, into: Case) -> Case:
    """Make a case part of another one. The case that holds both now."""
    if case.frozen is None:
        docket.drop(case)
    else:
        docket.close(case, f"part of {into.id}", case.last_at)
    before = docket.open.get(case.successor_of or "")
    if before is not None and into.of_application:
        docket.close(before, f"part of {into.id}", case.last_at)
    # One that takes over gives away what is its own: the rest stays with the one before.
    whole = into.of_application or case.successor_of is None
    seen = case.seen if whole else case.fresh()
    asked = seen.get(RECOVERY)
    hit = [Victim(case.address or None), *(case.victims.values() if whole else ())]
    event = FaultEvent(FaultKind.CONDITION, case.last_at, "fold", pci_bus_id=case.address or None, condition=RECOVERY)

    def take(into: Case) -> None:
        for address in (case.address, *case.members):
            into.add_member(address)
        for token, count in (*((token, each.count) for token, each in seen.items()), *case.echoes.items()):
            into.add_echoes(token, count)
        for victim in hit:
            if victim.pid is not None or victim.pci_bus_id != into.address:
                into.add_victim(victim)
        into.victims_left_out += case.victims_left_out
        if not peers.CONFIRMING.isdisjoint(seen) and into.switch:
            into.confirmed = True
            if into.uuid is None:
                # A switch has no holder: the first GPU that its fault hit names the run that lost by it.
                into.uuid, into.gpu = case.uuid, case.gpu
                into.owner = into.owner if into.owner != NOBODY else case.owner
        for address, at in case.asking.items() if asked is not None else ():
            into.asking.setdefault(address, at)
        into.last_at = max(into.last_at, case.last_at)
        into.began_at = min(into.began_at, case.began_at)
        if asked is not None:
            into.note(event, asked.verdict, 0)

    return docket.change(into, take, event, RECOVERY)
