"""The web configuration around an application: rate limit, basic auth, extra headers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.web.auth import Verdict
from gpufleet.web.message import plain_response

if TYPE_CHECKING:
    from gpufleet.web.live_config import LiveWebConfig, Protection
    from gpufleet.web.message import Application, Request, Response

_CHALLENGE = ("WWW-Authenticate", 'Basic realm="gpufleet", charset="UTF-8"')


class Guard:
    """An application that lets only those through to another whom the web configuration lets in."""

    def __init__(self, app: Application, web_config: LiveWebConfig) -> None:
        self._app = app
        self._web_config = web_config

    @property
    def body_limit(self) -> int:
        """Bytes that a request's body may have."""
        return self._app.body_limit

    def admit(self, request: Request) -> Response | None:
        """Refuse strangers, and then what the application refuses."""
        protection = self._web_config.current()
        if protection.bucket is not None and not protection.bucket.take():
            return plain_response(429, "too many requests")
        refusal = _judge(protection, request) or self._app.admit(request)
        return None if refusal is None else _with_headers(protection, refusal)

    def respond(self, request: Request) -> Response:
        """Answer a request that was admitted."""
        response = self._app.respond(request)
        return _with_headers(self._web_config.current(), response)


def _judge(protection: Protection, request: Request) -> Response | None:
    if protection.auth is None:
        return None
    verdict = protection.auth.verdict(request.headers.get("authorization", ""), request.peer)
    if verdict is Verdict.GOOD:
        return None
    if verdict is Verdict.BUSY:
        return plain_response(503, "too many logins are being checked", ("Retry-After", "1"))
    return plain_response(401, "a user name and a password are needed", _CHALLENGE)


def _with_headers(protection: Protection, response: Response) -> Response:
    configured = protection.config.headers
    if not configured:
        return response
    # Who runs the server has the last word over what a handler sets.
    names = {name.lower() for name, _ in configured}
    kept = tuple(header for header in response.headers if header[0].lower() not in names)
    return replace(response, headers=kept + configured)
