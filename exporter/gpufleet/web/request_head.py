"""Bytes to a request's head: a pure, strict HTTP/1.1 parser.

Strict because leniency is what request smuggling lives on: each line ends in CRLF, a field's name touches its colon, no
line is folded, one Content-Length, no Transfer-Encoding, one Host (RFC 9112 sections 2.2, 3, 5 and 6).

The verdict depends on the bytes alone, not on how the network cut them: what is decided about a prefix is decided about
every longer text. So each check names the first byte at which it is certain, and the earliest one wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Most bytes of the request line and of the whole head, line ends included, and most header lines."""

    line_bytes: int = 8192
    head_bytes: int = 32_768
    fields: int = 64


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A complete head. size is how many bytes it took; content_length is 0 where the request has no body."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    content_length: int
    keep_alive: bool
    expects_continue: bool
    is_http_1_0: bool
    size: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why these bytes are no request that we serve; the connection cannot be used any further."""

    status: int
    text: str


_CRLF = b"\r\n"
_TLS_HANDSHAKE = 0x16
_TOKEN_BYTES = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t\x20-\x7e\x80-\xff]*)")
_ABSOLUTE_TARGET = re.compile(r"https?://[^/?#]*(.*)", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]\-]*")
# Longer numbers are no length that anything has, and int() of a long digit string is quadratic.
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
# A field that may come once only: two values joined by a comma would be a third that nobody sent.
_SINGULAR = frozenset({"authorization", "content-length", "content-type", "host"})


def parse_head(data: bytes | bytearray, limits: HeadLimits) -> RequestHead | Refusal | None:
    """Parse the head that data begins with; None means that more bytes are needed.

    Never raises. Bytes after the head are ignored: they are the body, or the next request.
    """
    # RFC 9112 section 2.2: one empty line before a request is tolerated; some clients end a POST with one too many.
    start = 2 if data[:2] == _CRLF else 0
    if data[:1] == b"\r" and not start:
        return Refusal(400, "a request must not begin with a carriage return") if len(data) > 1 else None
    if len(data) <= start:
        return None
    if data[start] not in _TOKEN_BYTES:
        if data[start] == _TLS_HANDSHAKE:
            return Refusal(400, "this is a TLS handshake, but the server speaks plain HTTP here: use http://")
        return Refusal(400, "this is not an HTTP request")
    line_limit = start + limits.line_bytes
    head_limit = start + limits.head_bytes
    lone = _LONE_LINE_FEED.search(data, 0, head_limit)
    lone_at = lone.start() if lone else head_limit
    line_end = data.find(_CRLF, start, line_limit)
    if line_end < 0 and lone_at >= line_limit:
        if len(data) < line_limit:
            return None
        return Refusal(414, f"the request line is longer than {limits.line_bytes} bytes")
    head_end = data.find(b"\r\n\r\n", start, head_limit)
    if lone and (head_end < 0 or lone_at < head_end):
        return Refusal(400, "a line must end in carriage return and line feed")
    if head_end < 0:
        if len(data) < head_limit:
            return None
        return Refusal(431, f"the head is longer than {limits.head_bytes} bytes")
    return _complete(bytes(data[start:head_end]).split(_CRLF), head_end + 4, limits)


def _complete(lines: list[bytes], size: int, limits: HeadLimits) -> RequestHead | Refusal:
    request_line = _REQUEST_LINE.fullmatch(lines[0])
    if request_line is None:
        return Refusal(400, "the request line must be a method, a target and an HTTP version, one space between them")
    method = request_line[1].decode("ascii")
    target = request_line[2].decode("ascii")
    if request_line[3] != b"1":
        return Refusal(505, "this server speaks HTTP/1.1 and HTTP/1.0")
    is_http_1_0 = request_line[4] == b"0"
    if len(lines) - 1 > limits.fields:
        return Refusal(431, f"more than {limits.fields} header lines")
    headers = _fields(lines[1:])
    if isinstance(headers, Refusal):
        return headers
    length = _content_length(headers)
    if isinstance(length, Refusal):
        return length
    host = headers.get("host")
    if (host is None and not is_http_1_0) or (host is not None and not _HOST.fullmatch(host)):
        return Refusal(400, "the request must name one host")
    path_and_query = _origin_form(method, target)
    if path_and_query is None:
        return Refusal(400, "the target must be a path that begins with a slash")
    path, _, query = path_and_query.partition("?")
    expectation = headers.get("expect", "").lower()
    if expectation not in {"", "100-continue"}:
        return Refusal(417, "the only expectation that this server meets is 100-continue")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return RequestHead(
        method=method,
        path=path,
        query=query,
        headers=MappingProxyType(headers),
        content_length=length,
        keep_alive="close" not in options and (not is_http_1_0 or "keep-alive" in options),
        # RFC 9110 section 10.1.1: an HTTP/1.0 client would take the interim answer for the final one.
        expects_continue=bool(expectation) and not is_http_1_0,
        is_http_1_0=is_http_1_0,
        size=size,
    )


def _fields(lines: list[bytes]) -> dict[str, str] | Refusal:
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD_LINE.fullmatch(line)
        if field is None:
            return Refusal(400, "a header line must be a name, a colon and a value on one line")
        name = field[1].decode("ascii").lower()
        value = field[2].strip(b" \t").decode("latin-1")
        if name in headers:
            if name in _SINGULAR:
                return Refusal(400, f"the header {name} must not be repeated")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _content_length(headers: dict[str, str]) -> int | Refusal:
    encoding = headers.get("transfer-encoding")
    text = headers.get("content-length")
    if encoding is not None:
        if text is not None:
            return Refusal(400, "Content-Length and Transfer-Encoding exclude each other")
        if encoding.lower() == "chunked":
            return Refusal(411, "send the body with a Content-Length; chunked bodies are not read")
        return Refusal(501, "this server knows no transfer encoding for requests")
    if text is None:
        return 0
    if not _CONTENT_LENGTH.fullmatch(text):
        return Refusal(400, "Content-Length must be one number of bytes")
    return int(text)


def _origin_form(method: str, target: str) -> str | None:
    """Return path and query of target, or None where it is no target for us (RFC 9112 section 3.2)."""
    if target == "*" and method == "OPTIONS":
        return target
    absolute = _ABSOLUTE_TARGET.fullmatch(target)
    if absolute is not None:
        target = absolute[1] if absolute[1].startswith("/") else f"/{absolute[1]}"
    return target if target.startswith("/") and "#" not in target else None
