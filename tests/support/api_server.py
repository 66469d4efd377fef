"""An API server that knows pods and nodes, over HTTP or TLS, for what a real one can't be made to do at will.

Lists and watches behave as the real one's do (resourceVersions, bookmarks, 410 after a compaction); ``misbehave`` makes
it answer with anything else.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


def pod_object(namespace: str, name: str, *, uid: str = "", phase: str | None = None, **meta: object) -> Json:
    """A pod as the server has it."""
    found: Json = {"metadata": {"namespace": namespace, "name": name, "uid": uid or f"uid-{name}", **meta}}
    if phase is not None:
        found["status"] = {"phase": phase}
    return found


class ScriptedApi:
    """The server. A context manager that serves until its exit."""

    def __init__(self, *, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str]] = []
        """(path with query, Authorization) of each request."""
        self.token: str | None = None
        """The one token that is accepted; None: any."""
        self.node_labels: dict[str, str] = {}
        self.misbehave: Callable[[BaseHTTPRequestHandler], bool] | None = None
        """Answers in place of the server when it returns true."""
        self._pods: dict[tuple[str, str], Json] = {}
        self._version = 100
        self._events: list[tuple[int, Json]] = []
        self._oldest = 0
        self._changed = threading.Condition()
        self._closing = False
        self._drops = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        scheme = "http"
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    # --- what happens in the cluster ----------------------------------------------------------------------------------
    def put(self, pod: Json) -> None:
        """Create or change a pod."""
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self._event("MODIFIED" if key in self._pods else "ADDED", key, pod)

    def delete(self, namespace: str, name: str) -> None:
        """Delete a pod."""
        self._event("DELETED", (namespace, name), self._pods[namespace, name])

    def say(self, event: Json) -> None:
        """Send any event to every watch."""
        with self._changed:
            self._version += 1
            self._events.append((self._version, event))
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget every event, so that a watch from before is told that it is gone."""
        with self._changed:
            self._version += 10
            self._oldest = self._version
            self._events.clear()

    def drop_watches(self) -> None:
        """End every watch that is open."""
        with self._changed:
            self._drops += 1
            self._changed.notify_all()

    def watches(self) -> list[str]:
        """resourceVersions that watches began from."""
        queries = [parse_qs(urlsplit(path).query) for path, _ in self.requests]
        return [query["resourceVersion"][0] for query in queries if "watch" in query]

    def _event(self, kind: str, key: tuple[str, str], pod: Json) -> None:
        with self._changed:
            self._version += 1
            pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._version)}}
            if kind == "DELETED":
                del self._pods[key]
            else:
                self._pods[key] = pod
            self._events.append((self._version, {"type": kind, "object": pod}))
            self._changed.notify_all()

    # --- the protocol -------------------------------------------------------------------------------------------------
    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append((handler.path, handler.headers.get("Authorization", "")))
        try:
            if self.misbehave is not None and self.misbehave(handler):
                return
            if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
                send(handler, 401, {"kind": "Status", "message": "Unauthorized", "code": 401})
                return
            url = urlsplit(handler.path)
            query = parse_qs(url.query)
            if url.path.startswith("/api/v1/nodes/"):
                send(handler, 200, {"metadata": {"name": "node-1", "labels": self.node_labels}})
            elif "watch" in query:
                self._watch(handler, int(query["resourceVersion"][0]), float(query["timeoutSeconds"][0]))
            else:
                with self._changed:
                    body = {"metadata": {"resourceVersion": str(self._version)}, "items": list(self._pods.values())}
                send(handler, 200, body)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            return

    def _watch(self, handler: BaseHTTPRequestHandler, version: int, seconds: float) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")
        handler.end_headers()
        drops = self._drops
        end = time.monotonic() + seconds
        if version < self._oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            _chunk(handler, {"type": "ERROR", "object": gone})
            handler.close_connection = True
            return
        while True:
            with self._changed:
                pending = [(number, event) for number, event in self._events if number > version]
                if not pending:
                    left = end - time.monotonic()
                    if self._closing or drops != self._drops:
                        # In the middle of the body: without its last chunk.
                        handler.close_connection = True
                        return
                    if left <= 0:
                        break
                    self._changed.wait(min(left, 0.2))
                    continue
            for number, event in pending:
                _chunk(handler, event)
                version = number
            handler.wfile.flush()
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}
        _chunk(handler, bookmark)
        handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True


def _chunk(handler: BaseHTTPRequestHandler, event: Json) -> None:
    line = json.dumps(event).encode() + b"\n"
    handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    handler.wfile.flush()


def send(handler: BaseHTTPRequestHandler, status: int, body: Json | bytes) -> None:
    """One whole answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
