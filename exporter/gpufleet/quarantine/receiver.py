"""The HTTP side: Alertmanager's payloads, probes, metrics; who may send them.

An answer of 2xx means that what was decided is durable, 5xx that Alertmanager shall send again; 4xx would not stop it
(it sends each group again at every group_interval, for ever), so it is for strangers and for what is no payload alone.
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange
from gpufleet.quarantine.alerts import PayloadError, parse_delivery
from gpufleet.quarantine.committer import NotRecordedError
from gpufleet.small_file import read_small_file
from gpufleet.web.app import App
from gpufleet.web.message import Response, plain_response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpufleet.quarantine.alerts import Delivery
    from gpufleet.quarantine.committer import Committer
    from gpufleet.quarantine.decide import Session
    from gpufleet.quarantine.incident import Key
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Decision
    from gpufleet.quarantine.telemetry import Telemetry
    from gpufleet.web.message import Handler, Request

_log = logging.getLogger(__name__)

ALERTS_PATH = "/v1/alerts"
BODY_LIMIT = 16 << 20
"""Bytes: 8,000 alerts in one group are 3.5 MB."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_TOKEN_BYTES = 4096
_OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
"""What a kubelet asks, which has no token."""
_CHALLENGE = ("WWW-Authenticate", 'Bearer realm="gpufleet"')


class TokenError(Exception):
    """The token's file cannot be used; says why."""


class Receiver:
    """Takes payloads in. ``received`` is called after a delivery was recorded, so that the worker begins at once."""

    def __init__(
        self,
        committer: Committer,
        policy: Policy,
        telemetry: Telemetry,
        *,
        clock: Callable[[], float],
        decided: Callable[[Key, Decision], object],
        received: Callable[[], None],
    ) -> None:
        self._committer = committer
        self._policy = policy
        self._telemetry = telemetry
        self._clock = clock
        self._decided = decided
        self._received = received
        self._failures = OnChange(_log)

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """For an App."""
        return {
            ("POST", ALERTS_PATH): self.alerts,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/-/healthy"): self.healthy,
            ("GET", "/-/ready"): self.ready,
        }

    def alerts(self, request: Request) -> Response:
        """Decide on a payload and answer once that is durable."""
        response = self._alerts(request)
        self._telemetry.delivered(response.status)
        return response

    def metrics(self, _: Request) -> Response:
        """What the service says of itself."""
        return Response(200, self._telemetry.text(), _TEXT)

    def healthy(self, _: Request) -> Response:
        """The process answers."""
        return plain_response(200, "the quarantine answers")

    def ready(self, _: Request) -> Response:
        """The ledger was read and the nodes were seen."""
        if self._committer.book is None or self._committer.view is None:
            return plain_response(503, "the ledger or the nodes have not been read yet; the log says why")
        return plain_response(200, "the ledger and the nodes have been read")

    def _alerts(self, request: Request) -> Response:
        try:
            delivery = parse_delivery(request.body, self._policy.alerts, self._clock())
        except PayloadError as error:
            self._failures.failed("payload", "a payload was refused", str(error), peer=request.peer)
            return plain_response(400, str(error))
        for unusable in delivery.unusable:
            self._telemetry.unusable(unusable.reason)
            self._failures.failed("alert", "an alert was left out", unusable.detail, peer=request.peer)
        if delivery.truncated:
            self._failures.failed(
                "truncated",
                "Alertmanager leaves alerts out; set max_alerts: 0 at the quarantine's receiver",
                f"{delivery.truncated} alerts are missing",
            )
        if not delivery.firing and not delivery.resolved:
            return plain_response(200, _told(delivery, []))
        try:
            decisions: list[tuple[Key, Decision]] = self._committer.apply(_deliver(delivery))
        except NotRecordedError as error:
            return plain_response(503, f"not recorded, send it again: {error}")
        for key, decision in decisions:
            self._decided(key, decision)
        self._received()
        return plain_response(200, _told(delivery, decisions))


def _deliver(delivery: Delivery) -> Callable[[Session], list[tuple[Key, Decision]]]:
    return lambda session: session.deliver(delivery)


def _told(delivery: Delivery, decisions: list[tuple[Key, Decision]]) -> str:
    counts: dict[str, int] = {}
    for _, decision in decisions:
        word = f"{decision.verdict} ({decision.reason})"
        counts[word] = counts.get(word, 0) + 1
    parts = [f"{number} {word}" for word, number in counts.items()]
    parts += [f"{len(delivery.resolved)} resolved"] if delivery.resolved else []
    parts += [f"{len(delivery.unusable)} unusable"] if delivery.unusable else []
    parts += [f"{delivery.foreign} of no concern"] if delivery.foreign else []
    return ", ".join(parts) or "nothing to decide"


class BearerGuard:
    """Lets only those through who present the token of a file; the file is read again for each request.

    A body is not read before. The probes are open.
    """

    def __init__(self, app: App, file: Path) -> None:
        self._app = app
        self._file = file
        self._failures = OnChange(_log)
        self.token()

    @property
    def body_limit(self) -> int:
        """Bytes that a request's body may have."""
        return self._app.body_limit

    def token(self) -> bytes:
        """What the file holds.

        Raises:
            TokenError: it is missing, unreadable, empty, or no token.
        """
        try:
            token = read_small_file(self._file, _TOKEN_BYTES).strip()
        except OSError as error:
            raise TokenError(f"{self._file}: can't be read: {error.strerror}") from error
        if not token or len(token) > _TOKEN_BYTES or any(byte <= 0x20 or byte > 0x7E for byte in token):
            raise TokenError(f"{self._file}: must hold one line, the token, of printable ASCII without spaces")
        return token

    def admit(self, request: Request) -> Response | None:
        """Refuse strangers, and then what the application refuses."""
        if request.path not in _OPEN_PATHS:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            try:
                right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token())
            except TokenError as error:
                self._failures.failed("token", "nobody can be let in", str(error), level=logging.ERROR)
                return plain_response(503, "the token cannot be read here; the log says why")
            self._failures.over("token", "the token can be read again")
            if not right:
                return plain_response(401, "a bearer token is needed", _CHALLENGE)
        return self._app.admit(request)

    def respond(self, request: Request) -> Response:
        """Answer a request that was admitted."""
        return self._app.respond(request)
