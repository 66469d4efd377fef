"""Give Jobs back the retries that a hardware fault has cost them already.

A failure that was counted stays counted; but backoffLimit may be raised, and the controller compares anew each time. So
it grows by one for each pod that died of the fault, in one guarded write with the list of whom it was for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api, Patch
from gpufleet.quarantine.actuators.kubernetes.jobs import Due, Fault, Job, due, refund_patch
from gpufleet.quarantine.actuators.kubernetes.places import job, pods
from gpufleet.quarantine.actuators.kubernetes.pods import Pod
from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError, ConflictError, ForbiddenError, NotFoundError
from gpufleet.quarantine.actuators.kubernetes.writing import Writer
from gpufleet.quarantine.record import Outcome, Record, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.policy import Retries

_REFUND = "refund"
_TRIES = 5
_JOB_NAME = "batch.kubernetes.io/job-name"


class Refunding:
    """Refunds, within the caps of ``rules``."""

    def __init__(self, api: Api, audit: Audit, rules: Retries) -> None:
        self._api = api
        self._audit = audit
        self._rules = rules

    def refund(self, record: Record, held: Iterable[Pod]) -> tuple[Step, ...]:
        """As Actuator; ``held`` are the pods that held the GPU, as they are now."""
        jobs = {(each.metadata.namespace, each.job.name) for each in held if each.job is not None}
        writer = Writer(self._audit, record.key)
        return tuple(step for namespace, name in sorted(jobs) for step in self._of(writer, record, namespace, name))

    def _of(self, writer: Writer, record: Record, namespace: str, name: str) -> Iterator[Step]:
        target = f"job/{namespace}/{name}"
        step = Step(_REFUND, target, Outcome.FAILED, f"others changed it {_TRIES} times in between")
        for _ in range(_TRIES):
            try:
                its = msgspec.convert(self._api.get(job(namespace, name)), Job)
                owned = list(self._api.each(pods(namespace), Pod, labels=f"{_JOB_NAME}={name}"))
            except NotFoundError:
                return
            except ApiError as error:
                raise UnobservableError(f"{target} cannot be seen: {error}") from error
            found = due(its, owned, self._fault(record), str(record.key), self._most)
            refusal = _refusal(its)
            if refusal is not None:
                # Only where somebody lost something: a Job that ended well needs nothing.
                yield from (Step(_REFUND, each.target, Outcome.REFUSED, refusal) for each in found.pods)
                return
            if not found.pods:
                break
            step = self._given(writer, record, target, its, found)
            if step.outcome is not Outcome.BLOCKED:
                yield from (Step(_REFUND, each.target, step.outcome, step.detail) for each in found.pods)
                break
        else:
            yield step
            return
        yield from (Step(_REFUND, each.target, Outcome.ALREADY) for each in found.already)
        yield from (
            Step(_REFUND, each.target, Outcome.REFUSED, "a cap of the policy is reached") for each in found.over
        )

    def _given(self, writer: Writer, record: Record, target: str, its: Job, found: Due) -> Step:
        patch = refund_patch(its, found.pods, str(record.key))
        return writer.write(
            _REFUND,
            target,
            lambda: self._api.patch(job(its.metadata.namespace, its.metadata.name), Patch.MERGE, patch),
            meaning=_meaning,
            resource_version=its.metadata.version,
            backoff_limit=f"{its.backoff} to {its.backoff + len(found.pods)}",
            pods=",".join(each.metadata.uid for each in found.pods),
        )

    def _fault(self, record: Record) -> Fault:
        since = record.incident.since
        return Fault(record.node, since, record.marked_at or since, self._rules.peer_seconds)

    @property
    def _most(self) -> tuple[int, int]:
        return self._rules.most_per_incident, self._rules.most_per_job


def _refusal(its: Job) -> str | None:
    if its.has_ended:
        return "its Job has ended: a verdict of its controller may not be withdrawn"
    if its.spec.per_index is not None:
        return "its Job has a limit for each index, which may not be changed"
    return None


def _meaning(error: ApiError) -> Outcome | None:
    if isinstance(error, ConflictError):
        return Outcome.BLOCKED
    if isinstance(error, ForbiddenError):
        return Outcome.REFUSED
    return None
