"""Prolog and epilog under a real Slurm, and what is read of what they write."""

from __future__ import annotations

import json
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.model.claims import JobDevice
from gpufleet.sources.slurm.files import SlurmFiles
from tests.conftest import ROOT
from tests.integration.slurm_cluster import SlurmCluster, exports, script
from tests.waiting import until

pytestmark = pytest.mark.component

UUIDS = {minor: f"GPU-{minor}{minor}c0ffee-0000-4000-8000-000000000000" for minor in range(4)}
BUSES = {3: "0000:17:00.0", 2: "0000:31:00.0", 1: "0000:ca:00.0", 0: "0000:db:00.0"}
"""The order of the bus is not that of the minor numbers, as on many real machines."""


class Rig:
    """A cluster of one node whose prolog and epilog are ours, and the files that these write."""

    def __init__(self, root: Path, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.directory = root / "files"
        self._files = SlurmFiles(own=self.directory, dcgm=None, jobstats=None, procfs=root, cgroupfs=root)

    def devices(self) -> tuple[JobDevice, ...]:
        """What the exporter reads now."""
        return self._files.read().devices

    def held(self) -> dict[str, set[str]]:
        """The jobs of each device."""
        found: dict[str, set[str]] = {}
        for each in self.devices():
            found.setdefault(each.device, set()).add(each.job_id)
        return found

    def of(self, job: str) -> tuple[JobDevice, ...]:
        """The devices of a job, once it runs."""
        self.cluster.wait_for_start(job)
        found = tuple(each for each in self.devices() if each.job_id == job)
        assert not any(path.name.startswith(".") for path in self.directory.iterdir())
        return found

    def gone(self, job: str) -> bool:
        """No file speaks of the job any more."""
        return not list(self.directory.glob(f"*.{job}.json"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The cluster; a test leaves no job behind."""
    root = tmp_path_factory.mktemp("slurm")
    for minor, bus in BUSES.items():
        information = root / "driver/nvidia/gpus" / bus / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUIDS[minor]}\nDevice Minor: \t {minor}\n")
    settings = exports(GPUFLEET_SLURM_DIR=root / "files", GPUFLEET_PROCFS=root, GPUFLEET_SCONTROL="1")
    scripts = {
        name: script(root / f"{name}.sh", settings, f"exec {ROOT}/deploy/slurm/{name}.sh")
        for name in ("prolog", "epilog")
    }
    configuration = {"Prolog": str(scripts["prolog"]), "Epilog": str(scripts["epilog"]), "PrologFlags": "Alloc"}
    with SlurmCluster(shards=16, settings=configuration) as cluster:
        yield Rig(root, cluster)


@pytest.fixture(autouse=True)
def _every_job_ends(rig: Rig) -> Iterator[None]:
    yield
    rig.cluster.cancel_all()
    until(lambda: not rig.cluster.run("squeue", "--noheader").strip(), "every job has ended", every=0.1)
    until(lambda: not rig.devices(), "every file is gone", every=0.1)
    assert rig.cluster.node_states() == {"gn1": "idle"}


def test_a_jobs_files_come_before_it_runs_and_go_when_it_ends(rig: Rig) -> None:
    """Each GPU by its UUID, found by minor number and not by bus; who runs it; nothing is left."""
    job = rig.cluster.submit("sleep 600", "--gres=gpu:2", "--account=physics", "--job-name=train")

    first, second = rig.of(job)

    assert {first.device, second.device} == {UUIDS[0], UUIDS[1]}
    for each in (first, second):
        assert (each.user, each.account, each.partition, each.name) == ("root", "physics", "gpu", "train")
        assert (each.restart_count, each.array_job_id, each.array_task_id) == ("0", "", "")
    rig.cluster.run("scancel", job)
    until(lambda: rig.gone(job), "the files are gone", every=0.1)


def test_a_job_that_ends_by_itself_or_fails_leaves_nothing(rig: Rig) -> None:
    """Success, failure, and death by a signal."""
    jobs = [rig.cluster.submit(command, "--gres=gpu:1") for command in ("true", "false", "kill -KILL $$")]

    for job in jobs:
        until(lambda job=job: rig.cluster.job_state(job) in ("COMPLETED", "FAILED"), "it has ended", every=0.1)  # type: ignore[misc]
        until(lambda job=job: rig.gone(job), "the files are gone", every=0.1)  # type: ignore[misc]


def test_jobs_side_by_side_keep_their_own_files(rig: Rig) -> None:
    """The end of one job removes its files and nobody else's, though its number ends another's."""
    jobs = [rig.cluster.submit("sleep 600", "--gres=gpu:1") for _ in range(3)]
    for job in jobs:
        assert len(rig.of(job)) == 1
    assert len(rig.held()) == 3

    rig.cluster.run("scancel", "--signal=KILL", "--full", jobs[1])
    until(lambda: rig.gone(jobs[1]), "the killed job's file is gone", every=0.1)

    assert set.union(*rig.held().values()) == {jobs[0], jobs[2]}


def test_the_tasks_of_an_array_are_told_apart(rig: Rig) -> None:
    """Each has a number of its own, and the array's with its place in it."""
    array = rig.cluster.submit("sleep 600", "--gres=gpu:1", "--array=3-4", "--job-name=sweep")
    until(lambda: len(rig.devices()) == 2, "both tasks have a GPU", every=0.1)

    devices = rig.devices()

    assert len({each.job_id for each in devices}) == 2
    assert {each.array_job_id for each in devices} == {array}
    assert {each.array_task_id for each in devices} == {"3", "4"}
    assert {each.name for each in devices} == {"sweep"}


def test_a_job_that_is_queued_again_counts_its_restarts(rig: Rig) -> None:
    """Its file goes, and comes again with the same number of the job and the next count."""
    job = rig.cluster.submit("sleep 600", "--gres=gpu:1", "--requeue")
    (before,) = rig.of(job)
    assert before.restart_count == "0"

    rig.cluster.run("scontrol", "requeue", job)
    until(lambda: rig.gone(job), "the file of the first run is gone", every=0.1)
    rig.cluster.output(job).unlink()
    (after,) = rig.of(job)

    assert after.restart_count == "1"
    assert after.started_at is not None
    assert before.started_at is not None
    assert after.started_at > before.started_at


def test_shards_of_one_gpu_are_several_jobs(rig: Rig) -> None:
    """Slurm tells a prolog of neither shards nor their number: whoever has the same GPU shares it."""
    jobs = {rig.cluster.submit("sleep 600", "--gres=shard:2") for _ in range(2)}
    for job in jobs:
        rig.of(job)

    devices = rig.devices()

    assert {each.job_id for each in devices} == jobs
    by_device = {device: len(holders) for device, holders in rig.held().items()}
    for each in devices:
        assert each.shards == (1 if by_device[each.device] > 1 else None)


def test_a_job_without_gpus_writes_nothing(rig: Rig) -> None:
    """It is none of ours."""
    job = rig.cluster.submit("sleep 600")

    assert rig.of(job) == ()


def test_a_job_of_another_user_is_that_users(rig: Rig) -> None:
    """The prolog is root's, and the job is not."""
    job = rig.cluster.submit("sleep 600", "--gres=gpu:1", "--uid=nobody", "--gid=nogroup")

    (device,) = rig.of(job)
    rig.cluster.run("scancel", job)

    assert device.user == pwd.getpwnam("nobody").pw_name


def test_a_job_may_have_any_name(rig: Rig) -> None:
    """The file is JSON, and says the name and nothing else than the truth."""
    names = ['a"b\\c', "x ArrayJobId=9 JobName=y", "$(id)`id`;'*", "-n \u00e9\u2028\U0001f4a5"]
    jobs = {
        rig.cluster.submit("sleep 600", "--gres=gpu:1", f"--job-name={each}", f"--comment={each}"): each
        for each in names
    }

    for job, name in jobs.items():
        (device,) = rig.of(job)
        (path,) = rig.directory.glob(f"*.{job}.json")

        assert json.loads(path.read_text())["name"] == name
        assert (device.name, device.array_job_id) == (name, "")


def test_a_directory_that_cant_be_written_stops_no_job(rig: Rig) -> None:
    """The job runs, the node is not drained, and its GPU has no owner."""
    aside = rig.directory.with_name("aside")
    rig.directory.rename(aside)
    rig.directory.write_text("")
    try:
        job = rig.cluster.submit("sleep 600", "--gres=gpu:1")
        rig.cluster.wait_for_start(job)
        rig.cluster.run("scancel", job)
        until(lambda: rig.cluster.job_state(job) == "CANCELLED", "the job has ended", every=0.1)

        assert rig.cluster.drain_reason("gn1") == "none"
    finally:
        rig.directory.unlink()
        aside.rename(rig.directory)
