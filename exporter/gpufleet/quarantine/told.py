"""The ledger and replays in words, for people at a terminal. Pure."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from gpufleet.quarantine.record import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.record import Record
    from gpufleet.quarantine.replay import Event


def moment(seconds: float) -> str:
    """A Unix time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def printable(text: str) -> str:
    """A text from outside that cannot do anything to a terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, each column as wide as its widest text."""
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def listed(book: Book, *, everything: bool) -> str:
    """The nodes that are out or wait, or every record that is kept; the breaker first where it is open."""
    records = [
        record
        for record in book.records.values()
        if everything or record.takes_place or record.decision.verdict in {"defer", "plan"}
    ]
    records.sort(key=lambda record: (record.decided_at, record.key))
    lines = ""
    if book.tripped is not None:
        lines = (
            f"The breaker is open since {moment(book.tripped.at)}: {printable(book.tripped.detail)}.\n"
            "No further node goes out until `gpufleet quarantine reset-breaker`.\n\n"
        )
    if not records:
        return lines + ("No incident is on record.\n" if everything else "No node is quarantined, and none waits.\n")
    return lines + columns(("NODE", "STATE", "FAULT", "GPU", "SINCE", "HELD BY", "INCIDENT", "WHY"), map(_row, records))


def _row(record: Record) -> tuple[str, ...]:
    incident = record.incident
    state = str(record.decision.verdict) if record.stage is Stage.NONE else str(record.stage)
    runs = sorted({holder.run or holder.pod or holder.project for holder in incident.holders} - {""})
    return (
        record.node,
        state,
        incident.fault or "-",
        incident.gpu or "-",
        moment(incident.since),
        ",".join(runs) or "-",
        incident.key.incident,
        record.decision.reason,
    )


def shown(records: Iterable[Record]) -> str:
    """Everything that is known of some records."""
    return "\n".join("".join(_lines(record)) for record in records)


def _lines(record: Record) -> Iterator[str]:
    incident = record.incident
    facts = {
        "node": record.node,
        "incident": str(incident.key),
        "fault": f"{incident.fault} ({incident.blame}), action {incident.action}",
        "gpu": " ".join(part for part in (incident.gpu, incident.uuid, incident.pci_bus_id) if part) or "-",
        "since": moment(incident.since),
        "decision": f"{record.decision.verdict} ({record.decision.reason}): {record.decision.detail}",
        "decided": moment(record.decided_at),
        "stage": f"{record.stage} since {moment(record.changed_at)}",
    }
    if record.was_cordoned:
        facts["before"] = "the node was out already, by somebody else, and stays so after a release"
    if record.resolved_at is not None:
        facts["resolved"] = f"{moment(record.resolved_at)}: the alert has ended; the node waits for a person"
    if record.released_by:
        facts["released by"] = record.released_by
    for holder in incident.holders:
        names = (holder.project, holder.run, holder.task, f"{holder.namespace}/{holder.pod}" if holder.is_pod else "")
        facts[f"held by {holder.pod or holder.run or holder.project}"] = " ".join(name for name in names if name)
    width = max(map(len, facts))
    yield from (f"{name.ljust(width)}  {printable(text)}\n" for name, text in facts.items())
    if record.steps:
        yield "steps\n"
        rows = [(step.action, step.target, str(step.outcome), step.detail) for step in record.steps]
        yield from ("  " + line + "\n" for line in columns(("ACTION", "TARGET", "OUTCOME", ""), rows).splitlines())


def as_json(records: Iterable[Record]) -> str:
    """One object a line."""
    return "".join(json.dumps(_object(record), ensure_ascii=False) + "\n" for record in records)


def _object(record: Record) -> dict[str, Any]:
    incident = record.incident
    return {
        "node": record.node,
        "cluster": incident.key.cluster,
        "incident": incident.key.incident,
        "fault": incident.fault,
        "class": incident.blame,
        "action": incident.action,
        "uuid": incident.uuid,
        "since": incident.since,
        "decision": str(record.decision.verdict),
        "reason": record.decision.reason,
        "detail": record.decision.detail,
        "stage": str(record.stage),
        "resolved": record.resolved_at,
        "released_by": record.released_by or None,
        "runs": sorted({holder.run for holder in incident.holders} - {""}),
        "steps": [
            {"action": step.action, "target": step.target, "outcome": str(step.outcome), "detail": step.detail}
            for step in record.steps
        ],
    }


def replayed(events: Iterable[Event]) -> str:
    """A replay, a line for each decision."""
    rows = []
    for event in events:
        if event.key is None or event.decision is None:
            rows.append((moment(event.at), "", "breaker opens", event.detail, str(event.out)))
        else:
            what = f"{event.decision.verdict} ({event.decision.reason})"
            rows.append((moment(event.at), str(event.key), what, event.detail, str(event.out)))
    return columns(("TIME", "INCIDENT", "DECISION", "WHY", "OUT"), rows) if rows else "No incident in that time.\n"
