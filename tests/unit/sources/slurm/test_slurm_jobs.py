"""Which jobs are over: what proves it, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from gpufleet.model.claims import JobDevice, JobSource
from gpufleet.sources.slurm.formats import JobFile
from gpufleet.sources.slurm.jobs import GRACE, JobGroups, LiveJobs, read_boot_time, read_job_groups

BOOT = 1_700_000_000.0
NOW = BOOT + 86_400
OLD = NOW - 10 * GRACE
V2 = "system.slice/slurmstepd.scope"


class Node:
    """Trees that look like /proc and /sys/fs/cgroup, and a clock."""

    def __init__(self, root: Path) -> None:
        self.procfs, self.cgroupfs = root / "proc", root / "cgroup"
        self.procfs.mkdir()
        self.cgroupfs.mkdir()
        (self.procfs / "stat").write_text(f"cpu  1 2 3\nbtime {int(BOOT)}\nprocesses 5\n")
        self.now = NOW

    def group(self, path: str) -> Path:
        """A control group and those above it."""
        (self.cgroupfs / path).mkdir(parents=True, exist_ok=True)
        return self.cgroupfs / path

    def live(self) -> LiveJobs:
        """A fresh view."""
        return LiveJobs(self.procfs, self.cgroupfs, clock=lambda: self.now)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that was booted a day ago and has no control group of Slurm."""
    return Node(tmp_path)


def a_file(
    job: str, *, device: str = "GPU-1", at: float = OLD, contained: bool = True, shared: bool = False
) -> JobFile:
    """What a prolog wrote long ago for a job that has one device."""
    return JobFile(JobDevice(JobSource.PROLOG, device, job, started_at=at), contained=contained, shared=shared)


def jobs_of(files: tuple[JobFile, ...]) -> list[str]:
    """Their numbers."""
    return [each.device.job_id for each in files]


@pytest.mark.parametrize(
    ("paths", "groups"),
    [
        ([], None),
        (["system.slice/ssh.service", "memory/docker"], None),
        ([V2], JobGroups(frozenset(), has_extern=False)),
        ([f"{V2}/system", f"{V2}/job_4/step_0"], JobGroups(frozenset("4"), has_extern=False)),
        ([f"{V2}/job_4/step_extern", f"{V2}/job_5/step_0"], JobGroups(frozenset("45"), has_extern=True)),
        (
            ["system.slice/gn1_slurmstepd.scope/job_4/step_0", "system.slice/gn2_slurmstepd.scope/job_5"],
            JobGroups(frozenset("45"), has_extern=False),
        ),
        (["freezer/slurm/uid_7/job_4/step_extern"], JobGroups(frozenset("4"), has_extern=True)),
        (["memory/slurm/uid_7"], JobGroups(frozenset(), has_extern=False)),
        (
            ["cpuset/slurm_gn1/uid_7/job_4/step_0", "cpuset/slurm_gn2/uid_8/job_5/step_0", "devices/slurm_gn1"],
            JobGroups(frozenset("45"), has_extern=False),
        ),
        (["unified/system.slice/slurmstepd.scope/job_4"], JobGroups(frozenset("4"), has_extern=False)),
    ],
)
def test_jobs_have_groups_in_both_versions(node: Node, paths: list[str], groups: JobGroups | None) -> None:
    """v1 in any hierarchy, v2, a hybrid, and several slurmd on one machine; none where Slurm uses none."""
    for path in paths:
        node.group(path)

    assert read_job_groups(node.cgroupfs) == groups


def test_a_machine_without_control_groups_says_nothing(tmp_path: Path) -> None:
    """The mount is missing, or is a file."""
    (tmp_path / "file").write_text("")

    assert read_job_groups(tmp_path / "absent") is None
    assert read_job_groups(tmp_path / "file") is None


@pytest.mark.parametrize("text", [None, "", "btime x\n", "cpu 1\n", "btime 99999999999999999999\n"])
def test_a_boot_time_that_is_not_told_is_not_known(tmp_path: Path, text: str | None) -> None:
    """Then no file is too old."""
    if text is not None:
        (tmp_path / "stat").write_text(text)

    assert read_boot_time(tmp_path) is None
    assert jobs_of(LiveJobs(tmp_path, tmp_path, clock=lambda: NOW).of([a_file("4", at=1.0)])) == ["4"]


def test_a_job_with_a_group_is_alive_and_one_without_is_over(node: Node) -> None:
    """When its prolog said that every job has one."""
    node.group(f"{V2}/job_4/step_0")

    assert jobs_of(node.live().of([a_file("4"), a_file("5", device="GPU-2")])) == ["4"]


def test_a_step_extern_proves_that_every_job_has_a_group(node: Node) -> None:
    """Other directories' files don't say; the proof holds on when that job has ended and the node is idle."""
    extern = node.group(f"{V2}/job_4/step_extern")
    live = node.live()
    files = [a_file("4", contained=False), a_file("5", device="GPU-2", contained=False)]

    assert jobs_of(live.of(files)) == ["4"]
    extern.rmdir()
    extern.parent.rmdir()
    assert jobs_of(live.of(files)) == []


def test_without_that_proof_a_job_without_a_group_is_believed(node: Node) -> None:
    """A job of several nodes has no group where it runs no step at the moment, and has its GPU all the same."""
    node.group(f"{V2}/job_4/step_0")

    assert jobs_of(node.live().of([a_file("5", contained=False)])) == ["5"]


def test_where_slurm_uses_no_groups_nothing_is_over(node: Node) -> None:
    """proctrack/pgid, or slurmd's groups are in another container."""
    assert jobs_of(node.live().of([a_file("4"), a_file("5", device="GPU-2")])) == ["4", "5"]


def test_a_job_that_begins_has_no_group_yet(node: Node) -> None:
    """Other prologs may follow ours for minutes; after that a job without a group never began."""
    node.group(V2)
    live = node.live()
    files = [a_file("4", at=NOW)]

    assert jobs_of(live.of(files)) == ["4"]
    node.now = NOW + GRACE
    assert jobs_of(live.of(files)) == ["4"]
    node.now = NOW + GRACE + 1
    assert jobs_of(live.of(files)) == []


def test_a_group_that_was_seen_and_is_gone_needs_no_grace(node: Node) -> None:
    """A job of half a minute whose epilog failed is over as soon as it is."""
    group = node.group(f"{V2}/job_4")
    live = node.live()
    files = [a_file("4", at=NOW - 30)]
    assert jobs_of(live.of(files)) == ["4"]
    group.rmdir()

    assert jobs_of(live.of(files)) == []
    # The same number again, requeued onto this node.
    assert jobs_of(live.of([a_file("4", at=NOW)])) == ["4"]


def test_a_file_from_before_the_boot_is_of_a_job_that_is_over(node: Node) -> None:
    """Where the directory outlives a boot; a clock that was set meanwhile is allowed a minute."""
    files = [a_file("4", at=BOOT - 61), a_file("5", device="GPU-2", at=BOOT - 59)]

    assert jobs_of(node.live().of(files)) == ["5"]


def test_the_job_that_was_given_a_device_last_has_it(node: Node) -> None:
    """Where jobs share no devices the newer prolog proves that the older job is over."""
    files = [a_file("4"), a_file("5", at=OLD + 1), a_file("3", device="GPU-2")]

    assert jobs_of(node.live().of(files)) == ["5", "3"]


def test_a_job_that_is_over_supersedes_nobody(node: Node) -> None:
    """The files are those of jobs that are alive before it is asked who came last."""
    node.group(f"{V2}/job_4")

    assert jobs_of(node.live().of([a_file("4"), a_file("5", at=OLD + 1)])) == ["4"]


def test_jobs_that_may_share_a_device_all_have_it(node: Node) -> None:
    """A prolog is not told how many shards: each of several has one, and the only one has the whole device."""
    both = node.live().of([a_file("4", shared=True), a_file("5", at=OLD + 1, shared=True)])
    alone = node.live().of([a_file("4", shared=True)])

    assert [(each.device.job_id, each.device.shards) for each in both] == [("4", 1), ("5", 1)]
    assert [each.device.shards for each in alone] == [None]


def test_number_of_a_job_that_is_none_of_slurms_is_believed(node: Node) -> None:
    """Another scheduler writes to dcgm-exporter's directory; its jobs have other groups."""
    node.group(f"{V2}/job_4/step_extern")

    assert jobs_of(node.live().of([a_file("pbs.17")])) == ["pbs.17"]


def test_a_directory_full_of_groups_is_read_in_part(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes thousands of jobs' groups on a node; whoever does costs a bounded time."""
    looked_at = 0

    class Entry:
        name = "job_1"

    class Entries:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def __iter__(self) -> Self:
            return self

        def __next__(self) -> Entry:
            nonlocal looked_at
            looked_at += 1
            return Entry()

    real: Callable[[Path], object] = os.scandir
    full = node.group(V2)
    monkeypatch.setattr(os, "scandir", lambda path: Entries() if path == full else real(path))

    assert read_job_groups(node.cgroupfs) == JobGroups(frozenset("1"), has_extern=False)
    assert looked_at < 10_000
