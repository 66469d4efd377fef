"""What pods, jobs and processes are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.model.claims import ProcessFacts
from gpufleet.model.owner import Workload
from gpufleet.owners.config import OwnersConfig, parse_owners_config
from gpufleet.owners.identity import (
    MOST_BYTES,
    MOST_LABELS,
    Identities,
    annotations_read,
    bounded,
    identify,
    of_job,
    of_process,
)
from gpufleet.owners.presets import PRESETS, Key, Preset, Where
from tests.support.owners_evidence import NO_CONFIG, job, pod, process

JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/jobset-uid": "0a1b",
    "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    "jobset.sigs.k8s.io/job-index": "0",
    "jobset.sigs.k8s.io/job-global-index": "0",
    "jobset.sigs.k8s.io/restart-attempt": "2",
    "batch.kubernetes.io/job-name": "train-workers-0",
    "job-name": "train-workers-0",
    "batch.kubernetes.io/job-completion-index": "5",
}
LWS = {
    "leaderworkerset.sigs.k8s.io/name": "serve",
    "leaderworkerset.sigs.k8s.io/group-index": "1",
    "leaderworkerset.sigs.k8s.io/group-key": "8f",
    "leaderworkerset.sigs.k8s.io/worker-index": "3",
}
FLYTE2 = {"project": "vision", "domain": "development", "organization": "acme", "run": "rx7", "action": "a0"}
KUEUE = {"kueue.x-k8s.io/queue-name": "research"}


def called(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    *,
    name: str = "some-pod",
    owner: tuple[str, str] = ("", ""),
    config: OwnersConfig = NO_CONFIG,
) -> tuple[str, str, str, str, str]:
    """(project, run, task, rank, attempt) of the container ``main`` of a pod in the namespace ``team-a``."""
    found = identify(pod(name, labels=labels, annotations=annotations, owner=owner), "main", config)
    return found.project, found.run, found.task, found.rank, found.attempt


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        pytest.param(
            {
                "flyte.org/project": "vision",
                "flyte.org/domain": "development",
                "flyte.org/run": "rx7",
                "flyte.org/action": "a0",
                "flyte.org/managed": "true",
                "task-name": "train.fit",
                "attempt": "1",
            },
            {},
            ("vision", "rx7", "train.fit", "", "1"),
            id="flyte2",
        ),
        pytest.param(FLYTE2 | {"attempt": "2"}, {}, ("vision", "rx7", "a0", "", "2"), id="flyte2-unprefixed"),
        pytest.param(
            FLYTE2 | JOBSET | {"task-name": "train.fit", "attempt": "1"},
            {},
            ("vision", "rx7", "train.fit", "5", "1"),
            id="flyte2-clustered",
        ),
        pytest.param(
            {"flyte.org/project": "vision", "flyte.org/app-name": "chat", "serving.knative.dev/service": "chat-x"},
            {},
            ("vision", "chat", "", "", ""),
            id="flyte2-app",
        ),
        pytest.param(
            {"flyte.org/project": "vision", "serving.knative.dev/service": "chat", "serving.knative.dev/revision": "1"},
            {},
            ("vision", "chat", "", "", ""),
            id="flyte2-app-by-knative",
        ),
        pytest.param(
            FLYTE2 | {"platform.union.ai/gpu-partition-slices": "3"}, {}, ("vision", "rx7", "a0", "", ""), id="union"
        ),
        pytest.param(
            {
                "training.kubeflow.org/job-name": "bert",
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": "2",
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
                "training.kubeflow.org/job-role": "master",
            },
            {},
            ("team-a", "bert", "worker", "2", ""),
            id="kubeflow-training",
        ),
        pytest.param(
            JOBSET
            | {
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
            },
            {},
            ("team-a", "train", "trainer", "5", "2"),
            id="kubeflow-trainer",
        ),
        pytest.param(JOBSET, {}, ("team-a", "train", "workers", "5", "2"), id="jobset"),
        pytest.param(
            {"batch.kubernetes.io/job-name": "etl", "batch.kubernetes.io/job-completion-index": "4"},
            {},
            ("team-a", "etl", "", "4", ""),
            id="job",
        ),
        pytest.param(
            {"job-name": "etl"},
            {"batch.kubernetes.io/job-completion-index": "4"},
            ("team-a", "etl", "", "4", ""),
            id="job-before-1.28",
        ),
        pytest.param(LWS, {}, ("team-a", "serve", "1", "3", ""), id="leaderworkerset"),
        pytest.param(
            {
                "ray.io/cluster": "tune-raycluster-x1",
                "ray.io/group": "gpu",
                "ray.io/node-type": "worker",
                "ray.io/worker-group-replica-index": "1",
            },
            {},
            ("team-a", "tune-raycluster-x1", "gpu", "1", ""),
            id="kuberay",
        ),
        pytest.param(
            {
                "ray.io/originated-from-cr-name": "tune",
                "ray.io/originated-from-crd": "RayJob",
                "ray.io/cluster": "tune-raycluster-x1",
                "ray.io/node-type": "head",
            },
            {},
            ("team-a", "tune", "head", "", ""),
            id="kuberay-job",
        ),
        pytest.param(
            KUEUE | {"kueue.x-k8s.io/pod-group-name": "grp", "kueue.x-k8s.io/pod-group-pod-index": "6"},
            {},
            ("research", "grp", "", "6", ""),
            id="kueue-pods",
        ),
        pytest.param(
            {"kueue.x-k8s.io/local-queue-name": "research", "kueue.x-k8s.io/podset": "main"},
            {"kueue.x-k8s.io/workload": "pod-x-1"},
            ("research", "pod-x-1", "main", "", ""),
            id="kueue-newer",
        ),
        pytest.param(KUEUE | JOBSET, {}, ("research", "train", "workers", "5", "2"), id="kueue-jobset-job"),
        pytest.param(
            {
                "volcano.sh/queue-name": "gold",
                "volcano.sh/job-name": "mpi",
                "volcano.sh/task-spec": "worker",
                "volcano.sh/task-index": "3",
            },
            {"volcano.sh/job-retry-count": "1", "scheduling.k8s.io/group-name": "podgroup-1"},
            ("gold", "mpi", "worker", "3", "1"),
            id="volcano",
        ),
        pytest.param(
            {"workflows.argoproj.io/workflow": "nightly", "workflows.argoproj.io/completed": "false"},
            {"workflows.argoproj.io/node-name": "nightly.train", "workflows.argoproj.io/node-id": "nightly-1"},
            ("team-a", "nightly", "nightly.train", "", ""),
            id="argo",
        ),
        pytest.param(
            JOBSET | {"scheduler.slinky.slurm.net/slurm-jobid": "88"},
            {"slurmjob.slinky.slurm.net/account": "physics", "slurmjob.slinky.slurm.net/job-name": "sim"},
            ("physics", "88", "sim", "5", ""),
            id="slurm-bridge",
        ),
        pytest.param(
            {"serving.kserve.io/inferenceservice": "llama", "component": "predictor"},
            {},
            ("team-a", "llama", "predictor", "", ""),
            id="kserve",
        ),
        pytest.param(
            LWS
            | {
                "app.kubernetes.io/name": "qwen",
                "app.kubernetes.io/component": "llminferenceservice-workload-prefill",
                "llm-d.ai/role": "prefill",
            },
            {},
            ("team-a", "qwen", "prefill", "3", ""),
            id="kserve-llm-on-leaderworkerset",
        ),
        pytest.param(
            {
                "helm-release-name": "vllm",
                "app.kubernetes.io/instance": "vllm",
                "model": "opt125m",
                "app.kubernetes.io/component": "serving-engine",
            },
            {},
            ("vllm", "opt125m", "serving-engine", "", ""),
            id="vllm-production-stack",
        ),
        pytest.param(
            LWS
            | {
                "app.kubernetes.io/name": "llama3",
                "app.kubernetes.io/instance": "llama3",
                "app.kubernetes.io/part-of": "nim-service",
                "app": "llama3",
                "nim-llm-role": "worker",
            },
            {},
            ("team-a", "llama3", "worker", "3", ""),
            id="nim",
        ),
        pytest.param(
            {"kai.scheduler/queue": "team-q", "kai.scheduler/subgroup-name": "workers", "runai-gpu-group": "g1"},
            {"pod-group-name": "pg-x-1", "gpu-fraction": "0.5"},
            ("team-q", "pg-x-1", "workers", "", ""),
            id="kai",
        ),
        pytest.param({"runai/queue": "old-q"}, {"pod-group-name": "pg-1"}, ("old-q", "pg-1", "", "", ""), id="runai"),
        pytest.param(
            {"skypilot-user": "bob", "skypilot-cluster-name": "dev-1", "parent": "skypilot"},
            {"skypilot-workspace": "ml"},
            ("ml", "dev-1", "", "", ""),
            id="skypilot",
        ),
        pytest.param(
            {"skypilot-user": "bob", "skypilot-cluster": "dev"}, {}, ("bob", "dev", "", "", ""), id="skypilot-older"
        ),
        pytest.param(
            {
                "k8s.dstack.ai/project": "main",
                "k8s.dstack.ai/user": "eve",
                "k8s.dstack.ai/name": "tune-0",
                "app.kubernetes.io/instance": "tune-0-x",
                "app.kubernetes.io/managed-by": "dstack",
            },
            {},
            ("main", "tune-0", "", "", ""),
            id="dstack",
        ),
        pytest.param({"serving.knative.dev/service": "hello"}, {}, ("team-a", "hello", "", "", ""), id="knative"),
    ],
)
def test_systems(labels: dict[str, str], annotations: dict[str, str], expected: tuple[str, ...]) -> None:
    """Each system's own keys, as its pods carry them, beside those of the systems below it."""
    assert called(labels, annotations) == expected


def test_flyte1_tells_the_retry_in_the_pods_name() -> None:
    """There is no label for it."""
    labels = {
        "project": "vision",
        "domain": "production",
        "execution-id": "f9k2",
        "workflow-name": "wf",
        "node-id": "n0",
        "task-name": "fit",
        "interruptible": "false",
    }

    assert called(labels, name="f9k2-n0-1") == ("vision", "f9k2", "fit", "", "1")
    assert called(labels, name="f9k2-other") == ("vision", "f9k2", "fit", "", "")


def test_every_preset_is_reached_by_its_first_run_key() -> None:
    """No row of the table is hidden behind the ones before it."""
    for preset in PRESETS:
        labels = {marker.label: marker.value.replace("*", "x") for marker in preset.markers}
        annotations: dict[str, str] = {}
        first = preset.run[0]
        (labels if first.where is Where.LABEL else annotations)[first.name] = "the-run"

        assert called(labels, annotations)[1] == "the-run", preset.name


@pytest.mark.parametrize("label", ["run", "project", "domain", "execution-id", "model", "app", "component"])
def test_labels_that_anybody_uses_are_no_system(label: str) -> None:
    """``kubectl run`` sets ``run``, for one."""
    assert called({label: "web"}) == ("team-a", "some-pod", "main", "", "")


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        (("ReplicaSet", "web-7d4b9c6f5d"), {"pod-template-hash": "7d4b9c6f5d"}, "web"),
        (("ReplicaSet", "web-7d4b9c6f5d"), {}, "web"),
        (("ReplicaSet", "web"), {}, "web"),
        (("StatefulSet", "db-abcdef"), {}, "db-abcdef"),
        (("Node", "node-1"), {}, "some-pod"),
        (("", ""), {}, "some-pod"),
    ],
)
def test_owner_chain(owner: tuple[str, str], labels: dict[str, str], expected: str) -> None:
    """What made the pod without a Deployment's hash; the pod itself where nothing did."""
    assert called(labels, owner=owner) == ("team-a", expected, "main", "", "")


def test_own_annotations_override_a_field_each() -> None:
    """What they leave out is still the system's."""
    assert called(JOBSET, {"gpufleet.io/run": "mine"}) == ("team-a", "mine", "workers", "5", "2")
    assert called(KUEUE | JOBSET, {"gpufleet.io/project": "p", "gpufleet.io/task": "t"})[:3] == ("p", "train", "t")
    assert called({}, {"gpufleet.io/run": ""})[1] == "some-pod"


def test_a_user_and_a_schedulers_number_are_told_where_known() -> None:
    """They are fields of their own."""
    found = identify(
        pod(
            "p",
            labels={"scheduler.slinky.slurm.net/slurm-jobid": "88"},
            annotations={"slurmjob.slinky.slurm.net/user-id": "1000"},
        ),
        "main",
        NO_CONFIG,
    )

    assert (found.workload_user, found.workload_job) == ("1000", "88")


def test_presets_of_ones_own_stand_before_or_after() -> None:
    """Before: they win over every built-in one. After: only where no other says anything."""
    own = Preset("own", run=(Key(Where.LABEL, "x/run"),), project=(Key(Where.NAMESPACE),))
    labels = KUEUE | JOBSET | {"x/run": "mine"}

    assert called(labels, config=OwnersConfig(before=(own,)))[:2] == ("team-a", "mine")
    assert called(labels, config=OwnersConfig(after=(own,)))[:2] == ("research", "train")
    assert called({"x/run": "mine"}, config=OwnersConfig(after=(own,)))[:2] == ("team-a", "mine")


def test_without_the_api_server_names_still_work() -> None:
    """The kubelet tells namespace and name."""
    assert identify(None, "main", NO_CONFIG, namespace="team-a", name="pod-1") == Workload(
        "team-a", "pod-1", workload_namespace="team-a", workload_pod="pod-1", workload_container="main"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * 200, "x" * MOST_BYTES),
        ("é" * 100, "é" * 64),
        ("a" + "😀" * 40, "a" + "😀" * 31),
        ('x"y\nz', 'x"y?z'),
        ("a\x00b\x7fc\u2028d", "a?b?c?d"),
        ("\ud800x", "?x"),
        ("", ""),
    ],
)
def test_values_are_bounded_and_printable(text: str, expected: str) -> None:
    """Cut on a whole character, and nothing in it breaks a line."""
    assert bounded(text) == expected


def test_hostile_labels_are_bounded_everywhere() -> None:
    """No text of a pod is longer than a value may be."""
    evil = "é\n\ud800" * 4000
    found = identify(
        pod(evil, namespace=evil, labels={"job-name": evil, "team": evil}, annotations={"gpufleet.io/task": evil}),
        evil,
        OwnersConfig(labels=("team",)),
    )
    texts = [getattr(found, name) for name in ("project", "run", "task", "workload_namespace", "workload_pod")]

    for text in (*texts, found.workload_container, found.labels[0][1]):
        assert 0 < len(text.encode()) <= MOST_BYTES
        assert "\n" not in text


def labels_of(labels: dict[str, str], *allowed: str) -> dict[str, str]:
    """Labels that are shown of a pod."""
    return dict(identify(pod("p", labels=labels), "main", OwnersConfig(labels=allowed)).labels)


def test_only_allowed_labels_are_shown() -> None:
    """By name or by the beginning of a name."""
    labels = {"team": "a", "app.kubernetes.io/name": "n", "app.kubernetes.io/part-of": "p", "secret": "s"}

    assert labels_of(labels) == {}
    assert labels_of(labels, "team", "app.kubernetes.io/*") == {
        "label_team": "a",
        "label_app_kubernetes_io_name": "n",
        "label_app_kubernetes_io_part_of": "p",
    }
    assert len(labels_of({f"l{number}": "" for number in range(50)}, "*")) == MOST_LABELS


def test_labels_with_one_name_are_kept_apart() -> None:
    """Both are shown, by the order of their own names and not of the pod's."""
    expected = {"label_a_b": "1", "label_a_b_conflict1": "2"}

    assert labels_of({"a.b": "1", "a_b": "2"}, "a*") == expected
    assert labels_of({"a_b": "2", "a.b": "1"}, "a_b", "a.b") == expected
    assert labels_of({"a_b": "2"}, "a*") == {"label_a_b": "2"}
    assert set(labels_of({"a.b": "1", "a_b": "2", "a_b_conflict1": "3"}, "*").values()) == {"1", "2", "3"}


def test_a_job_of_slurm() -> None:
    """Its number is the run: many jobs have one name, and a job has one number on all its nodes."""
    assert of_job(job("x", "4711", user="bob", account="physics", name="sim", restarts="1")) == Workload(
        project="physics", run="4711", task="sim", attempt="1", workload_user="bob", workload_job="4711"
    )
    assert of_job(job("x", "4711", user="bob")).project == "bob"


def test_a_task_of_an_array_is_named_by_array_and_task() -> None:
    """As Slurm itself prints it."""
    found = of_job(job("x", "4713", array=("4711", "2")))

    assert (found.run, found.workload_job) == ("4711_2", "4713")
    assert of_job(job("x", "4713", array=("4711", ""))).run == "4713"


def test_a_process_of_nobody_else_is_its_users() -> None:
    """By container, else by systemd's unit."""

    def facts(**known: str) -> ProcessFacts:
        return process(user="carol", **known)[1]  # type: ignore[arg-type]

    assert of_process(facts(container="ab" * 32)) == Workload("carol", "abababababab", workload_user="carol")
    assert of_process(facts(unit="jupyter.service")) == Workload("carol", "jupyter.service", workload_user="carol")
    assert of_process(facts()) == Workload("carol", workload_user="carol")


def test_identities_are_remembered_until_something_changes() -> None:
    """Another pod of the same name, or another configuration, is named anew."""
    names, first = Identities(), pod("p", labels=JOBSET)
    names.begin(NO_CONFIG)
    before = names.container("team-a", "p", "main", first)
    names.begin(NO_CONFIG)

    assert names.container("team-a", "p", "main", replace(first)) is before
    assert names.container("team-a", "p", "main", pod("p", 2, labels={"job-name": "other"})).run == "other"
    names.begin(OwnersConfig(labels=("job-name",)))
    assert names.container("team-a", "p", "main", first).labels == (("label_job_name", "train-workers-0"),)


def test_the_annotations_that_are_read_are_named() -> None:
    """Of the built-in presets, of ours and of the file's; labels are not among them."""
    config = parse_owners_config(b"presets:\n  ours:\n    run: [annotation:example.com/run, label:run]\n", "f")
    found = annotations_read(config)
    assert {"example.com/run", "gpufleet.io/project", "workflows.argoproj.io/node-name"} <= found
    assert "run" not in found
