"""The web configuration around an application."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import bcrypt
import pytest

from gpufleet.web.app import App
from gpufleet.web.auth import BasicAuth, Verdict
from gpufleet.web.guard import Guard
from gpufleet.web.live_config import LiveWebConfig
from gpufleet.web.message import PLAIN_TEXT, Request, Response

if TYPE_CHECKING:
    from pathlib import Path

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
APP = App(
    {("GET", "/"): lambda _: Response(200, b"fine", PLAIN_TEXT, (("x-frame-options", "deny"), ("X-Own", "1")))},
    body_limit=7,
)
GOOD = "Basic " + base64.b64encode(b"alice:secret").decode()


def guarded(tmp_path: Path, text: str) -> Guard:
    """The application behind this configuration."""
    file = tmp_path / "web.yml"
    file.write_text(text)
    return Guard(APP, LiveWebConfig(file))


def request(authorization: str | None = None, path: str = "/") -> Request:
    """A request with this Authorization header."""
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", path, "", headers, b"", "127.0.0.1")


@pytest.mark.parametrize(
    "authorization", [None, "", "Basic", "Bearer x", "Basic " + base64.b64encode(b"alice:x").decode()]
)
def test_a_stranger_is_asked_for_name_and_password(tmp_path: Path, authorization: str | None) -> None:
    """401 with a challenge, whatever is wrong, and before the path is looked at."""
    guard = guarded(tmp_path, f"basic_auth_users: {{alice: {HASHED}}}")
    for path in ("/", "/unknown"):
        refusal = guard.admit(request(authorization, path))

        assert refusal is not None
        assert refusal.status == 401
        assert dict(refusal.headers)["WWW-Authenticate"].startswith("Basic ")


def test_a_user_is_let_through_to_the_application(tmp_path: Path) -> None:
    """Its refusals too."""
    guard = guarded(tmp_path, f"basic_auth_users: {{alice: {HASHED}}}")

    assert guard.admit(request(GOOD)) is None
    assert guard.respond(request(GOOD)).body == b"fine"
    refusal = guard.admit(request(GOOD, "/unknown"))
    assert refusal is not None
    assert refusal.status == 404
    assert guard.body_limit == 7


def test_too_many_logins_are_told_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and not 401: a scraper must not take its password for wrong because others are guessing."""
    guard = guarded(tmp_path, f"basic_auth_users: {{alice: {HASHED}}}")
    monkeypatch.setattr(BasicAuth, "verdict", lambda *_: Verdict.BUSY)
    refusal = guard.admit(request(GOOD))

    assert refusal is not None
    assert (refusal.status, refusal.headers) == (503, (("Retry-After", "1"),))


def test_configured_headers_are_on_every_response(tmp_path: Path) -> None:
    """They replace a handler's own of the same name, in any case of letters; its others stay."""
    guard = guarded(tmp_path, "http_server_config: {headers: {X-Frame-Options: sameorigin}}")

    assert guard.respond(request()).headers == (("X-Own", "1"), ("X-Frame-Options", "sameorigin"))
    refusal = guard.admit(request(path="/unknown"))
    assert refusal is not None
    assert ("X-Frame-Options", "sameorigin") in refusal.headers


def test_requests_above_the_rate_are_refused(tmp_path: Path) -> None:
    """429 once the burst is used up; the interval here is longer than the test."""
    guard = guarded(tmp_path, "rate_limit: {interval: 1h, burst: 2}")
    answers = [guard.admit(request()) for _ in range(4)]

    assert [answer and answer.status for answer in answers] == [None, None, 429, 429]


def test_without_anything_configured_everybody_is_let_through(tmp_path: Path) -> None:
    """An empty file guards nothing."""
    assert guarded(tmp_path, "").admit(request()) is None
