"""An incident in plain words: what happened, to which GPU, whose fault it is, what to do. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpufleet.faults.telling import ECHO
from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import NOBODY, Scope

if TYPE_CHECKING:
    from gpufleet.model.incident import Incident, Victim

_ACTIONS = {
    Action.NONE: "nothing at once",
    Action.RESTART_APPLICATION: "restart the job",
    Action.RESET_GPU: "reset the GPU",
    Action.DRAIN_AND_RESET: "drain the GPU, then reset it",
    Action.REBOOT_NODE: "reboot the node",
    Action.REPLACE: "replace the GPU",
}
_CLOSED_BY = {
    Action.NONE: "three hours without another event",
    Action.RESTART_APPLICATION: "three hours without another event",
    Action.RESET_GPU: "a reset of the GPU",
    Action.DRAIN_AND_RESET: "a reset of the GPU",
    Action.REBOOT_NODE: "a reboot of the node",
    Action.REPLACE: "the GPU leaving the node, or a person clearing it",
}
_MOST_NAMED = 8
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), " ")
"""A terminal takes some of these for commands."""


def fault_name(fault: str) -> str:
    """``Xid 79``, ``SXid 20034``, ``gpu lost``."""
    if fault.isdigit():
        return f"Xid {fault}"
    if fault.startswith("sxid_"):
        return f"SXid {fault.removeprefix('sxid_')}"
    return fault.replace("_", " ")


def headline(incident: Incident) -> str:
    """One line: where, what, whose fault, what to do."""
    return f"{place(incident)}: {gist(incident)}{', no work until then' if incident.isolate else ''}"


def gist(incident: Incident) -> str:
    """A few words: what, whose fault, what to do."""
    return f"{fault_name(incident.fault)}, {_whose(incident)}; {_ACTIONS[incident.action]}"


def place(incident: Incident) -> str:
    """The GPU or switch, as a person finds it; without a node's name where the incident has none."""
    address = f" at {incident.pci_bus_id}" if incident.pci_bus_id else ""
    of_node = f" of {incident.node}" if incident.node else ""
    if incident.scope is Scope.SWITCH:
        return f"NVSwitch{address}{of_node}"
    if incident.gpu is not None:
        return f"GPU {incident.gpu}{address}{of_node}"
    return f"GPU{address}{of_node}" if address else f"Node {incident.node}".rstrip()


def _to_do(incident: Incident) -> str:
    """The action, and its remedy where that does not begin with the same words."""
    action = _ACTIONS[incident.action]
    if incident.remedy.casefold().startswith(action.casefold()):
        return action[:1] + incident.remedy[1:]
    return f"{action}. {incident.remedy}".rstrip()


def explain(incident: Incident, when: str | None = None) -> str:
    """All facts about an incident, a line each. Text that came from outside is kept on its line.

    ``when`` stands for the times where those of the incident are not Unix times.
    """
    lines = [headline(incident), f"  What happened: {incident.summary or 'not clear yet'}"]
    if incident.uuid:
        lines.append(f"  Board: {incident.uuid}")
    lines.append(f"  Whose fault: {_blame(incident)}")
    lines += [f"    {note}" for note in incident.notes]
    lines.append(f"  What to do: {_to_do(incident)}")
    lines.append(f"  {_consequences(incident)}")
    if incident.owner != NOBODY:
        owner = incident.owner
        held = (owner.project, owner.run, owner.task, owner.workload_namespace, owner.workload_pod)
        lines.append(f"  Held by: {' / '.join(part for part in held if part)}")
    if incident.victims:
        lines.append(f"  Hit: {_victims(incident)}")
    if incident.counts:
        lines.append(f"  Events: {', '.join(_counted(token, count) for token, count in incident.counts)}")
    if incident.text:
        lines.append(f"  First line: {incident.text}")
    lines.append(f"  When: {_when(incident) if when is None else when}")
    lines.append(f"  Incident: {incident.id}{_relations(incident)}")
    return "\n".join(line.translate(_CONTROL) for line in lines)


def _whose(incident: Incident) -> str:
    return {
        Blame.HARDWARE: "hardware",
        Blame.APPLICATION: "the program's own fault",
        Blame.DRIVER: "driver or firmware",
        Blame.UNKNOWN: "cause not known",
    }[incident.blame]


def _blame(incident: Incident) -> str:
    if incident.blame is Blame.HARDWARE and incident.scope is Scope.NODE:
        return "the node's hardware, not these boards: power, PCIe switch or baseboard took several GPUs off together"
    if incident.blame is Blame.HARDWARE:
        return "hardware: the switch, the cable or the GPU behind it" if incident.scope is Scope.SWITCH else "this GPU"
    return {
        Blame.APPLICATION: "the program that ran there",
        Blame.DRIVER: "driver or firmware, not the program and not the board",
        Blame.UNKNOWN: "nobody can tell from these events",
    }[incident.blame]


def _consequences(incident: Incident) -> str:
    work = "The GPU gets no work until then." if incident.isolate else "The GPU goes on working."
    retry = "Runs that it ended get their retry back." if incident.refund else "Nobody gets a retry back for it."
    return f"{work} {retry}"


def _victims(incident: Incident) -> str:
    named = [_victim(victim) for victim in incident.victims[:_MOST_NAMED]]
    more = len(incident.victims) - len(named) + incident.victims_left_out
    return ", ".join(named) + (f" and {more} more" if more else "")


def _victim(victim: Victim) -> str:
    instance = "" if victim.gpu_instance is None else f" in MIG instance {victim.gpu_instance}"
    if victim.pid is None:
        return f"GPU {victim.pci_bus_id}{instance}"
    return f"process {victim.pid}{f' ({victim.process})' if victim.process else ''}{instance}"


def _counted(token: str, count: int) -> str:
    times = "" if count == 1 else f" x{count}"
    if token.startswith(ECHO):
        return f"{fault_name(token.removeprefix(ECHO))} on peers{times}"
    return f"{fault_name(token)}{times}"


def _when(incident: Incident) -> str:
    began, last = _time(incident.began_at), _time(incident.last_at)
    span = began if began == last else f"{began} to {last}"
    if incident.closed_at is not None:
        return f"{span}; closed {_time(incident.closed_at)}: {incident.closed_because}"
    return f"{span}; open until {_CLOSED_BY[incident.action]}"


def _time(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"


def _relations(incident: Incident) -> str:
    took_over = f", took over from {incident.successor_of}" if incident.successor_of else ""
    part = f", one cause with {incident.part_of}" if incident.part_of else ""
    return took_over + part
