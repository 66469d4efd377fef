"""One gRPC call as bytes: a whole reply in whatever pieces, and each way in which it may go wrong."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import pytest
from hpack.hpack import Encoder
from hyperframe.frame import ContinuationFrame, GoAwayFrame, HeadersFrame, PingFrame, PushPromiseFrame, RstStreamFrame

from gpufleet.sources.podresources.unary import LARGEST_REPLY, BrokenCall, RefusedCall, UnaryCall
from tests.support.podresources_peer import HEAD, STREAM, WELL, data, headers, hello, message, whole_reply

PATH = "/v1.PodResourcesLister/List"
BODY = bytes(range(256)) * 3


def opened() -> UnaryCall:
    """A call whose request is out."""
    call = UnaryCall(PATH, timeout=5.0)
    call.opening()
    return call


def answered(reply: bytes, *, step: int = 0) -> UnaryCall:
    """A call that got this, ``step`` bytes at a time."""
    call = opened()
    for at in range(0, len(reply), step or len(reply)):
        call.receive(reply[at : at + (step or len(reply))])
    return call


def feed(call: UnaryCall, *parts: bytes, times: int = 1) -> None:
    """Give these to the call, so often."""
    for _ in range(times):
        for part in parts:
            call.receive(part)


def test_the_request_is_one_that_a_server_takes() -> None:
    """An HTTP/2 server sees one POST of an empty message, with the time limit, and its end."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    events = server.receive_data(UnaryCall(PATH, timeout=2.5).opening())

    (request,) = [each for each in events if isinstance(each, h2.events.RequestReceived)]
    (body,) = [each for each in events if isinstance(each, h2.events.DataReceived)]
    asked = dict(request.headers or ())
    assert (asked[b":method"], asked[b":path"], asked[b"te"]) == (b"POST", PATH.encode(), b"trailers")
    assert (asked[b"content-type"], asked[b"grpc-timeout"]) == (b"application/grpc", b"2500m")
    assert body.data == bytes(5)
    assert any(isinstance(each, h2.events.StreamEnded) for each in events)


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("size", [1, 100, 16_384])
def test_a_reply_may_come_in_any_pieces(step: int, size: int) -> None:
    """A message may be split over frames, and frames over reads."""
    assert answered(whole_reply(BODY, size=size), step=step).reply == BODY


def test_an_empty_reply_is_a_reply() -> None:
    """A node without pods answers with a message of no bytes."""
    assert answered(whole_reply(b"")).reply == b""


def test_the_largest_reply_needs_no_credit() -> None:
    """The window is as large as the largest reply; one byte more is too much."""
    body = bytes(LARGEST_REPLY)

    assert answered(whole_reply(body)).reply == body
    with pytest.raises(BrokenCall, match="16 MiB"):
        answered(whole_reply(body + b"x"))


def test_what_a_server_asks_for_is_answered() -> None:
    """Settings and pings want an answer, which is handed back to be sent."""
    call = opened()

    assert call.receive(hello())
    assert call.receive(PingFrame(0, b"12345678").serialize()).endswith(b"12345678")
    assert call.reply is None


def test_a_refusal_is_told_with_its_status() -> None:
    """A server refuses with headers alone, or after headers and even a message."""
    refusal = (("grpc-status", "8"), ("grpc-message", "rejected by rate limit: 100%25"))

    for reply in (
        hello() + headers((*HEAD, *refusal), end=True),
        hello() + headers(HEAD) + headers(refusal, end=True),
        hello() + headers(HEAD) + data(message(BODY)) + headers(refusal, end=True),
    ):
        with pytest.raises(RefusedCall, match="rejected by rate limit: 100%") as refused:
            answered(reply)
        assert refused.value.status == 8


@pytest.mark.parametrize("sent", ["%0a%1b[31mforged%ff", "x" * 9000, "%", "%zz"])
def test_what_a_server_says_of_an_error_is_a_line(sent: str) -> None:
    """Its text goes into a log: no control characters, and not without end."""
    with pytest.raises(RefusedCall) as refused:
        answered(hello() + headers((*HEAD, ("grpc-status", "2"), ("grpc-message", sent)), end=True))

    assert refused.value.message.isprintable()
    assert len(refused.value.message) <= 301


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2", id="HTTP/1.1"),
        pytest.param(headers(HEAD), "does not speak HTTP/2", id="no settings"),
        pytest.param(b"\x00" * 100, "does not speak HTTP/2", id="zeros"),
        pytest.param(hello() + headers([(":status", "404")], end=True), "HTTP status 404", id="HTTP error"),
        pytest.param(hello() + headers([(":status", "200")], end=True), "no content-type", id="no content type"),
        pytest.param(
            hello() + headers([(":status", "200"), ("content-type", "text/html")], end=True), "text/html", id="HTML"
        ),
        pytest.param(hello() + headers(HEAD, end=True), "without a status", id="no status"),
        pytest.param(
            hello() + headers((*HEAD, ("grpc-status", "-1")), end=True), "without a status", id="status below 0"
        ),
        pytest.param(
            hello() + headers((*HEAD, ("grpc-status", "9" * 5000)), end=True), "without a status", id="huge status"
        ),
        pytest.param(hello() + headers((*HEAD, *WELL), end=True), "incomplete", id="no message"),
        pytest.param(
            hello() + headers(HEAD) + data(message(BODY)[:-1]) + headers(WELL, end=True), "incomplete", id="half"
        ),
        pytest.param(
            hello() + headers(HEAD) + data(message(BODY) + b"\x00") + headers(WELL, end=True), "more than one", id="two"
        ),
        pytest.param(hello() + headers(HEAD) + data(message(BODY, compressed=1)), "compressed", id="compressed"),
        pytest.param(hello() + headers(HEAD) + data(b"\x00\xff\xff\xff\xff"), "4294967295 bytes", id="4 GiB"),
        pytest.param(hello() + data(message(BODY)), "does not speak HTTP/2", id="data before headers"),
        pytest.param(hello() + RstStreamFrame(STREAM, error_code=7).serialize(), "code 7", id="reset"),
        pytest.param(hello() + RstStreamFrame(STREAM, error_code=0xFFFFFFFF).serialize(), "RST_STREAM", id="odd reset"),
        pytest.param(hello(GoAwayFrame(0, last_stream_id=0)), "GOAWAY", id="goaway"),
        pytest.param(hello(GoAwayFrame(0, last_stream_id=9, error_code=11)), "GOAWAY", id="too many pings"),
        pytest.param(
            hello() + PushPromiseFrame(STREAM, promised_stream_id=2, flags=["END_HEADERS"]).serialize(),
            "HTTP/2",
            id="push",
        ),
        pytest.param(
            hello() + headers([(":status", "200"), ("x", "y" * 16_000), ("z", "y" * 2_000)]), "HTTP/2", id="headers"
        ),
    ],
)
def test_what_is_no_reply_is_refused(reply: bytes, says: str) -> None:
    """Each with what is wrong."""
    with pytest.raises(BrokenCall, match=says):
        answered(reply)


def test_an_end_before_the_end_is_refused() -> None:
    """Wherever a server ends the connection, no reply is made of what came before."""
    reply = whole_reply(b"pods")
    for size in range(len(reply)):
        call = opened()
        with pytest.raises(BrokenCall, match="ended the connection"):
            feed(call, *(part for part in (reply[:size],) if part), b"")
        assert call.reply is None


def test_headers_without_end_are_refused() -> None:
    """CONTINUATION frames are not collected for ever."""
    call = opened()
    call.receive(hello() + HeadersFrame(STREAM, data=Encoder().encode([(":status", "200")])).serialize())

    with pytest.raises(BrokenCall, match="HTTP/2"):
        feed(call, ContinuationFrame(STREAM, data=b"").serialize(), times=10_000)


def test_frames_without_end_are_refused() -> None:
    """What a server may send in all is bounded, reply or not."""
    call = opened()
    call.receive(hello())
    unknown = b"\x00\x40\x00\xee\x00\x00\x00\x00\x00" + bytes(16_384)

    with pytest.raises(BrokenCall, match="more than 16 MiB"):
        feed(call, unknown, times=2000)
