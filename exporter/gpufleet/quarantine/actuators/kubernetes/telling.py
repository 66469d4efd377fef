"""What people are told through Kubernetes itself: a condition and an event on the node, an event on each pod. Pure."""

from __future__ import annotations

import hashlib
import time

from gpufleet.quarantine.actuators.kubernetes.api import Json
from gpufleet.quarantine.actuators.kubernetes.marks import BY, Note
from gpufleet.quarantine.incident import Incident, Key

CONDITION = "GpufleetQuarantine"
_MARKED, _RELEASED = "GpuQuarantined", "GpuQuarantineReleased"
# The most that the newer of the two event APIs takes, through which others may read and write it again.
_LONGEST_MESSAGE = 1024


def summary(incident: Incident) -> str:
    """GPU and fault in words: ``Xid 79 on GPU 3 (GPU-…, PCI 0000:3b:00.0)``."""
    fault = _fault(incident.fault)
    about = [part for part in (incident.uuid, incident.pci_bus_id and f"PCI {incident.pci_bus_id}") if part]
    if not incident.gpu and not about:
        return f"{fault} of the node"
    which = f"GPU {incident.gpu}" if incident.gpu else "a GPU"
    return f"{fault} on {which} ({', '.join(about)})" if about else f"{fault} on {which}"


def condition(note: Note) -> Json:
    """Our condition on a node that is out for these reasons, without its times."""
    told = [f"{_fault(each.fault)} on {each.uuid or 'the node'} (incident {each.key})" for each in note.reasons]
    message = f"{'; '.join(told)}. A person returns the node: gpufleet quarantine release, or kubectl uncordon"
    return {"type": CONDITION, "status": "True", "reason": "HardwareFault", "message": message}


def condition_patch(uid: str, wanted: Json, at: float) -> Json:
    """The strategic merge patch of nodes/status that sets our condition and touches no other."""
    times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), timestamp(at))
    return {"metadata": {"uid": uid}, "status": {"conditions": [{**wanted, **times}]}}


def no_condition_patch(uid: str) -> Json:
    """The strategic merge patch of nodes/status that removes our condition."""
    return {"metadata": {"uid": uid}, "status": {"conditions": [{"type": CONDITION, "$patch": "delete"}]}}


def condition_of(node: Json) -> Json | None:
    """Our condition on a node."""
    found = (node.get("status") or {}).get("conditions") or []
    return next((each for each in found if each.get("type") == CONDITION), None)


def node_event(node: str, incident: Incident, at: float) -> Json:
    """The event of a node that went out. ``kubectl describe node`` looks for events whose UID is the node's name."""
    about = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node}
    return _event("default", about, incident.key, _MARKED, f"{summary(incident)}: no new work comes here", at)


def pod_event(pod: Json, node: str, incident: Incident, at: float) -> Json:
    """The event of a pod that held the GPU."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", "apiVersion": "v1", **{name: metadata[name] for name in ("namespace", "name", "uid")}}
    message = f"{summary(incident)} of node {node}, which this pod held: the node is quarantined"
    return _event(metadata["namespace"], about, incident.key, _MARKED, message, at)


def release_event(node: str, key: Key, who: str, at: float) -> Json:
    """The event of a node that is back."""
    about = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node}
    return _event("default", about, key, _RELEASED, f"{who or 'a person'} has released it, incident {key}", at)


def timestamp(at: float) -> str:
    """Unix time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _fault(fault: str) -> str:
    return f"Xid {fault}" if fault.isdecimal() else fault or "a fault"


def _event(namespace: str, about: Json, key: Key, reason: str, message: str, at: float) -> Json:
    # Its name follows from what it tells, so that telling it again is refused as AlreadyExists.
    told = hashlib.sha256("\0".join([reason, str(key), str(about["kind"]), str(about["uid"])]).encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{BY}.{told[:20]}", "namespace": namespace},
        "involvedObject": about,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "type": "Normal" if reason == _RELEASED else "Warning",
        "source": {"component": BY},
        "reportingComponent": BY,
        "firstTimestamp": timestamp(at),
        "lastTimestamp": timestamp(at),
        "count": 1,
    }
