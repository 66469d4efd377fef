"""A real API server and Job controller: the webhook's condition, and the manifests that ship."""

from __future__ import annotations

import base64
import itertools
import json
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from gpufleet.quarantine.actuators.kubernetes.jobs import HARDWARE_FAULT
from gpufleet.quarantine.actuators.kubernetes.pods import Pod
from gpufleet.quarantine.admission import Admission, Rules
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import Holder
from gpufleet.quarantine.record import Record, Stage
from gpufleet.web.app import App
from gpufleet.web.endpoint import open_endpoint
from gpufleet.web.message import Request, Response, plain_response
from tests.conftest import ROOT, program
from tests.integration.kubernetes_api import BUILD_REMEDY, Json, KubernetesApi, kubernetes_program
from tests.support.lint_changes import applied, judged
from tests.support.pems import write_pems
from tests.support.quarantine_records import incident, record
from tests.waiting import until

pytestmark = pytest.mark.component

NODE = "gpu-1"
NAMESPACE = "research"
RETRIES = ROOT / "deploy" / "retries"
WEBHOOK = ROOT / "deploy" / "kubernetes" / "quarantine-admission.yaml"
CODES = itertools.count(1)


@dataclass
class Webhook:
    """The service's side: a ledger that the test writes, and what it was asked."""

    book: Book = field(default_factory=Book)
    marked: list[str] = field(default_factory=list)
    strip: bool = False
    fails: bool = False
    late_by: float = 0.0

    def broke(self, pod: Json) -> None:
        """The GPU that the pod holds has broken just now, and its node is out for it."""
        holder = Holder(namespace=NAMESPACE, pod=pod["metadata"]["name"])
        now = time.time()
        told = incident(NODE, f"i-{next(CODES)}", since=now, holders=(holder,))
        self.book = self.book.with_record(record(told, Stage.MARKED, marked_at=now))

    def note(self, pod: Pod, _: Record) -> None:
        self.marked.append(pod.metadata.name)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """An API server with the Job controller, a node and a namespace."""
    apiserver, manager = kubernetes_program("kube-apiserver"), kubernetes_program("kube-controller-manager")
    if apiserver is None or manager is None:
        pytest.skip(f"no kube-apiserver or no kube-controller-manager: {BUILD_REMEDY}")
    with KubernetesApi(apiserver, program("etcd"), tmp_path_factory.mktemp("kubernetes") / "api") as running:
        running.create_namespace(NAMESPACE)
        running.create_node(NODE, {})
        running.start_controllers(manager, "job-controller")
        yield running


@pytest.fixture(scope="module")
def webhook(kubernetes: KubernetesApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The webhook behind our web server with TLS, and its manifest applied."""
    folder = tmp_path_factory.mktemp("webhook")
    write_pems(folder)
    config = folder / "web.yml"
    config.write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n", encoding="ascii")
    told = Webhook()
    kept = {
        strip: Admission(lambda: told.book, Rules(strip_finalizer=strip), marked=told.note) for strip in (False, True)
    }

    def admit(request: Request) -> Response:
        if told.fails:
            return plain_response(500, "internal error")
        time.sleep(told.late_by)
        return kept[told.strip].admit(request)

    app = App({("POST", "/v1/admit"): admit}, body_limit=8 << 20)
    endpoint = open_endpoint(app, ["127.0.0.1:0"], web_config_file=config)
    try:
        (manifest,) = (each for each in yaml.safe_load_all(WEBHOOK.read_text()) if each["kind"] != "Service")
        client = {
            # The API server of the test resolves no Services.
            "url": f"https://{endpoint.server.addresses[0]}{manifest['webhooks'][0]['clientConfig']['service']['path']}",
            "caBundle": base64.b64encode((folder / "ca.crt").read_bytes()).decode(),
        }
        manifest["webhooks"][0]["clientConfig"] = client
        configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        kubernetes.request("POST", f"{configurations}?fieldValidation=Strict", manifest)
        until(lambda: _is_asked(kubernetes, told), "the API server asks the webhook", seconds=30, every=0.5)
        yield told
        kubernetes.request("DELETE", f"{configurations}/{manifest['metadata']['name']}")
    finally:
        endpoint.server.stop()


def _is_asked(kubernetes: KubernetesApi, told: Webhook) -> bool:
    """Whether a pod that fails is marked yet: the API server reads webhooks a moment after they are made."""
    number = next(CODES)
    spec = {"nodeName": NODE, "containers": [container("python")]}
    meta = {"name": f"probe-{number}"}
    made = kubernetes.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": meta, "spec": spec})
    told.broke(made)
    return HARDWARE_FAULT in conditions(fail(kubernetes, made, 1))


def container(*command: str) -> Json:
    """A container with a GPU."""
    return {
        "name": "main",
        "image": "none.invalid/i",
        "command": command,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }


def shipped(name: str) -> Json:
    """A manifest of deploy/retries."""
    found: Json = yaml.safe_load((RETRIES / name).read_text(encoding="utf-8"))
    return found


def create(kubernetes: KubernetesApi, job: Json) -> str:
    """Make a Job, under a name of its own."""
    name = f"{job['metadata']['name']}-{next(CODES)}"
    named = {**job, "metadata": {"name": name}}
    kubernetes.request("POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs?fieldValidation=Strict", named)
    return name


def listed(kubernetes: KubernetesApi, job: str) -> list[Json]:
    """The Job's pods."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=batch.kubernetes.io/job-name={job}"
    found: list[Json] = kubernetes.request("GET", path)["items"]
    return found


def is_tracked(pod: Json) -> bool:
    """Whether its Job's controller has still to judge it."""
    return "batch.kubernetes.io/job-tracking" in pod["metadata"].get("finalizers", [])


def started(kubernetes: KubernetesApi, job: str, count: int = 1) -> list[Json]:
    """The Job's pods that have not ended, on the node, once there are so many; by name."""

    def found() -> list[Json]:
        return [each for each in listed(kubernetes, job) if each["status"]["phase"] != "Failed"]

    # A failure that is ignored holds the next pod up for ten seconds.
    until(lambda: len(found()) == count, f"{job} has {count} pods", seconds=60, every=0.2)
    for pod in found():
        name = pod["metadata"]["name"]
        at = {"kind": "Node", "name": NODE}
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": at}
        kubernetes.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding", target)
        kubernetes.set_phase(NAMESPACE, name, "Running")
    return sorted(found(), key=lambda pod: str(pod["metadata"]["name"]))


def running(kubernetes: KubernetesApi, job: str) -> Json:
    """The one pod of the Job that has not ended."""
    return started(kubernetes, job)[0]


def fail(kubernetes: KubernetesApi, pod: Json, code: int) -> Json:
    """Say that the pod has failed, as its kubelet does; the answer is what was stored."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"exitCode": code, "reason": "Error", "startedAt": at, "finishedAt": at}
    state = {
        "name": "main",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
    body = {"status": {"phase": "Failed", "containerStatuses": [state]}}
    return kubernetes.request("PATCH", path, body, kind="application/strategic-merge-patch+json")


def conditions(pod: Json) -> dict[str, Json]:
    """A pod's conditions by type."""
    return {each["type"]: each for each in pod["status"].get("conditions", [])}


def status(kubernetes: KubernetesApi, job: str) -> Json:
    """A Job's status."""
    found: Json = kubernetes.request("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job}")["status"]
    return found


def has_failed(kubernetes: KubernetesApi, job: str) -> bool:
    """Whether the Job is given up."""
    return any(
        each["type"] == "Failed" and each["status"] == "True" for each in status(kubernetes, job).get("conditions", [])
    )


def test_a_job_without_a_launcher_keeps_its_retries(kubernetes: KubernetesApi, webhook: Webhook) -> None:
    """The condition is in the write that says Failed, for a backoffLimit of 0; an error of its own still ends it."""
    job = create(kubernetes, shipped("job-with-admission.yaml"))
    first = running(kubernetes, job)
    webhook.broke(first)

    stored = fail(kubernetes, first, 1)

    assert stored["status"]["phase"] == "Failed"
    assert conditions(stored)[HARDWARE_FAULT]["reason"] == "Xid79"
    assert first["metadata"]["name"] in webhook.marked
    second = running(kubernetes, job)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert status(kubernetes, job).get("failed", 0) == 0
    assert not has_failed(kubernetes, job)

    stored = fail(kubernetes, second, 1)

    assert HARDWARE_FAULT not in conditions(stored)
    until(lambda: has_failed(kubernetes, job), "the Job has failed", seconds=30, every=0.2)


def test_peers_of_an_indexed_job_fall_with_it(kubernetes: KubernetesApi, webhook: Webhook) -> None:
    """The ledger knows who held the GPU; the others are known by the names that the Job controller gives."""
    indexed = shipped("job-with-admission.yaml")
    indexed["spec"] |= {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
    job = create(kubernetes, indexed)
    pods = started(kubernetes, job, 3)
    stranger = create(kubernetes, {**shipped("job-with-admission.yaml"), "metadata": {"name": f"{job}-0"}})
    (other,) = started(kubernetes, stranger)
    webhook.broke(pods[1])

    stored = [fail(kubernetes, each, 134) for each in (pods[0], pods[2], pods[1], other)]

    assert [HARDWARE_FAULT in conditions(each) for each in stored] == [True, True, True, False]
    until(lambda: not any(map(is_tracked, listed(kubernetes, job))), "the controller has judged the pods", every=0.2)
    assert status(kubernetes, job).get("failed", 0) == 0
    assert not has_failed(kubernetes, job)
    until(lambda: has_failed(kubernetes, stranger), "the other Job has failed", seconds=30, every=0.2)


def test_a_plain_job_is_kept_by_its_finalizer(kubernetes: KubernetesApi, webhook: Webhook) -> None:
    """Where the service may, the pod is out of the Job's count in the same write."""
    plain = shipped("job-with-admission.yaml")
    del plain["spec"]["podFailurePolicy"]
    job = create(kubernetes, plain)
    first = running(kubernetes, job)
    webhook.broke(first)
    webhook.strip = True
    try:
        stored = fail(kubernetes, first, 1)
    finally:
        webhook.strip = False

    assert "finalizers" not in stored["metadata"]
    assert stored["metadata"]["annotations"]["gpufleet.io/finalizer-stripped"].startswith("prod/gpu-1/i-")
    running(kubernetes, job)
    assert status(kubernetes, job).get("failed", 0) == 0
    assert not has_failed(kubernetes, job)


def test_the_launchers_code_costs_nothing(kubernetes: KubernetesApi) -> None:
    """The manifest for the launcher, backoffLimit 0: 250 is ignored, anything else is not."""
    job = create(kubernetes, shipped("job.yaml"))

    fail(kubernetes, running(kubernetes, job), 250)
    second = running(kubernetes, job)

    assert not has_failed(kubernetes, job)
    fail(kubernetes, second, 1)
    until(lambda: has_failed(kubernetes, job), "the Job has failed", seconds=30, every=0.2)


@pytest.mark.parametrize("trouble", ["fails", "late_by"])
def test_a_webhook_in_trouble_holds_no_write_up(kubernetes: KubernetesApi, webhook: Webhook, trouble: str) -> None:
    """It answers with an error or too late: the pod fails as ever, two seconds later at most."""
    job = create(kubernetes, shipped("job-with-admission.yaml"))
    pod = running(kubernetes, job)
    webhook.broke(pod)
    before = time.monotonic()
    setattr(webhook, trouble, 4)
    try:
        stored = fail(kubernetes, pod, 1)
    finally:
        setattr(webhook, trouble, 0)

    assert time.monotonic() - before < 3.5
    assert stored["status"]["phase"] == "Failed"
    assert HARDWARE_FAULT not in conditions(stored)


WHERE = {
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "CronJob": f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs",
    "PodTemplate": f"/api/v1/namespaces/{NAMESPACE}/podtemplates",
}


def accepted(kubernetes: KubernetesApi, manifest: Json) -> None:
    """Have the API server look at it strictly, and keep nothing."""
    path = f"{WHERE[manifest['kind']]}?dryRun=All&fieldValidation=Strict"
    try:
        kubernetes.request("POST", path, manifest)
    except urllib.error.HTTPError as error:
        pytest.fail(f"{manifest['metadata']['name']}: {json.loads(error.read())['message']}")


@pytest.mark.parametrize(
    "file", ["job.yaml", "indexed-job.yaml", "job-with-admission.yaml", "cronjob.yaml", "flyte-pod-template.yaml"]
)
def test_the_api_server_takes_what_ships(kubernetes: KubernetesApi, file: str) -> None:
    """Every field is one that it knows."""
    accepted(kubernetes, shipped(file))


def test_the_api_server_takes_what_the_linter_tells_to_write(kubernetes: KubernetesApi) -> None:
    """Of Jobs of many shapes; and the child Jobs of sets are Jobs as well."""
    for policy, limit, replacement, command in itertools.product(
        ("Never", "OnFailure"), (0, 3), (None, "TerminatingOrFailed"), ((), ("python", "train.py"))
    ):
        spec: dict[str, Any] = {
            "backoffLimit": limit,
            "template": {"spec": {"restartPolicy": policy, "containers": [container(*command)]}},
        }
        if replacement:
            spec["podReplacementPolicy"] = replacement
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
        accepted(kubernetes, job)
        accepted(kubernetes, applied(job, judged(job).changes))
    for name in ("jobset.yaml", "trainjob.yaml"):
        found = next(iter(yaml.safe_load_all((RETRIES / name).read_text(encoding="utf-8"))))
        spec = found["spec"] if found["kind"] == "JobSet" else found["spec"]["template"]["spec"]
        for child in spec["replicatedJobs"]:
            spec_of_child = child["template"]["spec"]
            meta = {"name": "child"}
            accepted(kubernetes, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec_of_child})
