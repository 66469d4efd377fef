"""One Alertmanager over HTTP: what is sent, and what each answer or failure means. On real sockets."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from gpufleet.notify import session
from gpufleet.notify.client_config import ClientConfig, Secret, TlsClient
from gpufleet.notify.decide import Verdict
from gpufleet.notify.session import Alertmanager
from tests.support.pems import issue
from tests.support.scripted_http import OK, ScriptedServer, answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pems import Pems

TOKEN = ClientConfig(scheme="Bearer", secret=Secret("authorization.credentials", text="sesame"))


def server_context(pems: Pems, name: str = "server", *, client_ca: bool = False) -> ssl.SSLContext:
    """A server's context with the certificate of that name; client_ca: it wants to see one of the authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems.folder / f"{name}.crt", pems.folder / f"{name}.key")
    if client_ca:
        context.load_verify_locations(pems.folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_post_goes_to_the_api_with_its_type_and_credentials() -> None:
    """Path prefix kept, one header of each kind, and no connection kept for later."""
    with ScriptedServer(answer(200, Date="Sun, 26 Jul 2026 10:40:00 GMT")) as server:
        said = Alertmanager(f"{server.url}/prefix", TOKEN).post(b"[]")

    (request,) = server.requests
    assert said.verdict is Verdict.ACCEPTED
    assert said.server_time == 1_785_062_400
    assert request.line == "POST /prefix/api/v2/alerts HTTP/1.1"
    assert request.body == b"[]"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer sesame"
    assert request.headers["connection"] == "close"
    assert request.headers["user-agent"].startswith("gpufleet/")


@pytest.mark.parametrize(
    ("reply", "verdict", "detail"),
    [
        (answer(202), Verdict.ACCEPTED, ""),
        (answer(400, b'"bad label"'), Verdict.CONTENT_REFUSED, 'status 400: "bad label"'),
        (answer(413), Verdict.CONTENT_REFUSED, "status 413"),
        (
            answer(401, b"wrong password sesame"),
            Verdict.REFUSED,
            "status 401: check basic_auth or authorization in --alertmanager.config.file",
        ),
        (
            answer(403),
            Verdict.REFUSED,
            "status 403: check basic_auth or authorization in --alertmanager.config.file",
        ),
        (
            answer(404, b"not found"),
            Verdict.REFUSED,
            "status 404: no Alertmanager API there; check the path of --alertmanager.url",
        ),
        (answer(405), Verdict.REFUSED, "status 405"),
        (answer(408), Verdict.FAILED, "status 408"),
        (answer(429), Verdict.FAILED, "status 429"),
        (answer(500, b"oops"), Verdict.FAILED, "status 500: oops"),
        (answer(503, b"your header was Bearer sesame"), Verdict.FAILED, "status 503"),
        (answer(503, b"\x1b[31m\n" + b"x" * 5000), Verdict.FAILED, "status 503: \x1b[31m\n" + "x" * 194),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Verdict.FAILED, "BadStatusLine: SSH-2.0-OpenSSH_9.2\r\n"),
        (b"", Verdict.FAILED, "RemoteDisconnected: Remote end closed connection without response"),
    ],
)
def test_each_answer_has_its_verdict(reply: bytes, verdict: Verdict, detail: str) -> None:
    """What is ours to repair, what passes by itself, and a reason without credentials."""
    with ScriptedServer(reply) as server:
        said = Alertmanager(server.url, TOKEN).post(b"[]")

    assert (said.verdict, said.detail) == (verdict, detail)


def test_a_redirect_is_not_followed() -> None:
    """Whoever sends it would get our alerts and our credentials."""
    with ScriptedServer() as elsewhere, ScriptedServer(answer(307, Location=elsewhere.url)) as server:
        said = Alertmanager(server.url, TOKEN).post(b"[]")

    assert said.verdict is Verdict.REFUSED
    assert "a redirect is not followed" in said.detail
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Sun, 99 Jul 2026 10:40:00 GMT", "Sun, 26 Jul 99999 10:40:00 GMT", "0" * 50_000]
)
def test_a_date_that_is_none_is_no_time(date: str) -> None:
    """The clock of an Alertmanager that does not tell it is taken for ours."""
    with ScriptedServer(answer(200, Date=date)) as server:
        said = Alertmanager(server.url, ClientConfig()).post(b"[]")

    assert (said.verdict, said.server_time) == (Verdict.ACCEPTED, None)


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    """Its head decides; a hostile body neither fills the memory nor holds the thread."""

    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"10000\r\n" + b"x" * 0x10000 + b"\r\n"

    with ScriptedServer(endless()) as server:
        said = Alertmanager(server.url, ClientConfig()).post(b"[]")

    assert said.verdict is Verdict.FAILED
    assert len(said.detail) < 300


def test_nobody_there_means_that_nothing_was_sent() -> None:
    """The reason is the system's, and the same each time."""
    with ScriptedServer() as server:
        url = server.url
    details = [Alertmanager(url, ClientConfig()).post(b"[]") for _ in range(2)]

    assert {said.verdict for said in details} == {Verdict.UNREACHED}
    assert {said.detail for said in details} == {"Connection refused"}


def test_no_answer_in_time_may_mean_that_it_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert may be there, so its end has to be told."""
    monkeypatch.setattr(session, "_READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = Alertmanager(f"http://127.0.0.1:{silent.getsockname()[1]}", ClientConfig()).post(b"[]")

    assert (said.verdict, said.detail) == (Verdict.FAILED, "no answer within 0.2 s")


def test_a_name_that_is_not_known_is_told_as_such() -> None:
    """The top-level domain .invalid never resolves."""
    said = Alertmanager("http://alertmanager.invalid:9093", ClientConfig()).post(b"[]")

    assert said.verdict in {Verdict.FAILED, Verdict.UNREACHED}
    assert "0x" not in said.detail, "the address of an object changes each time"


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch, pems: Pems) -> None:
    """Neither a proxy nor a ~/.netrc nor a bundle of CAs that somebody set for other programs."""
    (pems.folder / ".netrc").write_text("machine localhost login a password b\n")
    monkeypatch.setenv("NETRC", str(pems.folder / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pems.folder / "ca.crt"))
    with ScriptedServer() as plain, ScriptedServer(tls=server_context(pems)) as tls:
        assert Alertmanager(plain.url, ClientConfig()).post(b"[]").verdict is Verdict.ACCEPTED
        assert Alertmanager(tls.url, ClientConfig()).post(b"[]").verdict is Verdict.UNREACHED

    assert "authorization" not in plain.requests[0].headers


def test_a_private_authority_is_trusted_when_it_is_named(pems: Pems) -> None:
    """ca_file, and nothing else: without it the certificate is not trusted."""
    with ScriptedServer(tls=server_context(pems)) as server:
        trusted = Alertmanager(server.url, ClientConfig(tls=TlsClient(ca_file=pems.folder / "ca.crt"))).post(b"[]")
        stranger = Alertmanager(server.url, ClientConfig()).post(b"[]")

    assert trusted.verdict is Verdict.ACCEPTED
    assert stranger.verdict is Verdict.UNREACHED
    assert stranger.detail == (
        "its certificate is not trusted: unable to get local issuer certificate; "
        "check tls_config in --alertmanager.config.file"
    )
    assert len(server.requests) == 1


def test_the_name_in_the_certificate_must_be_the_one_that_is_asked_for(pems: Pems) -> None:
    """server_name says which one, where the URL has another."""
    issue(pems.ca, pems.folder, "named", "alertmanager.example")
    ca = pems.folder / "ca.crt"
    with ScriptedServer(tls=server_context(pems, "named")) as server:
        by_url = Alertmanager(server.url, ClientConfig(tls=TlsClient(ca_file=ca))).post(b"[]")
        named = TlsClient(ca_file=ca, server_name="alertmanager.example")
        by_name = Alertmanager(server.url, ClientConfig(tls=named)).post(b"[]")
        other = TlsClient(ca_file=ca, server_name="other.example")
        by_other = Alertmanager(server.url, ClientConfig(tls=other)).post(b"[]")

    assert by_name.verdict is Verdict.ACCEPTED
    assert by_url.verdict is by_other.verdict is Verdict.UNREACHED
    assert "not valid for 'localhost'" in by_url.detail


def test_verification_can_be_switched_off(pems: Pems) -> None:
    """insecure_skip_verify takes whatever certificate there is, without a warning a minute."""
    with ScriptedServer(tls=server_context(pems, "other")) as server:
        said = Alertmanager(server.url, ClientConfig(tls=TlsClient(verify=False))).post(b"[]")

    assert said.verdict is Verdict.ACCEPTED


def test_a_client_certificate_is_shown_to_who_asks_for_one(pems: Pems) -> None:
    """mTLS; without a certificate the server hangs up, and the reason says TLS."""
    ca, cert, key = (pems.folder / name for name in ("ca.crt", "client.crt", "client.key"))
    with ScriptedServer(tls=server_context(pems, client_ca=True)) as server:
        known = Alertmanager(server.url, ClientConfig(tls=TlsClient(ca, cert, key))).post(b"[]")
        unknown = Alertmanager(server.url, ClientConfig(tls=TlsClient(ca))).post(b"[]")

    assert known.verdict is Verdict.ACCEPTED
    assert unknown.verdict is Verdict.FAILED
    assert len(server.requests) == 1


def test_certificates_may_be_renewed_in_two_steps(pems: Pems, caplog: pytest.LogCaptureFixture) -> None:
    """A new pair is used once it is whole; until then the old one serves, and the log says so once."""
    caplog.set_level(logging.INFO)
    ca, cert, key = (pems.folder / name for name in ("ca.crt", "client.crt", "client.key"))
    with ScriptedServer(tls=server_context(pems, client_ca=True)) as server:
        client = Alertmanager(server.url, ClientConfig(tls=TlsClient(ca, cert, key)))
        verdicts = [client.post(b"[]").verdict]
        issue(pems.ca, pems.folder, "new", "prometheus.example")
        cert.write_bytes((pems.folder / "new.crt").read_bytes())
        verdicts += [client.post(b"[]").verdict for _ in range(2)]
        key.write_bytes((pems.folder / "new.key").read_bytes())
        verdicts.append(client.post(b"[]").verdict)

    assert set(verdicts) == {Verdict.ACCEPTED}
    assert [record.message for record in caplog.records if record.name == session.__name__] == [
        "new TLS files are not used, the old ones stay",
        "the new TLS files are used",
    ]


def test_a_secret_that_is_gone_fails_until_it_is_back(pems: Pems) -> None:
    """Nothing is sent without it, and the reason names key and file."""
    token = pems.folder / "token"
    client_config = ClientConfig(scheme="Bearer", secret=Secret("authorization.credentials_file", path=token))
    with ScriptedServer() as server:
        client = Alertmanager(server.url, client_config)
        said = client.post(b"[]")
        token.write_text("sesame\n")

        assert client.post(b"[]").verdict is Verdict.ACCEPTED

    assert said.verdict is Verdict.UNREACHED
    assert said.detail.startswith(f"authorization.credentials_file ({token}): can't be read")
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer sesame"]


def test_a_large_body_is_sent_whole() -> None:
    """A full post of a node with many incidents."""
    body = b"[" + b" " * 1_000_000 + b"]"
    with ScriptedServer(OK) as server:
        said = Alertmanager(server.url, ClientConfig()).post(body)

    assert said.verdict is Verdict.ACCEPTED
    assert server.requests[0].body == body
