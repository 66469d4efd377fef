"""Who holds what on nodes of Slurm and on bare metal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpufleet.model.claims import JobSource
from gpufleet.model.owner import Hold
from gpufleet.owners.evidence import Evidence
from tests.support.owners_evidence import gpu, gpu_uuid, job, mig_uuid, node, only, process, resolved, shares

if TYPE_CHECKING:
    from gpufleet.model.claims import GpuProcess, JobDevice, ProcessFacts

ONE = node(gpu(0))
GPU = gpu_uuid(0)
SEVENTH = pytest.approx(1 / 7)


def slurm(
    *jobs: JobDevice, processes: tuple[tuple[GpuProcess, ProcessFacts], ...] = (), stale: bool = False
) -> Evidence:
    """Evidence of a node of Slurm."""
    return Evidence(jobs=jobs, processes={GPU: processes}, allocations_expected=True, stale=stale)


def bare(*processes: tuple[GpuProcess, ProcessFacts]) -> Evidence:
    """Evidence of a node where processes are all that is known."""
    return Evidence(processes={GPU: processes})


def test_a_job_holds_its_gpu() -> None:
    """By the prolog's file, whether anything runs there or not."""
    workload = only(resolved(ONE, slurm(job(GPU, "12", user="bob", account="physics", name="sim"))))

    assert (workload.project, workload.run, workload.task, workload.workload_user) == ("physics", "12", "sim", "bob")


def test_minor_numbers_are_not_indexes() -> None:
    """Four GPUs with permuted minor numbers; a file that fits none costs the others nothing."""
    devices = node(*(gpu(number, minor=minor) for number, minor in enumerate((2, 3, 1, 0))))
    jobs = (job("minor:2", "1"), job("index:1", "2"), job("minor:0", "3"), job("minor:9", "4"))

    found = resolved(devices, slurm(*jobs))

    assert shares(found) == {
        (gpu_uuid(0), "1"): 1.0,
        (gpu_uuid(1), "2"): 1.0,
        (gpu_uuid(2), "(unallocated)"): 1.0,
        (gpu_uuid(3), "3"): 1.0,
    }
    assert found.unknown_devices == 1


def test_a_job_can_have_a_slice() -> None:
    """By UUID, or by the GPU's index and the GPU instance."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb"), gpu(1))
    found = resolved(
        devices, slurm(job(mig_uuid(0, 0), "1"), job("index:0.8", "2", source=JobSource.DCGM), job("index:1", "3"))
    )

    assert shares(found) == {
        (GPU, "(unsliced)"): pytest.approx(5 / 7),
        (mig_uuid(0, 0), "1"): SEVENTH,
        (mig_uuid(0, 1), "2"): SEVENTH,
        (gpu_uuid(1), "3"): 1.0,
    }


def test_jobs_with_shards_share_by_them() -> None:
    """Whoever has three of four pays three quarters."""
    assert shares(resolved(ONE, slurm(job(GPU, "1", shards=3), job(GPU, "2", shards=1)))) == {
        (GPU, "1"): 0.75,
        (GPU, "2"): 0.25,
    }


def test_jobs_of_which_shards_are_not_all_told_share_equally() -> None:
    """One that says nothing can't be weighed against the others."""
    assert shares(resolved(ONE, slurm(job(GPU, "1", shards=3), job(GPU, "2")))) == {(GPU, "1"): 0.5, (GPU, "2"): 0.5}


def test_the_first_source_that_names_a_job_is_believed() -> None:
    """The others only add what it left out."""
    found = resolved(
        ONE,
        slurm(
            job(GPU, "9", source=JobSource.DCGM),
            job("index:0", "1", source=JobSource.JOBSTATS, user="bob"),
            job(GPU, "1", account="physics"),
        ),
    )
    workload = only(found)

    assert (workload.run, workload.project, workload.workload_user) == ("1", "physics", "bob")


def test_a_process_tells_the_job_where_no_file_does() -> None:
    """Unprivileged, by its control group; the files' facts of that job are known all the same."""
    found = resolved(ONE, slurm(job("minor:7", "12", account="physics"), processes=(process(slurm="12", user="bob"),)))
    other = resolved(ONE, slurm(processes=(process(slurm="13", user="bob"),)))

    assert (only(found).run, only(found).project) == ("12", "physics")
    assert (only(other).run, only(other).project, only(other).workload_job) == ("13", "bob", "13")


def test_a_file_comes_before_a_process() -> None:
    """A job may run on what it was not given; it doesn't hold that."""
    assert only(resolved(ONE, slurm(job(GPU, "12"), processes=(process(slurm="13"),)))).run == "12"


def test_an_idle_gpu_is_nobodys() -> None:
    """With files of no job, and with a daemon of the host on it."""
    found = resolved(ONE, slurm(processes=(process(user="root", unit="nvidia-persistenced.service"),)))

    assert [(each.hold, each.share) for each in found.holdings] == [(Hold.UNALLOCATED, 1.0)]


def test_files_that_cannot_be_read_leave_the_rest_unknown() -> None:
    """What another source still says is believed."""
    found = resolved(node(gpu(0), gpu(1)), slurm(job(GPU, "12"), processes=(), stale=True))

    assert shares(found) == {(GPU, "12"): 1.0, (gpu_uuid(1), "(unknown)"): 1.0}


def test_on_bare_metal_processes_share_equally_by_owner() -> None:
    """Two processes of one unit are one holder."""
    found = resolved(
        ONE,
        bare(
            process(1, user="alice", unit="train.service"),
            process(2, user="alice", unit="train.service"),
            process(3, user="bob", container="cd" * 32),
        ),
    )

    assert [(each.workload.project, each.workload.run, each.share) for each in found.holdings] == [
        ("alice", "train.service", 0.5),
        ("bob", "cdcdcdcdcdcd", 0.5),
    ]


def test_on_bare_metal_an_idle_gpu_is_nobodys() -> None:
    """Whoever used it has gone."""
    assert resolved(ONE, bare()).holdings[0].hold is Hold.UNALLOCATED


def test_processes_on_slices_hold_those() -> None:
    """The driver lists them on the GPU, with their GPU instance."""
    devices = node(gpu(0, "1g.10gb", "2g.20gb"))
    found = resolved(devices, bare(process(1, user="alice", gi=8, ci=0), process(2, user="bob", gi=5)))

    assert {(each.mig_uuid, each.project): each.share for each in found.holdings} == {
        ("", "(unsliced)"): pytest.approx(4 / 7),
        (mig_uuid(0, 0), "(unallocated)"): SEVENTH,
        (mig_uuid(0, 1), "alice"): pytest.approx(2 / 7),
    }
    (spread,) = {each.share for each in resolved(node(gpu(0, "1g.10gb", "1g.10gb")), bare(process())).holdings[1:]}
    assert spread == pytest.approx(1 / 14)


def test_a_job_with_a_sliced_gpu_has_all_of_it() -> None:
    """Slices, and what they don't cover."""
    found = resolved(node(gpu(0, "1g.10gb")), slurm(job(GPU, "12")))

    assert shares(found) == {(GPU, "12"): pytest.approx(6 / 7), (mig_uuid(0, 0), "12"): SEVENTH}
