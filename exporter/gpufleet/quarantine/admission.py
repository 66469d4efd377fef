"""The admission webhook: a condition in the very write that says that a pod has failed, when hardware has ended it.

A Job's controller judges a failed pod once, within a second, by what is on it then; what comes later changes nothing.
So the API server asks here before it stores that write, and a rule of the Job's podFailurePolicy ignores the condition.
Nothing is ever denied, and whatever cannot be read is let through as it is, with a warning.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpufleet.logs import OnChange
from gpufleet.quarantine.actuators.kubernetes.jobs import HARDWARE_FAULT
from gpufleet.quarantine.actuators.kubernetes.pods import STRIPPED, TRACKING, Pod, seconds
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import EARLY_SECONDS, Incident, Scope
from gpufleet.quarantine.record import Record
from gpufleet.web.message import Handler, Request, Response

_log = logging.getLogger(__name__)

ADMIT_PATH = "/v1/admit"
PATIENCE_SECONDS = 0.8
"""A pod often fails before its fault has been told: so long its write waits for that. The webhook has two seconds."""
_LOOK_EVERY = 0.05
_VERSION = "admission.k8s.io/v1"
_JSON = "application/json"
_SECOND = 1.0
"""Times in pods are cut to the second."""
_LONGEST_MESSAGE = 1000
_INDEX = "batch.kubernetes.io/job-completion-index"


class ReviewError(Exception):
    """What was sent is no review of a pod's status; says what is missing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator has allowed."""

    strip_finalizer: bool = False
    """Take the pod out of its Job's count, too: for Jobs without a rule for the condition."""
    peer_seconds: float = 60.0
    """A pod of the same Job that failed so soon after the fault failed of it."""


class _Request(msgspec.Struct, frozen=True):
    uid: str
    operation: str = ""
    part: str = msgspec.field(name="subResource", default="")
    new: Any = msgspec.field(name="object", default=None)
    old: Any = msgspec.field(name="oldObject", default=None)


class _Review(msgspec.Struct, frozen=True):
    request: _Request
    version: str = msgspec.field(name="apiVersion", default="")
    kind: str = ""


_DECODER = msgspec.json.Decoder(_Review)


@dataclass(frozen=True, slots=True)
class Write:
    """A write that is under review."""

    uid: str
    """Of the request; the answer repeats it."""
    pod: Pod
    raw: Mapping[str, Any] = field(repr=False)
    fails: bool
    """It is the one that says that the pod has failed."""

    @property
    def is_marked(self) -> bool:
        """Whether the condition is on it already."""
        return any(each.type == HARDWARE_FAULT and each.status == "True" for each in self.pod.status.conditions or ())


def review(body: bytes, book: Book, rules: Rules, now: float, *, opted_out: Collection[str] = frozenset()) -> bytes:
    """The answer to an AdmissionReview: always allowed, with a patch where hardware has ended the pod.

    ``now`` is Unix time; ``opted_out`` are namespaces to leave alone.
    """
    try:
        write = read(body)
    except ReviewError as error:
        return _unread(body, error)
    found = taken_by(write, book, rules, now, opted_out)
    return allowed(write.uid, () if found is None else patch(write, found, rules, now))


def read(body: bytes) -> Write:
    """The write that a review is about. Raises ReviewError."""
    try:
        told = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"is no AdmissionReview: {error}") from None
    if told.version != _VERSION or told.kind != "AdmissionReview":
        raise ReviewError(f"is {told.version or 'nothing'}/{told.kind}, not {_VERSION}/AdmissionReview")
    asked = told.request
    if asked.operation != "UPDATE" or asked.part != "status" or not isinstance(asked.new, dict):
        raise ReviewError(
            f"is about {asked.operation or 'nothing'} of {asked.part or 'an object'}, not UPDATE of status"
        )
    try:
        pod = msgspec.convert(asked.new, Pod)
        old = msgspec.convert(asked.old, Pod) if asked.old is not None else None
    except msgspec.ValidationError as error:
        raise ReviewError(f"has no pod: {error}") from None
    was = old.status.phase if old is not None else ""
    return Write(asked.uid, pod, asked.new, fails=pod.status.phase == "Failed" != was)


def taken_by(write: Write, book: Book, rules: Rules, now: float, opted_out: Collection[str]) -> Record | None:
    """The record of the fault that has ended the pod: it held that GPU, or is a peer in its Job that fell with it.

    Only a fault that pays retries back counts, and only while its node is out or on its way out: a rule that ignores
    failures has no limit, and a new pod must not find the same GPU.
    """
    if not write.fails or write.is_marked or write.pod.metadata.namespace in opted_out:
        return None
    known = [each for each in book.records.values() if each.incident.refund and each.takes_place]
    taken = [each for each in known if _took(each, write.pod, rules, now)]
    return max(taken, key=lambda each: (each.incident.since, each.key), default=None)


def patch(write: Write, record: Record, rules: Rules, now: float) -> list[dict[str, Any]]:
    """The JSON patch that puts the condition on the pod and, if allowed, takes it out of its Job's count."""
    told = record.incident
    condition = {
        "type": HARDWARE_FAULT,
        "status": "True",
        "reason": reason(told),
        "message": _message(record)[:_LONGEST_MESSAGE],
        "lastTransitionTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    there = (write.raw.get("status") or {}).get("conditions") or []
    old = next((index for index, each in enumerate(there) if each.get("type") == HARDWARE_FAULT), None)
    if not there:
        changes: list[dict[str, Any]] = [{"op": "add", "path": "/status/conditions", "value": [condition]}]
    elif old is None:
        changes = [{"op": "add", "path": "/status/conditions/-", "value": condition}]
    else:
        changes = [{"op": "replace", "path": f"/status/conditions/{old}", "value": condition}]
    if rules.strip_finalizer and write.pod.job is not None and write.pod.is_tracked:
        changes += _stripping(write, record)
    return changes


def allowed(uid: str, changes: Collection[Mapping[str, Any]] = (), *warnings: str) -> bytes:
    """The answer that lets a write through."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if changes:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(changes)).encode()).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return json.dumps({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}).encode()


def reason(told: Incident) -> str:
    """The fault as a condition's reason: ``Xid79``, ``GpuLost``."""
    words = re.findall(r"[A-Za-z0-9]+", f"xid_{told.fault}" if told.fault.isdigit() else told.fault)
    return "".join(word[:1].upper() + word[1:] for word in words) or "Unknown"


class Admission:
    """Answers the API server. ``book`` is the ledger as this process knows it, None before it was read.

    ``marked`` is called before an answer changes a pod; when it raises, the pod is left as it is. ``monotonic`` and
    ``sleep`` are in seconds.
    """

    def __init__(
        self,
        book: Callable[[], Book | None],
        rules: Rules,
        *,
        clock: Callable[[], float] = time.time,
        opted_out: Callable[[], Collection[str]] = frozenset,
        marked: Callable[[Pod, Record], object] = lambda *_: None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._book = book
        self._rules = rules
        self._clock = clock
        self._opted_out = opted_out
        self._marked = marked
        self._monotonic = monotonic
        self._sleep = sleep
        self._failures = OnChange(_log)

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """For an App."""
        return {("POST", ADMIT_PATH): self.admit}

    def admit(self, request: Request) -> Response:
        """Let the write through, with the condition where it is due; 200 in any case, within a second."""
        try:
            write = read(request.body)
        except ReviewError as error:
            self._failures.failed("review", "a review could not be read", str(error), peer=request.peer)
            return Response(200, _unread(request.body, error), _JSON)
        record = self._waited_for(write)
        if record is None:
            return Response(200, allowed(write.uid), _JSON)
        try:
            self._marked(write.pod, record)
        except Exception as error:  # noqa: BLE001 - what cannot be put on record is not done, and the pod's write goes on
            self._failures.failed("marked", "a failed pod was not marked", str(error), level=logging.ERROR)
            return Response(200, allowed(write.uid), _JSON)
        _log.info(
            "a failed pod is marked",
            extra={"target": write.pod.target, "incident": str(record.key), "node": record.node},
        )
        return Response(200, allowed(write.uid, patch(write, record, self._rules, self._clock())), _JSON)

    def _waited_for(self, write: Write) -> Record | None:
        """The fault that ended the pod, also if it is told only now."""
        until = self._monotonic() + PATIENCE_SECONDS
        looked_at: Book | None = None
        while True:
            book = self._book()
            # A book never changes: one that was looked at has nothing new, however many writes wait.
            if book is not None and book is not looked_at:
                looked_at = book
                found = taken_by(write, book, self._rules, self._clock(), self._opted_out())
                if found is not None:
                    return found
            if not write.fails or not write.pod.asks_for_gpus or self._monotonic() >= until:
                return None
            self._sleep(_LOOK_EVERY)


def _took(record: Record, pod: Pod, rules: Rules, now: float) -> bool:
    told = record.incident
    created, end = seconds(pod.metadata.created), pod.ended_at
    ended = now if end is None else end
    if created is not None and created > told.since + _SECOND:
        return False
    if pod.spec.node == record.node and _held(record, pod):
        # However long it took to die of it: a collective may wait for many minutes.
        return ended >= told.since - EARLY_SECONDS
    return _is_peer(told, pod) and told.since - EARLY_SECONDS <= ended <= told.since + rules.peer_seconds


def _held(record: Record, pod: Pod) -> bool:
    if record.scope is Scope.NODE:
        return pod.asks_for_gpus
    own = (pod.metadata.namespace, pod.metadata.name)
    return any((each.namespace, each.pod) == own for each in record.incident.holders)


def _is_peer(told: Incident, pod: Pod) -> bool:
    """Whether a pod of the same Job held the GPU, by how the Job controller names pods: the ledger knows no Jobs."""
    if pod.job is None:
        return False
    index = r"\d+-" if _INDEX in (pod.metadata.annotations or {}) else ""
    name = re.compile(rf"{re.escape(pod.job.name)}-{index}[a-z0-9]{{5}}\Z")
    return any(each.namespace == pod.metadata.namespace and name.match(each.pod) for each in told.holders)


def _stripping(write: Write, record: Record) -> list[dict[str, Any]]:
    meta = write.raw["metadata"]
    index = list(meta["finalizers"]).index(TRACKING)
    path = f"/metadata/finalizers/{index}"
    note = {STRIPPED: str(record.key)}
    if meta.get("annotations"):
        noted: dict[str, Any] = {
            "op": "add",
            "path": f"/metadata/annotations/{_escaped(STRIPPED)}",
            "value": note[STRIPPED],
        }
    else:
        noted = {"op": "add", "path": "/metadata/annotations", "value": note}
    return [{"op": "test", "path": path, "value": TRACKING}, {"op": "remove", "path": path}, noted]


def _message(record: Record) -> str:
    told = record.incident
    which = " ".join(filter(None, (f"GPU {told.gpu}" if told.gpu else "", told.uuid))) or "hardware"
    return f"{which} of node {record.node}: {told.fault or 'a fault'} (incident {record.key})"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unread(body: bytes, error: ReviewError) -> bytes:
    """An answer for what is no review; with the request's number where there is one, without which it is no answer."""
    try:
        uid = json.loads(body)["request"]["uid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        uid = ""
    return allowed(
        uid if isinstance(uid, str) else "", (), f"gpufleet leaves this pod as it is: the review {error}"[:200]
    )
