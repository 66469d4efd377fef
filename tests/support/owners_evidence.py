"""GPUs, pods, claims and processes for tests of who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.model.claims import Cgroup, ContainerDevices, GpuProcess, JobDevice, JobSource, Pod, ProcessFacts
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.snapshot import GpuSnapshot, SliceSnapshot
from gpufleet.model.state import GpuState
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import Devices, devices_of
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.resolve import Resolution, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpufleet.model.owner import Workload

NO_CONFIG = OwnersConfig()


def gpu_uuid(number: int) -> str:
    """UUID of the nth GPU of a test."""
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def mig_uuid(gpu: int, part: int) -> str:
    """UUID of the nth slice of a GPU of a test."""
    return f"MIG-{gpu:08x}-{part:04x}-5000-8000-{part:012x}"


def pod_uid(number: int) -> str:
    """UID of the nth pod of a test."""
    return f"{number:08x}-ba47-41ea-b2a7-0cc47ac5979e"


def gpu(
    number: int, *profiles: str, minor: int | None = None, fraction: float | None = None, name: str = "NVIDIA H100"
) -> GpuSnapshot:
    """A GPU whose number follows its PCI address, with a slice for each profile in a GPU instance of its own."""
    slices = tuple(
        SliceSnapshot(SliceIdentity(mig_uuid(number, part), profile, 7 + part, 0, fraction), ())
        for part, profile in enumerate(profiles)
    )
    identity = GpuIdentity(
        gpu_uuid(number), name, f"0000:{number + 1:02x}:00.0", minor=number if minor is None else minor
    )
    return GpuSnapshot(number, identity, GpuState.OK, 0.0, slices=slices)


def node(*gpus: GpuSnapshot) -> Devices:
    """The devices of a node."""
    return devices_of(gpus)


def pod(
    name: str,
    number: int = 1,
    *,
    namespace: str = "team-a",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    owner: tuple[str, str] = ("", ""),
) -> Pod:
    """A pod as the API server tells it."""
    return Pod(
        pod_uid(number),
        namespace,
        name,
        tuple((labels or {}).items()),
        tuple((annotations or {}).items()),
        *owner,
        phase,
    )


def given(
    name: str,
    *device_ids: str,
    namespace: str = "team-a",
    container: str = "main",
    resource: str = "nvidia.com/gpu",
    is_claim: bool = False,
) -> ContainerDevices:
    """What the kubelet gave to a container."""
    return ContainerDevices(namespace, name, container, resource, device_ids, is_claim)


def job(
    device: str,
    job_id: str = "4711",
    *,
    source: JobSource = JobSource.PROLOG,
    user: str = "",
    account: str = "",
    name: str = "",
    array: tuple[str, str] = ("", ""),
    restarts: str = "",
    shards: int | None = None,
) -> JobDevice:
    """A job that a file names."""
    return JobDevice(
        source,
        device,
        job_id,
        user=user,
        account=account,
        name=name,
        array_job_id=array[0],
        array_task_id=array[1],
        restart_count=restarts,
        shards=shards,
    )


def process(
    pid: int = 100,
    *,
    user: str = "alice",
    uid: str | None = None,
    slurm: str | None = None,
    container: str | None = None,
    unit: str | None = None,
    gi: int | None = None,
    ci: int | None = None,
) -> tuple[GpuProcess, ProcessFacts]:
    """A process with a context on a GPU."""
    cgroup = Cgroup(pod_uid=uid, container_id=container, slurm_job=slurm, unit=unit)
    return GpuProcess(pid, gi, ci), ProcessFacts(pid, user, cgroup)


def cluster(
    *containers: ContainerDevices,
    pods: Iterable[Pod] = (),
    known: bool = True,
    jobs: tuple[JobDevice, ...] | None = None,
    processes: Mapping[str, tuple[tuple[GpuProcess, ProcessFacts], ...]] | None = None,
    stale: bool = False,
) -> Evidence:
    """Evidence of a node of Kubernetes."""
    return Evidence(
        containers=containers,
        pods={(each.namespace, each.name): each for each in pods},
        pods_known=known,
        jobs=jobs,
        processes=processes or {},
        allocations_expected=True,
        stale=stale,
    )


def resolved(devices: Devices, evidence: Evidence) -> Resolution:
    """Who holds what, with the built-in presets."""
    return resolve(devices, evidence, NO_CONFIG)


def shares(resolution: Resolution) -> dict[tuple[str, str], float]:
    """Share by (slice or GPU, run or what holds it)."""
    found: dict[tuple[str, str], float] = {}
    for each in resolution.holdings:
        key = (each.mig_uuid or each.uuid, each.workload.run or each.project)
        assert key not in found
        found[key] = each.share
    return found


def only(resolution: Resolution) -> Workload:
    """The workload of the one holding there is."""
    (holding,) = resolution.holdings
    assert holding.share == 1.0
    return holding.workload
