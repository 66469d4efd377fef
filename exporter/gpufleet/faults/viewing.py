"""The ledger as it is shown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults.telling import incident_of
from gpufleet.model.incident import FaultsView

if TYPE_CHECKING:
    from gpufleet.faults.counts import Counts
    from gpufleet.faults.docket import Docket
    from gpufleet.model.incident import Incident

_MOST_BOARDS = 64


def make_view(
    docket: Docket, counts: Counts, last_faults: dict[str, float], *, complete: bool, left_out: int
) -> FaultsView:
    """Everything to show, counts when ``complete``; ``last_faults`` (by UUID) is brought up to date on the way."""
    node = docket.world.node
    told = [(case, incident_of(case, node)) for case in docket.open.values()]
    told.sort(key=lambda each: (each[1].opened_at, each[1].id))
    for incident in (*docket.closed, *(incident for _, incident in told)):
        _note(last_faults, incident)
    boards = docket.world.roster.boards
    return FaultsView(
        active=tuple(incident for case, incident in told if case.frozen is not None),
        settling=tuple(incident for case, incident in told if case.frozen is None and case.judged.root is not None),
        closed=tuple(docket.closed),
        xid_errors=counts.xid_errors(boards.get) if complete else None,
        switch_errors=counts.switch_errors() if complete else None,
        last_fault_at=tuple(sorted(last_faults.items())),
        left_out=left_out + docket.left_out,
    )


def _note(last_faults: dict[str, float], incident: Incident) -> None:
    if incident.uuid is None or incident.shown_at is None:
        return
    last_faults[incident.uuid] = max(last_faults.get(incident.uuid, 0.0), incident.last_at)
    if len(last_faults) > _MOST_BOARDS:
        del last_faults[min(last_faults, key=last_faults.__getitem__)]
