"""The API server's JSON: lists of pods, events of a watch, labels of a node. Pure.

Only what is used is decoded; everything from outside is bounded. Unknown fields and types are of newer servers.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from gpufleet.model.claims import Pod

MOST_PODS = 2_048
"""Of a node; the kubelet's own limit is 110 unless somebody raised it."""
_MOST_PAIRS = 128
_LONGEST_KEY = 317
"""A label's prefix (253), a slash and its name (63)."""
_LONGEST_VALUE = 1_024
"""Of an annotation; a label's value has at most 63. Longer ones hold documents, and no name."""
_LONGEST_NAME = 253
_MOST_ADDRESSES, _LONGEST_ADDRESS = 4, 45


class DecodingError(Exception):
    """The text is none of an API server's; says why."""


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    resource_version: str = ""


class _Address(msgspec.Struct, frozen=True):
    ip: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    addresses: list[_Address] | None = msgspec.field(name="podIPs", default=None)


class _Spec(msgspec.Struct, frozen=True):
    host_network: bool = msgspec.field(name="hostNetwork", default=False)


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec | None = None
    status: _Status | None = None


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""


class Change(Enum):
    """What an event does to a pod."""

    PUT = "put"
    """It is there, and so it is now."""
    REMOVED = "removed"
    NONE = "none"
    """A bookmark, or an event that this version does not know."""
    FAILED = "failed"
    """The watch is over; ``code`` says why."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One line of a watch."""

    change: Change
    pod: Pod | None = None
    version: str = ""
    """resourceVersion from which a watch may go on."""
    code: int = 0
    reason: str = ""


_LIST = msgspec.json.Decoder(_List)
_EVENT = msgspec.json.Decoder(_Event)
_OBJECT = msgspec.json.Decoder(_Object)
_FAILURE = msgspec.json.Decoder(_Failure)


def decode_list(body: bytes, annotations: Container[str] | None = None) -> tuple[tuple[Pod, ...], str]:
    """Pods of a list and its resourceVersion; of annotations those that are named, or all. Raises DecodingError."""
    listed = _decode(_LIST, body)
    pods = [_pod(_object(each), annotations) for each in (listed.items or [])[:MOST_PODS]]
    return tuple([pod for pod in pods if pod is not None]), listed.metadata.resource_version[:_LONGEST_NAME]


def decode_event(line: bytes, annotations: Container[str] | None = None) -> PodEvent:
    """One event of a watch; ``annotations`` as in ``decode_list``. Raises DecodingError."""
    event = _decode(_EVENT, line)
    if event.type == "ERROR":
        failure = _decode(_FAILURE, bytes(event.object))
        return PodEvent(Change.FAILED, code=failure.code, reason=(failure.message or failure.reason)[:_LONGEST_VALUE])
    found = _object(event.object)
    version = found.metadata.resource_version[:_LONGEST_NAME]
    if event.type == "BOOKMARK":
        return PodEvent(Change.NONE, version=version)
    pod = _pod(found, annotations)
    if pod is None or event.type not in ("ADDED", "MODIFIED", "DELETED"):
        return PodEvent(Change.NONE, version=version)
    return PodEvent(Change.REMOVED if event.type == "DELETED" else Change.PUT, pod, version)


def decode_labels(body: bytes) -> dict[str, str]:
    """Labels of any one object. Raises DecodingError."""
    return dict(_pairs(_decode(_OBJECT, body).metadata.labels))


def decode_failure(body: bytes) -> str:
    """Why a request was refused, as its body says; empty for a body that says nothing."""
    try:
        failure: _Failure = _decode(_FAILURE, body)
    except DecodingError:
        return ""
    return failure.message[:_LONGEST_VALUE]


def _decode(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:  # noqa: ANN401 - the decoder's own type
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(str(error)[:200]) from error


def _object(raw: msgspec.Raw) -> _Object:
    """One object; one that is none (a name that is no text, say) is as if it said nothing, and costs no other."""
    try:
        found: _Object = _OBJECT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Object()
    return found


def _pod(found: _Object, annotations: Container[str] | None) -> Pod | None:
    meta = found.metadata
    if not meta.name or len(meta.name) > _LONGEST_NAME or len(meta.namespace) > _LONGEST_NAME:
        return None
    owners = meta.owner_references or []
    # One controller at most; what has none at all may have owners that only see to its deletion.
    owner = next((each for each in owners if each.controller), None)
    return Pod(
        uid=meta.uid[:_LONGEST_NAME].lower(),
        namespace=meta.namespace,
        name=meta.name,
        labels=_pairs(meta.labels),
        annotations=_pairs(meta.annotations, annotations),
        owner_kind="" if owner is None else owner.kind[:_LONGEST_NAME],
        owner_name="" if owner is None else owner.name[:_LONGEST_NAME],
        phase="" if found.status is None else found.status.phase[:_LONGEST_NAME],
        addresses=_addresses(found),
    )


def _addresses(found: _Object) -> tuple[str, ...]:
    """A pod's own addresses: those of its node say nothing about who is behind them."""
    if found.status is None or (found.spec is not None and found.spec.host_network):
        return ()
    named = [each.ip for each in (found.status.addresses or [])[:_MOST_ADDRESSES]]
    return tuple(ip for ip in named if 0 < len(ip) <= _LONGEST_ADDRESS)


def _pairs(given: dict[str, str] | None, named: Container[str] | None = None) -> tuple[tuple[str, str], ...]:
    kept = [
        (key, value)
        for key, value in (given or {}).items()
        if len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE and (named is None or key in named)
    ]
    return tuple(sorted(kept)[:_MOST_PAIRS])
