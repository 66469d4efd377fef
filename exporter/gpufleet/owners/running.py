"""Processes that have a context on a GPU: the witness that is asked last, and that tells rival claims apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpufleet.model.claims import GpuProcess, ProcessFacts
from gpufleet.owners.device_ids import slices_of
from gpufleet.owners.devices import Device, Devices
from gpufleet.owners.parts import Claimed, Claims


@dataclass(frozen=True, slots=True)
class _Group:
    """Processes with the same owner count once."""

    user: str
    pod_uid: str | None
    container_id: str | None
    slurm_job: str | None
    unit: str | None


class Running:
    """Where processes run."""

    def __init__(self, processes: Mapping[str, tuple[tuple[GpuProcess, ProcessFacts], ...]], devices: Devices) -> None:
        self.has_jobs = False
        """Whether any process is one of Slurm."""
        self._claims: Claims[ProcessFacts] = Claims()
        self._uids: dict[tuple[str, str], set[str]] = {}
        self._slurm_pods: set[str] = set()
        for uuid, rows in processes.items():
            device = devices.by_uuid.get(uuid)
            if device is not None:
                for process, facts in rows:
                    self._put(device, process, facts)

    def _put(self, device: Device, process: GpuProcess, facts: ProcessFacts) -> None:
        target = slices_of(device, process.gpu_instance, process.compute_instance)
        if target is None:
            return
        cgroup = facts.cgroup
        group = _Group(facts.user, cgroup.pod_uid, cgroup.container_id, cgroup.slurm_job, cgroup.unit)
        self._claims.put(target, group, facts)
        self.has_jobs = self.has_jobs or cgroup.slurm_job is not None
        if cgroup.pod_uid is not None:
            if not target.any_of:
                for part in target.mig_uuids or ("",):
                    self._uids.setdefault((device.uuid, part), set()).add(cgroup.pod_uid)
            if cgroup.slurm_job is not None:
                self._slurm_pods.add(cgroup.pod_uid)

    def of(self, device: Device) -> Mapping[str, Claimed[ProcessFacts]]:
        """The processes on each part of a GPU, one of those with the same owner."""
        return self._claims.of(device)

    def uids(self, uuid: str, part: str) -> frozenset[str]:
        """Pods that have a process on this part."""
        return frozenset(self._uids.get((uuid, part), ()))

    def among(self, uuid: str, parts: Iterable[str], pod_uid: str) -> tuple[str, ...]:
        """Those of ``parts`` on which the pod has a process."""
        return tuple(part for part in parts if pod_uid in self._uids.get((uuid, part), ()))

    def runs_slurm(self, pod_uid: str) -> bool:
        """Whether there are processes of jobs of Slurm in the pod."""
        return pod_uid in self._slurm_pods
