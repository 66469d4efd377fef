"""The table: which module judges which kind. A new framework is a module and its lines here."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.quarantine.lint import flyte, job, jobset, pytorchjob, ray, slurm, trainjob, volcano
from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Finding, Judgement, Skipped, Verdict
from gpufleet.quarantine.lint.manifests import SLURM, SLURM_CONFIGURATION, Document
from gpufleet.quarantine.lint.tree import ShapeError

Judge = Callable[[Document, Facts], Judgement]

KINDS: dict[tuple[str, str], Judge] = {
    ("batch", "Job"): job.judge_job,
    ("batch", "CronJob"): job.judge_cron_job,
    ("jobset.x-k8s.io", "JobSet"): jobset.judge_job_set,
    (trainjob.GROUP, "TrainJob"): trainjob.judge_train_job,
    (trainjob.GROUP, "TrainingRuntime"): trainjob.judge_runtime,
    (trainjob.GROUP, "ClusterTrainingRuntime"): trainjob.judge_runtime,
    ("kubeflow.org", "PyTorchJob"): pytorchjob.judge_pytorch_job,
    ("ray.io", "RayJob"): ray.judge_ray_job,
    ("ray.io", "RayCluster"): ray.judge_ray_cluster,
    ("", "PodTemplate"): flyte.judge_pod_template,
    ("flyte.lyft.com", "FlyteWorkflow"): flyte.judge_workflow,
    ("batch.volcano.sh", "Job"): volcano.judge_volcano_job,
    ("", SLURM): slurm.judge_script,
    ("", SLURM_CONFIGURATION): slurm.judge_configuration,
}
"""Group of the API and kind; the version does not matter to what is looked at."""


def judge(document: Document, facts: Facts) -> Finding | Skipped:
    """What is found of one document, whatever is in it."""
    found = KINDS.get((document.group, document.kind))
    if found is None:
        kind = f"{document.group}/{document.kind}" if document.group else document.kind
        return Skipped(document.file, document.line, kind, document.name)
    try:
        judgement = found(document, facts)
    except ShapeError as error:
        judgement = Judgement(Verdict.UNKNOWN, f"{error}; an API server would refuse it")
    return Finding(document.file, document.line, document.kind, document.name, judgement)
