"""What Alertmanager sends (webhook payload, version 4), as incidents. Pure.

Unknown fields are ignored and none that is not needed is asked for: newer versions add some, and receivers can be given
payloads of their own. One alert that cannot be used costs itself, not those beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from gpufleet.quarantine.incident import Holder, Incident, Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpufleet.quarantine.policy import AlertRules

_VERSION = "4"
_TRUE, _FALSE = "true", "false"
_MOST_TOLD = 200
"""Characters of a foreign text that a message repeats."""
_LONGEST_LABEL = 1024
_MOST_LABELS = 128


class PayloadError(Exception):
    """The whole payload is none of Alertmanager's; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """An incident whose alert has ended, as its sender says."""

    key: Key
    at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An alert that names no incident, and why."""

    reason: str
    """A word in snake case."""
    detail: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One payload."""

    firing: tuple[Incident, ...] = ()
    """In the order of the payload; several may be of one incident."""
    resolved: tuple[Resolved, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    foreign: int = 0
    """Alerts that the policy's matchers leave to others."""
    truncated: int = 0
    """Alerts that the sender has left out (max_alerts)."""


class _Payload(msgspec.Struct):
    version: str
    alerts: list[msgspec.Raw]
    truncatedAlerts: int | None = None  # noqa: N815 - Alertmanager's name


class _Alert(msgspec.Struct):
    status: str
    labels: dict[str, str]
    startsAt: str = ""  # noqa: N815
    endsAt: str = ""  # noqa: N815


_PAYLOAD = msgspec.json.Decoder(_Payload)
_ALERT = msgspec.json.Decoder(_Alert)


def parse_delivery(body: bytes, rules: AlertRules, now: float) -> Delivery:
    """Read a payload; ``now`` (Unix time) stands in for a time that an alert does not say.

    Raises:
        PayloadError: it is no JSON, no payload of version 4, or something in it has another type.
    """
    try:
        payload = _PAYLOAD.decode(body)
    except msgspec.ValidationError as error:
        raise PayloadError(f"this is no payload of an Alertmanager webhook: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"the body is no JSON: {error}") from error
    if payload.version != _VERSION:
        raise PayloadError(
            f'the payload has version {payload.version[:_MOST_TOLD]!r}, and only version "4" is known here: '
            "point a webhook_configs entry of Alertmanager at this address, without a payload template of your own"
        )
    firing: list[Incident] = []
    resolved: list[Resolved] = []
    unusable: list[Unusable] = []
    foreign = 0
    for raw in payload.alerts:
        try:
            alert = _ALERT.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            unusable.append(Unusable("malformed", f"an alert cannot be read: {error}"))
            continue
        if not rules.takes(alert.labels):
            foreign += 1
            continue
        found = _incident(alert, rules, now)
        if isinstance(found, Unusable):
            unusable.append(found)
        elif alert.status == "resolved":
            resolved.append(Resolved(found.key, _seconds(alert.endsAt) or now))
        else:
            firing.append(found)
    return Delivery(tuple(firing), tuple(resolved), tuple(unusable), foreign, max(0, payload.truncatedAlerts or 0))


def incident_of(labels: Mapping[str, str], since: float, rules: AlertRules) -> Incident | Unusable:
    """The incident that an alert's (or gpu_fault_active's) labels tell of; ``since`` is Unix time."""
    get = labels.get
    node, incident = get(rules.node_label, ""), get("incident", "")
    if not incident:
        return Unusable(
            "no_incident",
            f"an alert {_named(labels)} has no label incident, so that nothing tells it from the next fault of the GPU",
        )
    if not node:
        return Unusable("no_node", f"an alert {_named(labels)} has no label {rules.node_label}: no node is meant")
    if len(labels) > _MOST_LABELS or any(len(value) > _LONGEST_LABEL for value in labels.values()):
        return Unusable("too_long", f"an alert of incident {incident[:_MOST_TOLD]} has labels beyond all measure")
    for name in ("isolate", "refund"):
        if get(name, _FALSE) not in {_TRUE, _FALSE}:
            return Unusable("bad_label", f"{name}={get(name, '')[:_MOST_TOLD]!r} must be true or false")
    holder = Holder(
        project=get("project", ""),
        run=get("run", ""),
        task=get("task", ""),
        namespace=get("workload_namespace", ""),
        pod=get("workload_pod", ""),
        container=get("workload_container", ""),
    )
    return Incident(
        key=Key(get(rules.cluster_label, ""), node, incident),
        since=since,
        fault=get("fault", ""),
        blame=get("class", ""),
        action=get("action", ""),
        isolate=get("isolate") == _TRUE,
        refund=get("refund") == _TRUE,
        uuid=get("uuid", ""),
        pci_bus_id=get("pci_bus_id", ""),
        gpu=get("gpu", ""),
        holders=() if holder == Holder() else (holder,),
        labels=tuple(sorted(labels.items())),
    )


def _incident(alert: _Alert, rules: AlertRules, now: float) -> Incident | Unusable:
    if alert.status not in {"firing", "resolved"}:
        return Unusable("malformed", f"an alert has the status {alert.status[:_MOST_TOLD]!r}; firing or resolved exist")
    since = _seconds(alert.startsAt)
    if since is None and alert.startsAt:
        return Unusable("malformed", f"startsAt {alert.startsAt[:_MOST_TOLD]!r} is no time of RFC 3339")
    return incident_of(alert.labels, now if since is None else since, rules)


def _seconds(text: str) -> float | None:
    """Unix time of a time as Go writes it, with up to nine digits of a second; None for Go's zero and for no time."""
    try:
        at = datetime.fromisoformat(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _named(labels: Mapping[str, str]) -> str:
    return labels.get("alertname", "")[:_MOST_TOLD] or "without a name"
