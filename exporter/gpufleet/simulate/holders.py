"""Who holds the GPUs of a scripted node, as a kubelet and an API server would say it. Pure.

Runs are those of the scenario, with the labels that Flyte 2 puts on its pods; so attribution and cost go the way
that they go on a real node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from gpufleet.model.claims import ContainerDevices, Pod
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.scenario import Run, Scenario

CONTAINER = "main"
ATTEMPT = "1"
TASKS: dict[str, str] = {
    "train": "pretrain",
    "inference": "serve",
    "data_bound": "caption",
    "evals": "evaluate",
    "sandbox": "notebook",
}


def containers_of(gpus: Sequence[GpuScript], scenario: Scenario, node: str) -> tuple[ContainerDevices, ...]:
    """What the node's kubelet gave out: a run's whole GPUs to one pod, its slices to a pod each."""
    runs = {run.name: run for run in scenario.runs}
    whole: dict[str, list[str]] = {}
    found: list[ContainerDevices] = []
    for number, gpu in enumerate(gpus):
        run = runs.get(gpu.run)
        if run is None:
            continue
        if not gpu.mig:
            whole.setdefault(run.name, []).append(gpu.uuid)
            continue
        for instance in gpu.instances:
            resource = f"nvidia.com/mig-{instance.profile.profile}"
            for compute in instance.computes:
                name = f"{run.name}-{number}-{instance.identifier}-{_suffix(compute.uuid)}"
                found.append(ContainerDevices(_namespace(run), name, CONTAINER, resource, (compute.uuid,)))
    for name, uuids in whole.items():
        run = runs[name]
        found.append(ContainerDevices(_namespace(run), _pod(run, node), CONTAINER, "nvidia.com/gpu", tuple(uuids)))
    return tuple(found)


def pods_of(
    containers: Sequence[ContainerDevices], gpus: Sequence[GpuScript], scenario: Scenario, node: str
) -> Mapping[tuple[str, str], Pod]:
    """What the API server says of the pods of ``containers``."""
    runs = {run.name: run for run in scenario.runs}
    run_of = {uuid: gpu.run for gpu in gpus for uuid in (gpu.uuid, *_slices(gpu))}
    found = {}
    for container in containers:
        run = runs[run_of[container.device_ids[0]]]
        labels = {
            "flyte.org/project": project_of(run),
            "flyte.org/domain": "production",
            "flyte.org/run": run.name,
            "flyte.org/action": "a0",
            "attempt": ATTEMPT,
            "task-name": TASKS[run.pattern],
        }
        if run.pattern == "train":
            labels["batch.kubernetes.io/job-completion-index"] = str(run.nodes.index(node))
        key = (container.namespace, container.pod)
        found[key] = Pod(
            uid=f"{crc32(container.pod.encode()):08x}-0000-4000-8000-{crc32(node.encode()):012x}",
            namespace=container.namespace,
            name=container.pod,
            labels=tuple(sorted(labels.items())),
            owner_kind="Job",
            owner_name=container.pod.rpartition("-")[0],
            phase="Running",
        )
    return found


def _slices(gpu: GpuScript) -> list[str]:
    return [compute.uuid for instance in gpu.instances for compute in instance.computes]


def project_of(run: Run) -> str:
    """The project that a run is billed to."""
    return run.project or "default"


def _namespace(run: Run) -> str:
    return f"{project_of(run)}-production"


def _pod(run: Run, node: str) -> str:
    return f"{run.name}-workers-0-{run.nodes.index(node)}-{_suffix(run.name + node)}"


def _suffix(text: str) -> str:
    return f"{crc32(text.encode()):08x}"[:5]
