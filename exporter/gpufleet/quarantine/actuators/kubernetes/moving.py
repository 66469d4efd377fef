"""Move pods off a broken GPU without costing them a retry.

A pod whose Job forgives disruptions is evicted. One whose Job does not is first taken out of its Job's count: its
controller counts only pods that bear its tracking finalizer, and takes that off itself where it suspends a Job. The
finalizer comes off and our annotation goes on in one guarded write; if the eviction is refused then, both are turned
back; if we end in between, the annotation says what is left to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api, Json, Patch
from gpufleet.quarantine.actuators.kubernetes.jobs import Job
from gpufleet.quarantine.actuators.kubernetes.places import PODS, Place, job, pod
from gpufleet.quarantine.actuators.kubernetes.pods import STRIPPED, TRACKING, Chosen, Pod, choose, gone
from gpufleet.quarantine.actuators.kubernetes.refusals import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
)
from gpufleet.quarantine.actuators.kubernetes.writing import Writer
from gpufleet.quarantine.incident import Scope
from gpufleet.quarantine.record import Outcome, Record, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.policy import Retries

_EVICT = "evict"


class Moving:
    """Evicts pods; ``rules`` say whether it may strip finalizers."""

    def __init__(self, api: Api, audit: Audit, rules: Retries) -> None:
        self._api = api
        self._audit = audit
        self._rules = rules

    def move(self, record: Record, opted_out: Collection[str]) -> tuple[Step, ...]:
        """As Actuator; pods of namespaces that ``opted_out`` are left alone."""
        chosen = self.chosen(record, opted_out)
        writer = Writer(self._audit, record.key)
        return (*chosen.left, *(step for each in chosen.pods for step in self._moved(writer, record, each)))

    def restore(self, record: Record, opted_out: Collection[str]) -> tuple[Step, ...]:
        """Put finalizers back on pods that were stripped for this incident and are not evicted: nobody will, now."""
        writer = Writer(self._audit, record.key)
        return tuple(
            self._unstripped(writer, each)
            for each in self.chosen(record, opted_out).pods
            if each.stripped_for == str(record.key) and not each.is_leaving and not each.has_ended
        )

    def chosen(self, record: Record, opted_out: Collection[str]) -> Chosen:
        """The pods that the fault has taken, as they are now. Raises UnobservableError."""
        try:
            if record.scope is Scope.NODE:
                found = [each for each in self.on_node(record.node) if each.asks_for_gpus]
                return choose(found, record.node, None, opted_out, _EVICT)
            return self._holders(record, opted_out)
        except ApiError as error:
            raise UnobservableError(f"the pods of node {record.node} cannot be seen: {error}") from error

    def on_node(self, name: str) -> Iterator[Pod]:
        """Every pod of a node."""
        return self._api.each(PODS, Pod, fields=f"spec.nodeName={name}")

    def _holders(self, record: Record, opted_out: Collection[str]) -> Chosen:
        found: list[Pod] = []
        left: list[Step] = []
        for holder in record.incident.holders:
            if not holder.is_pod:
                continue
            try:
                found.append(msgspec.convert(self._api.get(pod(holder.namespace, holder.pod)), Pod))
            except NotFoundError:
                left.append(gone(holder, _EVICT))
        chosen = choose(found, record.node, record.incident.since, opted_out, _EVICT)
        return Chosen(chosen.pods, (*left, *chosen.left))

    def _moved(self, writer: Writer, record: Record, found: Pod) -> Iterator[Step]:
        if found.is_leaving:
            yield Step(_EVICT, found.target, Outcome.ALREADY, "it is on its way")
            return
        if found.has_ended:
            yield Step(_EVICT, found.target, Outcome.GONE, f"it has ended: {found.status.phase}")
            return
        refused = self._tried(found)
        if refused is None and self._must_strip(found):
            step, found = self._stripped(writer, record, found)
            yield step
            if step.outcome is not Outcome.DONE:
                return
        if refused is None:
            evicted = writer.write(
                _EVICT,
                found.target,
                lambda: self._api.create(_eviction_of(found), _eviction(found)),
                meaning=_meaning,
                uid=found.metadata.uid,
            )
            yield evicted
            if evicted.outcome in {Outcome.DONE, Outcome.GONE}:
                return
        else:
            yield refused
        if found.stripped_for is not None:
            yield self._unstripped(writer, found)

    def _tried(self, found: Pod) -> Step | None:
        """What an eviction would be refused with: asked before anything is changed."""
        try:
            self._api.create(_eviction_of(found), _eviction(found), dry_run=True)
        except TooManyRequestsError as error:
            outcome = Outcome.BLOCKED if error.disruption_budget else Outcome.FAILED
            return Step(_EVICT, found.target, outcome, str(error))
        except ApiError as error:
            return Step(_EVICT, found.target, _meaning(error) or Outcome.FAILED, str(error))
        return None

    def _must_strip(self, found: Pod) -> bool:
        """Whether an eviction would cost the pod's Job a retry that we can spare it."""
        owner = found.job
        if owner is None or not found.is_tracked or not self._rules.strip_finalizer:
            return False
        try:
            its = msgspec.convert(self._api.get(job(found.metadata.namespace, owner.name)), Job)
        except NotFoundError:
            return False
        except ApiError as error:
            raise UnobservableError(f"job {found.metadata.namespace}/{owner.name} cannot be seen: {error}") from error
        return its.metadata.uid == owner.uid and not its.ignores_disruptions()

    def _stripped(self, writer: Writer, record: Record, found: Pod) -> tuple[Step, Pod]:
        left = [each for each in found.metadata.finalizers or () if each != TRACKING]
        patch: Json = {
            "metadata": {
                "resourceVersion": found.metadata.version,
                "finalizers": left or None,
                "annotations": {STRIPPED: str(record.key)},
            }
        }
        after = found

        def strip() -> None:
            nonlocal after
            after = msgspec.convert(self._api.patch(_place(found), Patch.MERGE, patch), Pod)

        step = writer.write(
            "strip_finalizer",
            found.target,
            strip,
            # It changed meanwhile, perhaps to its end: the next round looks again.
            meaning=lambda error: Outcome.BLOCKED if isinstance(error, ConflictError) else _meaning(error),
            resource_version=found.metadata.version,
            finalizer=TRACKING,
        )
        return step, after

    def _unstripped(self, writer: Writer, found: Pod) -> Step:
        action = "restore_finalizer"
        try:
            now = msgspec.convert(self._api.get(_place(found)), Pod)
        except NotFoundError:
            return Step(action, found.target, Outcome.GONE)
        except ApiError as error:
            return Step(action, found.target, Outcome.FAILED, str(error))
        if now.metadata.uid != found.metadata.uid or now.is_leaving or now.has_ended:
            return Step(action, found.target, Outcome.GONE, "it has ended, or is on its way")
        patch: Json = {
            "metadata": {
                "resourceVersion": now.metadata.version,
                "finalizers": [*(now.metadata.finalizers or ()), *(() if now.is_tracked else (TRACKING,))],
                "annotations": {STRIPPED: None},
            }
        }
        return writer.write(
            action,
            found.target,
            lambda: self._api.patch(_place(found), Patch.MERGE, patch),
            meaning=lambda error: Outcome.BLOCKED if isinstance(error, ConflictError) else None,
            resource_version=now.metadata.version,
            finalizer=TRACKING,
        )


def _place(found: Pod) -> Place:
    return pod(found.metadata.namespace, found.metadata.name)


def _eviction_of(found: Pod) -> Place:
    return pod(found.metadata.namespace, found.metadata.name).of("eviction")


def _eviction(found: Pod) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": found.metadata.name, "namespace": found.metadata.namespace},
        "deleteOptions": {"preconditions": {"uid": found.metadata.uid}},
    }


def _meaning(error: ApiError) -> Outcome | None:
    if isinstance(error, ConflictError):
        return Outcome.GONE  # the one condition is the UID: there is another pod of that name now
    if isinstance(error, ForbiddenError):
        return Outcome.REFUSED  # the operator has not bound that role
    return None
