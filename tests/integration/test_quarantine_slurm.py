"""The quarantine on a real Slurm of four nodes: drained, requeued, given back, and nothing of others touched."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.actuators.slurm.actuator import SlurmActuator
from gpufleet.quarantine.actuators.slurm.commands import Output
from gpufleet.quarantine.alerts import Delivery
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.committer import Committer
from gpufleet.quarantine.incident import Holder, Incident, Key
from gpufleet.quarantine.policy import Breaker, Budget, Mode, Platform, Policy
from gpufleet.quarantine.record import Outcome, Record, Stage
from gpufleet.quarantine.stores.file import FileStore
from gpufleet.quarantine.worker import Worker
from tests.integration.slurm_cluster import SlurmCluster
from tests.waiting import until

pytestmark = pytest.mark.component

WIDE = Policy(
    mode=Mode.ACT,
    platform=Platform.SLURM,
    budget=Budget(share=1.0, most=100, most_share=1.0, out_share=1.0, new=100),
    breaker=Breaker(same_fault_nodes=100, pool_share=1.0),
)


class Rig:
    """The cluster and a quarantine on it."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        self.cluster = cluster
        self.ran: list[tuple[str, ...]] = []
        self._number = 0
        audit = Audit(io.StringIO(), time.time)
        self.actuator = SlurmActuator(self.run, WIDE.retries, audit, time.time)
        store = FileStore(directory / "ledger.json", time.time)
        self.committer = Committer(store, self.actuator.view, WIDE, clock=time.time, monotonic=time.monotonic)
        plan = DryRun(self.actuator, Platform.SLURM)
        self.worker = Worker(
            self.committer,
            self.actuator,
            plan,
            WIDE,
            audit,
            clock=time.time,
            told=lambda *_: None,
            decided=lambda *_: None,
        )

    def run(self, *arguments: str) -> Output:
        """A command of this cluster."""
        self.ran.append(arguments)
        environ = {**self.cluster.environment, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=20, check=False)
        return Output(done.returncode, done.stdout, done.stderr)

    def tell(self, node: str, *jobs: str, since: float | None = None) -> Record:
        """A hardware incident of a GPU that these jobs held is told, and everything that follows is done."""
        self._number += 1
        told = Incident(
            Key("c", node, f"incident-{node}-{self._number}-{time.time_ns()}"),
            since=time.time() if since is None else since,
            fault="79",
            blame="hardware",
            isolate=True,
            refund=True,
            uuid=f"GPU-{node}",
            gpu="0",
            holders=tuple(Holder("account", job, "train") for job in jobs),
        )
        self.committer.apply(lambda session: session.deliver(Delivery((told,))))
        self.worker.round()
        return self.record(told.key)

    def record(self, key: Key) -> Record:
        """What the ledger says."""
        book = self.committer.book
        assert book is not None
        return book.records[key]

    def restarts(self, job: str) -> int:
        """How often a job was started anew."""
        return int(self.cluster.job_field(job, "Restarts"))

    def give_back(self, key: Key) -> None:
        """A person releases it."""
        self.committer.apply(lambda session: session.release([key], "ada"))
        self.worker.round()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Four nodes of four GPUs."""
    with SlurmCluster(nodes=("gn1", "gn2", "gn3", "gn4")) as running:
        yield running


@pytest.fixture
def rig(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Rig]:
    """All nodes idle before and after."""
    yield Rig(cluster, tmp_path)
    cluster.cancel_all()
    for node in cluster.nodes:
        cluster.attempt("scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: set(cluster.node_states().values()) == {"idle"}, "every node is idle", seconds=60, every=0.2)


def test_the_failed_job_runs_again_elsewhere_and_the_healthy_one_to_its_end(rig: Rig) -> None:
    """The node is drained with our reason: nothing new comes, and what runs on its other GPUs ends normally."""
    cluster = rig.cluster
    healthy = cluster.submit("sleep 8; echo done", "--nodelist=gn1", "--gres=gpu:1")
    cluster.wait_for_start(healthy)
    failed = cluster.submit('test -n "$SLURM_RESTART_COUNT" && sleep 300; exit 1', "--gres=gpu:1", "--exclude=gn3,gn4")
    until(lambda: cluster.job_state(failed) == "FAILED", "the job has failed", seconds=60, every=0.2)
    assert cluster.job_field(failed, "NodeList") == "gn1", "nodes are filled in their order"
    record = rig.tell("gn1", failed)

    assert cluster.node_states()["gn1"] in {"draining", "drained"}
    assert cluster.drain_reason("gn1").startswith(f"gpufleet:c/gn1/{record.key.incident} fault=79 gpu=0 GPU-gn1")
    assert [step.outcome for step in record.steps if step.action == "requeue"][-1] is Outcome.DONE
    assert rig.restarts(failed) == 1
    until(lambda: cluster.job_state(healthy) == "COMPLETED", "the healthy job has ended", seconds=60, every=0.2)
    assert rig.restarts(healthy) == 0
    until(lambda: cluster.job_state(failed) == "RUNNING", "the failed job runs again", seconds=120, every=0.5)
    assert cluster.job_field(failed, "NodeList") == "gn2"
    for _ in range(3):
        rig.worker.round()
    assert rig.restarts(failed) == 1
    assert sum(command[:2] == ("scontrol", "requeue") for command in rig.ran) == 1


def test_a_job_that_still_runs_on_the_gpu_is_moved(rig: Rig) -> None:
    """And starts on another node; the one beside it does not notice."""
    cluster = rig.cluster
    first = cluster.submit("sleep 300", "--gres=gpu:1", "--exclude=gn3,gn4")
    cluster.wait_for_start(first)
    node = cluster.job_field(first, "NodeList")
    beside = cluster.submit("sleep 300", f"--nodelist={node}", "--gres=gpu:1")
    cluster.wait_for_start(beside)
    time.sleep(1.1)  # a job's start is told to the second: the fault must be after it
    rig.tell(node, first)

    until(
        lambda: cluster.job_state(first) == "RUNNING" and cluster.job_field(first, "NodeList") != node,
        "it runs on another node",
        seconds=120,
        every=0.5,
    )
    assert rig.restarts(first) == 1
    assert cluster.job_state(beside) == "RUNNING"
    assert rig.restarts(beside) == 0


def test_an_admins_reason_stays(rig: Rig) -> None:
    """Before and after; the node is his, and is not resumed by us."""
    cluster = rig.cluster
    cluster.run("scontrol", "update", "nodename=gn2", "state=drain", "reason=firmware | ada")
    record = rig.tell("gn2")

    assert cluster.drain_reason("gn2") == "firmware | ada"
    assert record.was_cordoned
    rig.give_back(record.key)
    assert cluster.drain_reason("gn2") == "firmware | ada"
    assert rig.record(record.key).stage is Stage.RELEASED


def test_a_node_that_is_given_back_takes_work_again(rig: Rig) -> None:
    """By a person's command, or by an admin's resume, which is noticed."""
    cluster = rig.cluster
    first, second = rig.tell("gn3"), rig.tell("gn4")
    rig.give_back(first.key)
    assert cluster.node_states()["gn3"] == "idle"

    cluster.run("scontrol", "update", "nodename=gn4", "state=resume")
    rig.worker.round()
    rig.worker.round()

    assert rig.record(second.key).stage is Stage.RELEASED
    assert cluster.node_states()["gn4"] == "idle"


def test_jobs_that_cannot_be_queued_again_are_told(rig: Rig) -> None:
    """One that says --no-requeue, one that ended before the fault, one that Slurm does not know, and no job at all."""
    cluster = rig.cluster
    never = cluster.submit("exit 1", "--nodelist=gn1", "--gres=gpu:1", "--no-requeue")
    old = cluster.submit("exit 1", "--nodelist=gn1", "--gres=gpu:1")
    for job in (never, old):
        until(lambda job=job: cluster.job_state(job) == "FAILED", "it has failed", seconds=60, every=0.2)  # type: ignore[misc]
    record = rig.tell("gn1", never, "999999", "no-number")
    found = {step.target: (step.outcome, step.detail) for step in record.steps if step.action == "requeue"}
    later = rig.tell("gn1", old, since=time.time() + 60)

    assert found[f"slurm-job/{never}"][0] is Outcome.REFUSED
    assert "disabled" in found[f"slurm-job/{never}"][1]
    assert found["slurm-job/999999"][0] is Outcome.GONE
    assert [(step.outcome, step.detail) for step in later.steps if step.action == "requeue"][-1] == (
        Outcome.GONE,
        "it had failed before the fault",
    )
    assert rig.restarts(old) == 0


def test_a_node_that_is_not_there_is_no_node(rig: Rig) -> None:
    """And a name that Slurm would take for several is none."""
    for name in ("gn9", "gn[1-4]", "gn1,gn2"):
        assert rig.tell(name).decision.reason == "unknown_node"
    record = replace(rig.tell("gn9"), node="gn9")

    assert [step.outcome for step in rig.actuator.release(record, last=True)] == [Outcome.GONE]
    assert set(rig.cluster.node_states().values()) == {"idle"}
