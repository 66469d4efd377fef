"""The request parser against any bytes, however the network cuts them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.web.message import REASONS
from gpufleet.web.request_head import HeadLimits, Refusal, RequestHead, parse_head

LIMITS = HeadLimits(line_bytes=60, head_bytes=200, fields=4)

# Bytes of a request's own alphabet come near the parser's edges more often than any bytes do.
PIECES = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b"/metrics",
        b"/",
        b"?a=b",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b" HTTP/2.0",
        b"\r\n",
        b"\r\n\r\n",
        b"\r",
        b"\n",
        b"Host: a",
        b"Host",
        b": ",
        b":",
        b" ",
        b"\t",
        b"Content-Length: 5",
        b"Content-Length: 5, 5",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Expect: 100-continue",
        b"X: " + b"y" * 70,
        b"\x00",
        b"\x16\x03\x01",
        b"\xff",
        b"http://a/",
        b"*",
    ]
)
NEAR_REQUESTS = st.lists(PIECES, max_size=30).map(b"".join)
ANY_BYTES = st.one_of(st.binary(max_size=300), NEAR_REQUESTS)


def check(found: RequestHead | Refusal | None, data: bytes) -> None:
    """What holds for every verdict."""
    if isinstance(found, Refusal):
        assert found.status in REASONS
        assert found.text.isprintable()
    elif isinstance(found, RequestHead):
        assert found.size <= len(data)
        assert data[: found.size].endswith(b"\r\n\r\n")
        assert found.content_length >= 0
        assert found.path.startswith("/") or found.path == "*"
        assert all("\r" not in text and "\n" not in text for pair in found.headers.items() for text in pair)
        assert "transfer-encoding" not in found.headers
    else:
        assert len(data) < 2 + LIMITS.head_bytes


@given(ANY_BYTES)
def test_any_bytes_have_a_verdict(data: bytes) -> None:
    """The parser never raises, and says of everything whether it is a request, is refused, or may become one."""
    check(parse_head(data, LIMITS), data)


@given(ANY_BYTES, st.data())
@example(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", None)
def test_the_verdict_does_not_depend_on_how_the_bytes_came(data: bytes, draw: st.DataObject | None) -> None:
    """What is decided about a prefix stays decided: any way to cut the bytes gives the verdict of the whole."""
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8)) if draw is not None else list(range(len(data)))
    whole = parse_head(data, LIMITS)
    for end in sorted(cuts):
        found = parse_head(bytearray(data[:end]), LIMITS)
        if found is not None:
            assert found == whole
            return


@given(NEAR_REQUESTS)
def test_byte_by_byte_is_the_same_as_at_once(data: bytes) -> None:
    """The slowest sender gets the verdict of the fastest."""
    verdicts = (parse_head(data[:end], LIMITS) for end in range(len(data) + 1))

    assert next((found for found in verdicts if found is not None), None) == parse_head(data, LIMITS)


@given(ANY_BYTES, st.binary(max_size=50))
def test_what_follows_a_head_does_not_change_it(data: bytes, more: bytes) -> None:
    """A body or a next request is not the head's business."""
    found = parse_head(data, LIMITS)
    if found is not None:
        assert parse_head(data + more, LIMITS) == found


TOKEN = st.text("abcdefgXYZ-_!#$", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=30)


@given(
    method=TOKEN,
    path=st.text("abc/%._-", max_size=20),
    fields=st.lists(
        st.tuples(TOKEN.map(lambda name: f"x-{name}"), VALUE), max_size=8, unique_by=lambda f: f[0].lower()
    ),
    length=st.integers(0, 10**9),
)
def test_a_well_formed_request_reads_back(method: str, path: str, fields: list[tuple[str, str]], length: int) -> None:
    """Whatever a client may say, it is read as it was said."""
    lines = [f"{method} /{path} HTTP/1.1", "Host: here", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in fields]
    found = parse_head("\r\n".join([*lines, "", ""]).encode("latin-1"), HeadLimits())

    assert isinstance(found, RequestHead)
    assert (found.method, found.path, found.content_length) == (method, f"/{path}", length)
    expected = {name.lower(): value.strip(" ") for name, value in fields}
    assert {name: value for name, value in found.headers.items() if name.startswith("x-")} == expected
