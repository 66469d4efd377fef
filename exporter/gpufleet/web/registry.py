"""The open connections: how many there are, which of them may be given up for a newcomer, and who is still answering.

A connection is *busy* from the end of a request's head to the end of its response, except while its body trickles in;
else it is *waiting*: idle between requests, or with a handshake, head or body outstanding. Only those are evicted.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

# A newcomer's handshake and head arrive within a few round trips; one that took longer is slow or hostile.
_PATIENCE_SECONDS = 1.0


class Phase(enum.Enum):
    """What a connection is doing."""

    IDLE = enum.auto()  # answered at least once, nothing outstanding
    WAITING = enum.auto()  # owes us bytes: handshake, head or body
    BUSY = enum.auto()


class Link:
    """One connection as the registry knows it; sock becomes the TLS socket after the handshake began."""

    __slots__ = ("evicted", "peer", "phase", "since", "sock")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.phase = Phase.WAITING
        self.since = time.monotonic()
        self.evicted = False


class Registry:
    """All open connections. Every method is safe to call from any thread and none waits for a peer."""

    def __init__(self) -> None:
        self._links: set[Link] = set()
        self._evicted = 0  # of those in _links, how many are on their way out
        self._stopping = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of connections, without those that are being evicted."""
        return len(self._links) - self._evicted

    @property
    def stopping(self) -> bool:
        """Whether every connection shall end after its present response."""
        return self._stopping

    def add(self, link: Link) -> bool:
        """Take in a connection; False when it came too late, after stop."""
        with self._changed:
            if self._stopping:
                return False
            self._links.add(link)
            return True

    def remove(self, link: Link) -> None:
        """Forget a connection and close its socket.

        Both under the lock: once closed, the descriptor's number may be another connection's, and an eviction or a stop
        that still held it would cut off a stranger.
        """
        with self._changed:
            if link in self._links:
                self._links.discard(link)
                self._evicted -= link.evicted
            with contextlib.suppress(OSError):
                link.sock.close()
            self._changed.notify_all()

    def forget(self, link: Link) -> None:
        """Leave a connection, still open, to whoever took it in."""
        with self._changed:
            self._links.discard(link)
            self._evicted -= link.evicted
            self._changed.notify_all()

    def enter(self, link: Link, phase: Phase) -> bool:
        """Note a connection's new phase; False means that it was evicted or the server stops: it must be closed."""
        with self._changed:
            if link.evicted or self._stopping:
                return False
            link.phase = phase
            link.since = time.monotonic()
            return True

    def wrap(self, link: Link, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Put TLS on a connection, without its handshake yet."""
        with self._changed:  # wrapping moves the descriptor from one socket object to another
            wrapped = context.wrap_socket(
                link.sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
            link.sock = wrapped
            return wrapped

    def evict_one(self) -> bool:
        """Give up the connection that is idle the longest, else the one that owes us bytes the longest.

        Return False where there is none of either, newcomers of the last second not counted.
        """
        overdue = time.monotonic() - _PATIENCE_SECONDS
        with self._changed:
            waiting = [link for link in self._links if link.phase is not Phase.BUSY and not link.evicted]
            idle = [link for link in waiting if link.phase is Phase.IDLE]
            candidates = idle or [link for link in waiting if link.since < overdue]
            if not candidates:
                return False
            link = min(candidates, key=lambda link: link.since)
            link.evicted = True
            self._evicted += 1
            _hang_up([link])
            return True

    def announce_stop(self) -> None:
        """Take in no further connection, and make each present response the last on its own."""
        with self._changed:
            self._stopping = True

    def stop(self, grace_seconds: float) -> bool:
        """Hang up on waiting connections, wait for the busy ones, then hang up on these too.

        Return whether every response ended by itself within grace_seconds.
        """
        self.announce_stop()
        with self._changed:
            _hang_up(link for link in self._links if link.phase is not Phase.BUSY)
            clean = self._changed.wait_for(lambda: not self._links, grace_seconds)
            if not clean:
                _hang_up(self._links)
            return clean

    def wait_until(self, holds: Callable[[int], bool], seconds: float) -> bool:
        """Wait until holds(number of connections), or for seconds; return whether it holds."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(len(self)), seconds)


def _hang_up(links: Iterable[Link]) -> None:
    for link in links:
        # The worker that reads or writes wakes with an error or the end of the stream. The base class's method: that of
        # an SSLSocket would also take the TLS state away under the worker's hands.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(link.sock, socket.SHUT_RDWR)
