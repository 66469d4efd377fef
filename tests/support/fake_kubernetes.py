"""A Kubernetes API server in this process: an ``Api`` over objects in memory, for tests that need thousands of them.

It counts resourceVersions, refuses as the real one does (its answers are compared with recorded ones), knows merge,
JSON and strategic patches, status subresources, evictions under disruption budgets, dry run and RBAC. It knows no
DELETE, because nothing of ours may ask for it; objects end when a test says so. Before and after each call a test may
interfere.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import msgspec

from gpufleet.quarantine.actuators.kubernetes.api import Json, Patch, Shape
from gpufleet.quarantine.actuators.kubernetes.grants import ROLES, Grant
from gpufleet.quarantine.actuators.kubernetes.places import Place
from gpufleet.quarantine.actuators.kubernetes.refusals import UnavailableError, refusal
from gpufleet.quarantine.actuators.kubernetes.telling import timestamp
from tests.support.kubernetes_patches import PatchError, merge, operations, strategic

ALL_ROLES = tuple(grant for grants in ROLES.values() for grant in grants)
_STALE = "the object has been modified; please apply your changes to the latest version and try again"
_MOST_CONFIG_MAP = 1 << 20
_WITH_STATUS = {"nodes", "pods", "jobs"}
_KINDS = {"nodes": "Node", "pods": "Pod", "jobs": "Job", "configmaps": "ConfigMap", "events": "Event"}


class Fault(Enum):
    """What befalls a call."""

    NONE = "none"
    LOST_REQUEST = "lost request"
    """It never arrives: UnavailableError."""
    LOST_ANSWER = "lost answer"
    """It is carried out, and nobody hears of it: UnavailableError."""
    CRASH_BEFORE = "crash before"
    """Our process ends before it is sent: Crashed."""
    CRASH_AFTER = "crash after"
    """Our process ends as the answer arrives: Crashed."""


class Crashed(BaseException):
    """The process ended here. No ``except Exception`` goes on after it."""


@dataclass(frozen=True, slots=True)
class Call:
    """Something that was asked of the server."""

    replica: str
    verb: str
    """RBAC's."""
    place: Place
    body: Any = None
    dry_run: bool = False

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        return self.verb not in {"get", "list"} and not self.dry_run


class FakeCluster:
    """All objects. ``clock`` gives Unix time."""

    def __init__(self, clock: Callable[[], float] = lambda: 1_700_000_000.0) -> None:
        self._clock = clock
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._version = 200
        self._made = 0
        self.calls: list[Call] = []
        """All that were carried out or refused, in order."""

    def api(
        self,
        replica: str = "a",
        meet: Callable[[Call], Fault] = lambda _: Fault.NONE,
        grants: Sequence[Grant] | None = ALL_ROLES,
    ) -> FakeApi:
        """The server as one replica reaches it; ``meet`` is asked before each call, and may let others act.

        With no ``grants`` at all (None) it may do anything.
        """
        return FakeApi(self, replica, meet, grants)

    def put(self, place: Place, content: Json | None = None) -> Json:
        """Make an object or write over it, as somebody else would; what it is now."""
        old = self._objects.get(_key(place))
        new = _copied(content or {})
        metadata = new.setdefault("metadata", {})
        metadata["name"] = place.name
        if place.namespace:
            metadata["namespace"] = place.namespace
        if old is None:
            self._made += 1
            metadata.setdefault("uid", str(uuid.UUID(int=self._made)))
            metadata.setdefault("creationTimestamp", timestamp(self._clock()))
            new.setdefault("kind", _KINDS.get(place.resource, ""))
            new.setdefault("apiVersion", place.api)
        return self._store(place, old, new)

    def change(self, place: Place, patch: Json) -> Json:
        """Merge into an object, spec and status alike, as somebody else would."""
        old = self._objects[_key(place)]
        return self._store(place, old, merge(old, patch))

    def at(self, place: Place) -> Json:
        """The object, not to be changed. KeyError when there is none."""
        return self._objects[_key(place)]

    def has(self, place: Place) -> bool:
        """Whether there is such an object."""
        return _key(place) in self._objects

    def all(self, resource: str) -> list[Json]:
        """All objects of a kind, by name."""
        return [found for key, found in sorted(self._objects.items()) if key[0] == resource]

    def end(self, place: Place) -> None:
        """Remove an object, as its kubelet or a garbage collector would."""
        del self._objects[_key(place)]

    def _store(self, place: Place, old: Json | None, new: Json) -> Json:
        version = None if old is None else old["metadata"]["resourceVersion"]
        new["metadata"]["resourceVersion"] = version
        if new != old:
            # Writing what is there already makes no new version.
            self._version += 1
            new["metadata"]["resourceVersion"] = str(self._version)
            self._objects[_key(place)] = new
        return _copied(new)


class FakeApi:
    """An ``Api`` on a FakeCluster."""

    def __init__(
        self, cluster: FakeCluster, replica: str, meet: Callable[[Call], Fault], grants: Sequence[Grant] | None
    ) -> None:
        self._cluster = cluster
        self._replica = replica
        self._meet = meet
        self._granted = (
            None
            if grants is None
            else {(grant.group, grant.resource, verb) for grant in grants for verb in grant.verbs}
        )

    def get(self, place: Place) -> Json:
        found: Json = self._done(Call(self._replica, "get", place), lambda call: _copied(self._found(call)))
        return found

    def each(self, place: Place, shape: type[Shape], *, labels: str = "", fields: str = "") -> Iterator[Shape]:
        found = self._done(
            Call(self._replica, "list", place),
            lambda _: [
                _copied(each)
                for each in self._cluster.all(place.resource)
                if (not place.namespace or each["metadata"].get("namespace") == place.namespace)
                and _selected(each["metadata"].get("labels") or {}, labels)
                and _selected({path: _field(each, path) for path in _asked(fields)}, fields)
            ],
        )
        for each in found:
            yield each if shape is dict else msgspec.convert(each, shape)

    def create(self, place: Place, body: Json, *, dry_run: bool = False) -> Json:
        call = Call(self._replica, "create", place, _copied(body), dry_run)
        found: Json = self._done(call, self._evicted if place.subresource == "eviction" else self._created)
        return found

    def replace(self, place: Place, body: Json) -> Json:
        found: Json = self._done(Call(self._replica, "update", place, _copied(body)), self._replaced)
        return found

    def patch(self, place: Place, kind: Patch, body: Json | list[Json], *, dry_run: bool = False) -> Json:
        sent = _copied(body) if isinstance(body, dict) else [_copied(each) for each in body]
        call = Call(self._replica, "patch", place, sent, dry_run)
        found: Json = self._done(call, lambda call: self._patched(call, kind))
        return found

    def _done(self, call: Call, act: Callable[[Call], Any]) -> Any:  # noqa: ANN401 - whatever the call answers
        fault = self._meet(call)
        if fault is Fault.CRASH_BEFORE:
            raise Crashed
        if fault is Fault.LOST_REQUEST:
            raise UnavailableError(f"{call.verb} {call.place}: timed out")
        self._cluster.calls.append(call)
        self._authorise(call)
        if not call.place.can_be:
            _refuse(call, 404, "NotFound", f'{call.place.resource} "{call.place.name}" not found')
        try:
            return act(call)
        finally:
            if fault is Fault.CRASH_AFTER:
                raise Crashed
            if fault is Fault.LOST_ANSWER:
                raise UnavailableError(f"{call.verb} {call.place}: timed out")

    def _authorise(self, call: Call) -> None:
        if self._granted is not None and (call.place.group, call.place.granted, call.verb) not in self._granted:
            _refuse(
                call,
                403,
                "Forbidden",
                f'{call.place.resource} is forbidden: User "{self._replica}" cannot {call.verb} resource '
                f'"{call.place.granted}" in API group "{call.place.group}" at the cluster scope',
            )

    def _found(self, call: Call) -> Json:
        try:
            return self._cluster.at(call.place)
        except KeyError:
            _refuse(call, 404, "NotFound", f'{call.place.resource} "{call.place.name}" not found')

    def _created(self, call: Call) -> Json:
        place = Place(call.place.resource, call.body["metadata"]["name"], call.place.namespace, call.place.api)
        if not place.can_be:
            _refuse(call, 422, "Invalid", f"{place.name!r} is no name")
        if self._cluster.has(place):
            _refuse(call, 409, "AlreadyExists", f'{place.resource} "{place.name}" already exists')
        self._fits(call, call.body)
        found: Json = _copied(call.body) if call.dry_run else self._cluster.put(place, call.body)
        return found

    def _replaced(self, call: Call) -> Json:
        old = self._found(call)
        self._guard(call, old, call.body.get("metadata") or {})
        self._fits(call, call.body)
        return self._kept(call, old, _copied(call.body))

    def _patched(self, call: Call, kind: Patch) -> Json:
        old = self._found(call)
        if (kind is Patch.JSON) != isinstance(call.body, list) or not isinstance(call.body, dict | list):
            _refuse(call, 500, "", "Invalid JSON Patch")
        try:
            if isinstance(call.body, list):
                new = operations(old, call.body)
            else:
                new = (merge if kind is Patch.MERGE else strategic)(old, call.body)
        except PatchError:
            _refuse(call, 422, "Invalid", "the server rejected our request due to an error in our request")
        self._guard(call, old, new["metadata"])
        return self._kept(call, old, new)

    def _guard(self, call: Call, old: Json, asked: Json) -> None:
        """Optimistic locking; a write that names no version is unconditional."""
        was, name = old["metadata"], call.place.name
        if asked.get("uid", was["uid"]) != was["uid"]:
            if call.verb == "patch":
                # To a patch it is no condition but a field that may not change.
                text = f'{call.place.resource} "{name}" is invalid: metadata.uid: Invalid value: field is immutable'
                _refuse(call, 422, "Invalid", text)
            _conflict(call, f"the UID in the precondition does not match {was['uid']}", name)
        if asked.get("resourceVersion", was["resourceVersion"]) != was["resourceVersion"]:
            _conflict(call, _STALE, name)

    def _kept(self, call: Call, old: Json, new: Json) -> Json:
        """Store what the call may change: without the subresource no status, with it nothing but the status."""
        if call.place.resource in _WITH_STATUS:
            for part in ("status",) if call.place.subresource != "status" else ("spec",):
                new.pop(part, None)
                if part in old:
                    new[part] = _copied(old[part])
        for name in ("uid", "creationTimestamp"):
            new["metadata"][name] = old["metadata"][name]
        if call.dry_run:
            return new
        return self._cluster.put(call.place, new)

    def _evicted(self, call: Call) -> Json:
        place = Place("pods", call.place.name, call.place.namespace)
        pod = self._found(call)
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase", "Pending")
        if "deletionTimestamp" not in metadata and phase not in {"Pending", "Succeeded", "Failed"}:
            self._spare(call, pod)
        wanted = (call.body.get("deleteOptions") or {}).get("preconditions") or {}
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            text = f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({metadata['uid']})"
            _conflict(call, f"{text}. The object might have been deleted and then recreated", place.name, "Pod")
        if wanted.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            _conflict(call, "the ResourceVersion in the precondition does not match", place.name, "Pod")
        if not call.dry_run and "deletionTimestamp" not in metadata:
            now = timestamp(self._cluster._clock())
            told = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            conditions = [{**told, "lastTransitionTime": now}]
            evicted = strategic(pod, {"status": {"conditions": conditions}})
            self._cluster.put(place, merge(evicted, {"metadata": {"deletionTimestamp": now}}))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _spare(self, call: Call, pod: Json) -> None:
        """Refuse what a disruption budget forbids."""
        labels = pod["metadata"].get("labels") or {}
        budgets = [
            each
            for each in self._cluster.all("poddisruptionbudgets")
            if each["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        if len(budgets) > 1:
            _refuse(
                call, 500, "InternalError", "This pod has more than one PodDisruptionBudget, which is not supported."
            )
        for budget in budgets:
            matching = budget["spec"]["selector"]["matchLabels"].items()
            healthy = sum(
                matching <= (each["metadata"].get("labels") or {}).items()
                and each["metadata"]["namespace"] == budget["metadata"]["namespace"]
                and (each.get("status") or {}).get("phase") == "Running"
                and "deletionTimestamp" not in each["metadata"]
                for each in self._cluster.all("pods")
            )
            needed = budget["spec"]["minAvailable"]
            if healthy - 1 < needed:
                said = f"needs {needed} healthy pods and has {healthy} currently"
                cause = f"The disruption budget {budget['metadata']['name']} {said}"
                _refuse(
                    call,
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    {"causes": [{"reason": "DisruptionBudget", "message": cause}]},
                )

    def _fits(self, call: Call, body: Json) -> None:
        if call.place.resource == "configmaps":
            values = [*(body.get("data") or {}).values(), *(body.get("binaryData") or {}).values()]
            # Base64 is decoded before it is measured.
            size = sum(len(value) for value in values[: len(body.get("data") or {})])
            size += sum(len(value) * 3 // 4 for value in values[len(body.get("data") or {}) :])
            if size > _MOST_CONFIG_MAP:
                _refuse(call, 422, "Invalid", f"Too long: must have at most {_MOST_CONFIG_MAP} bytes")
        json.dumps(body)  # whatever is sent is JSON


def _copied(content: Json) -> Json:
    """A copy, by a way that is ten times as fast as copy.deepcopy."""
    found: Json = msgspec.json.decode(msgspec.json.encode(content))
    return found


def _key(place: Place) -> tuple[str, str, str]:
    return place.resource, place.namespace, place.name


def _asked(selector: str) -> list[str]:
    return [part.partition("=")[0] for part in selector.split(",") if part]


def _selected(values: dict[str, str], selector: str) -> bool:
    """Whether all of ``key=value`` and ``key`` hold, which is what is asked here."""
    for part in selector.split(","):
        key, equals, value = part.partition("=")
        if part and (key not in values or (equals and values[key] != value)):
            return False
    return True


def _field(found: Any, path: str) -> str:  # noqa: ANN401 - JSON
    for part in path.split("."):
        found = (found or {}).get(part)
    return "" if found is None else str(found)


def _conflict(call: Call, text: str, name: str, kind: str = "") -> NoReturn:
    which = kind or call.place.resource
    _refuse(call, 409, "Conflict", f'Operation cannot be fulfilled on {which} "{name}": {text}')


def _refuse(call: Call, status: int, reason: str, message: str, details: Json | None = None) -> NoReturn:
    body = {"kind": "Status", "reason": reason, "message": message, "details": details or {}, "code": status}
    raise refusal(call.verb, call.place, status, body)
