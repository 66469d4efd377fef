"""What we write on a node, and the patch that writes it or takes it off. Pure.

A mark is a cordon, a taint that names the fault and survives somebody's uncordon, and an annotation that says what of
it is ours. They are written in one merge patch with the resourceVersion that they were decided on: ``spec.taints`` has
no merge key, so a patch replaces the whole list, and whoever has changed it meanwhile would lose what he wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from gpufleet.quarantine.actuators.kubernetes.api import Json
from gpufleet.quarantine.incident import Incident
from gpufleet.quarantine.view import Mark

BY = "gpufleet-quarantine"
_EFFECT = "NoSchedule"
# What the value of a taint may hold (63 characters, alphanumeric at both ends); the exact fault is in the annotation.
_NOT_IN_VALUE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Reason:
    """One incident that holds the node."""

    key: str
    fault: str
    uuid: str
    since: float

    @classmethod
    def of(cls, incident: Incident) -> Self:
        """The reason that an incident is."""
        return cls(str(incident.key), incident.fault, incident.uuid, incident.since)


@dataclass(frozen=True, slots=True)
class Note:
    """The annotation: why the node is out, first reason first, and how it was before."""

    reasons: tuple[Reason, ...]
    was_cordoned: bool

    def text(self) -> str:
        """As JSON; the first incident's facts stand at the top, where a person looks."""
        first, *others = [_plain(reason) for reason in self.reasons]
        return json.dumps({**first, "by": BY, "was_cordoned": self.was_cordoned, "reasons": others}, ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The note of ``text``; None when it is not ours or was spoiled by somebody."""
        try:
            found = json.loads(text)
            told = [found, *found["reasons"]]
            reasons = tuple(
                Reason(str(each["key"]), str(each["fault"]), str(each["uuid"]), float(each["since"])) for each in told
            )
            was_cordoned = found["was_cordoned"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return cls(reasons, was_cordoned) if isinstance(was_cordoned, bool) else None

    def has(self, reason: Reason) -> bool:
        """Whether the incident is among the reasons."""
        return any(each.key == reason.key for each in self.reasons)


@dataclass(frozen=True, slots=True)
class Marked:
    """A node with regard to our mark."""

    version: str
    """Its resourceVersion."""
    uid: str
    cordoned: bool
    taints: tuple[Json, ...]
    """All of them, as they are."""
    ours: Json | None
    """Our taint among them."""
    noted: bool
    """Our annotation is there, readable or not."""
    note: Note | None

    @classmethod
    def of(cls, node: Json, key: str) -> Self:
        """Read a node; ``key`` is that of our taint and our annotation."""
        spec, metadata = node.get("spec") or {}, node["metadata"]
        taints = tuple(spec.get("taints") or ())
        text = (metadata.get("annotations") or {}).get(key)
        return cls(
            version=metadata["resourceVersion"],
            uid=metadata.get("uid", ""),
            cordoned=spec.get("unschedulable") is True,
            taints=taints,
            ours=next((taint for taint in taints if is_ours(taint, key)), None),
            noted=text is not None,
            note=Note.read(text) if text is not None else None,
        )

    @property
    def released_by_hand(self) -> bool:
        """Somebody has uncordoned what we had marked: to us that is a release, and no reason to cordon again."""
        return (self.noted or self.ours is not None) and not self.cordoned


def is_ours(taint: Mapping[str, Any], key: str) -> bool:
    """Whether it is the taint that we write."""
    return taint.get("key") == key and taint.get("effect") == _EFFECT


def mark_of(annotations: Mapping[str, str], taints: tuple[Mapping[str, Any], ...], key: str) -> Mark | None:
    """Our mark, as far as it is there. One whose annotation is lost counts as over somebody's cordon: that stays."""
    text = annotations.get(key)
    note = Note.read(text) if text is not None else None
    if note is not None:
        first = note.reasons[0]
        return Mark(first.key, first.since, note.was_cordoned)
    if text is not None or any(is_ours(taint, key) for taint in taints):
        return Mark("", 0.0, was_cordoned=True)
    return None


def marking(node: Marked, incident: Incident, key: str) -> Json | None:
    """The patch that marks the node for an incident, or adds it to the reasons; None when it is so already, or when a
    person has taken the node back.
    """
    if node.released_by_hand:
        return None
    reason = Reason.of(incident)
    if node.note is None:
        # An unreadable annotation or a lone taint is ours all the same: the cordon over it may be anybody's.
        note = Note((reason,), was_cordoned=node.cordoned)
    elif node.note.has(reason):
        note = node.note
    else:
        note = replace(node.note, reasons=(*node.note.reasons, reason))
    if note == node.note and node.ours is not None:
        return None
    spec: Json = {}
    if not node.cordoned:
        spec["unschedulable"] = True
    if node.ours is None:
        spec["taints"] = [*node.taints, {"key": key, "value": taint_value(note.reasons[0].fault), "effect": _EFFECT}]
    return _patch(node, key, note.text(), spec)


def unmarking(node: Marked, incident: Incident, key: str, *, last: bool) -> Json | None:
    """The patch that takes an incident from the reasons, with the ``last`` the whole mark; None when it is so."""
    if not node.noted and node.ours is None:
        return None
    if not last:
        reason = Reason.of(incident)
        if node.note is None or not node.note.has(reason) or len(node.note.reasons) == 1:
            return None
        left = tuple(each for each in node.note.reasons if each.key != reason.key)
        return _patch(node, key, replace(node.note, reasons=left).text(), {})
    spec: Json = {}
    if node.cordoned and node.note is not None and not node.note.was_cordoned:
        spec["unschedulable"] = None
    if node.ours is not None:
        spec["taints"] = [taint for taint in node.taints if not is_ours(taint, key)] or None
    return _patch(node, key, None, spec)


def taint_value(fault: str) -> str:
    """A fault as a taint's value."""
    text = f"xid-{fault}" if fault.isdecimal() else fault
    return _NOT_IN_VALUE.sub("-", text).strip("._-")[:63].rstrip("._-") or "fault"


def _patch(node: Marked, key: str, note: str | None, spec: Json) -> Json:
    patch: Json = {"metadata": {"resourceVersion": node.version, "annotations": {key: note}}}
    if spec:
        patch["spec"] = spec
    return patch


def _plain(reason: Reason) -> Json:
    return {"key": reason.key, "fault": reason.fault, "uuid": reason.uuid, "since": reason.since}
