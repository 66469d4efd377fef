"""What the receiver answers to what: 2xx is on record, 5xx is to be sent again, 4xx is for strangers and garbage."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpufleet.quarantine.committer import Committer
from gpufleet.quarantine.incident import Key
from gpufleet.quarantine.policy import Mode, Policy
from gpufleet.quarantine.receiver import BODY_LIMIT, BearerGuard, Receiver, TokenError
from gpufleet.quarantine.record import Decision, Stage
from gpufleet.quarantine.stores import FullError, StoreError
from gpufleet.quarantine.telemetry import Telemetry
from gpufleet.web.app import App
from gpufleet.web.endpoint import open_endpoint
from tests.support.quarantined import NOW, MemoryStore, incident, payload, view

TOKEN = "s3cret-of-the-tests"


@dataclass
class Served:
    """A receiver that listens, and what became of what it was sent."""

    store: MemoryStore
    address: str
    decided: list[tuple[Key, Decision]] = field(default_factory=list)
    woken: list[None] = field(default_factory=list)

    def ask(
        self, method: str = "POST", path: str = "/v1/alerts", body: bytes | None = None, token: str | None = TOKEN
    ) -> tuple[int, str]:
        """Status and text of an answer."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection = HTTPConnection(self.address, timeout=10)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """With a token, and a ledger in memory."""
    store = MemoryStore()
    policy = Policy(mode=Mode.ACT)
    committer = Committer(store, view, policy, clock=lambda: NOW, monotonic=lambda: 0.0)
    telemetry = Telemetry()
    found = Served(store, "")
    receiver = Receiver(
        committer,
        policy,
        telemetry,
        clock=lambda: NOW,
        decided=lambda key, decision: found.decided.append((key, decision)),
        received=lambda: found.woken.append(None),
    )
    (tmp_path / "token").write_text(TOKEN + "\n")
    app = BearerGuard(App(receiver.routes(), body_limit=BODY_LIMIT), tmp_path / "token")
    endpoint = open_endpoint(app, ["127.0.0.1:0"])
    found.address = endpoint.server.addresses[0]
    yield found
    endpoint.server.stop(1.0)


def test_what_is_answered_with_200_is_on_record(served: Served) -> None:
    """And the worker begins at once."""
    assert served.ask(body=payload([incident()])) == (200, "1 quarantine (isolate)\n")

    assert [record.stage for record in served.store.book.records.values()] == [Stage.RESERVED]
    assert [decision.reason for _, decision in served.decided] == ["isolate"]
    assert len(served.woken) == 1


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (incident(node="elsewhere"), "refuse (unknown_node)"),
        (incident(since=NOW - 90_000), "refuse (stale)"),
        (incident(uuid="", gpu=""), "quarantine (isolate)"),
    ],
)
def test_what_sending_again_cannot_help_is_recorded_and_done(served: Served, told: object, says: str) -> None:
    """A 4xx would have Alertmanager send it for ever."""
    status, text = served.ask(body=payload([told]))  # type: ignore[list-item]

    assert (status, says in text) == (200, True)
    assert len(served.store.book.records) == 1


def test_beyond_the_budget_is_recorded_as_waiting(served: Served) -> None:
    """The loop tries again: after a 200 Alertmanager is silent until its repeat_interval."""
    status, text = served.ask(
        body=payload([incident(number, f"n{number}", fault=str(number)) for number in range(1, 4)])
    )

    assert (status, text) == (200, "2 quarantine (isolate), 1 defer (rate)\n")


@pytest.mark.parametrize("error", [StoreError("the API server answers 503"), FullError("the ConfigMap is full")])
def test_what_is_not_on_record_is_to_be_sent_again(served: Served, error: StoreError) -> None:
    """And it is taken when the ledger can be written again."""
    served.store.failing = error
    assert served.ask(body=payload([incident()])) == (503, f"not recorded, send it again: {error}\n")
    served.store.failing = None

    assert served.ask(body=payload([incident()]))[0] == 200


def test_five_conflicts_in_a_row_are_to_be_sent_again(served: Served) -> None:
    """Fewer are not noticed by whoever sent it."""
    served.store.conflicts = 4
    assert served.ask(body=payload([incident()]))[0] == 200
    served.store.conflicts = 5
    assert served.ask(body=payload([incident(2, "n2")]))[0] == 503


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"version": "3", "alerts": []}', b'{"version": "4"}', b"\x00" * 99]
)
def test_garbage_is_400_and_leaves_no_trace(served: Served, body: bytes) -> None:
    """With a sentence for whoever set it up."""
    status, text = served.ask(body=body)

    assert status == 400
    assert len(text) < 400
    assert served.store.saves == 0


def test_one_bad_alert_does_not_stop_the_good_ones(served: Served) -> None:
    """It is counted."""
    body = json.loads(payload([incident(1), incident(2, "n2")]))
    del body["alerts"][0]["labels"]["incident"]

    assert served.ask(body=json.dumps(body).encode()) == (200, "1 quarantine (isolate), 1 unusable\n")
    assert 'unusable_alerts_total{reason="no_incident"} 1.0' in served.ask("GET", "/metrics")[1]


def test_a_payload_without_anything_of_ours_is_no_write(served: Served) -> None:
    """A route that is too wide costs nothing."""
    body = json.loads(payload([incident()]))
    body["alerts"][0]["labels"]["alertname"] = "Watchdog"

    assert served.ask(body=json.dumps(body).encode()) == (200, "1 of no concern\n")
    assert served.store.saves == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/alerts", 405),
        ("PUT", "/v1/alerts", 405),
        ("DELETE", "/v1/alerts", 405),
        ("POST", "/v1/alert", 404),
        ("POST", "/", 404),
        ("GET", "/metrics", 200),
        ("GET", "/-/healthy", 200),
    ],
)
def test_other_methods_and_paths(served: Served, method: str, path: str, status: int) -> None:
    """As HTTP has it."""
    assert served.ask(method, path)[0] == status


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é"])
def test_a_stranger_gets_401_before_the_body_is_read(served: Served, token: str | None) -> None:
    """Whatever the path, the probes excepted."""
    headers = "" if token is None else f"Authorization: Bearer {token}\r\n"
    host, port = served.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        # The body is announced and never sent: whoever waited for it would wait for long.
        sock.sendall(f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 9999\r\n\r\n".encode("latin-1"))
        assert sock.recv(100).startswith(b"HTTP/1.1 401")
    assert served.ask("GET", "/metrics", token=token if token != "é" else "wrong")[0] == 401
    assert served.ask("GET", "/-/ready", token=None)[0] in {200, 503}
    assert served.store.saves == 0


def test_a_thousand_wrong_tokens_keep_nobody_out(served: Served) -> None:
    """Nothing is held against an address: the right one is let in at once."""
    for number in range(1000):
        assert served.ask("GET", "/metrics", token=f"wrong-{number}")[0] == 401

    assert served.ask(body=payload([incident()]))[0] == 200


def test_a_token_that_is_exchanged_counts_at_once(served: Served, tmp_path: Path) -> None:
    """Without a restart; a file that is gone lets nobody in and is no 401, which would look like a wrong token."""
    (tmp_path / "token").write_text("another")
    assert served.ask("GET", "/metrics")[0] == 401
    assert served.ask("GET", "/metrics", token="another")[0] == 200
    (tmp_path / "token").unlink()
    assert served.ask("GET", "/metrics", token="another")[0] == 503


@pytest.mark.parametrize("content", ["", "\n", "two words", "x\ny", "a" * 5000])
def test_a_token_that_is_none_is_refused_at_start(tmp_path: Path, content: str) -> None:
    """Empty, of several lines, or no token at all."""
    (tmp_path / "token").write_text(content)
    with pytest.raises(TokenError, match="must hold one line"):
        BearerGuard(App({}), tmp_path / "token")
    with pytest.raises(TokenError, match="can't be read"):
        BearerGuard(App({}), tmp_path / "none")


def test_sixteen_mebibytes_are_taken_and_more_are_refused_unread(served: Served) -> None:
    """8,000 alerts in one group are 3.5 MB: what is beyond any fleet is refused by its length."""
    few = payload([incident(1)])
    padded = few[:-1] + b', "padding": "' + b"x" * (BODY_LIMIT - len(few) - 15) + b'"}'
    assert len(padded) <= BODY_LIMIT
    assert served.ask(body=padded)[0] == 200
    host, port = served.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        head = f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall(f"{head}Content-Length: {BODY_LIMIT + 1}\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 413")


def test_it_is_ready_when_ledger_and_nodes_were_read(served: Served) -> None:
    """Before that a rollout must not take the old replica away."""
    assert served.ask("GET", "/-/ready")[0] == 503
    served.ask(body=payload([incident()]))
    assert served.ask("GET", "/-/ready")[0] == 200
