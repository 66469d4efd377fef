"""The Actuator for Slurm: drains, requeues and resumes by ``scontrol``, and never over somebody else's reason.

Slurm knows no conditional writes: what a write depends on is read right before it, and looked at again after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.slurm.commands import CommandError, Output, Run
from gpufleet.quarantine.actuators.slurm.reading import (
    NODES_FORMAT,
    SlurmJob,
    SlurmNode,
    is_job_number,
    key_of,
    names,
    parse_job,
    parse_nodes,
    reason_of,
)
from gpufleet.quarantine.audit import Audit, AuditError
from gpufleet.quarantine.incident import EARLY_SECONDS
from gpufleet.quarantine.record import Outcome, Record, Step
from gpufleet.quarantine.view import Mark, Node, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpufleet.quarantine.policy import Retries

_RUNS = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_FAILED = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "TIMEOUT"})
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_ANSWERS = (
    ("only batch jobs", Outcome.REFUSED),
    ("presently disabled", Outcome.REFUSED),
    ("disabled", Outcome.REFUSED),
    ("access/permission denied", Outcome.REFUSED),
    ("pending execution", Outcome.ALREADY),
    ("invalid job id", Outcome.GONE),
    ("invalid node name", Outcome.GONE),
)


class SlurmActuator:
    """As Actuator; ``run`` runs commands, ``clock`` gives Unix time."""

    def __init__(self, run: Run, retries: Retries, audit: Audit, clock: Callable[[], float]) -> None:
        self._run = run
        self._retries = retries
        self._audit = audit
        self._clock = clock

    def view(self) -> View:
        """As Actuator."""
        at = self._clock()
        return View(at, {node.name: _node(node) for node in self._nodes()})

    def mark(self, record: Record) -> tuple[Step, ...]:
        """As Actuator. A node that an admin has drained keeps his reason, and is his."""
        target = f"node/{record.node}"
        found = self._node(record.node)
        if found is None:
            return (Step("drain", target, Outcome.GONE, "there is no such node"),)
        if found.is_ours:
            return (Step("drain", target, Outcome.ALREADY),)
        if found.is_held and found.reason:
            return (Step("leave", target, Outcome.ALREADY, f"it is drained already: {found.reason[:120]}"),)
        reason = reason_of(record.incident)
        step = self._write(
            record,
            "drain",
            target,
            ("scontrol", "update", f"nodename={record.node}", "state=drain", f"reason={reason}"),
        )
        if step.outcome is not Outcome.DONE:
            return (step,)
        now = self._node(record.node)
        if now is None or not now.is_ours:
            return (Step("drain", target, Outcome.FAILED, "somebody else has changed it in the same moment"),)
        return (step,)

    def move(self, record: Record) -> tuple[Step, ...]:
        """As Actuator: jobs that run on the GPU are queued again, on another node."""
        return tuple(self._moved(record, failed_too=False))

    def refund(self, record: Record) -> tuple[Step, ...]:
        """As Actuator: jobs that have failed of the fault are queued again; Slurm counts no retry for that."""
        return tuple(self._moved(record, failed_too=True))

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """As Actuator: resumes a node that bears our reason, and no other."""
        if not last:
            return ()
        target = f"node/{record.node}"
        found = self._node(record.node)
        if found is None:
            return (Step("resume", target, Outcome.GONE, "there is no such node"),)
        if not found.is_ours:
            return (
                Step("resume", target, Outcome.ALREADY, found.reason and f"another's reason stays: {found.reason}"),
            )
        step = self._write(record, "resume", target, ("scontrol", "update", f"nodename={record.node}", "state=resume"))
        return (step,)

    def _moved(self, record: Record, *, failed_too: bool) -> Iterator[Step]:
        for number in sorted({holder.run for holder in record.incident.holders if is_job_number(holder.run)}):
            target = f"slurm-job/{number}"
            job = self._job(number)
            if job is None:
                yield Step("requeue", target, Outcome.GONE, "Slurm no longer knows it")
                continue
            decided = self._why_not(record, job, failed_too=failed_too)
            if decided is not None:
                yield Step("requeue", target, *decided)
                continue
            yield self._write(
                record,
                "requeue",
                target,
                ("scontrol", "requeue", number),
                state=job.state,
                restarts=str(job.restarts),
            )

    def _why_not(self, record: Record, job: SlurmJob, *, failed_too: bool) -> tuple[Outcome, str] | None:
        since = record.incident.since
        if job.state in _WAITS:
            return Outcome.ALREADY, "it waits for a node"
        if job.started is not None and job.started > since:
            return Outcome.ALREADY, f"it was started anew since ({job.restarts} restarts)"
        if job.state in _RUNS:
            return None if record.node in self._hosts(job.nodes) else (Outcome.GONE, "it does not run there")
        if job.state not in _FAILED:
            return Outcome.GONE, f"it has ended: {job.state}"
        if job.ended is not None and job.ended < since - EARLY_SECONDS:
            return Outcome.GONE, "it had failed before the fault"
        if not failed_too:
            return Outcome.GONE, f"it has ended: {job.state}"
        last = (record.marked_at or since) + self._retries.peer_seconds
        if job.ended is not None and job.ended > last:
            return Outcome.REFUSED, "it failed long after the fault"
        return None

    def _write(self, record: Record, action: str, target: str, command: tuple[str, ...], **facts: str) -> Step:
        try:
            intent = self._audit.intend(action, target, record.key, command=" ".join(command), **facts)
            try:
                outcome, detail = _judged(self._run(*command), action)
            except CommandError as error:
                outcome, detail = Outcome.FAILED, str(error)
            intent.result(outcome, detail)
        except AuditError as error:
            return Step(action, target, Outcome.FAILED, str(error))
        return Step(action, target, outcome, detail)

    def _nodes(self, name: str = "") -> tuple[SlurmNode, ...]:
        of = ("-n", name) if name else ()
        return parse_nodes(self._asked("sinfo", "-h", "-N", *of, "-o", NODES_FORMAT).out)

    def _node(self, name: str) -> SlurmNode | None:
        return next((node for node in self._nodes(name) if node.name == name), None)

    def _job(self, number: str) -> SlurmJob | None:
        answer = self._asked("scontrol", "-o", "show", "job", number, allowed=(0, 1))
        if answer.status and "invalid job id" not in answer.said.lower():
            raise UnobservableError(f"scontrol show job {number}: {answer.said}")
        return parse_job(answer.out)

    def _hosts(self, expression: str) -> frozenset[str]:
        return (
            names(self._asked("scontrol", "show", "hostnames", expression).out.splitlines())
            if expression
            else frozenset()
        )

    def _asked(self, *command: str, allowed: tuple[int, ...] = (0,)) -> Output:
        try:
            answer = self._run(*command)
        except CommandError as error:
            raise UnobservableError(str(error)) from error
        if answer.status not in allowed:
            raise UnobservableError(f"{' '.join(command[:3])}: {answer.said}")
        return answer


def _node(found: SlurmNode) -> Node:
    mark = Mark(key_of(found.reason), 0.0, was_cordoned=False) if found.is_ours else None
    return Node(found.name, found.partition, out=found.is_out, held_out=found.is_held, mark=mark)


def _judged(answer: Output, action: str) -> tuple[Outcome, str]:
    if answer.status == 0:
        return Outcome.DONE, ""
    said = answer.said.lower()
    if action == "resume" and "invalid node state" in said:
        return Outcome.ALREADY, "it takes work already"
    return next((outcome for words, outcome in _ANSWERS if words in said), Outcome.FAILED), answer.said
