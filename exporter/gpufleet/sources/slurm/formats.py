"""What the files of a prolog say: their names and their contents, each kind in its own form. Pure.

A file that is empty is of a device without a job: its prolog or epilog says so instead of removing it. What is no file
of this kind raises FormatError, whose text is for a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.model.claims import JobDevice, JobSource

_LONGEST_TEXT = 128
"""Characters of a text that a user chose, a job's name for one."""
_MOST_JOBS = 64
"""Of one device. Eight shards, or 48 clients of MPS, are the most that are seen."""
_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,100}|(?:minor|index):[0-9]{1,4}")
_OWN_NAME = re.compile(r"(?:(GPU|MIG)-([0-9A-Za-z-]{1,100})|(minor|index)-([0-9]{1,4}))(?:\.[0-9]{1,20})?\.json")
_DCGM_NAME = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?")
_JOBSTATS_NAME = re.compile(r"([0-9]{1,4})|((?:GPU|MIG)-[0-9A-Za-z-]{1,100})")
_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}")
"""Slurm's are numbers, to which an array's task may be added; other schedulers feed the same directories."""


class FormatError(Exception):
    """It is no file of this kind; says why."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """What one file says of one job, and what tells whether that still holds."""

    device: JobDevice
    contained: bool = False
    """Slurm makes a control group for every job on this node, with or without steps (``PrologFlags=Contain``)."""
    shared: bool = False
    """Slurm may give one device to several jobs at once (shards, MPS)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of directory."""

    source: JobSource
    health: str
    """Value of the label ``source``."""
    is_ours: Callable[[str], bool]
    """Whether a file of this name belongs to the kind; others are left alone."""
    read: Callable[[str, bytes, float], tuple[JobFile, ...]]
    """(name, content, Unix time of the file) to jobs; raises FormatError."""


def read_own(name: str, content: bytes, written_at: float) -> tuple[JobFile, ...]:
    """One file a job and device: a JSON object. Keys that are not known are of a newer prolog and are left out."""
    if not content.strip():
        return ()
    try:
        # Other bytes than UTF-8 in a name that a user chose, or a character that the prolog cut, cost that character.
        said = json.loads(content.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise FormatError("not JSON, or cut short") from error
    if not isinstance(said, dict):
        raise FormatError("not a JSON object")
    job_id = _text(said, "job")
    if not job_id:
        return ()
    if not _JOB_ID.fullmatch(job_id):
        raise FormatError("job is no number of a job")
    device = _text(said, "device") or _own_device(name)
    if not _DEVICE.fullmatch(device):
        raise FormatError("device is neither a UUID nor minor:N nor index:N")
    shards, started_at = said.get("shards"), said.get("started_at")
    is_time = isinstance(started_at, int | float) and not isinstance(started_at, bool) and 0 < started_at < 1e11
    is_count = isinstance(shards, int) and not isinstance(shards, bool) and 0 < shards < 1_000_000
    claim = JobDevice(
        JobSource.PROLOG,
        device,
        job_id,
        user=_text(said, "user"),
        account=_text(said, "account"),
        partition=_text(said, "partition"),
        name=_text(said, "name"),
        array_job_id=_text(said, "array_job"),
        array_task_id=_text(said, "array_task"),
        restart_count=_text(said, "restart_count"),
        shards=shards if is_count else None,
        started_at=float(started_at) if is_time and started_at is not None else written_at,
    )
    return (JobFile(claim, contained=said.get("contained") is True, shared=said.get("shared") is True),)


def _own_device(name: str) -> str:
    match = _OWN_NAME.fullmatch(name)
    if match is None:
        return ""
    return f"{match[1]}-{match[2]}" if match[1] else f"{match[3]}:{match[4]}"


def read_dcgm(name: str, content: bytes, written_at: float) -> tuple[JobFile, ...]:
    """dcgm-exporter's job mapping: the file is named for the GPU or for GPU and GPU instance, one job a line."""
    match = _DCGM_NAME.fullmatch(name)
    if match is None:
        raise FormatError("its name is neither a GPU's number nor GPU.instance")
    device = f"index:{int(match[1])}" + (f".{int(match[2])}" if match[2] else "")
    jobs = dict.fromkeys(line.strip() for line in _plain(content).splitlines())
    jobs.pop("", None)
    if len(jobs) > _MOST_JOBS:
        raise FormatError(f"more than {_MOST_JOBS} jobs")
    if not all(map(_JOB_ID.fullmatch, jobs)):
        raise FormatError("a line is no number of a job")
    # Whoever names several jobs for one device says that they share it.
    return tuple(
        JobFile(JobDevice(JobSource.DCGM, device, job, started_at=written_at), shared=len(jobs) > 1) for job in jobs
    )


def jobstats_reader(user_name: Callable[[int], str]) -> Callable[[str, bytes, float], tuple[JobFile, ...]]:
    """The reader of jobstats' files, which give the user as a number."""

    def read(name: str, content: bytes, written_at: float) -> tuple[JobFile, ...]:
        match = _JOBSTATS_NAME.fullmatch(name)
        if match is None:
            raise FormatError("its name is neither a GPU's number nor a UUID")
        words = _plain(content).split()
        if not words:
            return ()
        if len(words) > 2 or not _JOB_ID.fullmatch(words[0]) or not re.fullmatch(r"[0-9]{1,10}", words[-1]):
            raise FormatError("not the numbers of a job and of a user")
        device = f"index:{int(match[1])}" if match[1] else match[2]
        user = user_name(int(words[1])) if len(words) == 2 else ""
        return (JobFile(JobDevice(JobSource.JOBSTATS, device, words[0], user=user, started_at=written_at)),)

    return read


def _plain(content: bytes) -> str:
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError("not text") from error


def _text(said: dict[str, object], key: str) -> str:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    # JSON can spell halves of surrogate pairs, which no label can carry.
    return str(value)[:_LONGEST_TEXT].encode(errors="replace").decode()


OWN = Kind(JobSource.PROLOG, "slurm", lambda name: name.endswith(".json") and not name.startswith("."), read_own)
DCGM = Kind(JobSource.DCGM, "slurm_dcgm", lambda name: _DCGM_NAME.fullmatch(name) is not None, read_dcgm)
"""Other names in its directory are none of its files: the directory is configurable and may be shared."""


def jobstats(user_name: Callable[[int], str]) -> Kind:
    """The kind of jobstats' directory."""
    return Kind(
        JobSource.JOBSTATS,
        "slurm_jobstats",
        lambda name: _JOBSTATS_NAME.fullmatch(name) is not None,
        jobstats_reader(user_name),
    )
