"""Whose a process is, read from trees that look like /proc and from the real one."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.model.claims import Cgroup, ProcessFacts
from gpufleet.sources.processes import process_facts, user_name

NO_SUCH_USER = 4_000_000_123


def put(procfs: Path, pid: int, status: bytes, cgroup: bytes) -> None:
    """A process as /proc shows it."""
    directory = procfs / str(pid)
    directory.mkdir(parents=True)
    (directory / "status").write_bytes(status)
    (directory / "cgroup").write_bytes(cgroup)


def test_a_process_has_an_owner_and_a_group(tmp_path: Path) -> None:
    """The real user id, by name, and the control group."""
    put(tmp_path, 77, b"Name:\tpython3\nUid:\t0\t7\t7\t7\nGid:\t0\t0\t0\t0\n", b"0::/slurm/uid_0/job_5/step_0\n")

    facts = process_facts(77, tmp_path)

    assert facts == ProcessFacts(77, pwd.getpwuid(0).pw_name, Cgroup(slurm_job="5", slurm_step="0"))


def test_a_user_without_a_name_is_a_number(tmp_path: Path) -> None:
    """In a container the host's users have no names."""
    put(tmp_path, 77, f"Name:\tx\nUid:\t{NO_SUCH_USER}\t0\t0\t0\n".encode(), b"0::/\n")

    facts = process_facts(77, tmp_path)

    assert facts is not None
    assert facts.user == str(NO_SUCH_USER)


@pytest.mark.parametrize("name", [b"x\rUid:\t0", b"x\\nUid:\t0", b"Uid:\t0", b"\xff\xfe"])
def test_a_process_cant_name_its_owner_by_its_own_name(tmp_path: Path, name: bytes) -> None:
    """The kernel escapes a line feed in a name, and no other line end."""
    put(tmp_path, 77, b"Name:\t" + name + f"\nUid:\t{NO_SUCH_USER}\t0\t0\t0\n".encode(), b"0::/\n")

    facts = process_facts(77, tmp_path)

    assert facts is not None
    assert facts.user == str(NO_SUCH_USER)


@pytest.mark.parametrize("pid", [-1, 0, 4_194_305, 2**70])
def test_a_process_that_is_not_there_has_no_facts(pid: int) -> None:
    """Gone, hidden, of another PID namespace, or no number of a process at all."""
    assert process_facts(pid, Path("/proc")) is None


@pytest.mark.parametrize("status", [b"", b"Name:\tx\n", b"Uid:\n", b"Uid:\tx\t0\n", b"\x00" * 100])
def test_a_status_without_an_owner_gives_no_facts(tmp_path: Path, status: bytes) -> None:
    """Half of an answer is none."""
    put(tmp_path, 77, status, b"0::/\n")

    assert process_facts(77, tmp_path) is None


def test_a_process_that_ends_while_it_is_read_has_no_facts(tmp_path: Path) -> None:
    """Its directory is there still and its files are not."""
    (tmp_path / "77").mkdir()

    assert process_facts(77, tmp_path) is None


def test_a_cgroup_that_may_not_be_read_gives_no_facts(tmp_path: Path) -> None:
    """A file in the place of the directory, and a directory in the place of the file, are no process."""
    (tmp_path / "77").write_text("")
    put(tmp_path, 78, b"Uid:\t0\t0\t0\t0\n", b"")
    (tmp_path / "78/cgroup").unlink()
    (tmp_path / "78/cgroup").mkdir()

    assert process_facts(77, tmp_path) is None
    assert process_facts(78, tmp_path) is None


def test_a_real_process_is_read_without_a_privilege() -> None:
    """This process, and one of another user as seen by nobody, where this user may become nobody."""
    own = process_facts(os.getpid(), Path("/proc"))
    assert own is not None
    assert own.user == user_name(os.getuid())
    if os.getuid() != 0:
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    # The parent stays root's; the modules are imported before the privilege goes, for nobody may not read the tree.
    script = (
        "import os, sys; from pathlib import Path; from gpufleet.sources.processes import process_facts; "
        f"os.setgroups([]); os.setgid({nobody}); os.setuid({nobody}); "
        "facts = process_facts(os.getppid(), Path('/proc')); "
        "assert facts is not None; print(facts.user)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == user_name(0)
