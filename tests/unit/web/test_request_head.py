"""The request parser: what it takes, what it refuses, and when."""

from __future__ import annotations

import pytest

from gpufleet.web.request_head import HeadLimits, Refusal, RequestHead, parse_head

LIMITS = HeadLimits()
SMALL = HeadLimits(line_bytes=40, head_bytes=120, fields=3)


def head(*lines: str, limits: HeadLimits = LIMITS) -> RequestHead | Refusal | None:
    """Parse these lines as a complete head."""
    return parse_head("\r\n".join([*lines, "", ""]).encode("latin-1"), limits)


def accepted(*lines: str) -> RequestHead:
    """Parse these lines, which must be a request."""
    found = head(*lines)
    assert isinstance(found, RequestHead), found
    return found


def refused(*lines: str, limits: HeadLimits = LIMITS) -> int:
    """Parse these lines, which must be refused, and return the status."""
    found = head(*lines, limits=limits)
    assert isinstance(found, Refusal), found
    assert found.text
    return found.status


def test_a_scrape_is_read() -> None:
    """Method, path, query, headers in lower case with their values stripped, and the bytes that it took."""
    data = b"GET /metrics?a=1&b=%20 HTTP/1.1\r\nHost: node1:9837\r\nACCEPT: \t text/plain, */* \t\r\nX:\r\n\r\nrest"
    found = parse_head(data, LIMITS)

    assert isinstance(found, RequestHead)
    assert (found.method, found.path, found.query) == ("GET", "/metrics", "a=1&b=%20")
    assert dict(found.headers) == {"host": "node1:9837", "accept": "text/plain, */*", "x": ""}
    assert (found.content_length, found.keep_alive, found.expects_continue) == (0, True, False)
    assert data[found.size :] == b"rest"


def test_headers_cannot_be_changed() -> None:
    """A request is shared by guards and handlers: none may rewrite it for the next."""
    with pytest.raises(TypeError):
        accepted("GET / HTTP/1.1", "Host: a").headers["host"] = "b"  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/a?", "/a", ""),
        ("/a?b?c", "/a", "b?c"),
        ("/%6Detrics", "/%6Detrics", ""),
        ("http://node1:9837/metrics?x", "/metrics", "x"),
        ("HTTP://node1", "/", ""),
        ("https://node1?x", "/", "x"),
        ("//double", "//double", ""),
    ],
)
def test_targets_are_split_into_path_and_query(target: str, path: str, query: str) -> None:
    """Nothing is decoded, and a proxy's absolute form is its path (RFC 9112 section 3.2.2)."""
    found = accepted(f"GET {target} HTTP/1.1", "Host: a")

    assert (found.path, found.query) == (path, query)


def test_options_may_ask_about_the_whole_server() -> None:
    """The asterisk is a target for OPTIONS alone."""
    assert accepted("OPTIONS * HTTP/1.1", "Host: a").path == "*"
    assert refused("GET * HTTP/1.1", "Host: a") == 400


@pytest.mark.parametrize("target", ["metrics", "host:9837", "/a#b", "ftp://x/", "http:/x", "?x"])
def test_other_targets_are_refused(target: str) -> None:
    """A tunnel, a fragment or a relative path has no meaning here."""
    assert refused(f"GET {target} HTTP/1.1", "Host: a") == 400


@pytest.mark.parametrize(
    "line",
    [
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/1.10",
        "GET / http/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\xe9 HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GET / HTTP/1.1\rX: y",
        "G(T / HTTP/1.1",
    ],
)
def test_a_malformed_request_line_is_refused(line: str) -> None:
    """One space each, visible ASCII, and a version: anything else two programs could read in two ways."""
    assert refused(line, "Host: a") == 400


@pytest.mark.parametrize(("version", "status"), [("2.0", 505), ("0.9", 505), ("3.0", 505)])
def test_other_versions_are_refused(version: str, status: int) -> None:
    """HTTP/2's preface reads as a version that is not spoken here."""
    assert refused(f"PRI / HTTP/{version}", "Host: a") == status


def test_later_minor_versions_are_read_as_the_one_known() -> None:
    """RFC 9110 section 2.5: the major number alone tells how to read."""
    assert accepted("GET / HTTP/1.7", "Host: a").keep_alive


@pytest.mark.parametrize(
    "line",
    [
        "Host : a",
        " folded",
        "\tfolded",
        "no colon",
        ": no name",
        "N\xe4me: x",
        "X: a\x00b",
        "X: a\rb",
        "X: a\x7fb",
        "X: \x1b[0m",
    ],
)
def test_a_malformed_header_is_refused(line: str) -> None:
    """A name that does not touch its colon, a folded line or a control character is how requests are smuggled."""
    assert refused("GET / HTTP/1.1", "Host: a", line) == 400


def test_a_repeated_header_is_joined() -> None:
    """RFC 9110 section 5.3: a list may be spread over lines."""
    assert accepted("GET / HTTP/1.1", "Host: a", "Accept: x", "accept: y").headers["accept"] == "x, y"


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Authorization", "Content-Type"])
def test_a_header_with_one_meaning_may_come_once(name: str) -> None:
    """Even equal twins are refused: another program on the way may have kept the other."""
    assert refused("POST / HTTP/1.1", "Host: a", f"{name}: 1", f"{name}: 1") == 400


def test_the_host_must_be_named() -> None:
    """In HTTP/1.1 it is required, in 1.0 it is not; an empty one is one; one with a path or a space is none."""
    assert refused("GET / HTTP/1.1") == 400
    assert accepted("GET / HTTP/1.0").path == "/"
    assert accepted("GET / HTTP/1.1", "Host:").headers["host"] == ""
    assert accepted("GET / HTTP/1.1", "Host: [::1]:9837").headers["host"] == "[::1]:9837"
    assert refused("GET / HTTP/1.1", "Host: a/b") == 400
    assert refused("GET / HTTP/1.1", "Host: a b") == 400


@pytest.mark.parametrize("length", ["", "-1", "+1", "1 1", "1,1", "0x1", "1.0", "\xb2", "9" * 19])
def test_a_content_length_is_one_plain_number(length: str) -> None:
    """What int() would accept or another parser would shorten is refused."""
    assert refused("POST / HTTP/1.1", "Host: a", f"Content-Length: {length}") == 400


def test_a_content_length_is_read() -> None:
    """Leading zeros are digits."""
    assert accepted("POST / HTTP/1.1", "Host: a", "Content-Length: 0012").content_length == 12


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Transfer-Encoding: chunked", "Content-Length: 1"], 400),
        (["Content-Length: 1", "Transfer-Encoding: identity"], 400),
        (["Transfer-Encoding: chunked"], 411),
        (["Transfer-Encoding: Chunked"], 411),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 501),
        (["Transfer-Encoding:"], 501),
    ],
)
def test_a_body_without_a_plain_length_is_refused(lines: list[str], status: int) -> None:
    """With both framings 400, chunked alone asks for a length, any other encoding is not known."""
    assert refused("POST / HTTP/1.1", "Host: a", *lines) == status


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "Close", False),
        ("1.1", "upgrade, close", False),
        ("1.1", "keep-alive", True),
        ("1.0", None, False),
        ("1.0", "Keep-Alive", True),
        ("1.0", "keep-alive, close", False),
    ],
)
def test_the_connection_is_kept_as_the_version_and_the_client_say(
    version: str, connection: str | None, kept: bool
) -> None:
    """Open by default in HTTP/1.1, closed in 1.0; close wins."""
    lines = [f"GET / HTTP/{version}", "Host: a", *([] if connection is None else [f"Connection: {connection}"])]

    assert accepted(*lines).keep_alive is kept


def test_only_the_expectation_of_a_continue_is_met() -> None:
    """Others are refused; an HTTP/1.0 client would not understand the interim answer."""
    assert accepted("POST / HTTP/1.1", "Host: a", "Expect: 100-Continue", "Content-Length: 1").expects_continue
    assert not accepted("POST / HTTP/1.0", "Expect: 100-continue", "Content-Length: 1").expects_continue
    assert refused("POST / HTTP/1.1", "Host: a", "Expect: a-miracle") == 417


def test_one_empty_line_before_a_request_is_tolerated() -> None:
    """RFC 9112 section 2.2; a second one is not a request."""
    found = parse_head(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", LIMITS)

    assert isinstance(found, RequestHead)
    assert found.size == len(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert isinstance(parse_head(b"\r\n\r\n", LIMITS), Refusal)


@pytest.mark.parametrize("data", [b"", b"\r", b"\r\n", b"G", b"GET / HTTP/1.1\r\nHost: a\r\n", b"GET / HTTP/1.1\r\n\r"])
def test_an_unfinished_head_needs_more(data: bytes) -> None:
    """Nothing is decided before it is certain."""
    assert parse_head(data, LIMITS) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x16", "this is a TLS handshake, but the server speaks plain HTTP here: use http://"),
        (b"\x00", "this is not an HTTP request"),
        (b"\n", "this is not an HTTP request"),
        (b" GET", "this is not an HTTP request"),
        (b"\rG", "a request must not begin with a carriage return"),
        (b"GET / HTTP/1.1\n", "a line must end in carriage return and line feed"),
        (b"GET / HTTP/1.1\r\nHost: a\n\n", "a line must end in carriage return and line feed"),
    ],
)
def test_what_cannot_become_a_request_is_refused_at_once(data: bytes, text: str) -> None:
    """No client that speaks something else holds a connection until the time limit."""
    assert parse_head(data, LIMITS) == Refusal(400, text)


def test_a_long_request_line_is_refused_without_its_end() -> None:
    """At the limit it is 414, whether the line ends later or not; just below it is waited for."""
    line = b"GET /" + b"a" * 100

    assert parse_head(line[:39], SMALL) is None
    assert parse_head(line[:40], SMALL) == Refusal(414, "the request line is longer than 40 bytes")
    assert parse_head(line + b" HTTP/1.1\r\nHost: a\r\n\r\n", SMALL) == parse_head(line[:40], SMALL)


def test_a_long_head_is_refused_without_its_end() -> None:
    """The same for the head as a whole."""
    data = b"GET / HTTP/1.1\r\nX: " + b"a" * 200

    assert parse_head(data[:119], SMALL) is None
    assert parse_head(data[:120], SMALL) == Refusal(431, "the head is longer than 120 bytes")
    assert parse_head(data + b"\r\n\r\n", SMALL) == parse_head(data[:120], SMALL)


def test_many_headers_are_refused() -> None:
    """So many lines as the limit says are taken, one more is not."""
    assert isinstance(head("GET / HTTP/1.1", "Host: a", "B: 1", "C: 1", limits=SMALL), RequestHead)
    assert refused("GET / HTTP/1.1", "Host: a", "B: 1", "C: 1", "D: 1", limits=SMALL) == 431
