"""What a saved log told, in words and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from gpufleet.commands.faults_log import OLDEST_DATE, Told
from gpufleet.faults import catalogue, sxids, words, xids
from gpufleet.faults.telling import ECHO
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import Incident

_MOST_NAMED = 4
"""GPUs in the last line; all of them are above it."""


def line_object(event: FaultEvent, driver: str | None) -> dict[str, object]:
    """A recognised line. Its class is that of the code alone, whatever the text adds; ``driver`` decides what the
    numbers mean that had another meaning before.
    """
    return {
        "kind": event.kind.value,
        "pci": event.pci_bus_id,
        "code": event.code,
        "pid": event.pid,
        "process": event.process,
        "mig_gi": event.gpu_instance,
        "class": _class(event, driver),
    }


def _class(event: FaultEvent, driver: str | None) -> str:
    if driver is not None and event.kind is FaultKind.XID and event.code is not None:
        return xids.lookup(event.code, driver).fault_class.value
    if driver is not None and event.kind is FaultKind.SXID and event.code is not None:
        return sxids.lookup(event.code, event.fatal, driver).fault_class.value
    return catalogue.class_of(event).value


def incident_object(incident: Incident) -> dict[str, object]:
    """An incident. Times are Unix times, or seconds since boot where ``clock`` says so."""
    return {
        "kind": "incident",
        "incident": incident.id,
        "node": incident.node,
        "fault": incident.fault,
        "blame": incident.blame.value,
        "action": incident.action.value,
        "isolate": incident.isolate,
        "refund": incident.refund,
        "scope": incident.scope.value,
        "gpu": incident.gpu,
        "uuid": incident.uuid,
        "pci": incident.pci_bus_id,
        "clock": _clock(incident),
        "first_at": incident.began_at,
        "last_at": incident.last_at,
        "events": incident.events,
        "counts": {token: count for token, count in incident.counts if not token.startswith(ECHO)},
        "echoes": {token.removeprefix(ECHO): count for token, count in incident.counts if token.startswith(ECHO)},
        "victims": [
            {"pci": each.pci_bus_id, "pid": each.pid, "process": each.process, "mig_gi": each.gpu_instance}
            for each in incident.victims
        ],
        "victims_left_out": incident.victims_left_out,
        "summary": incident.summary,
        "remedy": incident.remedy,
        "notes": list(incident.notes),
        "text": incident.text,
        "closed_because": incident.closed_because,
        "part_of": incident.part_of,
    }


def isolating(told: Iterable[Told]) -> list[Incident]:
    """Incidents that keep a GPU from work at the end of the log."""
    return [
        incident for each in told for incident in each.incidents if incident.isolate and incident.closed_because is None
    ]


def report(told: Sequence[Told], lines_read: int, *, has_driver: bool) -> str:
    """Everything in words, and the whole in the last line. ``has_driver``: whether the driver said anything at all."""
    parts: list[str] = []
    several = len(told) > 1
    for each in told:
        paragraphs = list(_paragraphs(each))
        if several and paragraphs:
            paragraphs[0] = f"{each.name}:\n{paragraphs[0]}"
        parts += paragraphs
    parts.append(summary(told, lines_read, has_driver=has_driver))
    return "\n\n".join(parts) + "\n"


def _paragraphs(told: Told) -> Iterator[str]:
    for incident in told.incidents:
        yield words.explain(incident, when=when(incident))
    if told.alone:
        events = [f"  {words.fault_name(token)}{_times(count)}{_meaning(token)}" for token, count in told.alone]
        yield "\n".join(["In no incident, nothing to do:", *events])
    if told.held_back:
        yield (
            f"The driver printed only some of its timeouts (Xid 119) of {', '.join(told.held_back)}: there were more "
            "than are counted here."
        )


def _times(count: int) -> str:
    return "" if count == 1 else f" x{count:,}"


def _meaning(token: str) -> str:
    return f": {xids.lookup(int(token)).name}" if token.isdigit() else ""


def summary(told: Sequence[Told], lines_read: int, *, has_driver: bool) -> str:
    """The whole in one line."""
    read = f"{lines_read:,} line{'' if lines_read == 1 else 's'}"
    incidents = [incident for each in told for incident in each.incidents]
    if not incidents:
        if not has_driver:
            return f"Nothing of an NVIDIA driver in {read}: is it the kernel's log, and of a node with GPUs?"
        return f"No incident in {read}: nothing to do."
    lines = sum(each.lines for each in told)
    many = "1 incident" if len(incidents) == 1 else f"{len(incidents)} incidents"
    bad = isolating(told)
    if not bad:
        return f"{many} from {lines:,} of {read}: no GPU has to be kept from work."
    return f"{many} from {lines:,} of {read}; must not get work: {named(bad)}."


def named(incidents: Sequence[Incident]) -> str:
    """Where they are and what they come down to, the first few of them."""
    first = ", ".join(f"{words.place(each)} ({words.gist(each)})" for each in incidents[:_MOST_NAMED])
    return first + (f" and {len(incidents) - _MOST_NAMED} more" if len(incidents) > _MOST_NAMED else "")


def when(incident: Incident) -> str:
    """First and last line and how many, in dates where the log has any, else in seconds since boot."""
    first, last = _time(incident.began_at), _time(incident.last_at)
    span = "no time is told" if first is None or last is None else first if first == last else f"{first} to {last}"
    events = f"{incident.events:,} event{'' if incident.events == 1 else 's'}"
    if incident.closed_because is not None:
        return f"{span}; {events}; over: {incident.closed_because}"
    return f"{span}; {events}"


def _clock(incident: Incident) -> str | None:
    if incident.began_at == 0.0:
        return None
    return "unix" if incident.began_at >= OLDEST_DATE else "since_boot"


def _time(at: float) -> str | None:
    if at == 0.0:
        return None
    if at < OLDEST_DATE:
        return f"{at:.3f} s after boot"
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"  # a log can have any number where its time should be
