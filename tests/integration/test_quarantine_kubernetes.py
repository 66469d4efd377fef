"""Marks, ledger and roles of the quarantine against a real API server, and the fake one beside it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api, Json, Patch
from gpufleet.quarantine.actuators.kubernetes.client import Client, connect
from gpufleet.quarantine.actuators.kubernetes.grants import EVICT, LEDGER, QUARANTINE, REFUND, ROLES, Grant
from gpufleet.quarantine.actuators.kubernetes.moving import Moving
from gpufleet.quarantine.actuators.kubernetes.node_marks import NodeMarks
from gpufleet.quarantine.actuators.kubernetes.nodes import view
from gpufleet.quarantine.actuators.kubernetes.places import PODS, Place, config_map, events, node, pod, pods
from gpufleet.quarantine.actuators.kubernetes.pods import TRACKING
from gpufleet.quarantine.actuators.kubernetes.refunding import Refunding
from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError, ForbiddenError
from gpufleet.quarantine.actuators.kubernetes.telling import timestamp
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import Holder
from gpufleet.quarantine.policy import Nodes, Retries
from gpufleet.quarantine.record import Outcome, Record, Step
from gpufleet.quarantine.stores import ConflictError, StoreError
from gpufleet.quarantine.stores.config_map import ConfigMapStore
from gpufleet.quarantine.view import Mark
from tests.conftest import ROOT, program
from tests.integration.kubernetes_api import ADMIN, BUILD_REMEDY, KubernetesApi, kubernetes_program
from tests.support.fake_kubernetes import FakeCluster
from tests.support.quarantine_records import incident, record, refused
from tests.waiting import until

pytestmark = pytest.mark.component

KEY = "gpufleet.io/quarantine"
MERGE = "application/merge-patch+json"
CORE = "/api/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WHERE = {
    "ServiceAccount": f"{CORE}/namespaces/gpufleet/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/gpufleet/roles",
    "RoleBinding": f"{RBAC}/namespaces/gpufleet/rolebindings",
}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """One API server for this module, with the manifest of the roles applied and a namespace with a pod on gpu-1."""
    apiserver = kubernetes_program("kube-apiserver")
    if apiserver is None:
        # The one component that CI may lack, too: not every mirror of Go modules has Kubernetes.
        pytest.skip(f"no kube-apiserver: {BUILD_REMEDY}")
    with KubernetesApi(apiserver, program("etcd"), tmp_path_factory.mktemp("kubernetes") / "api") as running:
        for name in ("gpufleet", "research"):
            running.create_namespace(name)
        manifest = ROOT / "deploy" / "kubernetes" / "quarantine-rbac.yaml"
        for each in yaml.safe_load_all(manifest.read_text(encoding="utf-8")):
            running.request("POST", WHERE[each["kind"]], each)
        for name in ("gpu-1", "gpu-2"):
            running.create_node(name, {"gpufleet.io/pool": "h100"})
            status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
            running.request("PATCH", f"{CORE}/nodes/{name}/status", {"status": status}, kind=MERGE)
        running.create_pod("research", "train-0", "gpu-1")
        yield running


def client(kubernetes: KubernetesApi, folder: Path, token: str) -> Client:
    """The official client with a token, by a kubeconfig as people have them."""
    cluster = {"server": kubernetes.url, "certificate-authority": str(kubernetes.ca_file)}
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content), encoding="ascii")
    return connect(path)


@pytest.fixture
def service(kubernetes: KubernetesApi, tmp_path: Path) -> Iterator[Client]:
    """The API server as the service's own account sees it, with all roles of the manifest."""
    path = f"{CORE}/namespaces/gpufleet/serviceaccounts/gpufleet-quarantine/token"
    token = kubernetes.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    with closing(client(kubernetes, tmp_path, token)) as opened:
        until(lambda: _may(opened), "the roles of the manifest are in force")
        yield opened


def _may(api: Api) -> bool:
    try:
        api.get(node("gpu-1"))
    except ForbiddenError:
        return False
    return True


def marks(api: Api) -> NodeMarks:
    """What marks nodes."""
    return NodeMarks(api, Audit(io.StringIO(), time.time), Nodes(), time.time)


def outcomes(steps: tuple[Step, ...]) -> list[tuple[str, Outcome]]:
    """Actions and what came of them."""
    return [(step.action, step.outcome) for step in steps]


def test_a_node_goes_out_and_comes_back(kubernetes: KubernetesApi, service: Client) -> None:
    """All that people see is there, a second time writes nothing, and a release leaves what others have."""
    foreign = {"key": "maintenance", "value": "soon", "effect": "NoSchedule"}
    kubernetes.request("PATCH", f"{CORE}/nodes/gpu-1", {"spec": {"taints": [foreign]}}, kind=MERGE)
    told = record(released_by="ada")

    first = marks(service).mark(told)
    again = marks(service).mark(told)

    assert outcomes(first) == [("cordon", Outcome.DONE), ("condition", Outcome.DONE), *[("event", Outcome.DONE)] * 2]
    assert {outcome for _, outcome in outcomes(again)} == {Outcome.ALREADY}
    found = kubernetes.request("GET", f"{CORE}/nodes/gpu-1")
    assert found["spec"]["unschedulable"] is True
    assert foreign in found["spec"]["taints"]
    assert {"key": KEY, "value": "xid-79", "effect": "NoSchedule"} in found["spec"]["taints"]
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]} == {
        "Ready": "True",
        "GpufleetQuarantine": "True",
    }
    seen = view(service, Nodes(), time.time)
    assert sorted(seen.nodes) == ["gpu-1", "gpu-2"]
    assert (seen.nodes["gpu-1"].out, seen.nodes["gpu-1"].pool) == (True, "h100")
    assert seen.nodes["gpu-1"].mark == Mark("prod/gpu-1/i-1", 1_700_000_000.0, was_cordoned=False)
    for namespace, about in (("default", "Node"), ("research", "Pod")):
        listed = kubernetes.request("GET", f"{CORE}/namespaces/{namespace}/events?fieldSelector=reason=GpuQuarantined")
        assert [each["involvedObject"]["kind"] for each in listed["items"]] == [about]

    assert outcomes(marks(service).release(told, last=True)) == [
        (action, Outcome.DONE) for action in ("uncordon", "condition", "event")
    ]
    found = kubernetes.request("GET", f"{CORE}/nodes/gpu-1")
    assert "unschedulable" not in found["spec"]
    assert [each["key"] for each in found["spec"]["taints"] if "node.kubernetes.io" not in each["key"]] == [
        "maintenance"
    ]
    assert KEY not in found["metadata"].get("annotations", {})
    assert [each["type"] for each in found["status"]["conditions"]] == ["Ready"]


@pytest.fixture
def _node_controller(kubernetes: KubernetesApi) -> Iterator[None]:
    manager = kubernetes_program("kube-controller-manager")
    if manager is None:
        pytest.skip(f"no kube-controller-manager: {BUILD_REMEDY}")
    kubernetes.start_controllers(manager, "node-lifecycle-controller")
    yield
    kubernetes.stop_controllers()


@pytest.mark.usefixtures("_node_controller")
def test_a_mark_survives_the_node_controller(kubernetes: KubernetesApi, service: Client) -> None:
    """It replaces the list of taints when a node is cordoned; ours and its own are both there in the end."""
    names = [f"marked-{number}" for number in range(12)]
    for name in names:
        kubernetes.create_node(name, {})
        status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        kubernetes.request("PATCH", f"{CORE}/nodes/{name}/status", {"status": status}, kind=MERGE)
    told = [record(incident(name, f"i-{name}", holders=())) for name in names]

    def keys(name: str) -> set[str]:
        found = kubernetes.request("GET", f"{CORE}/nodes/{name}")
        return {taint["key"] for taint in found["spec"].get("taints", ())}

    for each in told:
        assert outcomes(marks(service).mark(each))[0] == ("cordon", Outcome.DONE)
    both = {KEY, "node.kubernetes.io/unschedulable"}
    until(lambda: all(keys(name) >= both for name in names), "each node has our taint and the controller's", seconds=30)

    for each in told:
        assert outcomes(marks(service).release(each, last=True))[0] == ("uncordon", Outcome.DONE)
    until(lambda: not any(keys(name) & both for name in names), "each node is as it was", seconds=30)


def test_the_ledger_lies_in_config_maps(kubernetes: KubernetesApi, service: Client) -> None:
    """Written by compare-and-swap, moved to the history, found again by another process."""
    now = time.time()
    first, second = (ConfigMapStore(service, "gpufleet", lambda: now) for _ in range(2))
    closed = [refused(incident(f"gpu-{number}", f"c-{number}"), now) for number in range(60)]
    book = Book({each.key: each for each in [record(), *closed]})
    held, stale = first.load(), second.load()

    held = first.save(book, held.version)
    with pytest.raises(ConflictError):
        second.save(Book(), stale.version)
    held = first.save(replace(book, placed_at=(1.5,)), held.version)

    assert second.load() == held == ConfigMapStore(service, "gpufleet", lambda: now).load()
    listed = kubernetes.request("GET", f"{CORE}/namespaces/gpufleet/configmaps")
    names = {each["metadata"]["name"] for each in listed["items"]}
    assert len({name for name in names if name.startswith("gpufleet-quarantine-history-")}) > 1


def test_no_config_map_of_another_name_is_to_be_had(service: Client) -> None:
    """The role names those of the ledger."""
    with pytest.raises(ForbiddenError):
        service.get(config_map("gpufleet", "kube-root-ca.crt"))


def script(api: Api) -> list[Any]:
    """What a server does in cases that the quarantine depends on."""
    told: list[Any] = []

    def ask(act: Callable[[], Json], show: Callable[[Json], Any] = lambda _: "done") -> Json:
        try:
            found = act()
        except ApiError as error:
            told.append((type(error).__name__, error.status, error.reason))
            return {}
        told.append(show(found))
        return found

    place = node("script")
    api.create(Place("nodes"), {"metadata": {"name": "script", "labels": {"a": "b"}}})
    read = ask(lambda: api.get(place), lambda found: found["metadata"]["labels"])
    version, uid = read["metadata"]["resourceVersion"], read["metadata"]["uid"]
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    guarded = {"metadata": {"resourceVersion": version, "annotations": {"x": "y"}}, "spec": {"taints": taints}}

    def own_taints(found: Json) -> list[Json]:
        return [each for each in found["spec"].get("taints", []) if each["key"] in {"k", "l"}]

    ask(lambda: api.patch(place, Patch.MERGE, guarded, dry_run=True), own_taints)
    ask(lambda: api.patch(place, Patch.MERGE, guarded), own_taints)
    ask(lambda: api.patch(place, Patch.MERGE, guarded))
    ask(lambda: api.patch(place, Patch.MERGE, {"spec": {"taints": [{**taints[0], "key": "l"}]}}), own_taints)
    ask(lambda: api.patch(place, Patch.MERGE, {"spec": {"taints": None}}), own_taints)
    ask(lambda: api.patch(place, Patch.MERGE, {"metadata": {"annotations": {"x": None}}}), lambda f: f["spec"].get("q"))

    def conditions(found: Json) -> list[tuple[str, str]]:
        return [(each["type"], each["status"]) for each in found["status"].get("conditions", [])]

    status = place.of("status")
    for kind, state in (("Ready", "True"), ("Mine", "True"), ("Mine", "False")):
        change = {"metadata": {"uid": uid}, "status": {"conditions": [{"type": kind, "status": state}]}}
        ask(lambda change=change: api.patch(status, Patch.STRATEGIC, change), conditions)  # type: ignore[misc]
    gone = {"metadata": {"uid": uid}, "status": {"conditions": [{"type": "Mine", "$patch": "delete"}]}}
    ask(lambda: api.patch(status, Patch.STRATEGIC, gone), conditions)
    ask(lambda: api.patch(status, Patch.STRATEGIC, gone), conditions)
    other = {"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}, "status": {"conditions": []}}
    ask(lambda: api.patch(status, Patch.STRATEGIC, other))
    ask(lambda: api.patch(place, Patch.MERGE, {"status": {"conditions": []}}), conditions)
    ask(lambda: api.patch(place, Patch.JSON, [{"op": "test", "path": "/metadata/labels/a", "value": "c"}]))
    ask(lambda: api.patch(place, Patch.JSON, [{"op": "remove", "path": "/metadata/labels/none"}]))
    ask(
        lambda: api.patch(place, Patch.JSON, [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]),
        lambda found: found["metadata"]["labels"],
    )
    ask(lambda: api.get(node("none")))
    ask(lambda: api.patch(node("none"), Patch.MERGE, {"spec": {}}))

    ledger, body = config_map("default", "script"), {"metadata": {"name": "script"}, "binaryData": {"b": "AAAA"}}
    made = ask(lambda: api.create(config_map("default"), body), lambda found: found["binaryData"])
    ask(lambda: api.create(config_map("default"), body))
    same = ask(lambda: api.replace(ledger, made), lambda found: found["binaryData"])
    told.append(same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"])
    changed = {**made, "binaryData": {"b": "BBBB"}}
    ask(lambda: api.replace(ledger, changed), lambda found: found["binaryData"])
    ask(lambda: api.replace(ledger, {**made, "binaryData": {"b": "CCCC"}}))
    elsewhere = {**changed["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}
    elsewhere.pop("resourceVersion")
    ask(lambda: api.replace(ledger, {**changed, "metadata": elsewhere}))
    ask(lambda: api.replace(config_map("default", "none"), {**made, "metadata": {"name": "none"}}))
    big = {"metadata": {"name": "big"}, "data": {"a": "x" * ((1 << 20) + 1)}}
    ask(lambda: api.create(config_map("default"), big))
    fits = {"metadata": {"name": "fits"}, "binaryData": {"a": "AAAA" * 333_333}}
    ask(lambda: api.create(config_map("default"), fits))

    about = {"kind": "Node", "name": "script", "uid": "script", "apiVersion": "v1"}
    meta = {"name": "told", "namespace": "default"}
    event = {"metadata": meta, "involvedObject": about, "reason": "R", "message": "m"}
    ask(lambda: api.create(events("default"), event))
    ask(lambda: api.create(events("default"), event))

    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "script", "namespace": "default"}}
    wrong = {**eviction, "deleteOptions": {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}}
    there = pod("default", "script").of("eviction")
    ask(lambda: api.create(there, eviction))
    spec = {"nodeName": "script", "containers": [{"name": "main", "image": "none.invalid/image"}]}
    api.create(pods("default"), {"metadata": {"name": "script", "finalizers": ["a/b"]}, "spec": spec})
    running = {"status": {"phase": "Running"}}
    api.patch(pod("default", "script").of("status"), Patch.MERGE, running)
    ask(lambda: api.create(there, wrong))
    ask(lambda: api.create(there, eviction, dry_run=True))
    ask(lambda: api.get(pod("default", "script")), lambda found: "deletionTimestamp" in found["metadata"])
    ask(lambda: api.create(there, eviction))

    def evicted(found: Json) -> Any:  # noqa: ANN401 - JSON
        told_by = [each for each in found["status"]["conditions"] if each["type"] == "DisruptionTarget"]
        return "deletionTimestamp" in found["metadata"], [(each["status"], each["reason"]) for each in told_by]

    ask(lambda: api.get(pod("default", "script")), evicted)
    ask(lambda: api.create(there, eviction))
    listed = api.each(PODS, dict, fields="spec.nodeName=script,metadata.namespace=default")
    told.append([each["metadata"]["name"] for each in listed])
    return told


def test_the_fake_server_of_the_other_tests_does_as_the_real_one(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """The same questions have the same answers."""
    with closing(client(kubernetes, tmp_path, ADMIN)) as real:
        assert script(FakeCluster().api(grants=None)) == script(real)


Action = Callable[[Api, KubernetesApi], str]
"""Does with the service's own code what a verb is for; how that was refused, or nothing."""


def _said(act: Callable[[], tuple[Step, ...]]) -> str:
    try:
        steps = act()
    except (UnobservableError, StoreError, ApiError) as error:
        return str(error)
    return "; ".join(step.detail for step in steps if step.outcome is not Outcome.DONE)


def _view(api: Api, _: KubernetesApi) -> str:
    return _said(lambda: (view(api, Nodes(), time.time), ())[1])


def _mark(api: Api, _: KubernetesApi) -> str:
    told = record(incident("gpu-2", f"i-{time.monotonic_ns()}", holders=()))
    return _said(lambda: marks(api).mark(told)) or _said(lambda: marks(api).release(told, last=True))


def _tell_pod(api: Api, _: KubernetesApi) -> str:
    told = record(incident("gpu-1", f"i-{time.monotonic_ns()}"))
    return _said(lambda: marks(api).mark(told)) or _said(lambda: marks(api).release(told, last=True))


def _list_pods(api: Api, _: KubernetesApi) -> str:
    return _said(lambda: (list(api.each(PODS, dict)), ())[1])


def _move(api: Api, cluster: KubernetesApi) -> str:
    told = _pod_of_the_job(cluster, {"phase": "Running"})
    return _said(lambda: Moving(api, Audit(io.StringIO(), time.time), Retries()).move(told, ()))


def _refund(api: Api, cluster: KubernetesApi) -> str:
    ended = {"exitCode": 1, "startedAt": timestamp(time.time()), "finishedAt": timestamp(time.time())}
    state = {"terminated": {**ended, "reason": "Error"}}
    container = {"name": "main", "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": state}
    told = _pod_of_the_job(cluster, {"phase": "Failed", "containerStatuses": [container]})
    audit = Audit(io.StringIO(), time.time)
    held = Moving(api, audit, Retries()).chosen(told, ()).pods
    rules = Retries(most_per_job=1000)
    return _said(lambda: tuple(each for each in Refunding(api, audit, rules).refund(told, held) if _is_new(each, told)))


def _is_new(step: Step, told: Record) -> bool:
    return told.incident.holders[0].pod in step.target or step.outcome is Outcome.FAILED


def _pod_of_the_job(cluster: KubernetesApi, status: Json) -> Record:
    """A pod of the Job ``train`` on gpu-1, and the incident that has taken it."""
    path, place = "/apis/batch/v1/namespaces/research/jobs", f"{CORE}/namespaces/research/pods"
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none.invalid/image"}]}
    body = {"metadata": {"name": "train"}, "spec": {"template": {"spec": spec}}}
    found = cluster.request("GET", path)["items"]
    uid = (found[0] if found else cluster.request("POST", path, body))["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    name, since = f"train-{time.monotonic_ns()}", time.time()
    meta = {
        "name": name,
        "labels": {"batch.kubernetes.io/job-name": "train"},
        "ownerReferences": [owner],
        "finalizers": [TRACKING],
    }
    cluster.request("POST", place, {"metadata": meta, "spec": {"nodeName": "gpu-1", **spec}})
    cluster.request("PATCH", f"{place}/{name}/status", {"status": status}, kind=MERGE)
    return record(incident(name=name, since=since, holders=(Holder(namespace="research", pod=name),)))


def _ledger(api: Api, _: KubernetesApi) -> str:
    store = ConfigMapStore(api, "research", time.time, f"ledger-{time.monotonic_ns()}")

    def act() -> tuple[Step, ...]:
        held = store.save(Book(), store.load().version)
        store.save(Book(placed_at=(1.0,)), held.version)
        return ()

    return _said(act)


ACTIONS: dict[tuple[str, str, str], Action] = {
    (QUARANTINE, "nodes", "get"): _mark,
    (QUARANTINE, "nodes", "list"): _view,
    (QUARANTINE, "nodes", "patch"): _mark,
    (QUARANTINE, "nodes/status", "patch"): _mark,
    (QUARANTINE, "pods", "get"): _tell_pod,
    (QUARANTINE, "pods", "list"): _list_pods,
    (QUARANTINE, "namespaces", "list"): _view,
    (QUARANTINE, "events", "create"): _mark,
    (EVICT, "pods/eviction", "create"): _move,
    (EVICT, "pods", "patch"): _move,
    (EVICT, "jobs", "get"): _move,
    (REFUND, "jobs", "get"): _refund,
    (REFUND, "jobs", "patch"): _refund,
    (LEDGER, "configmaps", "get"): _ledger,
    (LEDGER, "configmaps", "create"): _ledger,
    (LEDGER, "configmaps", "update"): _ledger,
}


def test_each_verb_of_each_role_has_its_action() -> None:
    """A verb that is added to a role must be shown to be needed."""
    verbs = {(role, each.resource, verb) for role, grants in ROLES.items() for each in grants for verb in each.verbs}

    assert ACTIONS.keys() == verbs


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_role_suffices_and_with_one_verb_less_its_action_fails(
    kubernetes: KubernetesApi, tmp_path: Path, role: str
) -> None:
    """The refusal says which verb on what is missing, and which role has it."""
    # To move and to refund, the service must be able to look.
    first = ROLES[QUARANTINE] if role in {EVICT, REFUND} else ()
    mine = {(resource, verb): act for (owner, resource, verb), act in ACTIONS.items() if owner == role}
    with closing(_account(kubernetes, tmp_path, f"{role}-whole", (*first, *ROLES[role]))) as whole:
        for act in set(mine.values()):
            _until_it_says(act, whole, kubernetes, lambda said: said == "", f"{role} is in force and suffices")
    for number, ((resource, verb), act) in enumerate(mine.items()):
        less = tuple(_without(each, resource, verb) for each in ROLES[role])
        missing = f"{verb} on {resource}"
        with closing(_account(kubernetes, tmp_path, f"{role}-{number}", (*first, *less))) as poor:
            # Before the rest is in force another verb may be named.
            _until_it_says(act, poor, kubernetes, _names(missing), f"without {missing} its action is refused")


def _until_it_says(act: Action, api: Api, cluster: KubernetesApi, wanted: Callable[[str], bool], what: str) -> None:
    until(lambda: wanted(act(api, cluster)), what, every=0.3)


def _names(missing: str) -> Callable[[str], bool]:
    return lambda said: "bind the " in said and f"it has {missing}" in said


def _without(grant: Grant, resource: str, verb: str) -> Grant:
    return replace(grant, verbs=tuple(each for each in grant.verbs if (grant.resource, each) != (resource, verb)))


def _account(kubernetes: KubernetesApi, folder: Path, name: str, grants: tuple[Grant, ...]) -> Client:
    rules = [
        {"apiGroups": [each.group], "resources": [each.resource], "verbs": list(each.verbs)}
        for each in grants
        if each.verbs
    ]
    kubernetes.allow(name, *rules)
    return client(kubernetes, folder, kubernetes.token(name))
