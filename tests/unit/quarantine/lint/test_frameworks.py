"""PyTorchJob, Ray, Flyte, Volcano and Slurm: what a crash on a broken GPU costs there, and what saves it."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Finding, Judgement, Verdict
from gpufleet.quarantine.lint.kinds import judge
from gpufleet.quarantine.lint.manifests import read
from tests.support.lint_changes import applied, judged

SAFE, COSTS, LOST, UNKNOWN = Verdict.SAFE, Verdict.COSTS, Verdict.LOST, Verdict.UNKNOWN
LAUNCHED = ["gpufleet", "run", "--", "python", "train.py"]
BARE = ["python", "train.py"]
LOOP = "until gpufleet run -- python train.py; do s=$?; [ $s -eq 250 ] || exit $s; done"


def pod(command: list[str] | None, gpus: int = 1, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a pod has
    """A pod template of one container."""
    main: dict[str, Any] = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    if command is not None:
        main["command"] = command
    return {"spec": {"containers": [main], **spec}}


def torch(policy: str | None, command: list[str] | None, limit: int | None = 3) -> dict[str, Any]:
    """A PyTorchJob of one worker."""
    worker: dict[str, Any] = {"replicas": 2, "template": pod(command)}
    if policy is not None:
        worker["restartPolicy"] = policy
    run = {} if limit is None else {"backoffLimit": limit}
    spec = {"runPolicy": run, "pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}


def ray_job(entrypoint: str, head_gpus: int = 0, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """A RayJob with a head and a worker."""
    cluster = {
        "headGroupSpec": {"template": pod(None, head_gpus)},
        "workerGroupSpecs": [{"groupName": "w", "template": pod(None)}],
    }
    told = {"entrypoint": entrypoint, "rayClusterSpec": cluster, **spec}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": told}


def volcano(
    restart: str,
    command: list[str] | None,
    task: list[Any] | None = None,
    whole: list[Any] | None = None,
    retries: int | None = None,
) -> dict[str, Any]:
    """A Job of Volcano."""
    one: dict[str, Any] = {"name": "w", "template": pod(command, restartPolicy=restart)}
    if task is not None:
        one["policies"] = task
    spec: dict[str, Any] = {} if retries is None else {"maxRetry": retries}
    if whole is not None:
        spec["policies"] = whole
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"tasks": [one], **spec}}


def template(command: list[str] | None, name: str = "primary") -> dict[str, Any]:
    """A pod template of Flyte's."""
    one: dict[str, Any] = {"name": name, "image": "none"}
    if command is not None:
        one["command"] = command
    meta = {"name": "faults"}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": {"spec": {"containers": [one]}}}


def workflow(args: list[str], gpus: str = "1", **task: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """A FlyteWorkflow of one task."""
    limits = [{"name": "GPU", "value": gpus}]
    tasks = {"t": {"container": {"args": args, "resources": {"limits": limits}}, **task}}
    return {"apiVersion": "flyte.lyft.com/v1alpha1", "kind": "FlyteWorkflow", "tasks": tasks}


ON_250 = {"exitCode": 250, "action": "RestartJob"}
ABORT = {"event": "PodFailed", "action": "AbortJob"}
RESTART = {"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"}
FLYTE = ["gpufleet", "run", "--exit-code=137", "--"]

CASES = {
    "torch": (torch("ExitCode", LAUNCHED), SAFE, "a new pod is made, uncounted"),
    "torch, no limit": (torch("ExitCode", LAUNCHED, None), SAFE, "uncounted"),
    "torch, bare": (torch("ExitCode", BARE), LOST, "a code below 128"),
    "torch, entry point": (torch("ExitCode", None), UNKNOWN, "is in its image"),
    "torch, low code": (torch("ExitCode", ["gpufleet", "run", "--exit-code=42", "--", "a"]), LOST, "exit with 42"),
    "torch, no retries": (torch("ExitCode", LAUNCHED, 0), LOST, "spec.runPolicy.backoffLimit is 0"),
    "torch, few retries": (torch("ExitCode", LAUNCHED, 1), COSTS, "spec.runPolicy.backoffLimit is 1"),
    "torch, default": (torch(None, LAUNCHED), COSTS, "restartPolicy OnFailure: the container is started again"),
    "torch, always, no retries": (torch("Always", LAUNCHED, 0), LOST, "restartPolicy Always"),
    "torch, never": (torch("Never", LAUNCHED), LOST, "ends the job"),
    "torch, unlimited": (torch("OnFailure", BARE, None), SAFE, "nothing counts it"),
    "ray": (ray_job(LOOP, submissionMode="HTTPMode"), SAFE, "runs again in the same cluster"),
    "ray, the submitter's shell": (ray_job(LOOP), UNKNOWN, "in K8sJobMode the shell of the submitter"),
    "ray, no loop": (
        ray_job("gpufleet run -- python train.py", backoffLimit=2),
        COSTS,
        "nothing runs the driver again",
    ),
    "ray, bare": (ray_job("python train.py", backoffLimit=2), COSTS, "spec.backoffLimit (2)"),
    "ray, no retries": (ray_job("python train.py"), LOST, "spec.backoffLimit (0, the default)"),
    "ray, another cluster": (
        {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"entrypoint": "a", "clusterSelector": {"a": "b"}}},
        LOST,
        "spec.backoffLimit",
    ),
    "volcano": (volcano("Never", LAUNCHED, [ON_250, ABORT], retries=100), SAFE, "up to 100 times"),
    "volcano, of the job": (volcano("Never", LAUNCHED, None, [ON_250, ABORT], retries=24), SAFE, "up to 24 times"),
    "volcano, few": (volcano("Never", LAUNCHED, [ON_250, ABORT]), COSTS, "it may be large"),
    "volcano, anything restarts": (
        volcano("Never", LAUNCHED, None, [RESTART]),
        COSTS,
        "which errors of the program use up",
    ),
    "volcano, wrong order": (volcano("Never", LAUNCHED, [ABORT, ON_250], retries=100), LOST, "AbortJob is done"),
    "volcano, bare": (volcano("Never", BARE, None, [RESTART]), COSTS, "not started by the launcher"),
    "volcano, nothing restarts": (volcano("Never", LAUNCHED), LOST, "no policy restarts it"),
    "volcano, in place": (volcano("OnFailure", BARE), SAFE, "started again in place, which nothing counts"),
    "volcano, in place, moved": (
        volcano("OnFailure", BARE, None, [RESTART]),
        COSTS,
        "for a pod that is moved (PodEvicted)",
    ),
    "volcano, moved ends it": (
        volcano("OnFailure", BARE, None, [{"event": "*", "action": "TerminateJob"}]),
        LOST,
        "TerminateJob is done when a pod is moved",
    ),
    "flyte": (template(FLYTE), SAFE, "takes for a failure of the system"),
    "flyte, default": (template(FLYTE, "default"), SAFE, "137"),
    "flyte, the usual code": (template(["gpufleet", "run", "--"]), COSTS, "only 137 is the system's"),
    "flyte, no launcher": (template(None), COSTS, "puts no launcher before the tasks"),
    "flyte, no container of its own": (template(FLYTE, "main"), COSTS, "no container is called primary or default"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict(name: str) -> None:
    """With a reason that names what decides."""
    manifest, verdict, said = CASES[name]

    found = judged(manifest)

    assert found.verdict is verdict, found.reason
    assert said in found.reason


@pytest.mark.parametrize("name", CASES)
def test_the_changes_save_it(name: str) -> None:
    """Written as they are told, they leave nothing to be said; what is safe needs none."""
    manifest, verdict, _ = CASES[name]

    found = judged(manifest)
    after = judged(applied(manifest, found.changes))

    assert (found.changes == ()) is (verdict is SAFE)
    assert after.verdict is SAFE, after.reason


def test_nothing_is_lost_without_a_gpu() -> None:
    """Whatever the policies are."""
    idle = [torch("Never", BARE), volcano("Never", BARE), ray_job("a")]
    idle[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = pod(BARE, 0)
    idle[1]["spec"]["tasks"][0]["template"] = pod(BARE, 0)
    idle[2]["spec"]["rayClusterSpec"]["workerGroupSpecs"] = []

    assert [judged(each).reason for each in idle] == ["it asks for no GPU"] * 3


def test_a_head_with_a_gpu_takes_its_cluster_along() -> None:
    """Unless Ray keeps its state elsewhere."""
    cluster = ray_job(LOOP, head_gpus=1, submissionMode="HTTPMode")
    alone = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": cluster["spec"]["rayClusterSpec"]}

    for each in (cluster, alone):
        found = judged(each)
        assert (found.verdict, found.notes) == (LOST, found.notes)
        assert "gcsFaultToleranceOptions" in found.notes[0]
    alone["spec"]["gcsFaultToleranceOptions"] = {"redisAddress": "redis:6379"}
    assert judged(alone).verdict is SAFE


def test_torchruns_own_restarts_are_told() -> None:
    """They happen inside the pod, where nothing else sees them."""
    manifest = torch("ExitCode", LAUNCHED)
    manifest["spec"]["elasticPolicy"] = {"maxRestarts": 3}

    assert any("elasticPolicy.maxRestarts" in note for note in judged(manifest).notes)


@pytest.mark.parametrize(
    ("manifest", "beside", "verdict"),
    [
        (workflow(["pyflyte-execute"]), (), UNKNOWN),
        (workflow(["pyflyte-execute"]), (template(FLYTE),), SAFE),
        (workflow(["pyflyte-execute"]), (template(None),), UNKNOWN),
        (workflow(["pyflyte-execute"], metadata={"pod_template_name": "other"}), (template(FLYTE),), UNKNOWN),
        (workflow([*FLYTE, "pyflyte-execute"]), (), SAFE),
        (workflow(["gpufleet", "run", "--", "pyflyte-execute"]), (), COSTS),
        (workflow(["pyflyte-execute"], gpus="0"), (), SAFE),
        (
            {"apiVersion": "flyte.lyft.com/v1alpha1", "kind": "FlyteWorkflow", "tasks": {"t": {"k8sPod": {}}}},
            (),
            UNKNOWN,
        ),
    ],
)
def test_workflows_as_far_as_they_show(
    manifest: dict[str, Any], beside: tuple[dict[str, Any], ...], verdict: Verdict
) -> None:
    """What a pod template adds is looked at when it lies beside."""
    assert judged(manifest, *beside).verdict is verdict


HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:8\n"
SCRIPTS = [
    (HEAD + "exec srun gpufleet run -- python a.py\n", SAFE, "slurm.conf must have RequeueExit=250"),
    (HEAD + "exec srun gpufleet run --exit-code=42 -- python a.py\n", SAFE, "RequeueExit=42"),
    ("#!/bin/bash -e\n#SBATCH -G 4\nsrun gpufleet run -- a\necho done\n", SAFE, ""),
    ("#!/bin/bash\n#SBATCH --gpus-per-node=4\nsrun gpufleet run -- a\necho done\n", COSTS, "another exit status"),
    (HEAD + "for i in 1 2; do\nsrun gpufleet run -- a\ndone\n", UNKNOWN, "cannot be seen"),
    (HEAD + "#SBATCH --no-requeue\nexec srun gpufleet run -- a\n", LOST, "--no-requeue"),
    (HEAD + "#SBATCH --no-requeue\n#SBATCH --requeue\nexec srun gpufleet run -- a\n", SAFE, ""),
    (HEAD + "exec srun --kill-on-bad-exit=1 -n 2 gpufleet run -- a\n", COSTS, "exec srun -n 2 gpufleet run -- a"),
    (HEAD + "exec srun -K gpufleet run -- a\n", COSTS, "srun reports signals above exit codes"),
    (HEAD + "exec srun --kill-on-bad-exit gpufleet run -- a\n", COSTS, "exec srun gpufleet run -- a"),
    (HEAD + "exec srun --kill-on-bad-exit=0 gpufleet run -- a\n", SAFE, ""),
    (HEAD + "exec gpufleet run -- srun --kill-on-bad-exit=1 a\n", SAFE, ""),
    (HEAD + "srun --ntasks=2 -n 4 python a.py\n", COSTS, "exec srun --ntasks=2 -n 4 gpufleet run -- python a.py"),
    (HEAD + "srun --ntasks 2 python a.py\n", COSTS, "exec srun gpufleet run -- …"),
    (HEAD + "python a.py\n", COSTS, "exec gpufleet run -- python a.py"),
    ("#!/bin/bash\n#SBATCH --ntasks=2\nsrun a\n", SAFE, "it asks for no GPU"),
    ("#!/bin/bash\nsrun a\n#SBATCH --gres=gpu:1\n", SAFE, "it asks for no GPU"),
]


def script(text: str, *configurations: str) -> Judgement:
    """What is found of a batch script beside slurm.conf."""
    documents = [each for part in (text, *configurations) for each in read(part.encode(), "f")]
    found = judge(documents[0], Facts(tuple(documents)))
    assert isinstance(found, Finding)
    return found.judgement


@pytest.mark.parametrize(("text", "verdict", "said"), SCRIPTS)
def test_batch_scripts(text: str, verdict: Verdict, said: str) -> None:
    """The job's exit status must be the launcher's, and it must be allowed to start again."""
    found = script(text)

    assert found.verdict is verdict, found.reason
    assert said in "\n".join([found.reason, *found.notes, *(each.yaml() for each in found.changes)])


@pytest.mark.parametrize(
    ("configuration", "verdict"),
    [
        ("ClusterName=c\nRequeueExit=1-10,250\n", SAFE),
        ("clustername=c\nrequeueexit=240-255 # codes\n", SAFE),
        ("ClusterName=c\nRequeueExit=142\n", COSTS),
        ("ClusterName=c\n", COSTS),
        ("ClusterName=c\nRequeueExit=250\nRequeueExitHold=250\n", COSTS),
    ],
)
def test_slurms_configuration(configuration: str, verdict: Verdict) -> None:
    """It has to know the launcher's code; codes that are there stay."""
    found = script(configuration)

    assert found.verdict is verdict, found.reason
    if "RequeueExit=142" in configuration:
        assert found.changes[0].yaml() == "RequeueExit=142,250"


def test_a_script_beside_its_configuration() -> None:
    """Then both are known."""
    good = HEAD + "exec srun gpufleet run -- a\n"

    assert script(good, "ClusterName=c\nRequeueExit=250\n").verdict is SAFE
    assert script(good, "ClusterName=c\n").verdict is COSTS
    assert script(good, "ClusterName=c\nRequeueExit=250\nJobRequeue=0\n").verdict is LOST
    assert script(good, "ClusterName=c\nRequeueExit=250\nKillOnBadExit=1\n").verdict is COSTS
    spared = good.replace("srun", "srun --kill-on-bad-exit=0")
    assert script(spared, "ClusterName=c\nRequeueExit=250\nKillOnBadExit=1\n").verdict is SAFE
    requeued = good.replace("exec", "#SBATCH --requeue\nexec")
    assert script(requeued, "ClusterName=c\nRequeueExit=250\nJobRequeue=0\n").verdict is SAFE
