"""Responses and negotiation against any text."""

from __future__ import annotations

import base64
import contextlib

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.web.auth import parse_basic
from gpufleet.web.message import Response, response_head
from gpufleet.web.negotiate import OPENMETRICS_VERSIONS, accepts_gzip, wants_openmetrics
from gpufleet.web.webconfig import parse_go_duration

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
ACCEPT = st.lists(
    st.sampled_from(
        [
            "application/openmetrics-text",
            "text/plain",
            "*/*",
            "gzip",
            ",",
            ";",
            "=",
            "q",
            "0.5",
            "version",
            "1.0.0",
            '"',
            " ",
        ]
    ),
    max_size=20,
).map("".join)


@given(status=st.sampled_from([200, 204, 404, 500]), content_type=ANY_TEXT, name=ANY_TEXT, value=ANY_TEXT)
def test_no_text_can_end_a_header_early(status: int, content_type: str, name: str, value: str) -> None:
    """Either the text is refused, or the head has exactly the lines that it should have."""
    response = Response(status, b"body", content_type, ((name, value),))
    with contextlib.suppress(ValueError):
        head = response_head(response, date="now", close=True)
        assert head.count(b"\r\n\r\n") == 1
        assert head.endswith(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        assert len(lines) == (4 if status == 204 else 6)
        assert all(b"\n" not in line and b"\r" not in line and b"\x00" not in line for line in lines)


@given(st.one_of(ANY_TEXT, ACCEPT))
def test_any_accept_header_has_an_answer(header: str) -> None:
    """Nonsense from a scraper does not cost it its metrics."""
    assert wants_openmetrics(header) in {None, *OPENMETRICS_VERSIONS}
    assert accepts_gzip(header) in {True, False}


@given(ANY_TEXT)
def test_any_authorization_header_is_credentials_or_nothing(header: str) -> None:
    """Nothing that a client sends there raises, and no name that comes out holds a colon."""
    for text in (header, f"Basic {header}"):
        found = parse_basic(text)
        assert found is None or ":" not in found[0]


@given(name=st.text(max_size=20).filter(lambda name: ":" not in name), password=st.binary(max_size=40))
def test_credentials_read_back(name: str, password: bytes) -> None:
    """Any name without a colon and any password, in UTF-8 or not, come out as they went in."""
    encoded = base64.b64encode(name.encode() + b":" + password).decode()

    assert parse_basic(f"Basic {encoded}") == (name, password)


@given(st.one_of(ANY_TEXT, st.text("0123456789.nuµmsh", max_size=12)))
def test_any_text_is_a_duration_or_not(text: str) -> None:
    """And no duration is negative or without end."""
    seconds = parse_go_duration(text)
    assert seconds is None or 0 <= seconds < float("inf")
