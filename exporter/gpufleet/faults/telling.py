"""A case as the incident that is shown: what was shown stays, the rest is as of now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults.case import OTHER
from gpufleet.model.incident import Incident, Scope

if TYPE_CHECKING:
    from gpufleet.faults.case import Case

ECHO = "echo:"
"""Before the token of a peer's events."""


def incident_of(case: Case, node: str, *, closed_at: float | None = None, because: str | None = None) -> Incident:
    """What there is to say about a case."""
    assessed, shown = case.judged, case.frozen
    root = assessed.root
    token = "unclear" if root is None else root.token
    counts = [(token, seen.count) for token, seen in case.seen.items()]
    counts += [(OTHER, case.rest)] if case.rest else []
    counts += [(ECHO + token, count) for token, count in case.echoes.items()]
    texts = case.texts
    return Incident(
        id=case.id,
        node=node,
        fault=token if shown is None else shown.fault,
        blame=assessed.blame if shown is None else shown.blame,
        action=assessed.action if shown is None else shown.action,
        isolate=assessed.isolate if shown is None else shown.isolate,
        refund=assessed.refund if shown is None else shown.refund,
        opened_at=case.opened_at,
        last_at=case.last_at,
        began_at=case.began_at,
        root=token,
        gpu=case.gpu,
        uuid=case.uuid,
        pci_bus_id=case.address or None,
        owner=case.owner,
        scope=_scope(case),
        shown_at=None if shown is None else shown.at,
        closed_at=closed_at,
        closed_because=because,
        successor_of=case.successor_of,
        part_of=case.part_of,
        counts=tuple(counts),
        victims=tuple(case.victims.values()),
        victims_left_out=case.victims_left_out,
        text=texts[0] if texts else "",
        lines=tuple(texts),
        summary="" if root is None else root.summary,
        remedy="" if root is None else root.remedy,
        notes=assessed.notes,
    )


def _scope(case: Case) -> Scope:
    if case.of_node or case.of_application or not case.address:
        return Scope.NODE
    return Scope.SWITCH if case.switch else Scope.GPU
