"""An HTTP server that answers exactly what a test scripts, whatever it is asked; one connection at a time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What came in: header names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A response with these headers, underscores in their names being dashes."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *lines])
    return head.encode() + b"\r\n\r\n" + body


class ScriptedServer:
    """Gives ``reply`` to each request and hangs up; ``requests`` has what came. ``reply`` may be set anew."""

    def __init__(self, reply: bytes | Iterator[bytes] = OK, *, tls: ssl.SSLContext | None = None) -> None:
        self.reply = reply
        self.tls = tls
        self.requests: list[Request] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{'http' if self.tls is None else 'https'}://localhost:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Accept nobody any more."""
        with contextlib.suppress(OSError):  # wakes the thread, which closing alone would not
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            # A client that leaves in the middle is what some tests are about.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                if self.tls is None:
                    self._answer(connection)
                else:
                    with self.tls.wrap_socket(connection, server_side=True) as wrapped:
                        self._answer(wrapped)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as incoming:
            line = incoming.readline().decode().strip()
            headers = {}
            while header := incoming.readline().decode().strip():
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            body = incoming.read(int(headers.get("content-length", 0)))
        self.requests.append(Request(line, headers, body))
        pieces = iter([self.reply]) if isinstance(self.reply, bytes) else self.reply
        for piece in pieces:
            connection.sendall(piece)
