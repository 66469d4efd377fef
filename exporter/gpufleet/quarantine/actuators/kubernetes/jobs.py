"""Jobs: whether a pod's failure costs one a retry, and which lost retries are to be given back. Pure.

The rules are those of the Job controller of Kubernetes 1.31 and newer: the first rule of podFailurePolicy that matches
decides, and what none matches counts against backoffLimit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.quarantine.actuators.kubernetes.pods import seconds
from gpufleet.quarantine.incident import EARLY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpufleet.quarantine.actuators.kubernetes.pods import ContainerStatus, Pod

REFUNDED = "gpufleet.io/refunded"
"""On a Job: UID of each pod whose lost retry was given back, to its incident."""
DISRUPTED = "DisruptionTarget"
"""What an eviction writes on a pod."""
HARDWARE_FAULT = "gpufleet.io/GPUHardwareFault"
"""What our admission webhook writes on a pod."""
_DEFAULT_BACKOFF = 6
_ENDED = frozenset({"Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"})


class _ExitCodes(msgspec.Struct, frozen=True):
    operator: str
    values: tuple[int, ...]
    container: str | None = msgspec.field(name="containerName", default=None)


class _OnCondition(msgspec.Struct, frozen=True):
    type: str
    status: str = "True"


class _Rule(msgspec.Struct, frozen=True):
    action: str
    exit_codes: _ExitCodes | None = msgspec.field(name="onExitCodes", default=None)
    conditions: tuple[_OnCondition, ...] | None = msgspec.field(name="onPodConditions", default=None)


class _Policy(msgspec.Struct, frozen=True):
    rules: tuple[_Rule, ...] = ()


class _Meta(msgspec.Struct, frozen=True):
    name: str
    uid: str
    namespace: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    backoff: int | None = msgspec.field(name="backoffLimit", default=None)
    per_index: int | None = msgspec.field(name="backoffLimitPerIndex", default=None)
    policy: _Policy | None = msgspec.field(name="podFailurePolicy", default=None)


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Any, ...] | None = None


class Job(msgspec.Struct, frozen=True):
    """A Job of batch/v1."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def has_ended(self) -> bool:
        """Whether nothing can bring it back: a verdict of its controller may not be withdrawn."""
        return any(each.get("type") in _ENDED and each.get("status") == "True" for each in self.status.conditions or ())

    @property
    def backoff(self) -> int:
        """Its retries in all."""
        return _DEFAULT_BACKOFF if self.spec.backoff is None else self.spec.backoff

    @property
    def refunded(self) -> Mapping[str, str]:
        """Incidents by the UID of a pod."""
        try:
            found = json.loads((self.metadata.annotations or {}).get(REFUNDED, "{}"))
        except ValueError:
            return {}
        return {str(uid): str(key) for uid, key in found.items()} if isinstance(found, dict) else {}

    def ignores_disruptions(self) -> bool:
        """Whether an evicted pod costs no retry."""
        for rule in self.spec.policy.rules if self.spec.policy else ():
            wanted = {each.type for each in rule.conditions or () if each.status == "True"}
            if DISRUPTED in wanted:
                return rule.action == "Ignore"
        return False

    def counts(self, pod: Pod) -> bool:
        """Whether a failed pod has cost a retry, by the Job's own rules."""
        for rule in self.spec.policy.rules if self.spec.policy else ():
            if _matches(rule, pod):
                return rule.action != "Ignore"
        return True


def _matches(rule: _Rule, pod: Pod) -> bool:
    if rule.exit_codes is not None:
        return any(_has_code(rule.exit_codes, each) for each in pod.status.containers or ())
    return any(
        condition.type == wanted.type and condition.status == wanted.status
        for wanted in rule.conditions or ()
        for condition in pod.status.conditions or ()
    )


def _has_code(wanted: _ExitCodes, container: ContainerStatus) -> bool:
    ended = container.state.terminated if container.state is not None else None
    if ended is None or wanted.container not in {None, container.name}:
        return False
    if wanted.operator == "NotIn":
        return ended.exit_code != 0 and ended.exit_code not in wanted.values
    return ended.exit_code in wanted.values


@dataclass(frozen=True, slots=True)
class Fault:
    """When and where a fault was, for the question who died of it."""

    node: str
    since: float
    marked_at: float
    peer_seconds: float

    def took(self, pod: Pod) -> bool:
        """Whether a failed pod of the run died of it.

        On the node: whatever ended until it was out, replacements that met the same GPU included. Elsewhere: what ran
        when the fault came and ended soon after it.
        """
        end = pod.ended_at
        if pod.status.phase != "Failed" or end is None or end < self.since - EARLY_SECONDS:
            return False
        if pod.spec.node == self.node:
            return end <= max(self.marked_at, self.since) + self.peer_seconds
        created = seconds(pod.metadata.created)
        return created is not None and created <= self.since and end <= self.since + self.peer_seconds


@dataclass(frozen=True, slots=True)
class Due:
    """Retries that are to be given back to one Job."""

    pods: tuple[Pod, ...]
    already: tuple[Pod, ...]
    """Those that have theirs."""
    over: tuple[Pod, ...]
    """Those for which a cap leaves no room."""


def due(job: Job, pods: Iterable[Pod], fault: Fault, incident: str, most: tuple[int, int]) -> Due:
    """Pods of the Job that died of the fault, that its rules count, and that have not had their retry back.

    ``most`` bounds refunds for the incident and for the Job.
    """
    given = job.refunded
    died = [
        pod
        for pod in sorted(pods, key=lambda each: each.metadata.name)
        if pod.job is not None
        and pod.job.uid == job.metadata.uid
        and pod.stripped_for is None
        and fault.took(pod)
        and job.counts(pod)
    ]
    already = tuple(pod for pod in died if pod.metadata.uid in given)
    new = [pod for pod in died if pod.metadata.uid not in given]
    room = max(0, min(most[0] - sum(key == incident for key in given.values()), most[1] - len(given)))
    return Due(tuple(new[:room]), already, tuple(new[room:]))


def refund_patch(job: Job, pods: Iterable[Pod], incident: str) -> dict[str, Any]:
    """The merge patch that gives the retries back, under the resourceVersion that they were counted at."""
    chosen = tuple(pods)
    given = {**job.refunded, **{pod.metadata.uid: incident for pod in chosen}}
    return {
        "metadata": {
            "resourceVersion": job.metadata.version,
            "annotations": {REFUNDED: json.dumps(given, separators=(",", ":"))},
        },
        "spec": {"backoffLimit": job.backoff + len(chosen)},
    }
