"""Incidents and records of the quarantine, with everything that a test does not care about filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpufleet.quarantine.incident import Holder, Incident, Key, Scope
from gpufleet.quarantine.record import Decision, Record, Stage, Verdict

UUID = "GPU-5a7e2c1d-0f0e-4c55-9d3e-6d0b0f6b1a11"


def incident(node: str = "gpu-1", name: str = "i-1", **changes: Any) -> Incident:  # noqa: ANN401 - any field's value
    """An Xid 79 that a training pod was hit by."""
    holder = Holder("vision", "run-7", "train", "research", "train-0", "main")
    found = Incident(
        Key("prod", node, name),
        since=1_700_000_000.0,
        fault="79",
        blame="hardware",
        action="replace",
        isolate=True,
        refund=True,
        uuid=UUID,
        pci_bus_id="0000:3b:00.0",
        gpu="3",
        holders=(holder,),
    )
    return replace(found, **changes)


def record(told: Incident | None = None, stage: Stage = Stage.RESERVED, **changes: Any) -> Record:  # noqa: ANN401 - as above
    """What was decided of an incident: a quarantine, if nothing else is said."""
    told = told or incident()
    found = Record(
        told,
        Decision(Verdict.QUARANTINE, "isolate", "place 1 of 3"),
        decided_at=1_700_000_010.0,
        heard_at=1_700_000_010.0,
        node=told.key.node,
        scope=Scope.GPU,
        stage=stage,
        changed_at=1_700_000_010.0,
    )
    return replace(found, **changes)


def refused(told: Incident, at: float = 1_700_000_010.0) -> Record:
    """What was decided of an incident that is never acted on: closed at once."""
    return record(told, Stage.NONE, decision=Decision(Verdict.REFUSE, "stale"), decided_at=at, changed_at=at)
