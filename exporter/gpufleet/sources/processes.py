"""A process's owner and control group, from ``/proc``; nothing here needs a privilege.

``status`` and ``cgroup`` of a process are readable by everybody, unlike ``environ`` and ``exe``. Where ``/proc`` is
mounted with ``hidepid``, or in a PID namespace in which the process does not exist, it is as if it were gone: the
remedy is hostPID, or the host's ``/proc`` mounted and named.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpufleet.model.claims import ProcessFacts
from gpufleet.sources.cgroups import parse_cgroup
from gpufleet.sources.users import UserNames

_MOST_BYTES = 65_536
_NAMES = UserNames()


def process_facts(pid: int, procfs: Path) -> ProcessFacts | None:
    """Who a process is; None when it is gone or hidden.

    What is told is of one process: the directory is opened once, and the kernel binds it to the process and not to
    the number. When the number has been given to another process before, it is that one's truth until the next look.
    """
    if pid <= 0:  # the driver's answer for a process of another PID namespace
        return None
    try:
        directory = os.open(procfs / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, OverflowError):
        return None
    try:
        uid = _uid(_read(directory, "status"))
        text = _read(directory, "cgroup")
    except OSError:
        return None
    finally:
        os.close(directory)
    if uid is None:
        return None
    return ProcessFacts(pid, user_name(uid), parse_cgroup(text.decode(errors="replace")))


def user_name(uid: int) -> str:
    """The name of a user, else the number. Waits a moment at most, also where a directory service hangs."""
    return _NAMES.of(uid)


def _uid(status: bytes) -> int | None:
    """The real user id. Not the owner of the directory, which is root for a process that may not be dumped."""
    # The name above is of the process's choice. The kernel escapes \n in it, and not \r, which splitlines() splits at.
    for line in status.split(b"\n"):
        if line.startswith(b"Uid:"):
            fields = line.split()
            return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None
    return None


def _read(directory: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
