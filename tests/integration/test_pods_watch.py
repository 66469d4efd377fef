"""The watch of pods against a real API server: its lists and watches, its RBAC, its tokens, its restarts."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufleet.sources.pods.api_server import ApiServer
from gpufleet.sources.pods.watch import PodWatch
from tests.conftest import ROOT, program
from tests.integration.kubernetes_api import Json, KubernetesApi
from tests.waiting import until

pytestmark = pytest.mark.component

MAY_WATCH: Json = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
MAY_READ_NODES: Json = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """One API server for this module, with the namespace ``ml``."""
    where = subprocess.run([ROOT / "tools" / "build-kubernetes", "--where"], check=True, capture_output=True, text=True)
    apiserver = Path(where.stdout.strip()) / "kube-apiserver"
    if not os.access(apiserver, os.X_OK):
        # The one component that CI may lack, too: not every mirror of Go modules has Kubernetes.
        pytest.skip("no kube-apiserver: install Go and run tools/build-kubernetes")
    with KubernetesApi(apiserver, program("etcd"), tmp_path_factory.mktemp("kubernetes") / "api") as running:
        running.create_namespace("ml")
        yield running


@contextmanager
def watching(api: ApiServer, node: str, told: list[Mapping[str, str]] | None = None) -> Iterator[PodWatch]:
    """A watch that runs."""
    changes = threading.Semaphore(0)
    watch = PodWatch(
        api,
        node,
        changed=changes.release,
        node_labels=(lambda _: None) if told is None else told.append,
        chance=lambda: 0.0,
    )
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def account(kubernetes: KubernetesApi, directory: Path, name: str, *rules: Json) -> ApiServer:
    """The server as a service account sees it that may do this."""
    kubernetes.allow(name, *rules)
    token = directory / "token"
    token.write_text(kubernetes.token(name), encoding="ascii")
    return ApiServer(kubernetes.url, token, kubernetes.ca_file)


def names(watch: PodWatch) -> set[str]:
    """Names of the pods that are known."""
    return {name for _, name in watch.pods}


def test_it_follows_the_pods_of_its_node(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """Created, labelled, ended and deleted; those of another node are none of its business."""
    kubernetes.create_pod("ml", "before", "node-a", labels={"flyte.org/run": "r1"})
    kubernetes.create_pod("ml", "elsewhere", "node-b")
    told: list[Mapping[str, str]] = []
    kubernetes.create_node("node-a", {"node.kubernetes.io/instance-type": "p5.48xlarge"})
    api = account(kubernetes, tmp_path, "follower", MAY_WATCH, MAY_READ_NODES)
    with watching(api, "node-a", told) as watch:
        until(lambda: names(watch) == {"before"}, "the list is in", seconds=60)
        assert dict(watch.pods["ml", "before"].labels) == {"flyte.org/run": "r1"}
        assert told[0]["node.kubernetes.io/instance-type"] == "p5.48xlarge"
        kubernetes.create_pod("ml", "later", "node-a", annotations={"gpufleet.io/run": "mine"})
        until(lambda: names(watch) == {"before", "later"}, "the new pod is known", seconds=60)
        until(lambda: watch.pods["ml", "later"].phase == "Running", "its phase is known", seconds=60)
        assert dict(watch.pods["ml", "later"].annotations) == {"gpufleet.io/run": "mine"}
        kubernetes.patch_pod("ml", "before", {"labels": {"flyte.org/run": "r2"}})
        until(lambda: dict(watch.pods["ml", "before"].labels) == {"flyte.org/run": "r2"}, "the label", seconds=60)
        kubernetes.set_phase("ml", "before", "Succeeded")
        until(lambda: watch.pods["ml", "before"].is_over, "it has ended", seconds=60)
        kubernetes.delete_pod("ml", "before")
        until(lambda: names(watch) == {"later"}, "it is gone", seconds=60)
        assert watch.health.up


def test_without_the_right_it_says_which(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """In the server's words, with the remedy; once the right is given, it goes on by itself."""
    api = account(kubernetes, tmp_path, "nobody", MAY_READ_NODES)
    with watching(api, "node-c") as watch:
        until(lambda: "403" in (watch.health.reason or ""), "it is refused", seconds=60)
        reason = watch.health.reason or ""
        assert 'cannot list resource "pods"' in reason
        assert "let the service account list and watch pods" in reason
        role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/nobody"
        kubernetes.request("PATCH", role, {"rules": [MAY_WATCH]}, kind="application/merge-patch+json")
        until(lambda: watch.health.up, "it is let in", seconds=90)


def test_a_token_that_is_exchanged_is_used(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """What the kubelet writes anew is read anew; a token that is none is refused."""
    api = account(kubernetes, tmp_path, "rotating", MAY_WATCH)
    token = api.token_file
    assert token is not None
    good = token.read_text(encoding="ascii")
    token.write_text("nonsense", encoding="ascii")
    with watching(api, "node-d") as watch:
        until(lambda: "401" in (watch.health.reason or ""), "it is refused", seconds=60)
        token.write_text(good, encoding="ascii")
        until(lambda: watch.health.up, "it is let in", seconds=90)


def test_an_api_server_that_restarts_is_followed_again(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """What changed meanwhile is known afterwards, also when the server has forgotten the version that we had."""
    kubernetes.create_pod("ml", "stays", "node-e")
    kubernetes.create_pod("ml", "goes", "node-e")
    with watching(account(kubernetes, tmp_path, "patient", MAY_WATCH), "node-e") as watch:
        until(lambda: names(watch) == {"stays", "goes"}, "the list is in", seconds=60)
        kubernetes.stop()
        until(lambda: not watch.health.up, "it is missed", seconds=60)
        assert names(watch) == {"stays", "goes"}
        kubernetes.start()
        kubernetes.delete_pod("ml", "goes")
        kubernetes.create_pod("ml", "comes", "node-e")
        until(lambda: names(watch) == {"stays", "comes"}, "it is followed again", seconds=120)
        until(lambda: watch.health.up, "it is well", seconds=60)
        assert watch.synced_at is not None
        assert watch.synced_at <= time.monotonic()
