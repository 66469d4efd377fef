"""Turning connections away without a thread, from the accept loop, which must never wait for a peer."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from gpufleet.web.message import http_date, plain_response, response_head

# Clients that were told and have not read it yet. More than these are closed at once: they may see a reset.
_MOST_LINGERING = 64
_LINGER_SECONDS = 1.0
_CHUNK = 65_536


class Rejections:
    """Connections that got a 503 and whose last bytes are awaited, so that the kernel's reset does not overtake it."""

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._lingering: dict[int, tuple[socket.socket, float]] = {}

    def turn_away(self, sock: socket.socket, *, speaks_tls: bool) -> None:
        """Refuse a connection just accepted; on a TLS port nothing can be said before a handshake, so it just ends."""
        with contextlib.suppress(OSError):
            sock.settimeout(0)
            if not speaks_tls:
                response = plain_response(503, "too many connections", ("Retry-After", "1"))
                # A new socket's send buffer has room for these few hundred bytes.
                sock.send(response_head(response, date=http_date(time.time()), close=True) + response.body)
            sock.shutdown(socket.SHUT_WR)
            if not speaks_tls and len(self._lingering) < _MOST_LINGERING:
                self._poller.register(sock, select.POLLIN)
                self._lingering[sock.fileno()] = (sock, time.monotonic() + _LINGER_SECONDS)
                return
        sock.close()

    def take(self, descriptor: int) -> None:
        """Read what came on a lingering connection; close it when its client has closed."""
        sock, _ = self._lingering[descriptor]
        with contextlib.suppress(OSError):
            if sock.recv(_CHUNK):
                return
        self._close(descriptor)

    def expire(self) -> float | None:
        """Close those whose time is up; return the seconds until the next one's is, None where there are none."""
        now = time.monotonic()
        for descriptor in [key for key, (_, until) in self._lingering.items() if until <= now]:
            self._close(descriptor)
        return min(until for _, until in self._lingering.values()) - now if self._lingering else None

    def close(self) -> None:
        """Close all."""
        for descriptor in list(self._lingering):
            self._close(descriptor)

    def __contains__(self, descriptor: int) -> bool:
        """Tell whether descriptor is a lingering connection's."""
        return descriptor in self._lingering

    def _close(self, descriptor: int) -> None:
        sock, _ = self._lingering.pop(descriptor)
        self._poller.unregister(descriptor)
        sock.close()
