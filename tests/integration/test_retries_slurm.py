"""The batch script and the setting that ship, on a real Slurm: a run that hardware has ended starts again by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Finding, Verdict
from gpufleet.quarantine.lint.kinds import judge
from gpufleet.quarantine.lint.manifests import read
from tests.conftest import ROOT
from tests.integration.slurm_cluster import SlurmCluster, script
from tests.waiting import until

pytestmark = pytest.mark.component

RETRIES = ROOT / "deploy" / "retries"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Two nodes, and the setting as it ships."""
    text = (RETRIES / "requeue-exit.conf").read_text(encoding="ascii")
    settings = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
    assert settings == {"RequeueExit": "250"}
    with SlurmCluster(nodes=("gn1", "gn2"), settings=settings) as running:
        yield running


def submitted(cluster: SlurmCluster, folder: Path, *task: str, batch: Path = RETRIES / "train.sbatch") -> str:
    """The script that ships, on two nodes; ``task`` stands for the launcher on each, as lines of shell."""
    folder.chmod(0o755)
    script(folder / "gpufleet", *task)
    environment = f"PATH={folder}:{os.environ.get('PATH', os.defpath)},SLURM_CONF={cluster.configuration}"
    arguments = ("--nodes=2", "--gres=gpu:4", f"--export={environment}", "--chdir=/")
    output = f"--output={cluster.directory}/jobs/%j.out"
    said = cluster.run("sbatch", "--parsable", output, *arguments, batch)
    return said.strip().partition(";")[0]


def ended(cluster: SlurmCluster, job: str, state: str) -> None:
    """Wait until it has come to its end."""
    try:
        until(lambda: cluster.job_state(job) == state, f"job {job} is {state}", seconds=60, every=0.2)
    except TimeoutError as error:
        output = cluster.output(job)
        printed = output.read_text(errors="replace") if output.exists() else "(nothing printed)"
        error.add_note(f"{cluster.run('scontrol', 'show', 'job', job)}\n{printed}")
        raise


FIRST_TIME = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0'
"""The second time all is well."""
FAULT = '[ "$SLURM_PROCID" = 0 ] && exit 250'


def test_a_fault_on_one_node_starts_the_run_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The peer ends later, and its launcher says the same."""
    job = submitted(cluster, tmp_path, 'echo "$SLURM_PROCID $*"', FIRST_TIME, FAULT, "sleep 1; exit 250")

    ended(cluster, job, "COMPLETED")

    assert cluster.job_field(job, "Restarts") == "1"
    assert "1 run -- torchrun --nproc-per-node=8 train.py" in cluster.output(job).read_text(encoding="ascii")


def test_peers_that_are_killed_hide_the_launchers_code(cluster: SlurmCluster, tmp_path: Path) -> None:
    """What the linter says of --kill-on-bad-exit: srun reports the signal."""
    text = (RETRIES / "train.sbatch").read_text(encoding="ascii").replace("exec srun", "exec srun --kill-on-bad-exit=1")
    changed = tmp_path / "killing.sbatch"
    changed.write_text(text, encoding="ascii")
    (found,) = read(changed.read_bytes(), str(changed))
    told = judge(found, Facts((found,)))
    job = submitted(cluster, tmp_path, FIRST_TIME, FAULT, "exec sleep 600", batch=changed)

    ended(cluster, job, "FAILED")

    assert isinstance(told, Finding)
    assert told.verdict is Verdict.COSTS
    assert cluster.job_field(job, "ExitCode") == "143:0"
    assert cluster.job_field(job, "Restarts") == "0"


def test_an_error_of_the_program_ends_the_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    """It is not started again."""
    job = submitted(cluster, tmp_path, FIRST_TIME, '[ "$SLURM_PROCID" = 0 ] && exit 3', "sleep 1; exit 1")

    ended(cluster, job, "FAILED")

    assert (cluster.job_field(job, "ExitCode"), cluster.job_field(job, "Restarts")) == ("3:0", "0")
