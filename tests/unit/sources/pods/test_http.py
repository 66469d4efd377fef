"""One GET: whatever a peer sends is a body, or refused."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.sources.pods.http import HttpError, Response, get


def answered(raw: bytes) -> Response:
    """The head of an answer that a peer gives at once before it closes."""
    ours, theirs = socket.socketpair()
    with ours:

        def speak() -> None:
            with theirs:
                theirs.recv(65_536)
                theirs.sendall(raw)

        peer = threading.Thread(target=speak, daemon=True)
        peer.start()
        ours.settimeout(20)
        try:
            response = get(ours, "host", "/x", {"Accept": "a/b"})
            body = response.stream.read()
            return Response(response.status, response.reason, response.headers, io.BytesIO(body))
        finally:
            peer.join(20)


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (b"Content-Length: 5\r\n\r\nhello and more", b"hello"),
        (b"Content-Length: 0\r\n\r\n", b""),
        (b"\r\nuntil the end", b"until the end"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n", b"hello world"),
    ],
)
def test_a_body_ends_by_length_by_chunks_or_with_the_connection(rest: bytes, body: bytes) -> None:
    """As RFC 9112 has it."""
    response = answered(b"HTTP/1.1 200 OK\r\nX-One: a\r\n" + rest)
    assert (response.status, response.reason, response.headers["x-one"]) == (200, "OK", "a")
    assert response.read(1000) == body


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 50\r\n\r\nshort",
        b"Content-Length: -1\r\n\r\nx",
        b"Content-Length: 1e3\r\n\r\nx",
        b"Content-Length: 99999999999999999999\r\n\r\nx",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_a_body_that_ends_too_early_or_lies_is_refused(rest: bytes) -> None:
    """Half of a list is no list."""
    with pytest.raises(HttpError):
        answered(b"HTTP/1.1 200 OK\r\n" + rest).read(1000)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 999 x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500,
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 50_000,
    ],
)
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    """Within bounds."""
    with pytest.raises(HttpError):
        answered(raw)


def test_a_body_is_read_no_further_than_asked() -> None:
    """A peer that never ends costs what the bound says."""
    response = Response(200, "OK", {}, io.BytesIO(b"x" * 10_000_000))
    assert 1000 < len(response.read(1000)) <= 1000 + 65_536


def test_lines_come_one_by_one_and_are_bounded() -> None:
    """What lacks its end is dropped: the connection was lost in the middle of it, in a chunk or not."""
    assert list(Response(200, "OK", {}, io.BytesIO(b"a\n\nb")).lines(10)) == [b"a", b""]
    chunked = {"transfer-encoding": "chunked"}
    assert list(Response(200, "OK", chunked, io.BytesIO(b"4\r\na\nbc\r\n5\r\nde")).lines(10)) == [b"a"]
    with pytest.raises(HttpError):
        list(Response(200, "OK", {}, io.BytesIO(b"a\n" + b"b" * 200_000)).lines(1000))


@given(st.binary(max_size=300), st.sampled_from(["chunked", "", "length"]))
def test_any_bytes_are_a_body_or_refused(raw: bytes, how: str) -> None:
    """Never anything else."""
    headers = {"chunked": {"transfer-encoding": "chunked"}, "": {}, "length": {"content-length": "17"}}[how]
    readers: list[Callable[[Response], object]] = [lambda r: r.read(100), lambda r: list(r.lines(50))]
    for reader in readers:
        try:
            reader(Response(200, "OK", headers, io.BytesIO(raw)))
        except HttpError:
            continue
