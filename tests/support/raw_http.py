"""A client that sends exactly the bytes it is told to, and reads one response at a time."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: headers by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Closed(Exception):
    """The server ended the connection; ``rest`` is what came before."""

    def __init__(self, rest: bytes) -> None:
        super().__init__(rest)
        self.rest = rest


class RawClient:
    """One connection to ``address`` ("host:port")."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None, receive_buffer: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT_SECONDS)
        if receive_buffer is not None:  # before connect: the window is settled with the handshake
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.sock.connect((host.strip("[]"), int(port)))
            if tls is not None:
                self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        except BaseException:
            self.sock.close()
            raise
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send data as it is."""
        self.sock.sendall(data)

    def get(self, path: str, *lines: str, method: str = "GET") -> Answer:
        """Send a request with these header lines, and read its response."""
        self.send("\r\n".join([f"{method} {path} HTTP/1.1", "Host: here", *lines, "", ""]).encode())
        return self.read(bodiless=method == "HEAD")

    def read(self, *, bodiless: bool = False) -> Answer:
        """Read one response.

        Raises:
            Closed: the stream ended before it was whole.
        """
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head = self._taken(self._buffer.index(b"\r\n\r\n") + 4)[:-4]
        status_line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            self._more()
        return Answer(int(status_line.split()[1]), headers, self._taken(length))

    def is_closed(self) -> bool:
        """Wait for the end of the stream and tell whether it came without another byte."""
        with contextlib.suppress(ConnectionError):
            return not self._buffer and self.sock.recv(1) == b""
        return True

    def _taken(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _more(self) -> None:
        try:
            chunk = self.sock.recv(65_536)
        except ConnectionError as error:
            raise Closed(bytes(self._buffer)) from error
        if not chunk:
            raise Closed(bytes(self._buffer))
        self._buffer += chunk
