"""Which labels and annotations of a pod say project, run, task, rank and attempt, for each system that makes pods.

The first preset of the table whose run key is there names the pod. Several often match, because systems build upon one
another and copy labels downwards, so the table goes from the system that a person talks to down to the one that makes
pods: Flyte before the JobSet that it makes, KServe and NIM before the LeaderWorkerSet, Kubeflow Trainer before its
JobSet, JobSet before the batch Job of each of its replicated jobs. Systems that only queue (Kueue, Volcano's queues,
Run:ai/KAI) come last with their own groups, but their queue is the project of whatever they queued, unless that has a
project of its own (``QUEUES``): a queue is who pays, and the run is what was started. Without a queue the namespace is
the project.

A Flyte domain (development, production) is no part of the project: money is asked for by project, and the domain can
be shown by the list of allowed labels. Keys that anybody might use (``run`` is set by ``kubectl run``) count only
beside others of the same system.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """Where a value stands."""

    LABEL = "label"
    ANNOTATION = "annotation"
    NAMESPACE = "namespace"
    RETRY = "retry"
    """N of a pod's name that ends in ``-n0-N``, as Flyte 1 names its nodes' pods."""


@dataclass(frozen=True, slots=True)
class Key:
    """One place to look at."""

    where: Where
    name: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """What a pod must have for a preset to apply: a label, with that value if one is given (``x*``: begins with x)."""

    label: str
    value: str = "*"

    def on(self, labels: dict[str, str]) -> bool:
        """Whether these labels have it."""
        found = labels.get(self.label)
        if not found:
            return False
        return found.startswith(self.value[:-1]) if self.value.endswith("*") else found == self.value


@dataclass(frozen=True, slots=True)
class Preset:
    """A system's keys; of each field the first key with a value counts."""

    name: str
    run: tuple[Key, ...]
    project: tuple[Key, ...] = ()
    """Empty: the queue's, else the namespace."""
    task: tuple[Key, ...] = ()
    rank: tuple[Key, ...] = ()
    attempt: tuple[Key, ...] = ()
    user: tuple[Key, ...] = ()
    job: tuple[Key, ...] = ()
    """The scheduler's own number."""
    markers: tuple[Marker, ...] = ()


def key(text: str) -> Key | None:
    """``label:KEY``, ``annotation:KEY`` or ``namespace``; None when it is none of these."""
    if text == Where.NAMESPACE:
        return Key(Where.NAMESPACE)
    where, separator, name = text.partition(":")
    if not separator or not name or where not in (Where.LABEL, Where.ANNOTATION):
        return None
    return Key(Where(where), name)


def _labels(*names: str) -> tuple[Key, ...]:
    return tuple(Key(Where.LABEL, name) for name in names)


def _annotations(*names: str) -> tuple[Key, ...]:
    return tuple(Key(Where.ANNOTATION, name) for name in names)


_RANK_OF_JOB = (
    *_labels("batch.kubernetes.io/job-completion-index"),
    *_annotations("batch.kubernetes.io/job-completion-index"),
)
"""A label since Kubernetes 1.28, an annotation before."""
_FLYTE = (Marker("project"), Marker("domain"))

PRESETS = (
    Preset(
        "flyte2",
        project=_labels("flyte.org/project", "project"),
        run=_labels("flyte.org/run"),
        task=_labels("task-name", "flyte.org/action", "action"),
        rank=_RANK_OF_JOB,
        attempt=_labels("attempt"),
    ),
    Preset(
        "flyte2",  # unprefixed keys
        project=_labels("project"),
        run=_labels("run"),
        task=_labels("task-name", "action"),
        rank=_RANK_OF_JOB,
        attempt=_labels("attempt"),
        markers=_FLYTE,
    ),
    Preset("flyte2-app", project=_labels("flyte.org/project"), run=_labels("flyte.org/app-name")),
    Preset(
        "flyte2-app",
        project=_labels("flyte.org/project"),
        run=_labels("serving.knative.dev/service"),
        markers=(Marker("flyte.org/project"),),
    ),
    Preset(
        "flyte1",
        project=_labels("project"),
        run=_labels("execution-id"),
        task=_labels("task-name", "node-id", "workflow-name"),
        attempt=(Key(Where.RETRY),),
        markers=_FLYTE,
    ),
    Preset(
        "skypilot",
        project=(*_annotations("skypilot-workspace"), *_labels("skypilot-workspace", "skypilot-user")),
        run=_labels("skypilot-cluster-name", "skypilot-cluster"),
        user=_labels("skypilot-user"),
    ),
    Preset(
        "dstack",
        project=_labels("k8s.dstack.ai/project"),
        run=_labels("k8s.dstack.ai/name"),
        user=_labels("k8s.dstack.ai/user"),
    ),
    Preset(
        "dstack",
        project=_labels("k8s.dstack.ai/project"),
        run=_labels("app.kubernetes.io/instance"),
        user=_labels("k8s.dstack.ai/user"),
        markers=(Marker("app.kubernetes.io/managed-by", "dstack"),),
    ),
    Preset(
        "slurm-bridge",
        project=_annotations("slurmjob.slinky.slurm.net/account"),
        run=_labels("scheduler.slinky.slurm.net/slurm-jobid"),
        task=_annotations("slurmjob.slinky.slurm.net/job-name"),
        rank=_RANK_OF_JOB,
        user=_annotations("slurmjob.slinky.slurm.net/user-id"),
        job=_labels("scheduler.slinky.slurm.net/slurm-jobid"),
    ),
    Preset(
        "argo",
        run=_labels("workflows.argoproj.io/workflow"),
        task=_annotations("workflows.argoproj.io/node-name", "workflows.argoproj.io/node-id"),
        user=_labels("workflows.argoproj.io/creator"),
    ),
    Preset(
        "kserve",
        run=_labels("serving.kserve.io/inferenceservice"),
        task=_labels("component", "app.kubernetes.io/component"),
        rank=_labels("leaderworkerset.sigs.k8s.io/worker-index", "apps.kubernetes.io/pod-index"),
    ),
    Preset(
        "kserve-llm",
        run=_labels("app.kubernetes.io/name"),
        task=_labels("llm-d.ai/role", "app.kubernetes.io/component"),
        rank=_labels("leaderworkerset.sigs.k8s.io/worker-index"),
        markers=(Marker("app.kubernetes.io/component", "llminferenceservice-*"),),
    ),
    Preset(
        "nim",
        run=_labels("app.kubernetes.io/instance", "app.kubernetes.io/name", "app"),
        task=_labels("nim-llm-role"),
        rank=_labels("leaderworkerset.sigs.k8s.io/worker-index"),
        markers=(Marker("app.kubernetes.io/part-of", "nim-service"),),
    ),
    Preset(
        "vllm-production-stack",
        project=_labels("helm-release-name", "app.kubernetes.io/instance"),
        run=_labels("model", "app.kubernetes.io/name"),
        task=_labels("app.kubernetes.io/component"),
        markers=(Marker("helm-release-name"),),
    ),
    Preset(
        "kuberay",
        run=_labels("ray.io/originated-from-cr-name", "ray.io/cluster"),
        task=_labels("ray.io/group", "ray.io/node-type"),
        rank=_labels("ray.io/worker-group-replica-index", "ray.io/replica-host-index"),
    ),
    Preset(
        "kubeflow-training",
        run=_labels("training.kubeflow.org/job-name"),
        task=_labels("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role"),
        rank=_labels("training.kubeflow.org/replica-index"),
    ),
    Preset(
        "kubeflow-trainer",
        run=_labels("jobset.sigs.k8s.io/jobset-name"),
        task=_labels("trainer.kubeflow.org/trainjob-ancestor-step", "jobset.sigs.k8s.io/replicatedjob-name"),
        rank=_RANK_OF_JOB,
        attempt=_labels("jobset.sigs.k8s.io/restart-attempt"),
        markers=(Marker("trainer.kubeflow.org/trainjob-ancestor-step"),),
    ),
    Preset(
        "jobset",
        run=_labels("jobset.sigs.k8s.io/jobset-name"),
        task=_labels("jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/group-name"),
        rank=(*_RANK_OF_JOB, *_labels("jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/job-index")),
        attempt=(
            *_labels("jobset.sigs.k8s.io/restart-attempt"),
            *_annotations("jobset.sigs.k8s.io/restart-attempt"),
        ),
    ),
    Preset(
        "leaderworkerset",
        run=_labels("leaderworkerset.sigs.k8s.io/name"),
        task=_labels("leaderworkerset.sigs.k8s.io/group-index"),
        rank=_labels("leaderworkerset.sigs.k8s.io/worker-index"),
    ),
    Preset(
        "volcano",
        project=_labels("volcano.sh/queue-name"),
        run=_labels("volcano.sh/job-name"),
        task=_labels("volcano.sh/task-spec"),
        rank=_labels("volcano.sh/task-index"),
        attempt=_annotations("volcano.sh/job-retry-count"),
    ),
    Preset("knative", run=_labels("serving.knative.dev/service")),
    Preset("job", run=_labels("batch.kubernetes.io/job-name", "job-name"), rank=_RANK_OF_JOB),
    Preset(
        "kueue",
        run=(
            *_labels("kueue.x-k8s.io/pod-group-name"),
            *_annotations("kueue.x-k8s.io/workload", "kueue.x-k8s.io/pod-group-name"),
        ),
        task=_labels("kueue.x-k8s.io/podset"),
        rank=_labels("kueue.x-k8s.io/pod-group-pod-index"),
    ),
    Preset(
        "kai",
        run=_annotations("pod-group-name"),
        task=_labels("kai.scheduler/subgroup-name"),
        markers=(Marker("kai.scheduler/queue"),),
    ),
    Preset("runai", run=_annotations("pod-group-name"), markers=(Marker("runai/queue"),)),
)
"""Sources: the label constants of each system's API package. Slurm's own jobs are named by ``identity.of_job``."""

QUEUES = (
    *_labels("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/cluster-queue-name"),
    *_annotations("slurmjob.slinky.slurm.net/account"),
    *_labels("volcano.sh/queue-name", "kai.scheduler/queue", "runai/queue"),
)
"""Who pays for what a queue let in, for presets without a project of their own."""
