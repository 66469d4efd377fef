"""Routes and what happens when a handler fails."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from gpufleet import logs
from gpufleet.web.app import App
from gpufleet.web.message import PLAIN_TEXT, Request, Response

if TYPE_CHECKING:
    from gpufleet.web.message import Handler


def request(method: str, path: str) -> Request:
    """A bare request."""
    return Request(method, path, "", {}, b"", "127.0.0.1")


def says(text: str) -> Handler:
    """A handler that answers text."""
    return lambda _: Response(200, text.encode(), PLAIN_TEXT)


APP = App(
    {
        ("GET", "/metrics"): says("metrics"),
        ("POST", "/hook"): says("posted"),
        ("DELETE", "/hook"): says("deleted"),
        ("GET", "/node/*"): says("some node"),
        ("GET", "/node/a/*"): says("below a"),
        ("GET", "/node/b"): says("node b"),
    }
)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/metrics", b"metrics"),
        ("HEAD", "/metrics", b"metrics"),
        ("POST", "/hook", b"posted"),
        ("DELETE", "/hook", b"deleted"),
        ("GET", "/node/x/metrics", b"some node"),
        ("GET", "/node/", b"some node"),
        ("GET", "/node/a/metrics", b"below a"),
        ("GET", "/node/b", b"node b"),
    ],
)
def test_the_handler_of_the_route_answers(method: str, path: str, body: bytes) -> None:
    """Exact paths go before what lies below another, and the longest of these goes first."""
    assert APP.admit(request(method, path)) is None
    assert APP.respond(request(method, path)).body == body


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/node", "/Metrics", "*"])
def test_an_unknown_path_is_not_found(path: str) -> None:
    """Nothing is guessed."""
    refusal = APP.admit(request("GET", path))

    assert refusal is not None
    assert refusal.status == 404
    assert APP.respond(request("GET", path)).status == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("POST", "/metrics", "GET, HEAD"), ("GET", "/hook", "DELETE, POST"), ("HEAD", "/hook", "DELETE, POST")],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allow: str) -> None:
    """405 with Allow, as RFC 9110 requires; HEAD goes with GET."""
    refusal = APP.admit(request(method, path))

    assert refusal is not None
    assert (refusal.status, refusal.headers) == (405, (("Allow", allow),))


def test_a_path_must_begin_with_a_slash() -> None:
    """A route that no request can reach is a mistake at start."""
    with pytest.raises(ValueError, match="'metrics' must begin with a slash"):
        App({("GET", "metrics"): says("x")})


def test_a_failing_handler_is_a_500_and_one_line_in_the_log() -> None:
    """The text of the error stays out of the response; the same error again stays out of the log, its end is in it."""
    stream = io.StringIO()
    logs.setup("info", "logfmt", stream)
    errors: list[Exception] = [OSError("secret path"), OSError("secret path"), ValueError("other")]

    def handler(_: Request) -> Response:
        if errors:
            raise errors.pop(0)
        return Response(200, b"fine", PLAIN_TEXT)

    app = App({("GET", "/"): handler})
    responses = [app.respond(request("GET", "/")) for _ in range(5)]

    assert [response.status for response in responses] == [500, 500, 500, 200, 200]
    assert responses[0].body == b"internal error\n"
    lines = stream.getvalue().splitlines()
    assert ["level=error" in line for line in lines] == [True, True, False]
    assert "secret path" in lines[0]
    assert "Traceback" in lines[0]
    assert "answers again" in lines[2]


def test_a_failing_route_leaves_the_others_alone() -> None:
    """One handler's flaw is its own."""

    def broken(_: Request) -> Response:
        raise RuntimeError

    app = App({("GET", "/broken"): broken, ("GET", "/fine"): says("fine")})

    assert app.respond(request("GET", "/broken")).status == 500
    assert app.respond(request("GET", "/fine")).status == 200


def test_bodies_are_refused_unless_they_are_asked_for() -> None:
    """The limit is the application's to raise."""
    assert APP.body_limit == 0
    assert App({}, body_limit=10).body_limit == 10
