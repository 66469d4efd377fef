"""One connection from handshake to close, in a worker thread. Every wait for the peer has a deadline."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange
from gpufleet.web.message import Request, Response, has_body, http_date, plain_response, response_head
from gpufleet.web.registry import Phase
from gpufleet.web.request_head import HeadLimits, Refusal, RequestHead, parse_head
from gpufleet.web.tally import Tally

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from gpufleet.web.message import Application
    from gpufleet.web.registry import Link, Registry

_log = logging.getLogger(__name__)

_HEAD_CHUNK = 8192
_BODY_CHUNK = 65_536
# A TLS write gets its deadline anew, so a reader that drips must meet many small writes rather than one big one.
_TLS_CHUNK = 65_536
_TLS_RECORD = 16_384
_TLS_HANDSHAKE = b"\x16"
# What a client may still send after it was refused and before it reads why.
_LINGER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Most seconds for each wait. idle outlasts the longest usual scrape interval, so that its connection is kept."""

    handshake: float = 5.0
    head: float = 10.0
    body: float = 30.0
    idle: float = 180.0
    write: float = 15.0
    linger: float = 1.0


@dataclass(frozen=True, slots=True)
class Service:
    """What every connection of a server shares. tls returns the TLS context of this moment, None for plain HTTP."""

    app: Application
    registry: Registry
    tls: Callable[[], ssl.SSLContext | None]
    admits_peer: Callable[[ssl.SSLSocket], str | None]
    head_limits: HeadLimits = field(default_factory=HeadLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    tally: Tally = field(default_factory=Tally)
    flaws: OnChange = field(default_factory=lambda: OnChange(_log))


def serve(link: Link, service: Service) -> None:
    """Serve link until it ends, and close it."""
    connection = _Connection(link, service)
    try:
        connection.run()
    except TimeoutError:
        service.tally.count("timeouts")
    except (OSError, ValueError) as error:
        # The peer went away, or an eviction or a stop hung up. SSLSocket raises ValueError in the latter case.
        _log.debug("connection lost", extra={"peer": link.peer, "err": str(error)})
    finally:
        connection.say_goodbye()
        service.registry.remove(link)


class _Connection:
    def __init__(self, link: Link, service: Service) -> None:
        self._link = link
        self._service = service
        self._context = service.tls()
        self._tls: ssl.SSLSocket | None = None  # set once the handshake is complete
        self._buffer = bytearray()

    def run(self) -> None:
        if self._context is not None and not self._handshake(self._context):
            return
        served = 0
        while True:
            head = self._read_head(first=served == 0)
            if head is None:
                return
            # The certificates or the client CA changed: an old session must not outlive them. A client sends a request
            # again whose kept-alive connection closes without an answer; one on a new connection it would not.
            if served and self._service.tls() is not self._context:
                return
            if not self._service.registry.enter(self._link, Phase.BUSY):
                return
            self._service.tally.count("requests")
            if isinstance(head, Refusal):
                self._service.tally.count("refused")
                self._refuse(plain_response(head.status, head.text))
                return
            if not self._answer(head):
                return
            served += 1
            if not self._service.registry.enter(self._link, Phase.IDLE):
                return

    def _handshake(self, context: ssl.SSLContext) -> bool:
        """Return whether TLS stands; a client that speaks plain HTTP is told so in plain HTTP."""
        deadline = time.monotonic() + self._service.timeouts.handshake
        raw = self._link.sock
        _set_deadline(raw, deadline)
        first = raw.recv(1, socket.MSG_PEEK)
        if not first:
            return False
        if first != _TLS_HANDSHAKE:
            self._service.tally.count("handshake_failures")
            self._refuse(plain_response(400, "this server speaks HTTPS here: use https://"))
            return False
        wrapped = self._service.registry.wrap(self._link, context)
        _set_deadline(wrapped, deadline)
        try:
            wrapped.do_handshake()
            problem = self._service.admits_peer(wrapped)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem is None:
            self._tls = wrapped
            return True
        self._service.tally.count("handshake_failures")
        # Debug, since any stranger can cause it as often as they like; the count is a metric's business.
        _log.debug("TLS handshake failed", extra={"peer": self._link.peer, "err": problem})
        return False

    def _read_head(self, *, first: bool) -> RequestHead | Refusal | None:
        """Return the next request's head, or None when the peer closed between two requests."""
        timeouts = self._service.timeouts
        if not self._buffer and not first and not self._receive(_HEAD_CHUNK, time.monotonic() + timeouts.idle):
            return None
        if not first and not self._service.registry.enter(self._link, Phase.WAITING):
            return None
        deadline = time.monotonic() + timeouts.head
        while True:
            head = parse_head(self._buffer, self._service.head_limits)
            if head is not None:
                if isinstance(head, RequestHead):
                    del self._buffer[: head.size]
                return head
            try:
                if not self._receive(_HEAD_CHUNK, deadline):
                    return None
            except TimeoutError:
                self._service.tally.count("timeouts")
                return Refusal(408, "the request's head did not come in time") if self._buffer else None

    def _answer(self, head: RequestHead) -> bool:
        """Answer one request; return whether the connection can take another."""
        app = self._service.app
        request = Request(head.method, head.path, head.query, head.headers, b"", self._link.peer)
        refusal = self._guarded(app.admit, request)
        if refusal is None and head.content_length > app.body_limit:
            refusal = plain_response(413, f"the body may have {app.body_limit} bytes")
        if refusal is not None:
            if head.content_length:
                self._refuse(refusal, head)
                return False
            return self._send(refusal, head)
        if head.content_length:
            body = self._read_body(head)
            if body is None:
                return False
            request = Request(head.method, head.path, head.query, head.headers, body, self._link.peer)
        response = self._guarded(app.respond, request)
        return self._send(response or plain_response(500, "internal error"), head)

    def _guarded(self, call: Callable[[Request], Response | None], request: Request) -> Response | None:
        try:
            return call(request)
        except Exception as error:  # noqa: BLE001 - whatever the application raises costs one answer only
            self._service.flaws.failed(
                call.__name__, "the application raised", repr(error), level=logging.ERROR, exc_info=error
            )
            return plain_response(500, "internal error")

    def _read_body(self, head: RequestHead) -> bytes | None:
        """Return the body, or None when the connection ended before it did."""
        deadline = time.monotonic() + self._service.timeouts.body
        if head.expects_continue and len(self._buffer) < head.content_length:
            self._send_all([b"HTTP/1.1 100 Continue\r\n\r\n"])
        registry = self._service.registry
        if not registry.enter(self._link, Phase.WAITING):
            return None
        while len(self._buffer) < head.content_length:
            try:
                if not self._receive(_BODY_CHUNK, deadline):
                    return None
            except TimeoutError:
                self._service.tally.count("timeouts")
                self._refuse(plain_response(408, "the request's body did not come in time"), head)
                return None
        body = bytes(memoryview(self._buffer)[: head.content_length])
        del self._buffer[: head.content_length]
        return body if registry.enter(self._link, Phase.BUSY) else None

    def _receive(self, size: int, deadline: float) -> bool:
        """Add what the peer sends to the buffer; False at the end of the stream."""
        _set_deadline(self._link.sock, deadline)
        chunk = self._link.sock.recv(size)
        self._buffer += chunk
        return bool(chunk)

    def _send(self, response: Response, head: RequestHead) -> bool:
        """Send response to a request; return whether the connection stays open."""
        keep = head.keep_alive and not self._service.registry.stopping
        self._write(response, method=head.method, close=not keep, announce=head.is_http_1_0)
        return keep

    def _refuse(self, response: Response, head: RequestHead | None = None) -> None:
        """Send response as the last on this connection, though the client may still be sending."""
        self._write(response, method=head.method if head else "", close=True)
        self._linger()

    def _write(self, response: Response, *, method: str, close: bool, announce: bool = False) -> None:
        date = http_date(time.time())
        try:
            head = response_head(response, date=date, close=close, announce_keep_alive=announce)
        except ValueError as error:
            self._service.flaws.failed("response", "a response cannot be sent", str(error), level=logging.ERROR)
            response = plain_response(500, "internal error")
            head = response_head(response, date=date, close=close, announce_keep_alive=announce)
        self._send_all([head, response.body] if has_body(method, response.status) and response.body else [head])

    def _send_all(self, parts: list[bytes]) -> None:
        deadline = time.monotonic() + self._service.timeouts.write
        if self._tls is not None:
            # Head and body's beginning in one record: a small answer is one packet, a large body is not copied.
            head, *rest = parts
            body = memoryview(rest[0]) if rest else memoryview(b"")
            room = max(0, _TLS_RECORD - len(head))
            for data in (memoryview(head + body[:room]), body[room:]):
                left = data
                while left:
                    _set_deadline(self._tls, deadline)
                    left = left[self._tls.send(left[:_TLS_CHUNK]) :]
            return
        sock = self._link.sock
        views = [memoryview(part) for part in parts]
        while views:
            _set_deadline(sock, deadline)
            sent = sock.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def say_goodbye(self) -> None:
        """End TLS properly where the peer's window has room for it; else some clients report a truncation attack."""
        if self._tls is not None:
            with contextlib.suppress(OSError, ValueError):
                # Without waiting: the peer's own farewell, which unwrap() asks for, may never come.
                self._tls.settimeout(0)
                self._tls.unwrap()
            self._tls = None

    def _linger(self) -> None:
        """Take what the client still sends, for a moment.

        A close with unread bytes makes the kernel send a reset, and a reset makes the client's kernel throw away the
        answer that it has not read yet.
        """
        sock = self._link.sock
        if not self._service.registry.enter(self._link, Phase.WAITING):
            return
        self.say_goodbye()
        with contextlib.suppress(OSError):
            # The base class's methods: below TLS, which has been ended.
            socket.socket.shutdown(sock, socket.SHUT_WR)
            deadline = time.monotonic() + self._service.timeouts.linger
            left = _LINGER_BYTES
            while left > 0:
                _set_deadline(sock, deadline)
                chunk = socket.socket.recv(sock, _BODY_CHUNK)
                if not chunk:
                    return
                left -= len(chunk)


def _set_deadline(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
