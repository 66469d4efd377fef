"""RayJob and RayCluster (ray.io): the program that drives a job is no container of its own.

A worker pod that goes is replaced without being counted, but a broken GPU ends a Ray worker, not its pod: the driver
fails, and with it the RayJob, whose backoffLimit (0 if nothing is said) counts new clusters. So the launcher has to be
around the driver, and the driver has to be run again, in the same cluster, for the launcher's code alone. Pure.
"""

from __future__ import annotations

import re

from gpufleet.launch.verdict import FAULT_CODE
from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict
from gpufleet.quarantine.lint.job import NO_GPU
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import holders
from gpufleet.quarantine.lint.shell import LAUNCHER
from gpufleet.quarantine.lint.tree import Tree

_VERBATIM = "HTTPMode"
"""The submission mode in which Ray itself, and no shell of a submitter before it, reads the entry point."""
_LOOP = re.compile(r"(?:until|while)\s.*gpufleet\s+run\b.*\b(?P<code>\d{1,3})\b.*\bdone\s*\Z", re.DOTALL)
_REFUND = "with a backoffLimit above 0 the job starts anew in a new cluster, one retry less"
_TRAIN = "Ray Train has a budget of its own: RunConfig(failure_config=FailureConfig(max_failures=…)), and checkpoints"


def again(entrypoint: str) -> str:
    """An entry point that runs the program again for as long as the launcher says that hardware has ended it."""
    program = entrypoint.strip() or "<your program>"
    return f"until gpufleet run -- {program}; do s=$?; [ $s -eq {FAULT_CODE} ] || exit $s; done"


def judge_ray_job(document: Document, _: Facts) -> Judgement:
    """A RayJob."""
    spec = document.tree.at("spec")
    cluster = spec.at("rayClusterSpec")
    if not cluster.is_set and spec.at("clusterSelector").is_set:
        held = True
    else:
        held = any(holders(template) for template in _templates(cluster))
    if not held:
        return NO_GPU
    if head := _head(cluster):
        return head
    entrypoint, mode = spec.at("entrypoint"), spec.at("submissionMode")
    limit = spec.at("backoffLimit").number() or 0
    changes = _changes(entrypoint, mode)
    text = entrypoint.text()
    loop = _LOOP.search(text)
    if loop and int(loop["code"]) == FAULT_CODE:
        if mode.text("K8sJobMode") == _VERBATIM:
            reason = f"the driver runs again in the same cluster while the launcher exits with {FAULT_CODE}"
            return Judgement(Verdict.SAFE, reason, entrypoint.path, notes=(_TRAIN,))
        reason = f"in {mode.text('K8sJobMode')} the shell of the submitter reads the entry point before Ray does"
        return Judgement(Verdict.UNKNOWN, reason, mode.path, changes)
    verdict = Verdict.COSTS if limit else Verdict.LOST
    told = f"spec.backoffLimit ({limit}{'' if spec.at('backoffLimit').is_set else ', the default'})"
    if LAUNCHER.search(text):
        reason = f"nothing runs the driver again after {FAULT_CODE}: the job fails, which counts towards {told}"
    else:
        reason = f"a fault ends the driver, and the job with it, which counts towards {told}"
    return Judgement(verdict, reason, entrypoint.path, changes, (_REFUND,) if limit else ())


def judge_ray_cluster(document: Document, _: Facts) -> Judgement:
    """A RayCluster."""
    cluster = document.tree.at("spec")
    if not any(holders(template) for template in _templates(cluster)):
        return NO_GPU
    if head := _head(cluster):
        return head
    note = ("the jobs sent to it have budgets of their own, which this file does not show", _TRAIN)
    return Judgement(Verdict.SAFE, "a worker pod is replaced and nothing counts it", notes=note)


def _changes(entrypoint: Tree, mode: Tree) -> tuple[Change, ...]:
    text = entrypoint.text()
    inner = re.sub(r"^(?:exec\s+)?gpufleet\s+run\s+(?:--exit-code\S*\s+)?--\s+", "", text.strip())
    changes = [] if _LOOP.search(text) else [Change(entrypoint.path, again(inner))]
    if mode.text("K8sJobMode") != _VERBATIM:
        changes.append(Change(mode.path, _VERBATIM))
    return tuple(changes)


def _templates(cluster: Tree) -> list[Tree]:
    groups = [each.at("template") for each in cluster.at("workerGroupSpecs").items()]
    return [cluster.at("headGroupSpec", "template"), *groups]


def _head(cluster: Tree) -> Judgement | None:
    """A head with a GPU takes the whole cluster down with it."""
    template = cluster.at("headGroupSpec", "template")
    if not holders(template) or cluster.at("gcsFaultToleranceOptions").is_set:
        return None
    return Judgement(
        Verdict.LOST,
        "the head pod holds a GPU: when that breaks, the cluster and every job on it are gone",
        template.at("spec", "containers").path,
        notes=("give the head no GPU (num-gpus: 0, no nvidia.com/gpu), or set gcsFaultToleranceOptions",),
    )
