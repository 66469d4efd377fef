"""Jobs of Slurm and their devices, by the files of prologs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpufleet.model.claims import JobDevice, JobSource
from gpufleet.owners.device_ids import find
from gpufleet.owners.devices import Device, Devices
from gpufleet.owners.parts import Claims

_ORDER = {source: rank for rank, source in enumerate(JobSource)}
_TEXTS = ("user", "account", "partition", "name", "array_job_id", "array_task_id", "restart_count")


class Jobs:
    """What is known of jobs, and which of them claim a part of a GPU."""

    def __init__(self, jobs: Iterable[JobDevice], devices: Devices) -> None:
        self.unknown_devices = 0
        self._facts: dict[str, JobDevice] = {}
        self._claims: Claims[JobDevice] = Claims()
        ordered = sorted(jobs, key=lambda job: (_ORDER[job.source], job.device, job.job_id))
        for job in ordered:
            known = self._facts.setdefault(job.job_id, job)
            missing = {text: getattr(job, text) for text in _TEXTS if not getattr(known, text) and getattr(job, text)}
            if missing:
                self._facts[job.job_id] = replace(known, **missing)
            target = find(job.device, "", devices)
            if target is None:
                self.unknown_devices += 1
            else:
                self._claims.put(target, (job.source, job.job_id), job)

    def facts(self, job_id: str, user: str) -> JobDevice:
        """A job by number. Of one that no file names the process's user is known."""
        return self._facts.get(job_id) or JobDevice(JobSource.PROLOG, "", job_id, user=user)

    def of(self, device: Device) -> Mapping[str, tuple[tuple[JobDevice, float], ...]]:
        """The jobs of each part that a file names, and how much of it each has; 1 in all.

        The first source that names a job for a part is believed, the others only add what it left out. Jobs with shards
        share by them: how many shards the device has in all is not told, and one without a job costs the others' jobs.
        """
        found = {}
        for part, claimed in self._claims.of(device).items():
            best = min(_ORDER[job.source] for job in claimed.claims)
            jobs = [job for job in claimed.claims if _ORDER[job.source] == best]
            shards = [job.shards for job in jobs if job.shards is not None and job.shards > 0]
            weights = shards if len(shards) == len(jobs) else [1] * len(jobs)
            total = math.fsum(weights)
            found[part] = tuple(
                (self._facts[job.job_id], weight / total) for job, weight in zip(jobs, weights, strict=True)
            )
        return found
