"""The server: listening sockets, one accept loop that never waits for a peer, and workers that serve connections."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange
from gpufleet.web.addresses import ListenAddress, listen, parse_listen_address, peer_name, peer_process
from gpufleet.web.connection import Service, Timeouts, serve
from gpufleet.web.registry import Link, Registry
from gpufleet.web.rejection import Rejections
from gpufleet.web.request_head import HeadLimits
from gpufleet.web.tally import Tally
from gpufleet.web.workers import Workers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from gpufleet.web.message import Application

_log = logging.getLogger(__name__)

# Accepted in one turn per listening socket, so that a flood on one cannot keep the loop from the others or from stop.
_ACCEPTS_A_TURN = 64
_PAUSE_SECONDS = 0.1
# What accept(2) says when this process or machine has no descriptor or memory left. The connection stays in the
# backlog, so an immediate retry would spin.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_STOP_MARGIN_SECONDS = 1.0
_SETTLED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what strangers can make us hold; max_connections counts idle ones too, which yield to newcomers."""

    max_connections: int = 256
    head: HeadLimits = field(default_factory=HeadLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    newcomers_wait: bool = False
    """When all connections are busy, leave newcomers in the kernel's backlog instead of telling them to come back: for
    many clients of one's own that come in bursts, behind a few threads.
    """


class Server:
    """Serves an application on several addresses. Threads are daemons: a forgotten stop does not keep the process up.

    tls returns the TLS context for connections of this moment, None for plain HTTP; it is asked for each connection and
    request. admits_peer looks at a TLS connection after its handshake and returns why it is refused, or None.
    """

    def __init__(
        self,
        app: Application,
        *,
        limits: ServerLimits | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        admits_peer: Callable[[ssl.SSLSocket], str | None] = lambda _: None,
    ) -> None:
        self._limits = limits or ServerLimits()
        self._tls = tls
        self._registry = Registry()
        self._workers = Workers("web")
        self._tally = Tally()
        self._flaws = OnChange(_log)
        self._service = Service(
            app=app,
            registry=self._registry,
            tls=tls,
            admits_peer=admits_peer,
            head_limits=self._limits.head,
            timeouts=self._limits.timeouts,
            tally=self._tally,
            flaws=self._flaws,
        )
        self._listeners: dict[int, socket.socket] = {}
        self._addresses: tuple[str, ...] = ()
        self._started_with_tls = False
        self._exhausted_at = 0.0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._accepting: threading.Thread | None = None
        self._stop_lock = threading.Lock()
        self._stopped: bool | None = None

    def start(self, addresses: Iterable[str]) -> None:
        """Listen on addresses (see addresses.parse_listen_address) and serve; all or none.

        Raises:
            ListenError: an address is no address or cannot be had; the message names it.
        """
        parsed = [parse_listen_address(text) for text in addresses]
        with contextlib.ExitStack() as undo:
            opened = [undo.enter_context(listen(address)) for address in parsed]
            undo.pop_all()
        self._listeners = {listener.fileno(): listener for listener in opened}
        self._addresses = tuple(map(_name, opened))
        self._started_with_tls = self._tls() is not None
        self._accepting = threading.Thread(target=self._accept_loop, name="web-accept", daemon=True)
        self._accepting.start()
        for address in self._addresses:
            _log.info("listening", extra={"address": address, "tls": self._started_with_tls})

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses listened on, with the ports that the kernel chose."""
        return self._addresses

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._registry)

    def counts(self) -> dict[str, int]:
        """Return what happened since start, by tally.Event."""
        return self._tally.counts()

    def stop(self, grace_seconds: float = 5.0) -> bool:
        """Close the listening sockets and idle connections, let running responses end, then cut off the rest.

        Return whether all ended by themselves within grace_seconds. Takes at most about a second more. Calling it again
        returns the same. Not to be called from a handler: it would wait for itself.
        """
        with self._stop_lock:
            if self._stopped is None:
                self._stopped = self._stop(grace_seconds)
            return self._stopped

    def _stop(self, grace_seconds: float) -> bool:
        # First, so that no response that ends while the listening sockets close promises to go on.
        self._registry.announce_stop()
        os.write(self._wake_write, b"x")
        if self._accepting is not None:
            self._accepting.join(_STOP_MARGIN_SECONDS)
        clean = self._registry.stop(grace_seconds)
        self._workers.stop()
        if not clean:
            _log.warning("responses were cut off", extra={"connections": self.connections})
            self._registry.wait_until(lambda number: number == 0, _STOP_MARGIN_SECONDS)
        os.close(self._wake_write)
        if self._accepting is None or not self._accepting.is_alive():
            os.close(self._wake_read)
        return clean

    def _accept_loop(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        for descriptor in self._listeners:
            poller.register(descriptor, select.POLLIN)
        rejections = Rejections(poller)
        try:
            while True:
                wait = rejections.expire()
                for descriptor, _ in poller.poll(None if wait is None else wait * 1000 + 1):
                    if descriptor == self._wake_read:
                        return
                    if descriptor in self._listeners:
                        if not self._accept(self._listeners[descriptor], rejections) and self._pause():
                            return
                    elif descriptor in rejections:
                        rejections.take(descriptor)
        finally:
            rejections.close()
            for listener in self._listeners.values():
                listener.close()

    def _pause(self) -> bool:
        """Wait a moment for descriptors to become free; return whether stop came meanwhile."""
        waiting = select.poll()
        waiting.register(self._wake_read, select.POLLIN)
        return bool(waiting.poll(_PAUSE_SECONDS * 1000))

    def _accept(self, listener: socket.socket, rejections: Rejections) -> bool:
        """Take in what waits on listener; False when there is no room for it now."""
        for _ in range(_ACCEPTS_A_TURN):
            if self._limits.newcomers_wait and not self._has_room():
                return False
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._flaws.failed("accept", "cannot accept connections", str(error), level=logging.ERROR)
                    self._exhausted_at = time.monotonic()
                    self._registry.evict_one()
                    return False
                continue  # the client gave up between its SYN and our accept
            # Not at once: near the limit that would be two lines for each connection.
            if time.monotonic() > self._exhausted_at + _SETTLED_SECONDS:
                self._flaws.over("accept", "accepting connections again")
            peer = peer_process(sock) if sock.family == socket.AF_UNIX else peer_name(address)
            self._take_in(sock, peer, rejections)
        return True

    def _has_room(self) -> bool:
        """Whether there is a place for one more connection, freed by an idle one if need be."""
        if len(self._registry) < self._limits.max_connections:
            return True
        if not self._registry.evict_one():
            return False
        self._tally.count("evicted")
        return True

    def _take_in(self, sock: socket.socket, peer: str, rejections: Rejections) -> None:
        if not self._has_room():
            self._turn_away(sock, rejections, "all connections are busy")
            return
        # Head and body leave in one call, but the last segment of a large body must not wait for an acknowledgement.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(sock, peer)
        if not self._registry.add(link):
            sock.close()
            return
        self._tally.count("accepted")
        if not self._workers.submit(lambda: serve(link, self._service)):
            self._registry.forget(link)
            self._turn_away(sock, rejections, "the system gives no further thread")
            return
        # Not at the first free place: at the bound that would be two lines for each connection.
        if len(self._registry) <= self._limits.max_connections // 2:
            self._flaws.over("overload", "connections are taken in again")

    def _turn_away(self, sock: socket.socket, rejections: Rejections, reason: str) -> None:
        self._tally.count("overloaded")
        self._flaws.failed("overload", "connections are turned away", reason)
        rejections.turn_away(sock, speaks_tls=self._started_with_tls)


def _name(listener: socket.socket) -> str:
    where = listener.getsockname()
    return str(ListenAddress("", 0, where) if listener.family == socket.AF_UNIX else ListenAddress(*where[:2]))
