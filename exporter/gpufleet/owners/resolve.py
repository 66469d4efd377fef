"""Who holds what: the witnesses weighed.

For each part of a GPU the first of these that names somebody decides: the pod that the kubelet gave it to (of which a
pod of slurmd stands for the job of Slurm inside, and a reservation of KAI for the pods it was made for), the job that a
prolog named, and the process that runs there. A process never takes a part from whoever it was given to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.model.claims import ContainerDevices, JobDevice, Pod, ProcessFacts
from gpufleet.model.owner import NOBODY, Hold, Holding, Workload
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.device_ids import Target, find, is_of_gpus
from gpufleet.owners.devices import Device, Devices
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.identity import Identities, of_job, of_process
from gpufleet.owners.jobs import Jobs
from gpufleet.owners.parts import Claimed, Claims
from gpufleet.owners.running import Running

__all__ = ["Conflict", "Identities", "Resolution", "resolve"]

_RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""Namespaces of the pods that hold a GPU for pods with a part of it (KAI Scheduler and Run:ai, GPU sharing)."""
_GROUP = "runai-gpu-group"
"""Label that a reservation and its pods have in common; with several GPUs ``runai-gpu-group/<group>``."""
_SLURMD = "nodeset.slinky.slurm.net/"
_SMALLEST = 1e-9
Weighed = list[tuple[Workload, float]]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that several can't have at once and do claim, with equal right; it was split among them."""

    uuid: str
    mig_uuid: str
    workloads: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Who holds what, as of one refresh."""

    holdings: tuple[Holding, ...]
    """Sorted by uuid, slice, hold and workload; the shares of each uuid sum to 1."""
    conflicts: tuple[Conflict, ...]
    """Sorted by uuid and slice."""
    unknown_devices: int = 0
    """Ids of GPUs that are not on this node."""


def resolve(
    devices: Devices, evidence: Evidence, config: OwnersConfig, identities: Identities | None = None
) -> Resolution:
    """Holders of every device. ``identities`` remembers from one refresh to the next what pods are called."""
    names = identities if identities is not None else Identities()
    names.begin(config)
    return _Refresh(devices, evidence, names).result()


@dataclass(frozen=True, slots=True)
class _PodClaim:
    """A container's claim to a device."""

    namespace: str
    name: str
    container: str
    pod: Pod | None
    shared: bool
    """It says itself that others may have the device: a replica, or a resource claim, which several pods can use."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of a GPU, and who is there besides those to whose pods it was given."""

    uuid: str
    part: str
    jobs: tuple[tuple[JobDevice, float], ...]
    running: Claimed[ProcessFacts] | None

    @property
    def processes(self) -> list[ProcessFacts]:
        if self.running is None:
            return []
        return [*self.running.claims, *(facts for facts, _ in self.running.perhaps)]


class _Refresh:
    def __init__(self, devices: Devices, evidence: Evidence, names: Identities) -> None:
        self._devices = devices
        self._evidence = evidence
        self._names = names
        self._running = Running(evidence.processes, devices)
        self._jobs = Jobs(evidence.jobs or (), devices)
        self._has_jobs = bool(evidence.jobs) or self._running.has_jobs
        self._by_uid = {pod.uid: pod for pod in evidence.pods.values() if pod.uid} if evidence.processes else {}
        self._groups: dict[str, list[Pod]] | None = None
        self._unknown = self._jobs.unknown_devices
        self._conflicts: list[Conflict] = []
        self._claims: Claims[_PodClaim] = Claims()
        for row in sorted(evidence.containers or (), key=_row_order):
            self._put(row)

    def result(self) -> Resolution:
        holdings = [
            holding
            for device in sorted(self._devices.gpus, key=lambda gpu: gpu.uuid)
            for holding in self._device(device)
        ]
        return Resolution(tuple(holdings), tuple(self._conflicts), self._unknown)

    def _put(self, row: ContainerDevices) -> None:
        if not is_of_gpus(row.resource):
            return
        pod = self._evidence.pods.get((row.namespace, row.pod))
        if pod is not None and pod.is_over:  # kubelets before 1.34 list its devices still
            return
        for device_id in row.device_ids:
            target = find(device_id, row.resource, self._devices)
            if target is None:
                self._unknown += device_id.startswith(("GPU-", "MIG-", "nvidia")) or "nvidia" in row.resource
                continue
            if target.any_of and pod is not None:
                seen = self._running.among(target.uuid, target.mig_uuids, pod.uid)
                if len(seen) == 1:
                    target = Target(target.uuid, seen)
            shared = target.shared or row.is_claim
            claim = _PodClaim(row.namespace, row.pod, row.container, pod, shared)
            key = (row.namespace, row.pod, row.container)
            # Several claims to any slice of a profile are several slices, unlike several replicas of one GPU.
            self._claims.put(target, (*key, device_id) if target.any_of else key, claim)

    # --- one GPU ------------------------------------------------------------------------------------------------------
    def _device(self, device: Device) -> Iterable[Holding]:
        pods, jobs, running = self._claims.of(device), self._jobs.of(device), self._running.of(device)
        fractions = [("", device.unsliced), *((part.mig_uuid, part.fraction) for part in device.slices)]
        for part, fraction in sorted(fractions):
            if fraction < _SMALLEST:
                continue
            place = _Place(device.uuid, part, jobs.get(part, ()), running.get(part))
            claimed = pods.get(part)
            if claimed is not None:
                weighed = self._pods(place, claimed)
            elif place.jobs:
                weighed = [(of_job(job), weight) for job, weight in place.jobs]
            else:
                weighed = self._processes(place)
            is_rest = device.slices and not part
            nobody = Hold.UNSLICED if is_rest else Hold.UNKNOWN if self._evidence.stale else Hold.UNALLOCATED
            yield from _holdings(place, fraction, weighed, nobody)

    # --- pods ---------------------------------------------------------------------------------------------------------
    def _pods(self, place: _Place, claimed: Claimed[_PodClaim]) -> Weighed:
        if not claimed.claims:
            return [
                (workload, weight * chance)
                for claim, chance in claimed.perhaps
                for workload, weight in self._inside(place, claim)
            ]
        claims = self._standing(place, claimed.claims)
        found = [self._inside(place, claim) for claim in claims]
        outside = self._outside(place, claims)
        weighed = _equally([*found, outside] if outside else found)
        if outside or _are_rivals(claims):
            workloads = {workload for workload, _ in weighed}
            self._conflicts.append(Conflict(place.uuid, place.part, tuple(sorted(workloads, key=_order))))
        return weighed

    def _standing(self, place: _Place, claims: Sequence[_PodClaim]) -> Sequence[_PodClaim]:
        """The claims without those of pods that seem to be gone, where not all of them can be true."""
        if self._evidence.pods_known and _are_rivals(claims):
            claims = [claim for claim in claims if claim.pod is not None] or claims
        if _are_rivals(claims):
            uids = self._running.uids(place.uuid, place.part)
            claims = [claim for claim in claims if claim.pod is not None and claim.pod.uid in uids] or claims
        return claims

    def _inside(self, place: _Place, claim: _PodClaim) -> Weighed:
        """Who a container stands for: itself, the jobs of Slurm in it, or the pods that it reserves for."""
        own = self._names.container(claim.namespace, claim.name, claim.container, claim.pod)
        found: Weighed = []
        if claim.namespace in _RESERVATIONS:
            found = _each_equally(self._reserved_for(place, claim))
        elif self._has_jobs and self._has_slurm(place, claim):
            found = [(of_job(job, inside=own), weight) for job, weight in place.jobs]
            found = found or _each_equally(self._jobs_seen(place, claim, own))
        return found or [(own, 1.0)]

    def _has_slurm(self, place: _Place, claim: _PodClaim) -> bool:
        """Whether the pod is one of slurmd, so that what was given to it is Slurm's to give."""
        if claim.pod is None:  # a job on a device that was given to a pod must be inside
            return bool(place.jobs)
        return self._running.runs_slurm(claim.pod.uid) or any(name.startswith(_SLURMD) for name, _ in claim.pod.labels)

    def _jobs_seen(self, place: _Place, claim: _PodClaim, own: Workload) -> Iterable[Workload]:
        for facts in place.processes:
            cgroup = facts.cgroup
            if cgroup.slurm_job and (claim.pod is None or cgroup.pod_uid in (None, claim.pod.uid)):
                yield of_job(self._jobs.facts(cgroup.slurm_job, facts.user), inside=own)

    def _outside(self, place: _Place, claims: Sequence[_PodClaim]) -> Weighed:
        """Jobs on a part that was given to pods in which there is no Slurm: both can't be.

        A pod that Slurm itself placed (slurm-bridge) is its job.
        """
        if not place.jobs or any(self._has_slurm(place, claim) for claim in claims):
            return []
        pods = {
            self._names.container(claim.namespace, claim.name, claim.container, claim.pod).workload_job
            for claim in claims
        }
        jobs = [of_job(job) for job, _ in place.jobs]
        return [] if any(job.workload_job in pods for job in jobs) else _each_equally(jobs)

    def _reserved_for(self, place: _Place, claim: _PodClaim) -> list[Workload]:
        """Pods with a part of a reserved GPU: those of the reservation's group, and those that run there."""
        found = {}
        groups = _groups(claim.pod)
        if groups:
            found = {pod.uid: pod for group in groups for pod in self._members().get(group, ())}
        for uid in self._running.uids(place.uuid, place.part):
            pod = self._by_uid.get(uid)
            if pod is not None and _can_be_reserved_for(pod):
                found[uid] = pod
        return [self._names.container(pod.namespace, pod.name, "", pod) for pod in found.values()]

    def _members(self) -> Mapping[str, list[Pod]]:
        if self._groups is None:
            self._groups = {}
            for pod in self._evidence.pods.values():
                if _can_be_reserved_for(pod):
                    for group in _groups(pod):
                        self._groups.setdefault(group, []).append(pod)
        return self._groups

    # --- processes ----------------------------------------------------------------------------------------------------
    def _processes(self, place: _Place) -> Weighed:
        # Somebody may have been given what nobody answers for: a process that is there now is no proof of the contrary.
        if place.running is None or self._evidence.stale:
            return []
        holders = [each for facts in place.running.claims if (each := self._process(facts)) is not None]
        return [
            *_each_equally(holders),
            *((each, chance) for facts, chance in place.running.perhaps if (each := self._process(facts)) is not None),
        ]

    def _process(self, facts: ProcessFacts) -> Workload | None:
        """Whose a process is; None: of somebody to whom no GPU is given here."""
        cgroup = facts.cgroup
        pod = self._by_uid.get(cgroup.pod_uid) if cgroup.pod_uid else None
        own = NOBODY if pod is None else self._names.container(pod.namespace, pod.name, "", pod)
        if cgroup.slurm_job:
            return of_job(self._jobs.facts(cgroup.slurm_job, facts.user), inside=own)
        if pod is not None:
            return None if pod.is_over else own
        return None if self._evidence.allocations_expected else of_process(facts)


def _row_order(row: ContainerDevices) -> tuple[object, ...]:
    return row.namespace, row.pod, row.container, row.resource, row.device_ids, row.is_claim


def _are_rivals(claims: Sequence[_PodClaim]) -> bool:
    """Whether several pods claim a device and one of them claims it alone."""
    return len({(claim.namespace, claim.name) for claim in claims}) > 1 and not all(claim.shared for claim in claims)


def _groups(pod: Pod | None) -> list[str]:
    if pod is None:
        return []
    return [value if name == _GROUP else name for name, value in pod.labels if name.partition("/")[0] == _GROUP]


def _can_be_reserved_for(pod: Pod) -> bool:
    return not pod.is_over and pod.namespace not in _RESERVATIONS


def _each_equally(holders: Iterable[Workload]) -> Weighed:
    distinct = tuple(dict.fromkeys(holders))
    return [(workload, 1.0 / len(distinct)) for workload in distinct]


def _equally(claims: Sequence[Weighed]) -> Weighed:
    return [(workload, weight / len(claims)) for claim in claims for workload, weight in claim]


def _holdings(place: _Place, fraction: float, weighed: Weighed, nobody: Hold) -> Iterable[Holding]:
    weights: dict[Workload, float] = {}
    for workload, weight in weighed:
        weights[workload] = weights.get(workload, 0.0) + weight
    total = math.fsum(weights.values())
    scale = fraction / max(1.0, total)
    for workload in sorted(weights, key=_order):
        yield Holding(place.uuid, weights[workload] * scale, workload, place.part)
    if 1.0 - total > _SMALLEST:
        yield Holding(place.uuid, (1.0 - total) * fraction, mig_uuid=place.part, hold=nobody)


def _order(workload: Workload) -> tuple[object, ...]:
    return (
        workload.project,
        workload.run,
        workload.task,
        workload.rank,
        workload.attempt,
        workload.workload_namespace,
        workload.workload_pod,
        workload.workload_container,
        workload.workload_user,
        workload.workload_job,
        workload.labels,
    )
