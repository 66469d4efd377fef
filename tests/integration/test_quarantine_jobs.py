"""Retries on a real API server with the real Job controller: what a hardware fault costs a Job, and what not.

There is no kubelet: the test puts pods on nodes and says how they end, as kubelets would.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpufleet.launch.verdict import FAULT_CODE
from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.actuators.kubernetes.actuator import KubernetesActuator
from gpufleet.quarantine.actuators.kubernetes.client import Client
from gpufleet.quarantine.actuators.kubernetes.pods import STRIPPED, TRACKING
from gpufleet.quarantine.alerts import Delivery
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.committer import Committer
from gpufleet.quarantine.incident import Holder, Incident, Key
from gpufleet.quarantine.policy import Breaker, Budget, Mode, Platform, Policy
from gpufleet.quarantine.record import Outcome, Record, Stage, Step
from gpufleet.quarantine.stores.config_map import ConfigMapStore
from gpufleet.quarantine.worker import Worker
from tests.conftest import program
from tests.integration.kubernetes_api import ADMIN, BUILD_REMEDY, KubernetesApi, kubernetes_program
from tests.integration.test_quarantine_kubernetes import client
from tests.waiting import until

pytestmark = [pytest.mark.component, pytest.mark.timeout(400)]

MERGE = "application/merge-patch+json"
WIDE = Policy(
    mode=Mode.ACT,
    budget=Budget(share=1.0, most=100, most_share=1.0, out_share=1.0, new=100),
    breaker=Breaker(same_fault_nodes=100, pool_share=1.0),
)
IGNORE_CODE = {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [FAULT_CODE]}}]}
IGNORE_DISRUPTIONS = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


class Cluster:
    """The servers, and what a test does to them."""

    def __init__(self, api: KubernetesApi, opened: Client, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._number = 0
        audit = Audit(io.StringIO(), time.time)
        actuator = KubernetesActuator(opened, WIDE.nodes, WIDE.retries, audit, time.time)
        store = ConfigMapStore(opened, namespace, time.time)
        self.committer = Committer(store, actuator.view, WIDE, clock=time.time, monotonic=time.monotonic)
        plan = DryRun(actuator, Platform.KUBERNETES, actuator.pods_on)
        self.worker = Worker(
            self.committer, actuator, plan, WIDE, audit, clock=time.time, told=lambda *_: None, decided=lambda *_: None
        )

    def node(self, name: str) -> str:
        """A node of this test with GPUs."""
        full = f"{self.namespace}-{name}"
        self.api.create_node(full, {})
        status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.request("PATCH", f"/api/v1/nodes/{full}/status", {"status": status}, kind=MERGE)
        return full

    def job(self, name: str, *, pods: int = 1, **spec: Any) -> None:  # noqa: ANN401 - fields of a Job
        """A Job; its pods are made by its controller."""
        container = {
            "name": "main",
            "image": "none.invalid/image",
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
        body = {
            "metadata": {"name": name},
            "spec": {
                "completions": pods,
                "parallelism": pods,
                "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
                **spec,
            },
        }
        self.api.request("POST", f"/apis/batch/v1/namespaces/{self.namespace}/jobs", body)

    def pods(self, job: str) -> list[dict[str, Any]]:
        """Pods of a Job that have not ended and are not on their way."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=batch.kubernetes.io/job-name%3D{job}"
        return [
            each
            for each in self.api.request("GET", path)["items"]
            if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] in {"Pending", "Running"}
        ]

    def run(self, job: str, *nodes: str) -> list[str]:
        """Put the pods of a Job on nodes, one each, and have them run; their names.

        The controller waits after failures that it counts: 10 s, 20 s, 40 s …
        """
        until(lambda: len(self.pods(job)) == len(nodes), f"{job} has its pods", seconds=200, every=0.1)
        found = self.pods(job)
        names = sorted(each["metadata"]["name"] for each in found)
        for name, node in zip(names, nodes, strict=True):
            binding = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
            self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding", binding)
            running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.api.request("PATCH", f"{self._pod(name)}/status", {"status": running}, kind=MERGE)
        return names

    def fail(self, pod: str, code: int = 1) -> None:
        """A pod's program ends, now."""
        ended = {"exitCode": code, "reason": "Error", "finishedAt": _time(time.time()), "startedAt": _time(time.time())}
        status = {
            "phase": "Failed",
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "x",
                    "imageID": "x",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        self.api.request("PATCH", f"{self._pod(pod)}/status", {"status": status}, kind=MERGE)

    def finish(self, pod: str) -> None:
        """The kubelet of an evicted pod ends it."""
        body = {"gracePeriodSeconds": 0}
        self.api.request("DELETE", self._pod(pod), body)

    def get(self, pod: str) -> dict[str, Any]:
        """A pod."""
        return self.api.request("GET", self._pod(pod))

    def state(self, job: str) -> dict[str, Any]:
        """A Job."""
        return self.api.request("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{job}")

    def conditions(self, job: str) -> set[str]:
        """What is true of a Job."""
        found = self.state(job).get("status", {}).get("conditions", [])
        return {each["type"] for each in found if each["status"] == "True"}

    def tell(self, node: str, *pods: str, refund: bool = True, since: float | None = None) -> Record:
        """An Xid 79 of a GPU that these pods held is told, and everything that follows is done."""
        self._number += 1
        key = Key("c", node, f"{self.namespace}-{self._number}")
        holders = tuple(Holder("team", "run", "", self.namespace, pod, "main") for pod in sorted(pods))
        told = Incident(
            key,
            since=time.time() if since is None else since,
            fault="79",
            blame="hardware" if refund else "application",
            isolate=True,
            refund=refund,
            uuid=f"GPU-{node}",
            gpu="0",
            holders=holders,
        )
        self.committer.apply(lambda session: session.deliver(Delivery((told,))))
        self.worker.round()
        return self.record(key)

    def record(self, key: Key) -> Record:
        """What the ledger says now."""
        book = self.committer.book
        assert book is not None
        return book.records[key]

    def _pod(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def of(steps: tuple[Step, ...], action: str) -> list[Outcome]:
    """Outcomes of an action."""
    return [step.outcome for step in steps if step.action == action]


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """One API server with the Job and the disruption controller for this module."""
    apiserver, manager = kubernetes_program("kube-apiserver"), kubernetes_program("kube-controller-manager")
    if apiserver is None or manager is None:
        pytest.skip(f"no kube-apiserver: {BUILD_REMEDY}")
    with KubernetesApi(apiserver, program("etcd"), tmp_path_factory.mktemp("jobs") / "api") as running:
        running.start_controllers(manager, "job-controller", "disruption-controller")
        yield running


@pytest.fixture
def cluster(kubernetes: KubernetesApi, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A namespace of the test's own."""
    namespace = f"t{abs(hash(request.node.name)) % 10**8}"
    kubernetes.create_namespace(namespace)
    with closing(client(kubernetes, tmp_path, ADMIN)) as opened:
        yield Cluster(kubernetes, opened, namespace)


def test_a_plain_job_with_one_retry_survives_three_hardware_faults(cluster: Cluster) -> None:
    """Each of its pods dies of one; without a refund the second would have ended it."""
    cluster.job("train", backoffLimit=1)
    for number in range(3):
        node = cluster.node(f"n{number}")
        (pod,) = cluster.run("train", node)
        cluster.fail(pod)
        record = cluster.tell(node, pod)
        assert of(record.steps, "refund") == [Outcome.DONE]
    cluster.run("train", cluster.node("last"))

    assert cluster.state("train")["spec"]["backoffLimit"] == 4
    assert cluster.conditions("train") == set()
    assert cluster.state("train")["status"]["failed"] == 3


def test_the_same_job_without_a_refund_would_have_failed(cluster: Cluster) -> None:
    """So the test above can fail; and a fault that a program brought about gives nothing back."""
    cluster.job("train", backoffLimit=1)
    for number in range(2):
        node = cluster.node(f"n{number}")
        (pod,) = cluster.run("train", node)
        cluster.fail(pod)
        record = cluster.tell(node, pod, refund=False)
        assert of(record.steps, "refund") == []

    until(lambda: "Failed" in cluster.conditions("train"), "the Job has failed", seconds=60)


def test_a_job_without_retries_is_saved_by_the_launcher_and_its_policy(cluster: Cluster) -> None:
    """backoffLimit 0: the pod ends with the launcher's code, and is replaced."""
    cluster.job("train", backoffLimit=0, podFailurePolicy=IGNORE_CODE)
    node = cluster.node("n1")
    (pod,) = cluster.run("train", node)
    cluster.fail(pod, FAULT_CODE)
    cluster.tell(node, pod)
    (again,) = cluster.run("train", cluster.node("n2"))

    assert again != pod
    assert cluster.conditions("train") == set()
    assert cluster.state("train")["spec"]["backoffLimit"] == 0


def test_four_pods_of_which_one_lost_its_gpu_lose_no_retry(cluster: Cluster) -> None:
    """Its three peers crash after it, on other nodes."""
    cluster.job("train", pods=4, backoffLimit=4)
    nodes = [cluster.node(f"n{number}") for number in range(4)]
    pods = cluster.run("train", *nodes)
    for pod in pods:
        cluster.fail(pod)
    record = cluster.tell(nodes[0], pods[0])

    assert of(record.steps, "refund") == [Outcome.DONE] * 4
    assert cluster.state("train")["spec"]["backoffLimit"] == 8
    cluster.run("train", *[cluster.node(f"m{number}") for number in range(4)])
    assert cluster.conditions("train") == set()
    cluster.worker.round()
    assert cluster.state("train")["spec"]["backoffLimit"] == 8, "each pod has its retry back once"


def test_a_job_that_fails_of_its_own_error_still_fails(cluster: Cluster) -> None:
    """Though its node has a fault an hour later, and though another GPU of the node had one before."""
    node = cluster.node("n1")
    cluster.job("other", backoffLimit=3)
    (other,) = cluster.run("other", node)
    cluster.job("train", backoffLimit=0)
    (pod,) = cluster.run("train", node)
    cluster.fail(pod)
    until(lambda: "Failed" in cluster.conditions("train"), "the Job has failed", seconds=60)
    record = cluster.tell(node, other)

    assert of(record.steps, "refund") == []
    assert cluster.state("train")["spec"]["backoffLimit"] == 0
    assert "Failed" in cluster.conditions("train")


def test_a_running_pod_is_moved_without_costing_a_retry(cluster: Cluster) -> None:
    """Of a Job without a policy: it is taken out of the count first. The pod on a healthy GPU of the node runs on."""
    node = cluster.node("n1")
    cluster.job("train", backoffLimit=0)
    cluster.job("healthy", backoffLimit=0)
    (pod,) = cluster.run("train", node)
    (other,) = cluster.run("healthy", node)
    before = cluster.get(other)
    record = cluster.tell(node, pod)

    assert of(record.steps, "strip_finalizer") == [Outcome.DONE]
    assert of(record.steps, "evict") == [Outcome.DONE]
    cluster.run("train", cluster.node("n2"))
    assert cluster.conditions("train") == set()
    assert cluster.state("train")["status"].get("failed", 0) == 0
    assert cluster.get(other) == before


def test_a_pod_whose_job_forgives_disruptions_is_evicted_as_it_is(cluster: Cluster) -> None:
    """Its finalizer stays, and the controller itself counts nothing."""
    node = cluster.node("n1")
    cluster.job("train", backoffLimit=0, podFailurePolicy=IGNORE_DISRUPTIONS)
    (pod,) = cluster.run("train", node)
    record = cluster.tell(node, pod)

    assert of(record.steps, "strip_finalizer") == []
    assert of(record.steps, "evict") == [Outcome.DONE]
    evicted = cluster.get(pod)
    assert TRACKING in evicted["metadata"]["finalizers"]
    cluster.fail(pod, 143)
    cluster.run("train", cluster.node("n2"))
    assert cluster.conditions("train") == set()


def test_a_disruption_budget_is_respected_and_tried_again(cluster: Cluster) -> None:
    """Nothing is changed while it forbids the eviction: the finalizer is where it was."""
    node = cluster.node("n1")
    cluster.job("train", backoffLimit=0)
    (pod,) = cluster.run("train", node)
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}}},
    }
    where = f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
    cluster.api.request("POST", where, budget)
    until(
        lambda: cluster.api.request("GET", f"{where}/keep")["status"].get("expectedPods") == 1,
        "the budget knows its pod",
        seconds=60,
    )
    record = cluster.tell(node, pod)

    assert of(record.steps, "evict") == [Outcome.BLOCKED]
    assert record.stage is Stage.MARKED
    found = cluster.get(pod)["metadata"]
    assert TRACKING in found["finalizers"]
    assert STRIPPED not in found.get("annotations", {})
    cluster.api.request("PATCH", f"{where}/keep", {"spec": {"minAvailable": 0}}, kind=MERGE)
    until(
        lambda: cluster.api.request("GET", f"{where}/keep")["status"].get("disruptionsAllowed") == 1,
        "the budget allows it",
        seconds=60,
    )
    cluster.worker.round()
    assert of(cluster.record(record.key).steps, "evict") == [Outcome.DONE]


def test_a_pod_that_was_stripped_when_the_service_ended_is_dealt_with(cluster: Cluster) -> None:
    """The annotation says what is left to do: the next round evicts it; a release puts the finalizer back."""
    node = cluster.node("n1")
    cluster.job("train", backoffLimit=0)
    (pod,) = cluster.run("train", node)
    key = f"c/{node}/{cluster.namespace}-1"
    cut_off = {"metadata": {"finalizers": None, "annotations": {STRIPPED: key}}}
    cluster.api.request("PATCH", f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}", cut_off, kind=MERGE)
    record = cluster.tell(node, pod)

    assert of(record.steps, "evict") == [Outcome.DONE]
    assert cluster.state("train").get("status", {}).get("failed", 0) == 0


def test_the_audit_and_the_job_name_each_pod(cluster: Cluster) -> None:
    """Whoever asks why a Job has more retries than it was given finds it there."""
    node = cluster.node("n1")
    cluster.job("train", backoffLimit=1)
    (pod,) = cluster.run("train", node)
    uid = cluster.get(pod)["metadata"]["uid"]
    cluster.fail(pod)
    record = cluster.tell(node, pod)

    assert record.refunded == (uid,)
    noted = json.loads(cluster.state("train")["metadata"]["annotations"]["gpufleet.io/refunded"])
    assert noted == {uid: str(record.key)}
