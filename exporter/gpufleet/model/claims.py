"""What witnesses say about who uses a device, each in its own terms; ``owners`` makes holders of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Devices that the kubelet gave to one container, as its PodResources service lists them."""

    namespace: str
    pod: str
    container: str
    resource: str
    """``nvidia.com/gpu``, ``nvidia.com/mig-1g.10gb``, ...; the driver's name (``gpu.nvidia.com``) for a claim (DRA)."""
    device_ids: tuple[str, ...]
    """As the plugin named them; for a claim the device's names in its pool (``gpu-0``)."""
    is_claim: bool = False
    """It comes from a resource claim (DRA)."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What the API server says of a pod."""

    uid: str
    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    owner_kind: str = ""
    """Kind of the controller that made it: ``Job``, ``ReplicaSet``, ``StatefulSet``, ...; empty: nobody did."""
    owner_name: str = ""
    phase: str = ""
    """``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Unknown``."""
    addresses: tuple[str, ...] = ()
    """Its own IP addresses; none while it has none yet, and none where it shares those of its node."""

    @property
    def is_over(self) -> bool:
        """Its containers have ended for good; older kubelets list its devices still."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What the path of a process's control group says; ``None`` and empty texts are not said there."""

    pod_uid: str | None = None
    """With dashes, in lower case; a static pod's is 32 hexadecimal digits."""
    container_id: str | None = None
    """64 hexadecimal digits."""
    slurm_job: str | None = None
    slurm_step: str | None = None
    """Number, ``batch``, ``extern`` or ``interactive``."""
    slurm_node: str | None = None
    """Name of the node, where several slurmd run on one machine."""
    unit: str | None = None
    """systemd's unit (``jupyter.service``, ``session-3.scope``), for a process of neither a pod nor a job."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a context on a GPU, as the driver lists it."""

    pid: int
    """Of the host's namespace."""
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What /proc says of a process."""

    pid: int
    user: str
    """Name of its owner, else the number."""
    cgroup: Cgroup


class JobSource(StrEnum):
    """Who said that a job of Slurm has a device; the first of these that names a job is asked about it first."""

    PROLOG = "prolog"
    """gpufleet's own files."""
    JOBSTATS = "jobstats"
    DCGM = "dcgm"


@dataclass(frozen=True, slots=True)
class JobDevice:
    """A device that a file says belongs to a job of Slurm."""

    source: JobSource
    device: str
    """``GPU-…``, ``MIG-…``, ``minor:N`` or ``index:N`` (of NVML); ``index:N.G`` is GPU instance G of it."""
    job_id: str
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    restart_count: str = ""
    shards: int | None = None
    """How many shards of the device it has; ``None``: the whole device."""
    started_at: float | None = None
    """Unix time at which the file was written."""
