"""The directories that prologs write to, read as often as asked; a bad file costs itself and nothing else."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.model.claims import JobDevice
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.processes import user_name
from gpufleet.sources.slurm.formats import DCGM, OWN, FormatError, JobFile, Kind, jobstats
from gpufleet.sources.slurm.jobs import LiveJobs

_MOST_FILES = 2_048
"""Of a directory: 16 GPUs of 7 slices with 16 shards each are 1,792."""
_MOST_NAMES = 16_384
"""Looked at in a directory, so that one filled with other things costs no more than this."""
_MOST_BYTES = 65_536
_MOST_NAMED = 3
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class SlurmReading:
    """What the directories say now."""

    devices: tuple[JobDevice, ...]
    """Of jobs that are not over; sorted."""
    sources: tuple[SourceHealth, ...]
    """One a configured directory: ``slurm``, ``slurm_dcgm``, ``slurm_jobstats``. Files that can't be used leave it up
    and are its reason; a directory that can't be read takes it down."""


class SlurmFiles:
    """The directories. Not thread-safe; nothing raises, and nothing waits on a FIFO or a device."""

    def __init__(
        self,
        *,
        own: Path | None,
        dcgm: Path | None,
        jobstats: Path | None,
        procfs: Path,
        cgroupfs: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        kinds = ((own, OWN), (dcgm, DCGM), (jobstats, _JOBSTATS))
        self._directories = [(directory, kind) for directory, kind in kinds if directory is not None]
        self._live = LiveJobs(procfs, cgroupfs, clock=clock)
        self._seen: list[tuple[int, int] | None] | None = None

    def read(self) -> SlurmReading:
        """Read every file anew, and look which jobs are over."""
        # Taken before the files are: what is written meanwhile is a change.
        self._seen = self._fingerprint()
        files: list[JobFile] = []
        sources = []
        for directory, kind in self._directories:
            found, health = _read_directory(directory, kind)
            files += found
            sources.append(health)
        devices = {each.device for each in self._live.of(files)}
        order = sorted(devices, key=lambda each: (each.source, each.device, each.job_id, each.started_at or 0.0))
        return SlurmReading(tuple(order), tuple(sources))

    def changed(self) -> bool:
        """Whether a file came or went since the last ``read``: one stat(2) a directory.

        A file that was written again in place, and a job whose file was left behind, are seen by the next ``read``.
        """
        return self._seen is None or self._fingerprint() != self._seen

    def _fingerprint(self) -> list[tuple[int, int] | None]:
        marks: list[tuple[int, int] | None] = []
        for directory, _ in self._directories:
            try:
                status = directory.stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((status.st_ino, status.st_mtime_ns))
        return marks


def _read_directory(directory: Path, kind: Kind) -> tuple[list[JobFile], SourceHealth]:
    troubles: list[str] = []
    try:
        names, is_cut = _names(directory, kind)
    except OSError as error:
        return [], SourceHealth(kind.health, up=False, reason=_remedy(directory, error))
    if any(name.startswith("GPU-") for name in names) and kind is _JOBSTATS:
        # Its newer prologs write both; the number is ambiguous (order of NVML or minor number), the UUID is not.
        names = [name for name in names if not name.isdecimal()]
    if is_cut:
        troubles.append(f"more than {_MOST_FILES} files, the others are not read")
    files: list[JobFile] = []
    bad = []
    for name in names:
        try:
            files += kind.read(name, *_content(directory / name))
        except FileNotFoundError:  # its job ended while the directory was read
            continue
        except (OSError, FormatError) as error:
            said = str(error) if isinstance(error, FormatError) else error.strerror or "can't be read"
            bad.append(f"{name[:_LONGEST_NAME].encode(errors='replace').decode()}: {said}")
    if bad:
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        count = "1 file" if len(bad) == 1 else f"{len(bad)} files"
        troubles.append(f"{count} can't be used ({'; '.join(bad[:_MOST_NAMED])}{more})")
    reason = f"{directory}: {', '.join(troubles)}" if troubles else None
    return files, SourceHealth(kind.health, up=True, reason=reason)


def _names(directory: Path, kind: Kind) -> tuple[list[str], bool]:
    """Names of the kind's files, sorted, and whether there are more."""
    names: list[str] = []
    with os.scandir(directory) as entries:
        for looked_at, entry in enumerate(entries):
            if looked_at >= _MOST_NAMES:
                return sorted(names), True
            if kind.is_ours(entry.name):
                if len(names) >= _MOST_FILES:
                    return sorted(names), True
                names.append(entry.name)
    return sorted(names), False


def _content(path: Path) -> tuple[bytes, float]:
    """(content, Unix time of its last change); raises OSError, FormatError for what is no file or too large."""
    try:
        # Without O_NONBLOCK the open of a FIFO waits for its writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError("a symbolic link") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("not a regular file")
        if status.st_size > _MOST_BYTES:
            raise FormatError(f"larger than {_MOST_BYTES // 1024} KiB")
        return os.read(descriptor, _MOST_BYTES), status.st_mtime
    finally:
        os.close(descriptor)


def _remedy(directory: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return (
            f"{directory} does not exist: the prolog makes it at its first job (deploy/slurm, with a tmpfiles.d entry "
            "from boot on); in a container mount the host's there"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{directory} may not be read ({error.strerror}): let everybody read it (mode 0755)"
    return f"{directory} can't be read: {error.strerror or error}"


_JOBSTATS = jobstats(user_name)
