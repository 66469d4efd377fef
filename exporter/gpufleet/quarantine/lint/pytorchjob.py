"""PyTorchJob (kubeflow.org/v1): what a failed replica costs depends on its restartPolicy.

``ExitCode`` is the one that serves: codes of 128 and more are started anew as a new pod, which runPolicy.backoffLimit
does not count, and others end the job. Restarts in place are added up against backoffLimit. Pure.
"""

from __future__ import annotations

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict, worst
from gpufleet.quarantine.lint.job import NO_GPU
from gpufleet.quarantine.lint.launcher import Start
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import Container, bare, holders, how_started
from gpufleet.quarantine.lint.tree import Tree, dotted

_RETRYABLE = 128
"""Codes from here on are those of signals, which the operator takes for no error of the program."""
_ENOUGH = 3
_ERRORS = "with ExitCode an error of the program ends the job at once; with the other policies it is retried"
_ELASTIC = (
    "torchrun's own restarts (elasticPolicy.maxRestarts) happen inside the pod, on the same GPU, and are spent first"
)


def judge_pytorch_job(document: Document, _: Facts) -> Judgement:
    """A PyTorchJob."""
    spec = document.tree.at("spec")
    parts = []
    for name in spec.at("pytorchReplicaSpecs").mapping():
        replica = spec.at("pytorchReplicaSpecs", name)
        held = holders(replica.at("template"))
        changes = _changes(spec, replica, held) if held else ()
        parts += [_replica(spec, replica, each, changes).under(name) for each in held]
    found = worst(parts, NO_GPU)
    elastic = (spec.at("elasticPolicy", "maxRestarts").number() or 0) > 0
    notes = (*found.notes, _ELASTIC) if elastic else found.notes
    return Judgement(found.verdict, found.reason, found.path, found.changes, notes)


def _replica(spec: Tree, replica: Tree, each: Container, changes: tuple[Change, ...]) -> Judgement:
    policy, limit = replica.at("restartPolicy"), spec.at("runPolicy", "backoffLimit")
    number = limit.number()
    word = policy.text("OnFailure")
    if word == "Never":
        return Judgement(Verdict.LOST, "restartPolicy Never: a replica that fails ends the job", policy.path, changes)
    if word != "ExitCode":
        if number is None:
            reason = (
                f"restartPolicy {word} without a backoffLimit: the container is started again and nothing counts it"
            )
            notes = ("it starts on the broken GPU again until the quarantine moves the pod",)
            return Judgement(Verdict.SAFE, reason, policy.path, notes=notes)
        verdict = Verdict.LOST if number == 0 else Verdict.COSTS
        reason = (
            f"restartPolicy {word}: the container is started again on the broken GPU, and each time counts towards "
            f"{dotted(limit.path)} ({number})"
        )
        return Judgement(verdict, reason, policy.path, changes)
    path = (*each.tree.path, "command")
    if number is not None and number < _ENOUGH:
        reason = (
            f"{dotted(limit.path)} is {number}: the operator compares it with its own tries while it replaces a pod"
        )
        return Judgement(Verdict.LOST if number == 0 else Verdict.COSTS, reason, limit.path, changes)
    if each.command.start is Start.LAUNCHED:
        if each.command.code >= _RETRYABLE:
            code = each.command.code
            how = f"the launcher ends container {each.name} with {code}, for which a new pod is made, uncounted"
            return Judgement(Verdict.SAFE, how, policy.path, notes=(_ERRORS,))
        reason = f"the launcher is told to exit with {each.command.code}; codes below {_RETRYABLE} end the job"
        return Judgement(Verdict.LOST, reason, path, changes)
    if each.command.start is Start.UNSEEN:
        return Judgement(Verdict.UNKNOWN, f"{how_started(each)}; it is safe if that is the launcher", path, changes)
    reason = f"{how_started(each)}: with ExitCode a code below {_RETRYABLE}, as after an exception, ends the job"
    return Judgement(Verdict.LOST, reason, path, changes)


def _changes(spec: Tree, replica: Tree, held: tuple[Container, ...]) -> tuple[Change, ...]:
    policy, limit = replica.at("restartPolicy"), spec.at("runPolicy", "backoffLimit")
    changes = [Change(policy.path, "ExitCode")] if policy.text("OnFailure") != "ExitCode" else []
    number = limit.number()
    if number is not None and number < _ENOUGH:
        changes.append(Change(limit.path, _ENOUGH))
    changes += [each.launched() for each in held if each in bare(held) or each.command.code < _RETRYABLE]
    return tuple(changes)
