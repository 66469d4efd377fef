"""The server on real sockets: clients that are ordinary, slow, silent, rude and many."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from gpufleet.web.addresses import ListenError
from gpufleet.web.app import App
from gpufleet.web.connection import Timeouts
from gpufleet.web.message import PLAIN_TEXT, Request, Response
from gpufleet.web.registry import Phase
from gpufleet.web.server import Server, ServerLimits
from tests.support.raw_http import Closed, RawClient
from tests.support.toy_app import BIG, BODY_LIMIT, SCRAPE, ToyApp, serving
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

FINE = Response(200, b"fine", PLAIN_TEXT)
HEAD = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
def app() -> ToyApp:
    """The application under the server."""
    return ToyApp()


@pytest.fixture
def server(app: ToyApp) -> Iterator[Server]:
    """A server with ordinary limits."""
    with serving(app) as endpoint:
        yield endpoint.server


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """A connection to it."""
    with RawClient(server.addresses[0]) as client:
        yield client


def test_a_connection_serves_request_after_request(server: Server, client: RawClient) -> None:
    """One kept-alive connection, as Prometheus has."""
    answers = [client.get("/metrics") for _ in range(20)]

    assert {(answer.status, answer.body) for answer in answers} == {(200, SCRAPE)}
    assert server.counts()["accepted"] == 1
    assert server.counts()["requests"] == 20


def test_requests_sent_at_once_are_answered_in_order(client: RawClient) -> None:
    """Pipelining: the second request's bytes may come with the first's."""
    client.send(
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nPOST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
    )
    client.send(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")

    assert [client.read().body[:9] for _ in range(3)] == [b"metric 1\n", b"hi", b"there is "]


def test_a_head_request_gets_everything_but_the_body(client: RawClient) -> None:
    """Its length is the one that GET has, and the connection goes on in step."""
    answer = client.get("/metrics", method="HEAD")

    assert answer.headers["content-length"] == str(len(SCRAPE))
    assert client.get("/metrics").body == SCRAPE


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/metrics", 405), ("OPTIONS", "*", 404)]
)
def test_what_no_route_answers_keeps_the_connection(client: RawClient, method: str, path: str, status: int) -> None:
    """A wrong address is not a broken client."""
    assert client.get(path, method=method).status == status
    assert client.get("/metrics").status == 200


def test_a_client_that_asks_for_the_end_gets_it(client: RawClient) -> None:
    """Connection: close is announced back and done."""
    assert client.get("/metrics", "Connection: close").headers["connection"] == "close"
    assert client.is_closed()


def test_an_old_client_is_served_and_closed(client: RawClient) -> None:
    """HTTP/1.0 ends after the response; with keep-alive it does not."""
    client.send(b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert client.read().headers["connection"] == "keep-alive"
    client.send(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert client.read().body == SCRAPE
    assert client.is_closed()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (
            b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxGET / HTTP/1.1\r\n\r\n",
            400,
        ),
        (b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 411),
        (b"GET /" + b"a" * 9000, 414),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 6000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"hello\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_told_so_and_closed(client: RawClient, request_bytes: bytes, status: int) -> None:
    """After one refusal nothing on the connection can be trusted: what follows is not read as a request."""
    client.send(request_bytes)
    answer = client.read()

    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert client.is_closed()


def test_a_peer_is_known_by_its_address(app: ToyApp) -> None:
    """On the dual-stack socket too."""
    with serving(app, ":0") as endpoint:
        port = endpoint.server.addresses[0].rpartition(":")[2]
        for host, peer in (("127.0.0.1", b"127.0.0.1"), ("[::1]", b"::1")):
            with RawClient(f"{host}:{port}") as client:
                assert client.get("/peer").body == peer


def test_several_addresses_are_served_at_once(app: ToyApp) -> None:
    """Each of them answers."""
    with serving(app, "127.0.0.1:0", "[::1]:0") as endpoint:
        assert len(endpoint.server.addresses) == 2
        for address in endpoint.server.addresses:
            with RawClient(address) as client:
                assert client.get("/metrics").status == 200


def test_a_start_that_fails_leaves_nothing_open(app: ToyApp, server: Server) -> None:
    """If the second address is taken the first is given back."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        pytest.raises(ListenError, match=f"cannot listen on {server.addresses[0]}"),
        serving(app, f"127.0.0.1:{port}", server.addresses[0]),
    ):
        pass
    socket.create_server(("127.0.0.1", port)).close()


def test_a_body_within_the_limit_is_read(client: RawClient) -> None:
    """It reaches the handler whole, however it was cut."""
    body = bytes(range(256)) * 200
    client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), 7000):
        client.send(body[start : start + 7000])

    assert client.read().body == body


def test_a_body_above_the_limit_is_refused_unread(app: ToyApp, client: RawClient) -> None:
    """The client reads why, though it goes on sending."""
    client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (BODY_LIMIT + 1))
    client.send(bytes(BODY_LIMIT))
    answer = client.read()

    assert (answer.status, answer.body) == (413, b"the body may have 100000 bytes\n")
    assert client.is_closed()
    assert app.hooks == 0


def test_a_body_is_not_asked_for_where_nobody_wants_it(client: RawClient) -> None:
    """A client that asks before sending is told 100 on a route, and the refusal itself on none."""
    client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert client.read().status == 100
    client.send(b"hello")
    assert client.read().body == b"hello"
    client.send(b"POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert client.read().status == 404
    assert client.is_closed()


def test_two_hundred_parallel_scrapes_are_all_answered(server: Server) -> None:
    """All at once, each on a connection of its own, each complete."""
    together = threading.Barrier(200)

    def scrape(_: int) -> tuple[int, bytes]:
        with RawClient(server.addresses[0]) as client:
            together.wait(30)
            answer = client.get("/metrics")
            return answer.status, answer.body

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(scrape, range(200)))

    assert len(answers) == 200
    assert set(answers) == {(200, SCRAPE)}
    until(lambda: server.connections == 0, "the connections to end")


def test_silent_clients_do_not_block_a_scrape(server: Server, client: RawClient) -> None:
    """Connections that say nothing, or half a head, cost nobody an answer."""
    silent = [RawClient(server.addresses[0]) for _ in range(20)]
    for each in silent[:10]:
        each.send(b"GET /metrics HTT")

    assert client.get("/metrics").body == SCRAPE
    for each in silent:
        each.sock.close()


def test_a_slow_reader_does_not_block_a_scrape(server: Server, client: RawClient) -> None:
    """A client that asks for much and reads nothing keeps one thread waiting, not the others."""
    with RawClient(server.addresses[0], receive_buffer=4096) as slow:
        slow.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: server.counts()["requests"] == 1, "the slow request to be taken")
        assert client.get("/metrics").body == SCRAPE


def test_a_slow_reader_that_reads_gets_it_all(client: RawClient) -> None:
    """Many partial sends make one whole response."""
    assert client.get("/big").body == BIG


def test_a_reader_that_stops_is_dropped(app: ToyApp) -> None:
    """After the time limit for writing its thread is free again."""
    with serving(app, limits=ServerLimits(timeouts=Timeouts(write=0.3))) as endpoint:
        with RawClient(endpoint.server.addresses[0], receive_buffer=4096) as slow:
            slow.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
            until(lambda: endpoint.server.counts()["timeouts"] == 1, "the slow reader to be dropped")
        until(lambda: endpoint.server.connections == 0, "the connection to end")


def test_a_reader_that_drips_is_dropped(app: ToyApp) -> None:
    """The limit is for the whole response: reading a little now and then does not stretch it."""
    with (
        serving(app, limits=ServerLimits(timeouts=Timeouts(write=0.5))) as endpoint,
        RawClient(endpoint.server.addresses[0], receive_buffer=4096) as slow,
    ):
        slow.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
        until(
            lambda: slow.sock.recv(64) and endpoint.server.counts()["timeouts"] == 1,
            "the dripping reader to be dropped",
            every=0.05,
        )


def test_a_head_that_drips_in_is_refused_in_time(app: ToyApp) -> None:
    """The limit is for the whole head: a byte now and then does not stretch it."""
    with serving(app, limits=ServerLimits(timeouts=Timeouts(head=0.5))) as endpoint:
        with RawClient(endpoint.server.addresses[0]) as slow:
            for byte in HEAD * 20:
                try:
                    slow.send(byte.encode())
                except ConnectionError:
                    break
                if endpoint.server.counts()["timeouts"]:
                    break
                threading.Event().wait(0.05)
            assert slow.read().status == 408
        assert endpoint.server.counts()["timeouts"] == 1


def test_a_connection_that_never_speaks_is_closed_in_time(app: ToyApp) -> None:
    """Without a word there is nothing to answer."""
    with (
        serving(app, limits=ServerLimits(timeouts=Timeouts(head=0.2))) as endpoint,
        RawClient(endpoint.server.addresses[0]) as silent,
    ):
        assert silent.is_closed()


def test_a_body_that_does_not_come_is_refused_in_time(app: ToyApp) -> None:
    """The body has its own limit."""
    with (
        serving(app, limits=ServerLimits(timeouts=Timeouts(body=0.2))) as endpoint,
        RawClient(endpoint.server.addresses[0]) as slow,
    ):
        slow.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
        assert slow.read().status == 408
        assert slow.is_closed()
    assert app.hooks == 0


def test_an_idle_connection_is_closed_in_time(app: ToyApp) -> None:
    """After an answer the connection is kept for the limit and no longer."""
    with (
        serving(app, limits=ServerLimits(timeouts=Timeouts(idle=0.2))) as endpoint,
        RawClient(endpoint.server.addresses[0]) as client,
    ):
        assert client.get("/metrics").status == 200
        assert client.is_closed()


def test_a_failing_handler_does_not_end_the_server(server: Server, client: RawClient) -> None:
    """Not even one that tries to exit: it costs its own connection."""
    client.send(b"GET /exit HTTP/1.1\r\nHost: a\r\n\r\n")
    with pytest.raises(Closed):
        client.read()
    with RawClient(server.addresses[0]) as other:
        assert other.get("/metrics").status == 200


@pytest.mark.parametrize("path", ["/raises", "/unsendable"])
def test_an_application_that_fails_is_a_500(path: str) -> None:
    """An application that raises itself, or answers what HTTP cannot carry, costs its answer and not its connection."""

    class Failing(App):
        def respond(self, request: Request) -> Response:
            if request.path == "/raises":
                raise RuntimeError
            return Response(200, b"", PLAIN_TEXT, (("X", "a\r\nb"),))

    server = Server(Failing({("GET", "/raises"): lambda _: FINE, ("GET", "/unsendable"): lambda _: FINE}))
    server.start(["127.0.0.1:0"])
    with RawClient(server.addresses[0]) as client:
        assert [client.get(path).status for _ in range(2)] == [500, 500]
    server.stop(0)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_answered(app: ToyApp, server: Server) -> None:
    """A body that is not whole never reaches the handler."""
    with RawClient(server.addresses[0]) as client:
        client.send(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    assert app.hooks == 0


def test_without_a_thread_a_client_is_told_to_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system gives no further thread the answer comes from the accept loop."""
    with monkeypatch.context() as patched:
        patched.setattr(server._workers, "submit", lambda _: False)
        with RawClient(server.addresses[0]) as client:
            assert client.get("/metrics").status == 503
    assert server.connections == 0
    with RawClient(server.addresses[0]) as client:
        assert client.get("/metrics").status == 200


def test_a_client_turned_away_cannot_stay(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a moment to read why; then its socket is closed, whatever it goes on sending."""
    monkeypatch.setattr(server._workers, "submit", lambda _: False)
    with RawClient(server.addresses[0]) as client:
        assert client.read().status == 503

        def is_reset() -> bool:
            try:
                client.send(b"x")
            except ConnectionError:
                return True
            return False

        until(is_reset, "the socket to be closed")


def test_more_connections_than_the_bound_are_told_to_come_back(app: ToyApp) -> None:
    """While all are being answered a newcomer gets 503 at once; a place that is free again is given."""
    with serving(app, limits=ServerLimits(max_connections=3)) as endpoint:
        address = endpoint.server.addresses[0]
        busy = [RawClient(address) for _ in range(3)]
        for client in busy:
            client.send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            assert app.waiting.acquire(timeout=20)
        with RawClient(address) as newcomer:
            answer = newcomer.get("/metrics")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert newcomer.is_closed()
        app.release.set()
        assert [client.read().body for client in busy] == [b"released"] * 3
        for client in busy:
            client.sock.close()
        until(lambda: endpoint.server.connections == 0, "the places to be free")
        with RawClient(address) as newcomer:
            assert newcomer.get("/metrics").status == 200
        assert endpoint.server.counts()["overloaded"] == 1


def test_newcomers_may_wait_for_a_place_instead(app: ToyApp) -> None:
    """Where they are told to, a newcomer is neither refused nor lost while all are being answered."""
    with serving(app, limits=ServerLimits(max_connections=3, newcomers_wait=True)) as endpoint:
        address = endpoint.server.addresses[0]
        clients = [RawClient(address) for _ in range(10)]
        for client in clients:
            client.send(b"GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        for _ in range(3):
            assert app.waiting.acquire(timeout=20)
        assert endpoint.server.connections == 3
        app.release.set()
        assert [client.read().body for client in clients] == [b"released"] * 10
        for client in clients:
            client.sock.close()
        assert endpoint.server.counts()["overloaded"] == 0


def test_an_idle_connection_yields_to_a_newcomer(app: ToyApp) -> None:
    """At the bound the one idle the longest is closed, and the newcomer is served without delay."""
    with serving(app, limits=ServerLimits(max_connections=3)) as endpoint:
        address = endpoint.server.addresses[0]
        idle = [RawClient(address) for _ in range(3)]
        for client in idle:
            assert client.get("/metrics").status == 200
        links = endpoint.server._registry._links
        until(lambda: {link.phase for link in links} == {Phase.IDLE}, "the connections to be idle")
        with RawClient(address) as newcomer:
            assert newcomer.get("/metrics").status == 200
            assert idle[0].is_closed()
            assert idle[1].get("/metrics").status == 200
        for client in idle:
            client.sock.close()
        assert endpoint.server.counts()["evicted"] == 1


def test_clients_that_say_nothing_cannot_keep_others_out(app: ToyApp) -> None:
    """With every place taken by silence a newcomer is served as soon as the silence has lasted a moment."""
    with serving(app, limits=ServerLimits(max_connections=5)) as endpoint:
        address = endpoint.server.addresses[0]
        silent = [RawClient(address) for _ in range(5)]

        def scraped() -> bool:
            with RawClient(address) as newcomer:
                return newcomer.get("/metrics").status == 200

        until(scraped, "a place among the silent")
        for client in silent:
            client.sock.close()


def test_stop_lets_a_response_end(app: ToyApp, server: Server, client: RawClient) -> None:
    """A response in the making is finished, says that it is the last, and new connections are refused meanwhile."""
    client.send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    assert app.waiting.acquire(timeout=20)
    results: list[bool] = []
    stopping = threading.Thread(target=lambda: results.append(server.stop(20)), daemon=True)
    stopping.start()

    def refused() -> bool:
        try:
            RawClient(server.addresses[0]).sock.close()
        except ConnectionRefusedError:
            return True
        return False

    until(refused, "the listening socket to close")
    app.release.set()
    answer = client.read()
    assert (answer.body, answer.headers["connection"]) == (b"released", "close")
    assert client.is_closed()
    stopping.join(20)
    assert results == [True]


def test_stop_lets_a_response_be_read_to_its_end(server: Server) -> None:
    """Most of the body is still to be sent when stop comes; it all arrives."""
    with RawClient(server.addresses[0], receive_buffer=65_536) as client:
        client.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: server.counts()["requests"] == 1, "the request to be taken")
        stopping = threading.Thread(target=server.stop, args=(20,), daemon=True)
        stopping.start()
        assert client.read().body == BIG
        stopping.join(20)
        assert not stopping.is_alive()


def test_stop_closes_idle_connections_at_once(server: Server, client: RawClient) -> None:
    """Nobody waits for a client that may ask again in a minute."""
    assert client.get("/metrics").status == 200
    assert server.stop(20)
    assert client.is_closed()


def test_stop_cuts_off_what_does_not_end(server: Server) -> None:
    """A reader that stopped does not keep the process up; a second stop has the same answer."""
    with RawClient(server.addresses[0], receive_buffer=4096) as slow:
        slow.send(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: server.counts()["requests"] == 1, "the request to be taken")
        assert not server.stop(0.1)
        assert not server.stop(0.1)
        with pytest.raises(Closed):
            slow.read()
    assert server.connections == 0


def test_a_server_that_never_started_stops() -> None:
    """A program that fails between the two has one path to clean up."""
    assert Server(App({})).stop(0)


def test_open_connections_do_not_keep_the_process_up() -> None:
    """A program that returns from main ends, with a response waiting and no stop called."""
    script = (
        "import threading, sys\n"
        "from tests.support.toy_app import ToyApp\n"
        "from gpufleet.web.endpoint import open_endpoint\n"
        "app = ToyApp()\n"
        "print(open_endpoint(app, ['127.0.0.1:0']).server.addresses[0], flush=True)\n"
        "app.waiting.acquire()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with RawClient(process.stdout.readline().strip()) as client:
            client.send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            assert process.wait(20) == 0


def test_a_lack_of_descriptors_is_survived() -> None:
    """With no descriptor left the loop neither spins nor ends; it says so once and goes on when there is room."""
    script = (
        "import resource, sys\n"
        "from gpufleet import logs\n"
        "from tests.support.toy_app import ToyApp\n"
        "from gpufleet.web.endpoint import open_endpoint\n"
        "logs.setup('info', 'logfmt', sys.stderr)\n"
        "server = open_endpoint(ToyApp(), ['127.0.0.1:0']).server\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "print(server.addresses[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        log = process.stderr
        address = process.stdout.readline().strip()
        many = [RawClient(address) for _ in range(40)]
        until(lambda: "cannot accept connections" in log.readline(), "the lack to be noticed", every=0)
        for client in many:
            client.sock.close()
        with RawClient(address) as client:
            assert client.get("/metrics").body == SCRAPE
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "cannot accept connections" not in errors
