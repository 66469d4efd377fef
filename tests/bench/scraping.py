"""A client that scrapes as Prometheus does: one connection that is kept, both formats accepted, compression wanted."""

from __future__ import annotations

import contextlib
import gzip
import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: bench\r\nUser-Agent: Prometheus/bench\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
    b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n"
)
_LIMIT_SECONDS = 10.0
"""Prometheus' own scrape timeout."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer, uncompressed; ``seconds`` from before the request to the last byte."""

    status: int
    seconds: float
    text: str

    @property
    def samples(self) -> int:
        """Lines that are samples."""
        return sum(bool(line) and not line.startswith("#") for line in self.text.splitlines())

    def value(self, name: str) -> float:
        """The value of the only series of that name; NaN where it is not there."""
        for line in self.text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rpartition(" ")[2])
        return math.nan


class Scraper:
    """Scrapes one port. A server that closes the connection after its answer costs a new connection each time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None
        self.connections = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def connect(self) -> socket.socket:
        """The connection, made unless it is there."""
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port), timeout=_LIMIT_SECONDS)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
        return self._sock

    def raw(self) -> tuple[float, bytes, bytes]:
        """Seconds, head and body as it came: what is timed does not include reading the text."""
        begin = time.perf_counter()
        sock = self.connect()
        sock.sendall(_REQUEST)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._more(sock)
        head = bytes(received[:end]).lower()
        body = received[end + 4 :]
        length = _header(head, b"content-length")
        with contextlib.suppress(EOFError):  # without a length the answer ends where the connection does
            while length is None or len(body) < int(length):
                body += self._more(sock)
        seconds = time.perf_counter() - begin
        if length is None or head.startswith(b"http/1.0") or _header(head, b"connection") == b"close":
            self.close()
        return seconds, head, bytes(body)

    def scrape(self) -> Scrape:
        """One scrape."""
        seconds, head, body = self.raw()
        status = int(head.split(b" ", 2)[1])
        if _header(head, b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
        return Scrape(status, seconds, body.decode())

    def _more(self, sock: socket.socket) -> bytes:
        chunk = sock.recv(262_144)
        if not chunk:
            raise EOFError("the server closed the connection")
        return chunk


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return None


def each(port: int, period: float, seconds: float) -> list[Scrape]:
    """Scrape every ``period`` for ``seconds`` on one connection."""
    found = []
    with Scraper(port) as scraper:
        begin = time.perf_counter()
        for turn in range(max(1, round(seconds / period))):
            time.sleep(max(0.0, begin + turn * period - time.perf_counter()))
            found.append(scraper.scrape())
    return found


def at_once(port: int, count: int) -> tuple[float, list[int]]:
    """Seconds until the last of ``count`` simultaneous scrapes is answered, and their statuses; 0 for none."""
    statuses = [0] * count
    gate = threading.Barrier(count + 1)

    def one(place: int) -> None:
        gate.wait()
        with contextlib.suppress(OSError, EOFError), Scraper(port) as scraper:
            statuses[place] = int(scraper.raw()[1].split(b" ", 2)[1])

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(count)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join(_LIMIT_SECONDS + 5)
    return time.perf_counter() - begin, statuses


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
