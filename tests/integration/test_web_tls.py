"""TLS, client certificates and basic auth on real sockets, with Python's client and with curl."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import bcrypt
import pytest

from gpufleet.web.connection import Timeouts
from gpufleet.web.server import Server, ServerLimits
from tests.support.pems import Pems, issue, write_pems
from tests.support.raw_http import Closed, RawClient
from tests.support.toy_app import BIG, SCRAPE, ToyApp, serving
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASHED = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MTLS = f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
USERS = f"basic_auth_users:\n  alice: {HASHED}\n"


@pytest.fixture
def pems(tmp_path: Path) -> Pems:
    """Certificates of this test's own."""
    return write_pems(tmp_path)


@pytest.fixture
def app() -> ToyApp:
    """The application under the server."""
    return ToyApp()


def config(pems: Pems, text: str) -> Path:
    """Write a web configuration beside the certificates."""
    new = pems.folder / "web.yml.new"
    new.write_text(text)
    return new.replace(pems.folder / "web.yml")


@pytest.fixture
def server(app: ToyApp, pems: Pems) -> Iterator[Server]:
    """A server with TLS and nothing else."""
    with serving(app, web_config_file=config(pems, TLS)) as endpoint:
        yield endpoint.server


def trusting(pems: Pems, certificate: str | None = None) -> ssl.SSLContext:
    """A client that trusts the test's authority and shows CERTIFICATE.crt."""
    context = ssl.create_default_context(cafile=pems.folder / "ca.crt")
    if certificate is not None:
        context.load_cert_chain(pems.folder / f"{certificate}.crt", pems.folder / f"{certificate}.key")
    return context


def is_refused(address: str, context: ssl.SSLContext) -> bool:
    """Whether a scrape with context ends without an answer. In TLS 1.3 the client learns it only when it reads."""
    try:
        with RawClient(address, tls=context) as client:
            client.get("/metrics")
    except (OSError, Closed):
        return True
    return False


def test_a_scrape_over_tls(server: Server, pems: Pems) -> None:
    """Verified by name, over one kept connection, with a large body and a body sent to us."""
    with RawClient(server.addresses[0], tls=trusting(pems)) as client:
        assert client.get("/metrics").body == SCRAPE
        assert client.get("/big").body == BIG
        client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        assert client.read().body == b"hello"
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.sock.version() == "TLSv1.3"


def test_a_connection_ends_properly(server: Server, pems: Pems) -> None:
    """The end is announced in TLS: the client can tell it from one that an attacker cut."""
    context = trusting(pems)
    with (
        socket.create_connection(("127.0.0.1", int(server.addresses[0].rpartition(":")[2])), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = 0
        while chunk := client.recv(65_536):  # an end without the announcement would raise here
            received += len(chunk)
        assert received > len(SCRAPE)


def test_silent_tls_clients_do_not_block_a_scrape(server: Server, pems: Pems) -> None:
    """A client that connects and says nothing, or half a handshake, keeps its own thread waiting and no other."""
    silent = [RawClient(server.addresses[0]) for _ in range(20)]
    for client in silent[:10]:
        client.send(b"\x16\x03\x01\x02\x00\x01\x00")
    with RawClient(server.addresses[0], tls=trusting(pems)) as client:
        assert client.get("/metrics").body == SCRAPE
    for client in silent:
        client.sock.close()


def test_a_silent_tls_client_is_dropped_in_time(app: ToyApp, pems: Pems) -> None:
    """The handshake has a limit, before its first byte and in its middle."""
    limits = ServerLimits(timeouts=Timeouts(handshake=0.2))
    with serving(app, limits=limits, web_config_file=config(pems, TLS)) as endpoint:
        for start in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            with RawClient(endpoint.server.addresses[0]) as client:
                client.send(start)
                assert client.is_closed()


def test_a_slow_tls_reader_is_dropped_in_time(app: ToyApp, pems: Pems) -> None:
    """The limit for the whole response holds under TLS, where a write is many."""
    limits = ServerLimits(timeouts=Timeouts(write=0.3))
    with (
        serving(app, limits=limits, web_config_file=config(pems, TLS)) as endpoint,
        RawClient(endpoint.server.addresses[0], tls=trusting(pems), receive_buffer=4096) as slow,
    ):
        slow.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: endpoint.server.counts()["timeouts"] == 1, "the slow reader to be dropped")
        until(lambda: endpoint.server.connections == 0, "the connection to end")


def test_the_wrong_protocol_is_told_the_right_one(app: ToyApp, server: Server, pems: Pems) -> None:
    """HTTP on a TLS port is answered in HTTP; TLS on an HTTP port is answered as well as can be."""
    with RawClient(server.addresses[0]) as client:
        answer = client.get("/metrics")
        assert (answer.status, answer.body) == (400, b"this server speaks HTTPS here: use https://\n")
        assert client.is_closed()
    with serving(app) as endpoint, pytest.raises(ssl.SSLError):
        RawClient(endpoint.server.addresses[0], tls=trusting(pems))


@pytest.mark.parametrize(
    ("version", "extra", "refused"),
    [
        (ssl.TLSVersion.TLSv1_2, "", False),
        (ssl.TLSVersion.TLSv1_2, "  min_version: TLS13\n", True),
        (ssl.TLSVersion.TLSv1_3, "  max_version: TLS12\n", True),
        (ssl.TLSVersion.TLSv1_2, "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", True),
        (ssl.TLSVersion.TLSv1_2, "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n", True),
        (ssl.TLSVersion.TLSv1_2, "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA]\n", False),
        (ssl.TLSVersion.TLSv1_3, "  curve_preferences: [X25519]\n", False),
    ],
)
def test_versions_and_suites_are_as_configured(
    app: ToyApp, pems: Pems, version: ssl.TLSVersion, extra: str, refused: bool
) -> None:
    """The server's certificate here is ECDSA's: an RSA suite alone leaves nothing in common."""
    context = trusting(pems)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ECDHE+AES")  # Python's own list for clients leaves CBC out
    with serving(app, web_config_file=config(pems, TLS + extra)) as endpoint:
        assert is_refused(endpoint.server.addresses[0], context) is refused


def test_a_client_without_the_right_certificate_is_refused(app: ToyApp, pems: Pems) -> None:
    """Required and verified: none, or another authority's, is no way in."""
    with serving(app, web_config_file=config(pems, MTLS)) as endpoint:
        address = endpoint.server.addresses[0]
        assert not is_refused(address, trusting(pems, "client"))
        assert is_refused(address, trusting(pems))
        assert is_refused(address, trusting(pems, "other"))
        # The client sees the connection end a moment before the worker counts it.
        until(lambda: endpoint.server.counts()["handshake_failures"] == 2, "both refusals are counted")


def test_a_certificate_that_is_optional_is_verified_when_given(app: ToyApp, pems: Pems) -> None:
    """None is fine, a bad one is not."""
    text = MTLS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
    with serving(app, web_config_file=config(pems, text)) as endpoint:
        address = endpoint.server.addresses[0]
        assert not is_refused(address, trusting(pems))
        assert not is_refused(address, trusting(pems, "client"))
        assert is_refused(address, trusting(pems, "other"))


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ("[prometheus.example]", False),
        ("[nobody, prometheus.example]", False),
        ("['2001:db8:0::1']", False),
        ("[example]", True),
        ("['2001:db8::2']", True),
    ],
)
def test_only_the_allowed_names_come_in(app: ToyApp, pems: Pems, names: str, refused: bool) -> None:
    """One exact match among the certificate's names; an IPv6 address in any spelling."""
    with serving(app, web_config_file=config(pems, f"{MTLS}  client_allowed_sans: {names}\n")) as endpoint:
        assert is_refused(endpoint.server.addresses[0], trusting(pems, "client")) is refused


def serial(address: str, context: ssl.SSLContext) -> object:
    """The serial number of the certificate that the server shows."""
    with RawClient(address, tls=context) as client:
        assert client.get("/metrics").status == 200
        assert isinstance(client.sock, ssl.SSLSocket)
        return (client.sock.getpeercert() or {})["serialNumber"]


def test_a_renewed_certificate_is_shown_without_a_restart(app: ToyApp, pems: Pems) -> None:
    """New connections get it; one that was open ends before its next answer, and its client connects again."""
    with serving(app, web_config_file=config(pems, TLS)) as endpoint:
        address = endpoint.server.addresses[0]
        context = trusting(pems)
        before = serial(address, context)
        with RawClient(address, tls=context) as kept:
            assert kept.get("/metrics").status == 200
            issue(pems.ca, pems.folder, "server", "localhost")
            assert serial(address, context) != before
            with pytest.raises(Closed) as closed:
                kept.get("/metrics")
            assert closed.value.rest == b""


def test_a_broken_renewal_leaves_the_old_certificate(app: ToyApp, pems: Pems) -> None:
    """Scrapes go on, and the endpoint can say what is wrong."""
    with serving(app, web_config_file=config(pems, TLS)) as endpoint:
        address = endpoint.server.addresses[0]
        before = serial(address, trusting(pems))
        (pems.folder / "server.key").write_text("oops")

        assert serial(address, trusting(pems)) == before
        assert endpoint.web_config is not None
        assert "holds no private key" in str(endpoint.web_config.reload_error)


def test_tls_that_is_added_while_running_ends_what_is_not_encrypted(app: ToyApp, pems: Pems) -> None:
    """A kept plain connection does not outlive the wish for TLS."""
    with serving(app, web_config_file=config(pems, "")) as endpoint:
        address = endpoint.server.addresses[0]
        with RawClient(address) as plain:
            assert plain.get("/metrics").status == 200
            config(pems, TLS)
            with pytest.raises(Closed):
                plain.get("/metrics")
        assert not is_refused(address, trusting(pems))


def test_a_strangers_body_is_not_read(app: ToyApp, pems: Pems) -> None:
    """Without a password no body is waited for, and the handler never sees it."""
    with (
        serving(app, web_config_file=config(pems, USERS)) as endpoint,
        RawClient(endpoint.server.addresses[0]) as client,
    ):
        client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n")
        assert client.read().status == 401
        assert client.is_closed()
    assert app.hooks == 0


def test_stop_lets_a_tls_response_end(server: Server, pems: Pems) -> None:
    """An idle TLS connection is closed, a busy one ends by itself."""
    with RawClient(server.addresses[0], tls=trusting(pems)) as idle:
        assert idle.get("/metrics").status == 200
        with RawClient(server.addresses[0], tls=trusting(pems), receive_buffer=65_536) as busy:
            busy.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
            until(lambda: server.counts()["requests"] == 2, "the request to be taken")
            assert busy.read().body == BIG
        assert server.stop(20)
        assert idle.is_closed()


class Curl:
    """Curl, told to trust the test's authority."""

    def __init__(self, program: Path, pems: Pems) -> None:
        self._command: list[str | Path] = [program, "--silent", "--show-error", "--max-time", "30"]
        self._command += ["--cacert", pems.folder / "ca.crt", "--write-out", "\n%{http_code} %{http_version}"]

    def __call__(self, url: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        """Run it on url; the status is the last line of its output."""
        return subprocess.run([*self._command, *arguments, url], capture_output=True, check=False)


def test_curl_scrapes_over_tls_with_a_password(app: ToyApp, pems: Pems, curl: Path) -> None:
    """A real client: right password 200, wrong or none 401, an unknown authority no answer at all."""
    run = Curl(curl, pems)
    with serving(app, web_config_file=config(pems, TLS + USERS)) as endpoint:
        url = f"https://localhost:{endpoint.server.addresses[0].rpartition(':')[2]}/metrics"
        good = run(url, "--user", "alice:open sesame")
        assert good.stdout == SCRAPE + b"\n200 1.1", good.stderr
        assert run(url, "--user", "alice:wrong").stdout.endswith(b"\n401 1.1")
        assert run(url, "--user", "bob:open sesame").stdout.endswith(b"\n401 1.1")
        assert run(url).stdout.endswith(b"\n401 1.1")
        # 60: the peer's certificate cannot be verified
        assert run(url, "--cacert", pems.folder / "other.crt").returncode == 60


def test_curl_shows_its_certificate(app: ToyApp, pems: Pems, curl: Path) -> None:
    """Mutual TLS with a real client."""
    run = Curl(curl, pems)
    with serving(app, web_config_file=config(pems, MTLS)) as endpoint:
        url = f"https://localhost:{endpoint.server.addresses[0].rpartition(':')[2]}/metrics"
        known = run(url, "--cert", pems.folder / "client.crt", "--key", pems.folder / "client.key")
        assert known.stdout.endswith(b"\n200 1.1"), known.stderr
        assert run(url).returncode != 0


def test_curl_speaks_plain_http(app: ToyApp, pems: Pems, curl: Path) -> None:
    """Every method that there is, a body that asks first, a chunked one that is refused, and one URL after another."""
    run = Curl(curl, pems)
    with serving(app) as endpoint:
        url = f"http://{endpoint.server.addresses[0]}"
        (pems.folder / "body").write_bytes(b"x" * 90_000)
        asked = run(f"{url}/hook", "--data-binary", f"@{pems.folder / 'body'}", "--header", "Expect: 100-continue")
        assert asked.stdout == b"x" * 90_000 + b"\n200 1.1"
        assert run(f"{url}/hook", "--data-binary", "x", "--header", "Transfer-Encoding: chunked").stdout.endswith(
            b"\n411 1.1"
        )
        assert run(f"{url}/metrics", "--head").stdout.endswith(b"\r\n\r\n\n200 1.1")
        assert run(f"{url}/metrics", "--request", "PUT").stdout.endswith(b"\n405 1.1")
        both = run(f"{url}/metrics", f"{url}/metrics", "--write-out", "%{num_connects}")
        assert both.stdout == SCRAPE + b"1" + SCRAPE + b"0"
        assert run(f"{url}/metrics", "--http1.0").stdout.startswith(SCRAPE)
