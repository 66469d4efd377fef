"""Take a node out and give it back: the mark, the condition, and the events that tell of it."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api, Json, Patch
from gpufleet.quarantine.actuators.kubernetes.marks import Marked, marking, unmarking
from gpufleet.quarantine.actuators.kubernetes.nodes import OPTED_OUT
from gpufleet.quarantine.actuators.kubernetes.places import events, node, pod
from gpufleet.quarantine.actuators.kubernetes.refusals import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from gpufleet.quarantine.actuators.kubernetes.telling import (
    CONDITION,
    condition,
    condition_of,
    condition_patch,
    no_condition_patch,
    node_event,
    pod_event,
    release_event,
)
from gpufleet.quarantine.actuators.kubernetes.writing import Writer
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.incident import Holder
from gpufleet.quarantine.policy import Nodes
from gpufleet.quarantine.record import Outcome, Record, Step

_WRITES = 5
"""So often a mark is written before the node is left to those who change it all the time, until the next round."""

_UID = "metadata.uid"

Decide = Callable[[Marked], Json | None]


class NodeMarks:
    """Marks nodes by ``rules``, whose taint is also the key of our annotation; ``clock`` gives Unix time."""

    def __init__(self, api: Api, audit: Audit, rules: Nodes, clock: Callable[[], float]) -> None:
        self._api = api
        self._audit = audit
        self._rules = rules
        self._key = rules.taint
        self._clock = clock

    def mark(self, record: Record) -> tuple[Step, ...]:
        """As Actuator: cordon, taint and annotation in one write; then the condition, and an event for each holder."""
        writer = Writer(self._audit, record.key)
        step, found = self._guarded(
            writer, record, "cordon", lambda marked: marking(marked, record.incident, self._key)
        )
        if found is None:
            return (step,)
        told = [
            self._tell(writer, f"node/{record.node}", node_event(record.node, record.incident, self._clock())),
            *(self._tell_pod(writer, record, holder) for holder in record.incident.holders if holder.is_pod),
        ]
        return (step, self._condition(writer, record, found), *told)

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """As Actuator."""
        writer = Writer(self._audit, record.key)
        action = "uncordon" if last else "annotate"
        step, found = self._guarded(
            writer, record, action, lambda marked: unmarking(marked, record.incident, self._key, last=last)
        )
        if found is None:
            return (step,)
        at = self._clock()
        told = release_event(record.node, record.key, record.released_by, at)
        return step, self._condition(writer, record, found), self._tell(writer, f"node/{record.node}", told)

    def _guarded(self, writer: Writer, record: Record, action: str, decide: Decide) -> tuple[Step, Json | None]:
        """Write what is decided of the node as it is, until it is so; then the node, unless that failed.

        It is read again after the write: somebody who replaces the list of taints without a resourceVersion, as the
        node controller has been seen to do, takes ours off without knowing.
        """
        place, target = node(record.node), f"node/{record.node}"
        so_far = Outcome.ALREADY
        for writes in range(_WRITES + 1):
            try:
                found = self._api.get(place)
            except NotFoundError:
                return Step(action, target, Outcome.GONE, "there is no such node"), None
            except ApiError as error:
                if writes:
                    return Step(action, target, Outcome.FAILED, f"how it is now cannot be seen: {error}"), None
                raise UnobservableError(f"node {record.node} cannot be seen: {error}") from error
            marked = Marked.of(found, self._key)
            forbidden = self._forbidden(found, marked) if action == "cordon" else ""
            if forbidden:
                return Step(action, target, Outcome.REFUSED, forbidden), None
            patch = decide(marked)
            if patch is None:
                return Step(action, target, so_far), found
            if writes == _WRITES:
                break
            step = self._patched(writer, record, action, patch)
            if step.outcome is Outcome.DONE:
                so_far = Outcome.DONE
            elif step.outcome is not Outcome.BLOCKED:
                return step, None
        return Step(action, target, Outcome.FAILED, f"others change it all the time: {_WRITES} writes were lost"), None

    def _forbidden(self, found: Json, marked: Marked) -> str:
        """Why it may not be marked after all; empty when it may."""
        if marked.released_by_hand:
            return "a person has uncordoned it"
        if (found["metadata"].get("labels") or {}).get(self._rules.opt_out_label) == OPTED_OUT:
            return f"its label {self._rules.opt_out_label} says that it is left alone"
        return ""

    def _patched(self, writer: Writer, record: Record, action: str, patch: Json) -> Step:
        """Write the guarded patch; BLOCKED when somebody else has written meanwhile."""
        metadata, spec = patch["metadata"], patch.get("spec", {})
        taints = spec.get("taints", ())
        return writer.write(
            action,
            f"node/{record.node}",
            lambda: self._api.patch(node(record.node), Patch.MERGE, patch),
            meaning=lambda error: Outcome.BLOCKED if isinstance(error, ConflictError) else None,
            resource_version=metadata["resourceVersion"],
            annotation=metadata["annotations"][self._key] or "none",
            cordon=str(spec["unschedulable"] is True).lower() if "unschedulable" in spec else "as it is",
            taints="as they are" if taints == () else json.dumps(taints),
        )

    def _condition(self, writer: Writer, record: Record, found: Json) -> Step:
        """Have our condition say what the annotation says."""
        action, target = "condition", f"node/{record.node}"
        marked, there = Marked.of(found, self._key), condition_of(found)
        if marked.note is None:
            if there is None:
                return Step(action, target, Outcome.ALREADY)
            patch, fact = no_condition_patch(marked.uid), "none"
        else:
            wanted = condition(marked.note)
            if there is not None and wanted.items() <= there.items():
                return Step(action, target, Outcome.ALREADY)
            patch, fact = condition_patch(marked.uid, wanted, self._clock()), wanted["message"]
        return writer.write(
            action,
            target,
            lambda: self._api.patch(node(record.node).of("status"), Patch.STRATEGIC, patch),
            # The one condition of this write: there is another node of that name now.
            meaning=lambda error: Outcome.GONE if isinstance(error, InvalidError) and _UID in str(error) else None,
            uid=marked.uid,
            condition=f"{CONDITION}: {fact}",
        )

    def _tell_pod(self, writer: Writer, record: Record, holder: Holder) -> Step:
        target = f"pod/{holder.namespace}/{holder.pod}"
        try:
            found = self._api.get(pod(holder.namespace, holder.pod))
        except NotFoundError:
            return Step("event", target, Outcome.GONE, "there is no such pod")
        except ApiError as error:
            return Step("event", target, Outcome.FAILED, str(error))
        target = f"{target}@{found['metadata']['uid']}"
        if found.get("spec", {}).get("nodeName") != record.node:
            return Step("event", target, Outcome.GONE, "it is not on that node: another pod of the same name")
        return self._tell(writer, target, pod_event(found, record.node, record.incident, self._clock()))

    def _tell(self, writer: Writer, target: str, event: Json) -> Step:
        place = events(event["metadata"]["namespace"])
        name, reason = event["metadata"]["name"], event["reason"]
        return writer.write(
            "event", target, lambda: self._api.create(place, event), meaning=_told, name=name, reason=reason
        )


def _told(error: ApiError) -> Outcome | None:
    if isinstance(error, ConflictError):
        return Outcome.ALREADY
    if isinstance(error, ForbiddenError) and "being terminated" in str(error):
        return Outcome.GONE  # nothing can be made in a namespace that is on its way out
    return None
