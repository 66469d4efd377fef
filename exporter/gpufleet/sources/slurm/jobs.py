"""Which jobs are over, so that a file which no epilog removed does not bill a job that is gone.

An epilog does not run when slurmd is killed, the node crashes or an earlier epilog fails. A job is over when

- its file was written before the machine was booted;
- a newer job has the same device, and Slurm does not let jobs share it;
- its control group is not there (``job_N`` under ``slurm/uid_*`` in v1, under ``*slurmstepd.scope`` in v2), although
  Slurm makes one for every job. Whether it does is itself a matter of proof: without ``PrologFlags=Contain`` a job of
  several nodes has no group on a node where no step runs at the moment. The proof is that the prolog said so, or that
  a ``step_extern``, which exists with Contain only, has been seen.

Where Slurm tracks processes without control groups (``proctrack/pgid``), or where the groups can't be seen (slurmd in
another container), nothing is known, and a file is believed until the next boot, prolog or epilog. Processes would not
help: a job that was allocated and is idle has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpufleet.sources.slurm.formats import JobFile

GRACE = 300.0
"""Seconds: a prolog runs before its job's control group is made, and other prologs may follow it (health checks)."""
_CLOCK_STEP = 60.0
"""Seconds by which the time of boot may be off: it is computed from the clock, which is set after boot."""
_MOST_ENTRIES = 8_192
_V1_ROOT = re.compile(r"slurm(?:_.+)?")
_V2_ROOT = re.compile(r"(?:.+_)?slurmstepd\.scope")
_JOB = re.compile(r"job_([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The control groups of Slurm's jobs on this machine."""

    jobs: frozenset[str]
    has_extern: bool
    """Some job has a ``step_extern``."""


def read_job_groups(cgroupfs: Path) -> JobGroups | None:
    """The jobs that have a control group, in every hierarchy; None: Slurm has no groups here, as far as can be seen."""
    roots = [*_v2_roots(cgroupfs / "system.slice"), *_v2_roots(cgroupfs / "unified/system.slice")]
    v1 = [root for each in _entries(cgroupfs) for root in _matching(cgroupfs / each, _V1_ROOT)]
    roots += v1
    for root in v1:
        roots += [root / name for name in _entries(root) if name.startswith("uid_")]
    if not roots:
        return None
    jobs = set()
    has_extern = False
    for root in roots:
        for name in _entries(root):
            if match := _JOB.fullmatch(name):
                jobs.add(match[1])
                has_extern = has_extern or (root / name / "step_extern").is_dir()
    return JobGroups(frozenset(jobs), has_extern)


def read_boot_time(procfs: Path) -> float | None:
    """Unix time of boot (``btime``); None when it is not told."""
    try:
        text = (procfs / "stat").read_bytes()
    except OSError:
        return None
    found = re.search(rb"^btime ([0-9]{1,12})$", text, re.MULTILINE)
    return float(found[1]) if found else None


class LiveJobs:
    """Tells files of jobs that run from those of jobs that are over. Remembers, between calls, what it has seen."""

    def __init__(self, procfs: Path, cgroupfs: Path, *, clock: Callable[[], float]) -> None:
        self._boot_time = read_boot_time(procfs)
        self._cgroupfs = cgroupfs
        self._clock = clock
        self._extern_seen = False
        self._grouped: set[str] = set()
        """Jobs of the last call whose group was there."""

    def of(self, files: Iterable[JobFile]) -> tuple[JobFile, ...]:
        """Those of jobs that are not over, as far as can be known, in their order; shared ones say that they are."""
        files = tuple(files)
        groups = read_job_groups(self._cgroupfs) if files else None
        if groups is not None:
            self._extern_seen = self._extern_seen or groups.has_extern
        alive = _without_superseded([each for each in files if not self._is_over(each, groups)])
        if groups is not None:
            self._grouped = {each.device.job_id for each in alive} & groups.jobs
        return tuple(_marked_shared(alive))

    def _is_over(self, file: JobFile, groups: JobGroups | None) -> bool:
        written_at = file.device.started_at or 0.0
        if self._boot_time is not None and written_at < self._boot_time - _CLOCK_STEP:
            return True
        job = file.device.job_id
        if groups is None or not job.isdecimal() or job in groups.jobs:
            return False
        if not (file.contained or self._extern_seen):
            return False
        # A job that was requeued onto this node has its old number, and a file that is new.
        grace = 0.0 if job in self._grouped else GRACE
        return self._clock() - written_at > grace


def _without_superseded(files: list[JobFile]) -> list[JobFile]:
    """Where Slurm shares no devices, the job that was given one last is the one that has it."""
    newest: dict[tuple[str, str], float] = {}
    for each in files:
        key = each.device.source, each.device.device
        newest[key] = max(newest.get(key, 0.0), each.device.started_at or 0.0)
    return [
        each
        for each in files
        if each.shared or (each.device.started_at or 0.0) >= newest[each.device.source, each.device.device]
    ]


def _marked_shared(files: list[JobFile]) -> list[JobFile]:
    """How many shards a job has is not told to a prolog: of several on a device each has one, for all we know."""
    holders: dict[tuple[str, str], set[str]] = {}
    for each in files:
        holders.setdefault((each.device.source, each.device.device), set()).add(each.device.job_id)
    return [
        replace(each, device=replace(each.device, shards=1))
        if each.shared and each.device.shards is None and len(holders[each.device.source, each.device.device]) > 1
        else each
        for each in files
    ]


def _v2_roots(directory: Path) -> list[Path]:
    return _matching(directory, _V2_ROOT)


def _matching(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    return [directory / name for name in _entries(directory) if pattern.fullmatch(name)]


def _entries(directory: Path) -> list[str]:
    """Names in a directory, some thousands at most; none when it can't be listed."""
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= _MOST_ENTRIES:
                    break
    except OSError:
        return []
    return names
