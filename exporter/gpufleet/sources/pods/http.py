"""One GET of HTTP/1.1 on a connection of its own: what a list and a watch need, and nothing else.

The standard library's client brings the whole of ``email`` for its headers, two megabytes on every node. Everything is
bounded; what is not HTTP raises HttpError.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

_LONGEST_LINE = 16_384
_MOST_HEADERS = 200
_PIECE = 65_536
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\r\n]*))?\r?\n")
_HEX = re.compile(rb"([0-9a-fA-F]{1,8})(?:[ \t]*;[^\r\n]*)?\r?\n")


class HttpError(Exception):
    """This is not how a web server answers; says what was wrong."""


class HttpEnd(HttpError):
    """The peer closed in the middle of a body."""


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer, and its body still to be read."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By name in lower case; of several with one name the last."""
    stream: IO[bytes]

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises HttpError when it ends too early, OSError as the socket does."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
            return
        length = self.headers.get("content-length")
        if length is None:
            while piece := _some(self.stream, _PIECE):
                yield piece
            return
        if not length.isascii() or not length.isdecimal() or len(length) > 15:
            raise HttpError("a Content-Length that is no number")
        yield from self._exactly(int(length))

    def read(self, most: int) -> bytes:
        """The whole body, or a part of it that is longer than ``most`` bytes."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > most:
                break
        return bytes(body)

    def lines(self, longest: int) -> Iterator[bytes]:
        """The body line by line, as they come, until it or the connection ends; what has no end of line is dropped.

        Raises HttpError for a line of more than ``longest`` bytes.
        """
        rest = bytearray()
        try:
            for piece in self.pieces():
                rest += piece
                if b"\n" in piece:
                    *whole, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    yield from whole
                if len(rest) > longest:
                    raise HttpError(f"a line of more than {longest} bytes")
        except HttpEnd:
            return

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self.stream.readline(_LONGEST_LINE)
            if not line:
                raise HttpEnd("an end in the middle of the body")
            size = _HEX.fullmatch(line)
            if size is None:
                raise HttpError("a chunk without its size")
            length = int(size[1], 16)
            if length == 0:
                return
            yield from self._exactly(length)
            if self.stream.readline(3).rstrip(b"\r\n"):
                raise HttpError("a chunk that is longer than its size")

    def _exactly(self, length: int) -> Iterator[bytes]:
        while length:
            piece = _some(self.stream, min(length, _PIECE))
            if not piece:
                raise HttpEnd("an end in the middle of the body")
            length -= len(piece)
            yield piece


def _some(stream: IO[bytes], most: int) -> bytes:
    """What there is, at least a byte, empty at the end: a watch's event must not wait for the next."""
    piece: bytes = stream.read1(most)  # type: ignore[attr-defined]
    return piece


def connect(host: str, port: int, context: ssl.SSLContext | None, *, seconds: float) -> socket.socket:
    """A connection, encrypted with ``context``; ``seconds`` are for each step of it. Raises OSError."""
    plain = socket.create_connection((host, port), timeout=seconds)
    # A peer whose machine is gone is noticed after a minute, though nothing is sent to it.
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        plain.setsockopt(socket.IPPROTO_TCP, option, value)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def get(peer: socket.socket, host: str, target: str, headers: Mapping[str, str]) -> Response:
    """Ask for ``target`` and read the head of the answer. Raises HttpError and OSError."""
    head = [f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: close"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    peer.sendall("\r\n".join([*head, "", ""]).encode("latin-1"))
    stream = peer.makefile("rb")
    match = _STATUS_LINE.fullmatch(stream.readline(_LONGEST_LINE))
    if match is None:
        raise HttpError("no HTTP/1 status line")
    found: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = stream.readline(_LONGEST_LINE)
        if line in (b"\r\n", b"\n"):
            return Response(int(match[1]), (match[2] or b"").decode("latin-1"), found, stream)
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not line.endswith(b"\n"):
            raise HttpError("a header that is none")
        found[name.strip().lower()] = value.strip()
    raise HttpError("too many headers")
