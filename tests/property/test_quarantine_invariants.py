"""The quarantine as a whole on a made-up cluster: what holds whatever happens, and wherever it is cut off.

Two replicas share a ledger and an API server. Before and after each of their calls a request or an answer may be lost,
a replica may end, or the other one may act in between.
"""

from __future__ import annotations

import io
import json
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.actuators.kubernetes.actuator import KubernetesActuator
from gpufleet.quarantine.actuators.kubernetes.places import job, node, pod
from gpufleet.quarantine.actuators.kubernetes.telling import timestamp
from gpufleet.quarantine.alerts import parse_delivery
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.committer import Committer, NotRecordedError
from gpufleet.quarantine.incident import Holder, Incident, Key
from gpufleet.quarantine.policy import Breaker, Budget, Mode, Policy, Retries
from gpufleet.quarantine.record import Stage, Verdict
from gpufleet.quarantine.stores.config_map import ConfigMapStore
from gpufleet.quarantine.worker import Worker
from tests.support.fake_kubernetes import Call, Crashed, FakeCluster, Fault
from tests.support.quarantined import NOW, payload

NODES = tuple(f"gpu-{number}" for number in range(1, 8))
TAINT = "gpufleet.io/quarantine"
FOREIGN = {"key": "example.com/keep", "value": "théirs", "effect": "NoSchedule"}
POLICY = Policy(
    mode=Mode.ACT,
    # Three of seven, so that now the budget, now the rate, now the breaker is what holds.
    budget=Budget(share=0.6, most=3, most_share=0.0, out_share=0.8, new=4, window=600.0),
    breaker=Breaker(same_fault_nodes=3, pool_share=1.0, window=600.0),
    retries=Retries(most_per_incident=3, most_per_job=4),
)
OURS = POLICY.budget.ours(len(NODES))
LEDGER = "gpufleet"
EXAMPLES = int(os.environ.get("GPUFLEET_EXAMPLES", "100"))
"""10,000 take a quarter of an hour: ask for them by hand."""

faults = st.sampled_from([Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
replicas = st.sampled_from(["a", "b"])


class Replica:
    """One process of the service, from its start to its end."""

    def __init__(self, machine: Quarantined, name: str) -> None:
        api = machine.cluster.api(name, machine.meet)
        self.log = io.StringIO()
        self.log.name = "audit"
        audit = Audit(self.log, machine.clock)
        actuator = KubernetesActuator(api, POLICY.nodes, POLICY.retries, audit, machine.clock)
        store = ConfigMapStore(api, LEDGER, machine.clock)
        self.committer = Committer(store, actuator.view, POLICY, clock=machine.clock, monotonic=machine.monotonic)
        plan = DryRun(actuator, POLICY.platform, actuator.pods_on)
        self.worker = Worker(
            self.committer,
            actuator,
            plan,
            POLICY,
            audit,
            clock=machine.clock,
            told=lambda *_: None,
            decided=lambda *_: None,
        )


class Quarantined(RuleBasedStateMachine):
    """Alerts, people, kubelets and the clock act; the invariants are looked at after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.steady = 0.0
        self.cluster = FakeCluster(self.clock)
        self.fault: tuple[int, Fault] | None = None
        self.between: int | None = None
        self.busy = ""
        self.told: dict[Key, Incident] = {}
        self.released: set[Key] = set()
        self.by_hand: set[str] = set()
        """Nodes that somebody else has cordoned."""
        self.broken: set[str] = set()
        """UIDs of pods that held a broken GPU as of its fault."""
        self.begun: dict[str, int] = {}
        self.counted: set[Key] = set()
        self.lately: dict[str, set[str]] = {}
        """Nodes that went out for a fault, since a person closed the breaker or its window may have passed."""
        self.logs: list[io.StringIO] = []
        self.running: dict[str, Replica] = {}

    # What happens.

    @initialize(cordoned=st.sets(st.sampled_from(NODES), max_size=1))
    def begin(self, cordoned: set[str]) -> None:
        """Nodes with two GPUs, each held by a pod of a Job of its own; a DaemonSet's pod beside them."""
        for name in NODES:
            self.cluster.put(
                node(name),
                {
                    "metadata": {"annotations": {"example.com/note": "keep"}},
                    "spec": {"taints": [FOREIGN], **({"unschedulable": True} if name in cordoned else {})},
                    "status": {
                        "capacity": {"nvidia.com/gpu": "2"},
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                },
            )
            for gpu in range(2):
                self.make_job(name, gpu)
            self.make_pod(name, f"agent-{name}", {"kind": "DaemonSet", "name": "agent", "uid": "d"})
        self.by_hand = set(cordoned)
        self.running = {name: self.start(name) for name in ("a", "b")}

    def make_job(self, name: str, gpu: int) -> None:
        """A Job with a retry, and its pod on the node."""
        made = self.cluster.put(
            job("ns", f"job-{name}-{gpu}"), {"spec": {"backoffLimit": 1, "template": {}}, "status": {}}
        )
        owner = {
            "kind": "Job",
            "apiVersion": "batch/v1",
            "name": made["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }
        self.make_pod(name, f"pod-{name}-{gpu}", owner)

    def make_pod(self, name: str, pod_name: str, owner: dict[str, str]) -> None:
        """A pod that runs on a node, and has for an hour."""
        self.cluster.put(
            pod("ns", pod_name),
            {
                "metadata": {
                    "ownerReferences": [{**owner, "controller": True}],
                    "finalizers": ["batch.kubernetes.io/job-tracking"] if owner["kind"] == "Job" else [],
                    "labels": {"batch.kubernetes.io/job-name": owner["name"]},
                    "creationTimestamp": timestamp(self.now - 3600),
                },
                "spec": {
                    "nodeName": name,
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                },
                "status": {"phase": "Running", "startTime": timestamp(self.now - 3600)},
            },
        )

    @rule(data=st.data(), replica=replicas, size=st.integers(1, 4), fault=st.sampled_from(["79", "94", "48"]))
    def deliver(self, data: st.DataObject, replica: str, size: int, fault: str) -> None:
        """New incidents are told, and old ones again; 2xx means that they can be read in the ledger."""
        told = [self.fresh(data.draw(st.sampled_from(NODES)), fault) for _ in range(size)]
        told += data.draw(st.lists(st.sampled_from(sorted(self.told.values(), key=lambda each: each.key)), max_size=2))
        self.post(replica, payload(told), [each.key for each in told])

    def fresh(self, name: str, fault: str) -> Incident:
        """A new incident of one of a node's GPUs, with the pod that holds it now."""
        gpu = len(self.told) % 2
        holder = f"pod-{name}-{gpu}"
        told = Incident(
            Key("c", name, f"{len(self.told):016x}"),
            since=self.now,
            fault=fault,
            blame="hardware",
            action="reboot_node",
            isolate=True,
            refund=True,
            uuid=f"GPU-{name}-{gpu}",
            gpu=str(gpu),
            holders=(Holder("team", f"job-{name}-{gpu}", "", "ns", holder, "main"),),
        )
        self.told[told.key] = told
        if self.cluster.has(pod("ns", holder)):
            self.broken.add(self.cluster.at(pod("ns", holder))["metadata"]["uid"])
        return told

    def post(self, replica: str, body: bytes, keys: list[Key]) -> None:
        delivery = parse_delivery(body, POLICY.alerts, self.now)
        try:
            self.act(replica, lambda each: each.committer.apply(lambda session: session.deliver(delivery)))
        except NotRecordedError:
            return
        if self.running_on(replica):
            book = self.book()
            assert all(key in book.records for key in keys)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), replica=replicas)
    def resolve(self, data: st.DataObject, replica: str) -> None:
        """An alert ends: nothing is written but the ledger."""
        told = data.draw(st.sampled_from(sorted(self.told.values(), key=lambda each: each.key)))
        before = len(self.cluster.calls)
        self.post(replica, payload(resolved=[told]), [])
        mine = [call for call in self.cluster.calls[before:] if call.replica == replica and call.writes]
        assert all(call.place.resource == "configmaps" for call in mine)

    @rule(replica=replicas)
    def round(self, replica: str) -> None:
        """A round of a replica."""
        self.act(replica, lambda each: each.worker.round())

    @rule(after=st.integers(0, 25), fault=faults)
    def trouble(self, after: int, fault: Fault) -> None:
        """Something will go wrong some calls from now."""
        self.fault = (after, fault)

    @rule(after=st.integers(0, 25))
    def in_between(self, after: int) -> None:
        """The other replica will have a round some calls from now."""
        self.between = after

    @rule(replica=replicas)
    def restart(self, replica: str) -> None:
        """A replica ends and begins anew."""
        self.running[replica] = self.start(replica)

    @rule(seconds=st.sampled_from([-3600.0, -60.0, 1.0, 45.0, 400.0, 2000.0]))
    def time_passes(self, seconds: float) -> None:
        """The clock moves, backwards too."""
        self.lately.clear()
        self.now += seconds
        self.steady += abs(seconds)

    @rule(name=st.sampled_from(NODES))
    def somebody_cordons(self, name: str) -> None:
        """A person takes a node out; it is his from then on, unless we had it out."""
        found = self.cluster.at(node(name))
        if not found["spec"].get("unschedulable"):
            self.cluster.change(node(name), {"spec": {"unschedulable": True}})
            if TAINT not in found["metadata"].get("annotations", {}):
                self.by_hand.add(name)

    @rule(name=st.sampled_from(NODES))
    def somebody_uncordons(self, name: str) -> None:
        """A person gives a node back by hand."""
        self.cluster.change(node(name), {"spec": {"unschedulable": None}})
        self.by_hand.discard(name)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), replica=replicas)
    def release(self, data: st.DataObject, replica: str) -> None:
        """A person releases an incident, and it never comes back."""
        key = data.draw(st.sampled_from(sorted(self.told)))
        try:
            self.act(replica, lambda each: each.committer.apply(lambda session: session.release([key], "ada")))
        except NotRecordedError:
            return
        record = self.book().records.get(key)
        if record is not None and record.stage in {Stage.RELEASING, Stage.RELEASED}:
            self.released.add(key)

    @rule(replica=replicas)
    def reset_breaker(self, replica: str) -> None:
        """A person closes the breaker."""
        self.lately.clear()
        try:
            self.act(replica, lambda each: each.committer.apply(lambda session: session.reset_breaker()))
        except NotRecordedError:
            return

    @rule(name=st.sampled_from(NODES), gpu=st.integers(0, 1), phase=st.sampled_from(["Failed", "Succeeded"]))
    def a_pod_ends(self, name: str, gpu: int, phase: str) -> None:
        """By itself; the Job's controller counts it and lets it go."""
        place = pod("ns", f"pod-{name}-{gpu}")
        if not self.cluster.has(place) or self.cluster.at(place)["status"]["phase"] != "Running":
            return
        ended = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "finishedAt": timestamp(self.now)}}
        self.cluster.change(
            place,
            {
                "metadata": {"finalizers": None},
                "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": ended}]},
            },
        )
        if phase == "Succeeded":
            self.cluster.change(
                job("ns", f"job-{name}-{gpu}"), {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
            )

    @rule()
    def evicted_pods_go(self) -> None:
        """Kubelets end what was evicted."""
        for found in self.cluster.all("pods"):
            if "deletionTimestamp" in found["metadata"]:
                self.cluster.end(pod("ns", found["metadata"]["name"]))

    # What always holds.

    @invariant()
    def the_budget_is_kept(self) -> None:
        """Nodes that are ours, marked or about to be, by the nodes and by the ledger."""
        if not self.running:
            return
        ours = {record.node for record in self.book().records.values() if record.takes_place}
        ours |= self.marked()
        assert len(ours) <= OURS, ours

    @invariant()
    def the_breaker_stops_the_third(self) -> None:
        """Of one fault, two nodes go out within its window, and no third until a person closes it."""
        if not self.running:
            return
        for record in self.book().records.values():
            fault = record.incident.fault
            if record.decision.verdict is Verdict.QUARANTINE and record.key not in self.counted:
                self.counted.add(record.key)
                self.lately.setdefault(fault, set()).add(record.node)
        assert all(len(nodes) < POLICY.breaker.same_fault_nodes for nodes in self.lately.values()), self.lately

    @invariant()
    def what_is_not_ours_stays(self) -> None:
        """Taints, annotations and cordons of others, byte for byte."""
        for name in NODES if self.running else ():
            found = self.cluster.at(node(name))
            others = [taint for taint in found["spec"].get("taints") or () if taint["key"] != TAINT]
            assert others == [FOREIGN]
            assert found["metadata"]["annotations"].get("example.com/note") == "keep"
            if name in self.by_hand:
                assert found["spec"].get("unschedulable") is True, f"{name} was somebody else's"

    @invariant()
    def what_was_released_never_returns(self) -> None:
        """No mark names it as its reason again."""
        if not self.running:
            return
        for key in self.released:
            record = self.book().records.get(key)
            if record is not None:
                assert record.stage in {Stage.RELEASING, Stage.RELEASED}, key

    @invariant()
    def writes_are_few_and_guarded(self) -> None:
        """No DELETE; only pods that held a broken GPU; each change under a resourceVersion or a UID."""
        for call in self.cluster.calls:
            if not call.writes:
                continue
            assert call.verb in {"create", "patch", "update"}
            if call.place.resource == "pods":
                self.of_a_broken_gpu(call)
            if call.verb != "create":
                metadata = call.body["metadata"] if isinstance(call.body, dict) else {}
                tested = isinstance(call.body, list) and any(each["op"] == "test" for each in call.body)
                assert tested or metadata.get("resourceVersion") or metadata.get("uid"), call
        self.cluster.calls.clear()

    def of_a_broken_gpu(self, call: Call) -> None:
        """A write to a pod is to one that held a broken GPU, and an eviction names its UID."""
        if call.place.subresource == "eviction":
            assert call.body["deleteOptions"]["preconditions"]["uid"] in self.broken, call
        else:
            assert call.place.name.startswith("pod-"), call

    @invariant()
    def refunds_are_bounded(self) -> None:
        """Never more than pods that died, never past the cap, never on a Job that has ended."""
        for found in self.cluster.all("jobs"):
            given = found["spec"]["backoffLimit"] - 1
            assert given <= POLICY.retries.most_per_job
            died = 1  # each Job here has one pod
            assert given <= died, found
            assert not given or not any(each["type"] == "Complete" for each in found["status"].get("conditions", ()))

    @invariant()
    def everything_is_on_record(self) -> None:
        """Before each write its intent, after it its result, unless the process ended there."""
        for log in self.logs:
            lines = [json.loads(line) for line in log.getvalue().splitlines()]
            intents = {line["id"] for line in lines if line["event"] == "intent"}
            results = [line["id"] for line in lines if line["event"] == "result"]
            assert len(results) == len(set(results))
            assert set(results) <= intents
            assert len(intents) - len(results) <= 1  # the one that it ended in

    def teardown(self) -> None:
        """In the end, without further trouble, the nodes are what the ledger says, however it was cut off before."""
        if not self.running:
            return
        self.fault = self.between = None
        for _ in range(6):
            self.steady += 60.0
            for name in ("a", "b"):
                self.running[name].worker.round()
            self.evicted_pods_go()
        book = self.book()
        held = {record.node for record in book.records.values() if record.takes_place}
        assert self.marked() == held
        for record in book.records.values():
            assert record.stage not in {Stage.RESERVED, Stage.RELEASING}, record
        for name in held:
            assert self.cluster.at(node(name))["spec"].get("unschedulable") is True
        for found in self.cluster.all("pods"):
            # Whatever was taken out of its Job's count was evicted, too.
            if found["status"]["phase"] == "Running" and "deletionTimestamp" not in found["metadata"]:
                owner = found["metadata"]["ownerReferences"][0]["kind"]
                assert owner != "Job" or found["metadata"].get("finalizers"), found["metadata"]["name"]
        self.check_invariants_once()

    def check_invariants_once(self) -> None:
        """After the last round, too."""
        self.the_budget_is_kept()
        self.what_is_not_ours_stays()
        self.writes_are_few_and_guarded()
        self.refunds_are_bounded()
        self.everything_is_on_record()

    # How it is run.

    def clock(self) -> float:
        """Unix time."""
        return self.now

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self.steady

    def start(self, name: str) -> Replica:
        """A new process of a replica."""
        replica = Replica(self, name)
        self.logs.append(replica.log)
        return replica

    def running_on(self, name: str) -> bool:
        """Whether the replica that acted last is still the one that did."""
        return self.begun.get(name, 0) == 0

    def act(self, name: str, what: Any) -> None:  # noqa: ANN401 - a call of a replica
        """Have a replica do something; when it ends in the middle, a new one begins."""
        self.begun[name] = 0
        self.busy = name
        try:
            what(self.running[name])
        except Crashed:
            self.begun[name] = 1
            self.running[name] = self.start(name)
        finally:
            self.busy = ""

    def meet(self, call: Call) -> Fault:
        """What befalls a call of a replica."""
        if call.replica != self.busy:
            return Fault.NONE
        if self.between is not None:
            self.between -= 1
            if self.between < 0:
                self.between = None
                other = "b" if call.replica == "a" else "a"
                self.busy = ""
                self.running[other].worker.round()
                self.busy = call.replica
        if self.fault is not None:
            left, fault = self.fault
            self.fault = (left - 1, fault) if left else None
            if not left:
                return fault
        return Fault.NONE

    def book(self) -> Book:
        """The ledger, as a replica that begins now would read it."""
        return ConfigMapStore(self.cluster.api("reader"), LEDGER, self.clock).load().book

    def marked(self) -> set[str]:
        """Nodes that bear our mark."""
        found = set()
        for name in NODES:
            each = self.cluster.at(node(name))
            taints = {taint["key"] for taint in each["spec"].get("taints") or ()}
            if TAINT in taints or TAINT in each["metadata"].get("annotations", {}):
                found.add(name)
        return found


TestQuarantined = Quarantined.TestCase
TestQuarantined.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
