"""Whatever may listen at the kubelet's socket: sends exactly the bytes it is told to, frames of HTTP/2 or not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from hpack.hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STREAM = 1
"""Of the only request there is on a connection."""
HEAD = ((":status", "200"), ("content-type", "application/grpc"))
WELL = (("grpc-status", "0"),)
FRAME_BYTES = 16_384
LIMIT_SECONDS = 30.0

Play = Callable[[socket.socket], None]


def message(body: bytes, *, compressed: int = 0) -> bytes:
    """A message as gRPC frames it."""
    return bytes([compressed]) + len(body).to_bytes(4, "big") + body


def headers(fields: Iterable[tuple[str, str]], *, end: bool = False) -> bytes:
    """A HEADERS frame; without Huffman's code or a table that later ones would refer to."""
    frame = HeadersFrame(STREAM, data=Encoder().encode(list(fields), huffman=False))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def data(body: bytes, *, size: int = FRAME_BYTES) -> bytes:
    """DATA frames of ``size`` bytes."""
    return b"".join(DataFrame(STREAM, data=body[at : at + size]).serialize() for at in range(0, len(body), size))


def hello(*frames: Frame) -> bytes:
    """A server's first frame, and any others."""
    return b"".join(frame.serialize() for frame in (SettingsFrame(0), *frames))


def whole_reply(body: bytes, *, size: int = FRAME_BYTES) -> bytes:
    """All that a server says in a call that ends well."""
    return hello() + headers(HEAD) + data(message(body), size=size) + headers(WELL, end=True)


def says(what: bytes) -> Play:
    """Send this, and end the connection."""

    def play(peer: socket.socket) -> None:
        peer.sendall(what)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(FRAME_BYTES):  # else the kernel would tell the other side of a reset instead of an end
            pass

    return play


def says_and_waits(what: bytes) -> Play:
    """Send this, and then nothing, for as long as the other side stays."""

    def play(peer: socket.socket) -> None:
        peer.sendall(what)
        while peer.recv(FRAME_BYTES):
            pass

    return play


def floods(begin: bytes, again: bytes) -> Play:
    """Send ``begin``, then ``again`` for as long as the other side stays, and read nothing."""
    many = again * max(1, FRAME_BYTES // len(again))

    def play(peer: socket.socket) -> None:
        peer.sendall(begin)
        while True:
            peer.sendall(many)

    return play


class Peer:
    """Plays ``play`` to each that connects to ``path``, one after another."""

    def __init__(self, path: Path, play: Play) -> None:
        self._play = play
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed
                return
            with peer, contextlib.suppress(OSError):  # whoever asks may leave at any point
                peer.settimeout(LIMIT_SECONDS)
                peer.recv(FRAME_BYTES)
                self._play(peer)
