"""The official client behind our own boundary: what goes out, what comes in, and how a refusal is told."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.quarantine.actuators.kubernetes import client as client_module
from gpufleet.quarantine.actuators.kubernetes.api import Patch
from gpufleet.quarantine.actuators.kubernetes.client import Client, CredentialsError, connect, own_namespace
from gpufleet.quarantine.actuators.kubernetes.places import NODES, Place, config_map, node, pod, pods
from gpufleet.quarantine.actuators.kubernetes.refusals import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    refusal,
)
from tests.support.kubernetes_answers import answers
from tests.support.scripted_http import ScriptedServer, answer

RECORDED = answers()


class Meta(msgspec.Struct):
    """Part of a pod."""

    name: str


class Pod(msgspec.Struct):
    """What these tests read of a pod."""

    metadata: Meta


def kubeconfig(folder: Path, url: str, token: str = "secret") -> Path:
    """A kubeconfig for a server."""
    path = folder / "kubeconfig"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path.write_text(json.dumps(content), encoding="ascii")
    return path


def client_of(server: ScriptedServer, folder: Path) -> Client:
    """A client for a scripted server."""
    return connect(kubeconfig(folder, server.url))


def told(body: object, status: int = 200) -> bytes:
    """An answer in JSON."""
    return answer(status, json.dumps(body).encode(), Content_Type="application/json", Connection="close")


@pytest.mark.parametrize(
    ("name", "verb", "error"),
    [
        ("configmap_create_again_409", "create", ConflictError),
        ("configmap_put_stale_409", "update", ConflictError),
        ("evict_missing_404", "create", NotFoundError),
        ("evict_pdb_blocked_429", "create", TooManyRequestsError),
        ("evict_wrong_uid_409", "create", ConflictError),
        ("forbidden_403", "list", ForbiddenError),
        ("node_jsonpatch_test_failed_422", "patch", InvalidError),
        ("node_not_found_404", "patch", NotFoundError),
        ("node_patch_conflict_409", "patch", ConflictError),
        ("unauthorized_401", "list", UnauthorizedError),
        ("wrong_content_type_415", "patch", InvalidError),
        ("bad_patch_body_500", "patch", UnavailableError),
    ],
)
def test_a_recorded_refusal_has_its_type(name: str, verb: str, error: type[ApiError]) -> None:
    """Each answer that a real server gave becomes the error that callers tell apart, with the server's own words."""
    recorded = RECORDED[name]

    found = refusal(verb, NODES, recorded.status, recorded.body)

    assert type(found) is error
    assert recorded.body["message"] in str(found)
    assert found.status == recorded.status


def test_what_exists_is_told_from_what_has_changed() -> None:
    """Both are 409."""
    again = RECORDED["configmap_create_again_409"]
    stale = RECORDED["configmap_put_stale_409"]
    place = config_map("ns", "ledger")

    first, second = (refusal("create", place, each.status, each.body) for each in (again, stale))

    assert isinstance(first, ConflictError)
    assert isinstance(second, ConflictError)
    assert (first.already_exists, second.already_exists) == (True, False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (RECORDED["evict_pdb_blocked_429"].body, True),
        ({"reason": "TooManyRequests"}, False),
        ({"details": {"causes": "x"}}, False),
        ({"details": {"causes": [None, {"reason": 3}]}}, False),
    ],
)
def test_a_disruption_budget_is_told_from_a_busy_server(body: dict[str, Any], expected: bool) -> None:
    """Only the first blocks this pod alone."""
    found = refusal("create", pod("ns", "p").of("eviction"), 429, body)

    assert isinstance(found, TooManyRequestsError)
    assert found.disruption_budget is expected


@pytest.mark.parametrize(
    ("verb", "place", "said"),
    [
        ("patch", node("n").of("status"), "bind the ClusterRole gpufleet-quarantine of"),
        ("create", pod("ns", "p").of("eviction"), "bind the ClusterRole gpufleet-quarantine-evict of"),
        ("update", config_map("ns", "c"), "bind the Role gpufleet-quarantine-ledger of"),
        ("delete", pod("ns", "p"), "no role of deploy/kubernetes/quarantine-rbac.yaml has delete on pods"),
    ],
)
def test_a_missing_permission_names_its_role(verb: str, place: Place, said: str) -> None:
    """A person reads which role has the verb, and in which file it stands."""
    words = f'User "x" cannot {verb} resource "{place.granted}" in API group ""'

    assert said in str(refusal(verb, place, 403, {"message": words}))
    assert said not in str(refusal(verb, place, 403, {"message": "denied by policy: not on Fridays"}))


def test_a_patch_goes_out_as_what_it_is(tmp_path: Path) -> None:
    """Content type, body, token and dry run are as asked; the library's typed models have no part in it."""
    with ScriptedServer(told({"kind": "Node"})) as server:
        client = client_of(server, tmp_path)
        client.patch(node("gpu-1"), Patch.MERGE, {"spec": {"taints": None}})
        client.patch(node("gpu-1").of("status"), Patch.STRATEGIC, {"status": {}}, dry_run=True)
        client.patch(pod("ns", "p"), Patch.JSON, [{"op": "test", "path": "/a", "value": 1}])
        client.close()

    merge, strategic, json_patch = server.requests
    assert merge.line == "PATCH /api/v1/nodes/gpu-1 HTTP/1.1"
    assert merge.headers["content-type"] == "application/merge-patch+json"
    assert merge.headers["authorization"] == "Bearer secret"
    assert merge.headers["user-agent"].startswith("gpufleet-quarantine/")
    assert json.loads(merge.body) == {"spec": {"taints": None}}
    assert strategic.line == "PATCH /api/v1/nodes/gpu-1/status?dryRun=All HTTP/1.1"
    assert strategic.headers["content-type"] == "application/strategic-merge-patch+json"
    assert json_patch.headers["content-type"] == "application/json-patch+json"
    assert json.loads(json_patch.body) == [{"op": "test", "path": "/a", "value": 1}]


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    """Each page is asked for by the token of the one before, with the same selectors, and given out as the shape."""
    pages = [
        {"metadata": {"continue": "a/b=="}, "items": [{"metadata": {"name": "p1"}, "spec": {"x": 1}}]},
        {"metadata": {}, "items": [{"metadata": {"name": "p2"}}]},
    ]
    found = []
    with ScriptedServer(told(pages[0])) as server:
        client = client_of(server, tmp_path)
        for each in client.each(pods("ns"), Pod, fields="spec.nodeName=n", labels="a=b"):
            found.append(each.metadata.name)
            server.reply = told(pages[1])
        client.close()

    assert found == ["p1", "p2"]
    asked = "GET /api/v1/namespaces/ns/pods?limit=500&labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn"
    assert [request.line for request in server.requests] == [
        f"{asked} HTTP/1.1",
        f"{asked}&continue=a%2Fb%3D%3D HTTP/1.1",
    ]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "A", "a%2fb", "-a", "a b", "é", "a\n", "x" * 254])
def test_a_name_out_of_an_alert_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    """What no object can be called is not asked for."""
    with ScriptedServer(told({})) as server:
        client = client_of(server, tmp_path)
        with pytest.raises(NotFoundError):
            client.get(node(name))
        with pytest.raises(NotFoundError):
            client.get(pod(name, "p"))

    assert server.requests == []


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(502, b"<html>Bad Gateway</html>"), UnavailableError),
        (answer(200, b"<html>a proxy's page</html>"), UnavailableError),
        (answer(200, b"[]"), UnavailableError),
        (b"", UnavailableError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", UnavailableError),
        (answer(302, b"", Location="https://elsewhere.invalid/"), UnavailableError),
        (answer(403, b"\xff\xfe"), (ForbiddenError, UnavailableError)),  # older clients cannot say 403 of this
    ],
)
def test_an_answer_that_is_none(
    reply: bytes, error: type[ApiError] | tuple[type[ApiError], ...], tmp_path: Path
) -> None:
    """Whatever comes instead of an answer is one of our errors, asked for once and followed nowhere."""
    with ScriptedServer(reply) as server:
        client = client_of(server, tmp_path)
        with pytest.raises(error):
            client.get(node("n"))
        client.close()

    assert len(server.requests) == 1


def test_a_list_that_is_none_is_unavailable(tmp_path: Path) -> None:
    """An object where a list should be says nothing about what there is."""
    with ScriptedServer(told({"kind": "Status"})) as server:
        client = client_of(server, tmp_path)
        with pytest.raises(UnavailableError, match="is not such a list"):
            list(client.each(NODES, dict))
        client.close()


def test_a_server_that_is_silent_or_away_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits longer than the time of one read, and nothing is tried again."""
    monkeypatch.setattr(client_module, "_READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(UnavailableError, match="timed out"):
            client.get(node("n"))
        client.close()
    with pytest.raises(UnavailableError, match="refused"):
        client.get(node("n"))


@pytest.mark.parametrize("content", ["", "{", "[]", "current-context: none"])
def test_a_kubeconfig_that_is_none(content: str, tmp_path: Path) -> None:
    """The message says which file was looked at and what else there is."""
    path = tmp_path / "kubeconfig"
    path.write_text(content, encoding="ascii")

    with pytest.raises(CredentialsError, match=rf"{path}.*service account"):
        connect(path)


def test_a_pod_knows_its_namespace(tmp_path: Path) -> None:
    """From its service account; elsewhere the policy has to say."""
    with pytest.raises(CredentialsError, match="name the ledger's namespace in the policy"):
        own_namespace(tmp_path)
    (tmp_path / "namespace").write_text("gpufleet\n", encoding="ascii")
    assert own_namespace(tmp_path) == "gpufleet"
    for content in ("", "../x", "x" * 999):
        (tmp_path / "namespace").write_text(content, encoding="ascii")
        with pytest.raises(CredentialsError, match="is no namespace"):
            own_namespace(tmp_path)


def test_a_pod_uses_its_service_account_and_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kubelet mounts it; a proxy of the environment is for what lies outside."""
    from kubernetes.config import incluster_config

    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("first", encoding="ascii")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")

    configuration = connect()._configuration

    assert (configuration.host, configuration.proxy, configuration.retries) == ("https://[fd00::1]:443", None, False)
    assert configuration.auth_settings()["BearerToken"]["value"].lower() == "bearer first"
    assert configuration.verify_ssl
