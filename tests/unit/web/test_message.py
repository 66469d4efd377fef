"""Response heads, byte for byte."""

from __future__ import annotations

import pytest

from gpufleet.web.message import PLAIN_TEXT, Response, has_body, http_date, plain_response, response_head

DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


def test_a_response_head_is_status_date_type_length_and_the_handlers_headers() -> None:
    """Type and length describe the body; the empty line ends the head."""
    response = Response(200, b"body", "text/plain; version=0.0.4", (("Content-Encoding", "gzip"),))

    assert response_head(response, date=DATE, close=False) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"Content-Type: text/plain; version=0.0.4\r\n"
        b"Content-Length: 4\r\n"
        b"Content-Encoding: gzip\r\n"
        b"\r\n"
    )


def test_the_end_of_the_connection_is_announced() -> None:
    """To an HTTP/1.0 client its going on is."""
    response = plain_response(404, "no")

    assert b"\r\nConnection: close\r\n" in response_head(response, date=DATE, close=True)
    assert b"\r\nConnection: keep-alive\r\n" in response_head(
        response, date=DATE, close=False, announce_keep_alive=True
    )
    assert b"Connection" not in response_head(response, date=DATE, close=False)


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_says_nothing_of_one(status: int) -> None:
    """RFC 9110 section 8.6: no length in a 204."""
    head = response_head(Response(status, b"", PLAIN_TEXT), date=DATE, close=False)

    assert b"Content-" not in head
    assert not has_body("GET", status)


def test_head_requests_get_no_body() -> None:
    """Their length is announced all the same."""
    assert not has_body("HEAD", 200)
    assert has_body("GET", 200)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (("X", "a\r\nSet-Cookie: b"), "cannot be sent"),
        (("X", "a\nb"), "cannot be sent"),
        (("X", "a\x00"), "cannot be sent"),
        (("X", "→"), "cannot be sent"),
        (("X Y", "a"), "cannot be sent"),
        (("", "a"), "cannot be sent"),
        (("X\r\nY", "a"), "cannot be sent"),
        (("Content-Length", "1"), "set by the server"),
        (("transfer-encoding", "chunked"), "set by the server"),
    ],
)
def test_a_header_cannot_break_out_of_its_line(header: tuple[str, str], message: str) -> None:
    """Text from outside that reached a header is an error here, not a second response there."""
    with pytest.raises(ValueError, match=message):
        response_head(Response(200, b"", PLAIN_TEXT, (header,)), date=DATE, close=False)


def test_a_content_type_cannot_break_out_of_its_line() -> None:
    """The content type is held to the same rule."""
    with pytest.raises(ValueError, match="content type"):
        response_head(Response(200, b"", "text/plain\r\nX: y"), date=DATE, close=False)


def test_an_unknown_status_is_an_error() -> None:
    """A status without a reason is a mistake of the handler's."""
    with pytest.raises(ValueError, match="status 299"):
        response_head(Response(299, b"", PLAIN_TEXT), date=DATE, close=False)


@pytest.mark.parametrize(
    ("seconds", "date"), [(0, "Thu, 01 Jan 1970 00:00:00 GMT"), (1_700_000_000.9, "Tue, 14 Nov 2023 22:13:20 GMT")]
)
def test_dates_are_written_as_http_wants_them(seconds: float, date: str) -> None:
    """IMF-fixdate, in English."""
    assert http_date(seconds) == date
