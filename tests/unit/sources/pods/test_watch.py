"""The watch of pods, against a server that does what a real one can't be made to do at will."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gpufleet.sources.pods.api_server import ApiServer, api_server_at, in_cluster
from gpufleet.sources.pods.watch import PodWatch
from tests.support.api_server import ScriptedApi, pod_object, send
from tests.support.pems import write_pems
from tests.waiting import until


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    """A server without pods."""
    with ScriptedApi() as running:
        yield running


@contextmanager
def watching(server: ApiServer | str, *, seconds: int = 60) -> Iterator[tuple[PodWatch, threading.Semaphore]]:
    """A watch that runs, and a semaphore that counts its changes."""
    changes = threading.Semaphore(0)
    watch = PodWatch(
        ApiServer(server) if isinstance(server, str) else server,
        "node-1",
        changed=changes.release,
        chance=lambda: 0.0,
        watch_seconds=seconds,
    )
    watch.start()
    try:
        yield watch, changes
    finally:
        watch.stop()


def names(watch: PodWatch) -> set[str]:
    """Names of the pods that are known."""
    return {name for _, name in watch.pods}


def test_it_lists_once_and_follows_what_changes(api: ScriptedApi) -> None:
    """One list from the server's memory, then a watch from its version, with bookmarks; both of this node's only."""
    api.put(pod_object("ml", "a", labels={"x": "1"}))
    with watching(api.url) as (watch, changes):
        assert changes.acquire(timeout=20)
        assert names(watch) == {"a"}
        assert watch.pods["ml", "a"].labels == (("x", "1"),)
        until(api.watches, "it watches")
        api.put(pod_object("ml", "b"))
        until(lambda: names(watch) == {"a", "b"}, "the new pod is known")
        api.put(pod_object("ml", "a", labels={"x": "2"}))
        until(lambda: watch.pods["ml", "a"].labels == (("x", "2"),), "the label is known")
        api.delete("ml", "b")
        until(lambda: names(watch) == {"a"}, "the pod is gone")
        assert watch.health.up
        assert watch.synced_at is not None
    lists = [parse_qs(urlsplit(path).query) for path, _ in api.requests if "/pods?" in path]
    selectors = {query["fieldSelector"][0] for query in lists}
    assert selectors == {"spec.nodeName=node-1"}
    assert [query.get("allowWatchBookmarks") for query in lists] == [None, ["true"]]


def test_a_watch_that_ends_goes_on_from_its_bookmark(api: ScriptedApi) -> None:
    """The server ends it in time or drops it: nothing is listed again, and nothing is missed."""
    api.put(pod_object("ml", "a"))
    with watching(api.url) as (watch, _):
        until(api.watches, "it watches")
        api.put(pod_object("ml", "b"))
        until(lambda: names(watch) == {"a", "b"}, "it follows")
        api.drop_watches()
        until(lambda: len(api.watches()) >= 2, "it watches again")
        api.put(pod_object("ml", "c"))
        until(lambda: names(watch) == {"a", "b", "c"}, "it follows")
    assert sum("/pods?" in path and "watch" not in path for path, _ in api.requests) == 1
    first, second = api.watches()[:2]
    assert int(second) > int(first)


def test_a_version_that_is_gone_makes_it_list_anew(api: ScriptedApi) -> None:
    """After a compaction; a pod that went meanwhile is gone, and nobody calls that a failure."""
    api.put(pod_object("ml", "a"))
    api.put(pod_object("ml", "b"))
    with watching(api.url) as (watch, _):
        until(api.watches, "it watches")
        api._pods.pop(("ml", "a"))
        api.compact()
        api.drop_watches()
        until(lambda: names(watch) == {"b"}, "it has listed anew", seconds=60)
        assert watch.health.up


def test_a_server_that_forgets_every_version_is_not_well(api: ScriptedApi) -> None:
    """Once is nothing; again and again it is told. The list after it is not from a memory that may be older."""
    lists: list[str] = []

    def forgetful(handler: BaseHTTPRequestHandler) -> bool:
        if "watch" not in handler.path:
            lists.append(handler.path)
            return False
        send(handler, 200, b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n')
        return True

    api.misbehave = forgetful
    with watching(api.url) as (watch, _):
        until(lambda: "410" in (watch.health.reason or ""), "it is told", seconds=60)
        assert not watch.health.up
        before = len(api.watches())
        api.misbehave = None
        until(lambda: len(api.watches()) > before, "it watches again", seconds=60)
        api.put(pod_object("ml", "a"))
        until(lambda: watch.health.up and names(watch) == {"a"}, "it is well again", seconds=60)
    asked = [parse_qs(urlsplit(path).query) for path in lists if "/pods?" in path]
    assert [query.get("resourceVersion") for query in asked[:2]] == [["0"], None]


def test_a_peer_that_drips_blank_lines_is_not_believed_for_ever(api: ScriptedApi) -> None:
    """It says nothing: its last word gets older, and the watch is given up when it should have ended."""
    asked = threading.Semaphore(0)

    def drips(handler: BaseHTTPRequestHandler) -> bool:
        if "watch" not in handler.path:
            return False
        asked.release()
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"\n")
                handler.wfile.flush()
        return True

    api.misbehave = drips
    clock = [1000.0]
    watch = PodWatch(ApiServer(api.url), "node-1", chance=lambda: 0.0, monotonic=lambda: clock[0])
    watch.start()
    try:
        assert asked.acquire(timeout=20)
        clock[0] = 1200.0
        assert watch.synced_at == 1000.0
        clock[0] = 1300.0
        assert asked.acquire(timeout=60)
    finally:
        watch.stop()


def test_an_ended_pod_is_known_to_have_ended(api: ScriptedApi) -> None:
    """Until it is deleted; and the deletion of an old pod is not that of its successor."""
    api.put(pod_object("ml", "over", phase="Succeeded"))
    api.put(pod_object("ml", "a", uid="old", phase="Running"))
    with watching(api.url) as (watch, _):
        until(lambda: names(watch) == {"a", "over"}, "it has listed")
        assert watch.pods["ml", "over"].is_over
        until(api.watches, "it watches")
        api.put(pod_object("ml", "a", uid="new", phase="Running"))
        until(lambda: watch.pods["ml", "a"].uid == "new", "the successor is known")
        api.say({"type": "DELETED", "object": pod_object("ml", "a", uid="old")})
        api.put(pod_object("ml", "b"))
        until(lambda: "b" in names(watch), "both were taken in")
        assert names(watch) == {"a", "b", "over"}
        api.put(pod_object("ml", "a", uid="new", phase="Failed"))
        until(lambda: watch.pods["ml", "a"].is_over, "it has ended")


def test_a_rotated_token_is_read_anew(api: ScriptedApi, tmp_path: Path) -> None:
    """The kubelet exchanges the file; until the new one is there the failure is told, and then it is over."""
    token = tmp_path / "token"
    token.write_text("one\n", encoding="ascii")
    api.token = "one"
    with watching(ApiServer(api.url, token)) as (watch, _):
        until(lambda: watch.health.up, "it is let in")
        api.token = "two"
        api.compact()
        api.drop_watches()
        until(lambda: not watch.health.up, "the old token is refused", seconds=60)
        assert "401" in (watch.health.reason or "")
        token.write_text("two\n", encoding="ascii")
        until(lambda: watch.health.up, "the new token is used", seconds=60)


def test_a_refusal_says_which_right_is_missing(api: ScriptedApi, caplog: pytest.LogCaptureFixture) -> None:
    """The server's words and the remedy, once in the log."""
    refused = threading.Semaphore(0)

    def forbid(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, 403, {"kind": "Status", "message": "pods is forbidden: User x cannot list"})
        refused.release()
        return True

    api.misbehave = forbid
    with caplog.at_level(logging.WARNING), watching(api.url) as (watch, _):
        for _ in range(4):
            assert refused.acquire(timeout=60)
        until(lambda: "cannot list" in (watch.health.reason or ""), "it is told")
        assert "let the service account list and watch pods" in (watch.health.reason or "")
    assert len([record for record in caplog.records if "does not tell" in record.message]) == 1


def test_labels_of_the_node_are_told_where_they_may_be_read(api: ScriptedApi) -> None:
    """For prices by instance type."""
    told: list[Mapping[str, str]] = []
    api.node_labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    watch = PodWatch(ApiServer(api.url), "node-1", node_labels=told.append)
    watch.start()
    until(lambda: watch.health.up, "it has listed")
    watch.stop()
    assert told == [{"node.kubernetes.io/instance-type": "p5.48xlarge"}]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>proxy</html>",
        b'{"metadata":{}}',
        b'{"metadata":{"resourceVersion":"1"},"items":7}',
        b"\x00" * 1000,
    ],
)
def test_an_answer_that_is_no_list_is_told_and_nothing_is_lost(api: ScriptedApi, answer: bytes) -> None:
    """What was known is kept; when the server is itself again, so is the watch."""
    api.put(pod_object("ml", "a"))
    with watching(api.url) as (watch, _):
        until(lambda: names(watch) == {"a"}, "it has listed")

        def nonsense(handler: BaseHTTPRequestHandler) -> bool:
            if "watch" in handler.path:
                return False
            send(handler, 200, answer)
            return True

        api.misbehave = nonsense
        api.compact()
        api.drop_watches()
        until(lambda: not watch.health.up, "it is told", seconds=60)
        assert names(watch) == {"a"}
        api.misbehave = None
        until(lambda: watch.health.up, "it is well again", seconds=60)


@pytest.mark.parametrize("event", [b"{", b'{"type":"ADDED"}', b"x" * 100_000, b'{"type":"ADDED","object":7}'])
def test_an_event_that_is_none_ends_the_watch_and_not_the_thread(api: ScriptedApi, event: bytes) -> None:
    """It lists anew and goes on."""
    broken = threading.Event()

    def once(handler: BaseHTTPRequestHandler) -> bool:
        if "watch" not in handler.path or broken.is_set():
            return False
        broken.set()
        send(handler, 200, event + b"\n")
        return True

    api.misbehave = once
    with watching(api.url) as (watch, _):
        assert broken.wait(20)
        api.put(pod_object("ml", "a"))
        until(lambda: names(watch) == {"a"} and watch.health.up, "it goes on", seconds=60)


def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_a_pause(api: ScriptedApi) -> None:
    """At most about once a second."""
    ended = threading.Semaphore(0)

    def at_once(handler: BaseHTTPRequestHandler) -> bool:
        if "watch" in handler.path:
            send(handler, 200, b"")
            ended.release()
            return True
        return False

    api.misbehave = at_once
    pauses: list[float] = []
    watch = PodWatch(ApiServer(api.url), "node-1")
    wait = watch._ended.wait

    def noted(seconds: float | None = None) -> bool:
        pauses.append(seconds or 0.0)
        return wait(0.001)

    watch._ended.wait = noted  # type: ignore[assignment, method-assign]
    watch.start()
    for _ in range(5):
        assert ended.acquire(timeout=20)
    watch.stop()
    assert len(pauses) >= 4
    assert min(pauses) >= 0.5


def test_certificates_are_verified(tmp_path: Path) -> None:
    """A server of the cluster's authority is believed, another is not, and a file that is no authority is named."""
    pems = write_pems(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with ScriptedApi(context=context) as api:
        with watching(ApiServer(api.url, ca_file=pems.folder / "ca.crt")) as (watch, _):
            until(lambda: watch.health.up, "it is trusted")
        with watching(ApiServer(api.url, ca_file=pems.folder / "other.crt")) as (watch, _):
            until(lambda: "not trusted" in (watch.health.reason or ""), "it is not trusted")
        with watching(ApiServer(api.url, ca_file=pems.folder / "broken.crt")) as (watch, _):
            until(lambda: "broken.crt" in (watch.health.reason or ""), "the file is named")


def test_a_peer_that_is_silent_is_given_up() -> None:
    """It accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = ApiServer(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Exception, match="no answer within"), server.open("/", "*/*", seconds=0.2):
            pass


def test_a_server_that_is_not_there_is_named() -> None:
    """With its address."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with watching(url) as (watch, _):
        until(lambda: url in (watch.health.reason or ""), "it is named")


def test_where_the_server_of_a_cluster_is() -> None:
    """From the environment of a pod, also with IPv6; a token goes over encrypted ways only."""
    account = Path("/none")
    found = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, account)
    assert found == ApiServer("https://[fd00::1]:6443", account / "token", account / "ca.crt")
    assert in_cluster({}).url == "https://kubernetes.default.svc:443"
    assert api_server_at("http://127.0.0.1:8001") == ApiServer("http://127.0.0.1:8001")
