"""Rounds of two replicas that get in each other's way; what may happen in any order is the property test's."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.actuators.kubernetes.actuator import KubernetesActuator
from gpufleet.quarantine.actuators.kubernetes.places import node
from gpufleet.quarantine.alerts import parse_delivery
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.committer import Committer
from gpufleet.quarantine.incident import Key
from gpufleet.quarantine.policy import Mode, Platform, Policy
from gpufleet.quarantine.record import Record, Stage
from gpufleet.quarantine.stores.config_map import ConfigMapStore
from gpufleet.quarantine.worker import Worker
from tests.support.fake_kubernetes import Call, FakeCluster, Fault
from tests.support.quarantined import NOW, incident, payload

POLICY = Policy(mode=Mode.ACT)
MARK = "gpufleet.io/quarantine"


def cluster_of(*names: str) -> FakeCluster:
    """Nodes with GPUs that take work."""
    cluster = FakeCluster(lambda: NOW)
    for name in names:
        status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.put(node(name), {"status": status})
    return cluster


class Replica:
    """A process of the service; ``meet`` befalls its calls."""

    def __init__(self, cluster: FakeCluster, name: str, meet: Callable[[Call], Fault] = lambda _: Fault.NONE) -> None:
        api = cluster.api(name, meet)
        beats = itertools.count(0.0, 10.0)
        audit = Audit(io.StringIO(), lambda: NOW)
        actuator = KubernetesActuator(api, POLICY.nodes, POLICY.retries, audit, lambda: NOW)
        self.committer = Committer(
            ConfigMapStore(api, "gpufleet", lambda: NOW),
            actuator.view,
            POLICY,
            clock=lambda: NOW,
            monotonic=lambda: next(beats),
        )
        plan = DryRun(actuator, Platform.KUBERNETES)
        self.worker = Worker(
            self.committer,
            actuator,
            plan,
            POLICY,
            audit,
            clock=lambda: NOW,
            told=lambda *_: None,
            decided=lambda *_: None,
        )

    def deliver(self) -> None:
        """One incident of node n1 is told."""
        delivery = parse_delivery(payload([incident(holders=())]), POLICY.alerts, NOW)
        self.committer.apply(lambda session: session.deliver(delivery))

    def release(self) -> None:
        """A person releases everything."""
        keys = list(self.records())
        self.committer.apply(lambda session: session.release(keys, "ada"))

    def records(self) -> dict[Key, Record]:
        """What the ledger says."""
        book, _ = self.committer.fresh()
        return dict(book.records)

    @property
    def stages(self) -> list[Stage]:
        """How far each record is."""
        return [record.stage for record in self.records().values()]


def test_a_mark_that_came_after_the_release_comes_off() -> None:
    """One replica has read the ledger, then the other marks and a person releases, then the first one marks."""
    cluster = cluster_of("n1")
    quick = Replica(cluster, "quick")
    quick.deliver()
    turns = iter([None])

    def meet(call: Call) -> Fault:
        if call.verb == "get" and call.place == node("n1"):
            for _ in turns:
                quick.worker.round()
                quick.release()
                quick.worker.round()
                assert quick.stages == [Stage.RELEASED]
        return Fault.NONE

    slow = Replica(cluster, "slow", meet)
    slow.worker.round()
    assert MARK in cluster.at(node("n1"))["metadata"]["annotations"]

    quick.worker.round()

    assert quick.stages == [Stage.RELEASED]
    assert not cluster.at(node("n1"))["metadata"].get("annotations")
    assert not cluster.at(node("n1"))["spec"]
