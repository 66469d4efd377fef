"""What a handler is given and what it returns, and the head of a response as bytes. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

REASONS = {
    100: "Continue",
    200: "OK",
    202: "Accepted",
    204: "No Content",
    301: "Moved Permanently",
    302: "Found",
    303: "See Other",
    304: "Not Modified",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
PLAIN_TEXT = "text/plain; charset=utf-8"

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
# A CR, LF or NUL here would let whoever chose the value write headers, or a second response, of their own.
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*\Z")
# Set by the server from what it knows; a handler that sets them too would contradict the framing.
_SERVER_FIELDS = frozenset({"connection", "content-length", "content-type", "date", "keep-alive", "transfer-encoding"})
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BODILESS = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    path is the target's path as the client sent it, percent-escapes included; query is what follows the first "?", raw;
    headers have lower-case names, a repeated one joined by ", "; peer is the client's address without its
    port, or ``pid:N`` of its process on a unix socket.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


@dataclass(frozen=True, slots=True)
class Response:
    """One response; body is what GET shows, also in the answer to HEAD, which sends its length only."""

    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Response]


class Application(Protocol):
    """What the server serves."""

    @property
    def body_limit(self) -> int:
        """Bytes that a request's body may have; 0 refuses every body."""

    def admit(self, request: Request) -> Response | None:
        """Refuse a request by its head alone, before its body is read: a stranger cannot make us hold megabytes.

        The request's body is empty here. None means that ``respond`` shall be called with the whole request.
        """

    def respond(self, request: Request) -> Response:
        """Answer a request. Must not raise; a raise costs the client its connection, never the server."""


def plain_response(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """Return a response for a person: text and a line feed."""
    return Response(status, f"{text}\n".encode(), PLAIN_TEXT, headers)


def http_date(seconds: float) -> str:
    """Return seconds since the epoch as HTTP writes dates, in English whatever the process's locale."""
    t = time.gmtime(seconds)
    return (
        f"{_DAYS[t.tm_wday]}, {t.tm_mday:02d} {_MONTHS[t.tm_mon - 1]} {t.tm_year} "
        f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} GMT"
    )


def has_body(method: str, status: int) -> bool:
    """Tell whether bytes follow the head of the response to method."""
    return method != "HEAD" and status not in _BODILESS


def response_head(response: Response, *, date: str, close: bool, announce_keep_alive: bool = False) -> bytes:
    """Return status line and header section, the empty line included.

    Raises:
        ValueError: a status, header name or value that HTTP cannot carry, or a header that is the server's to set.
    """
    reason = REASONS.get(response.status)
    if reason is None:
        raise ValueError(f"status {response.status} is not one that this server sends")
    lines = [f"HTTP/1.1 {response.status} {reason}", f"Date: {date}"]
    if response.status not in _BODILESS:
        if not _FIELD_VALUE.match(response.content_type):
            raise ValueError(f"content type {response.content_type!r} cannot be sent")
        lines += [f"Content-Type: {response.content_type}", f"Content-Length: {len(response.body)}"]
    for name, value in response.headers:
        if not _TOKEN.match(name) or not _FIELD_VALUE.match(value):
            raise ValueError(f"header {name!r} with the value {value!r} cannot be sent")
        if name.lower() in _SERVER_FIELDS:
            raise ValueError(f"header {name!r} is set by the server")
        lines.append(f"{name}: {value}")
    if close:
        lines.append("Connection: close")
    elif announce_keep_alive:  # HTTP/1.0 closes unless both sides say otherwise
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
