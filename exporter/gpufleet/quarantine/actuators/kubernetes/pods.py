"""Pods as far as they concern us, and which of them a fault has taken: pure.

Whatever cannot be moved without loss is left alone: a DaemonSet's pod, a mirror of a static one, a bare one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.quarantine.actuators.kubernetes.gpu_resources import is_gpu
from gpufleet.quarantine.record import Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpufleet.quarantine.incident import Holder

TRACKING = "batch.kubernetes.io/job-tracking"
"""Only pods that bear this finalizer are counted by their Job's controller."""
STRIPPED = "gpufleet.io/finalizer-stripped"
"""On a pod that we have taken out of its Job's count: the incident, until the pod is gone or the finalizer is back."""
_MIRROR = "kubernetes.io/config.mirror"
_SECOND = 1.0
"""Times in pods are cut to the second."""


class OwnerReference(msgspec.Struct, frozen=True):
    """Who made the pod."""

    kind: str
    name: str
    uid: str
    api: str = msgspec.field(name="apiVersion", default="")
    controller: bool = False


class _Meta(msgspec.Struct, frozen=True):
    name: str
    uid: str
    namespace: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    created: str = msgspec.field(name="creationTimestamp", default="")
    deleted: str | None = msgspec.field(name="deletionTimestamp", default=None)
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    owners: tuple[OwnerReference, ...] | None = msgspec.field(name="ownerReferences", default=None)


class _Container(msgspec.Struct, frozen=True):
    resources: dict[str, Any] | None = None


class _Spec(msgspec.Struct, frozen=True):
    node: str = msgspec.field(name="nodeName", default="")
    containers: tuple[_Container, ...] = ()


class Condition(msgspec.Struct, frozen=True):
    """One of the pod's or a Job's conditions."""

    type: str
    status: str


class Terminated(msgspec.Struct, frozen=True):
    """How a container ended."""

    exit_code: int = msgspec.field(name="exitCode", default=0)
    finished: str | None = msgspec.field(name="finishedAt", default=None)


class _State(msgspec.Struct, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    """A container as its kubelet last told of it."""

    name: str
    state: _State | None = None


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    containers: tuple[ContainerStatus, ...] | None = msgspec.field(name="containerStatuses", default=None)


class Pod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def target(self) -> str:
        """How steps call it."""
        return f"pod/{self.metadata.namespace}/{self.metadata.name}@{self.metadata.uid}"

    @property
    def controller(self) -> OwnerReference | None:
        """Who makes another one when it is gone."""
        return next((owner for owner in self.metadata.owners or () if owner.controller), None)

    @property
    def job(self) -> OwnerReference | None:
        """Its Job."""
        owner = self.controller
        return owner if owner is not None and owner.kind == "Job" and owner.api.startswith("batch/") else None

    @property
    def has_ended(self) -> bool:
        """Whether it will never run again."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def is_leaving(self) -> bool:
        """Whether somebody has deleted or evicted it."""
        return self.metadata.deleted is not None

    @property
    def stripped_for(self) -> str | None:
        """The incident for which we have taken it out of its Job's count."""
        return (self.metadata.annotations or {}).get(STRIPPED)

    @property
    def is_tracked(self) -> bool:
        """Whether its Job's controller counts it."""
        return TRACKING in (self.metadata.finalizers or ())

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it holds a GPU or a slice."""
        for container in self.spec.containers:
            limits = (container.resources or {}).get("limits") or {}
            if any(is_gpu(name) for name in limits):
                return True
        return False

    @property
    def ended_at(self) -> float | None:
        """When its last container ended, Unix time to the second."""
        states = [each.state.terminated for each in self.status.containers or () if each.state is not None]
        ends = [seconds(state.finished) for state in states if state is not None]
        return max((end for end in ends if end is not None), default=None)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Pods that a fault has taken, and those that are left alone, with the reason."""

    pods: tuple[Pod, ...]
    left: tuple[Step, ...]


def choose(found: Iterable[Pod], node: str, since: float | None, opted_out: Collection[str], action: str) -> Chosen:
    """Those of ``found`` that were on the node and, with a time, were there as of then."""
    pods: list[Pod] = []
    left: list[Step] = []
    for pod in found:
        why = _why_not(pod, node, since, opted_out)
        if why is None:
            pods.append(pod)
        else:
            left.append(Step(action, pod.target, *why))
    return Chosen(tuple(pods), tuple(left))


def _why_not(pod: Pod, node: str, since: float | None, opted_out: Collection[str]) -> tuple[Outcome, str] | None:
    created = seconds(pod.metadata.created)
    if pod.spec.node != node or (since is not None and created is not None and created > since + _SECOND):
        return Outcome.GONE, "a later pod of the same name"
    if pod.metadata.namespace in opted_out:
        return Outcome.REFUSED, f"a label of namespace {pod.metadata.namespace} says that it is left alone"
    if _MIRROR in (pod.metadata.annotations or {}):
        return Outcome.REFUSED, "a static pod: its kubelet would start it again"
    owner = pod.controller
    if owner is None:
        return Outcome.REFUSED, "nothing would start it anew elsewhere"
    if owner.kind == "DaemonSet":
        return Outcome.REFUSED, "a DaemonSet's pod belongs to its node"
    return None


def gone(holder: Holder, action: str) -> Step:
    """The step for a holder of which there is no pod."""
    return Step(action, f"pod/{holder.namespace}/{holder.pod}", Outcome.GONE, "there is no such pod")


def seconds(text: str | None) -> float | None:
    """Unix time of a time as Kubernetes writes it; None where there is none."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
