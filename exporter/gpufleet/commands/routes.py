"""What the exporter answers over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpufleet.metrics.exposition import TEXT_CONTENT_TYPE, openmetrics_content_type
from gpufleet.web.message import Response, plain_response
from gpufleet.web.negotiate import accepts_gzip, wants_openmetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpufleet.commands.health import Health, Verdict
    from gpufleet.metrics.exposition import Exposition, SnapshotSource
    from gpufleet.web.message import Handler, Request

_GZIPPED = (("Content-Encoding", "gzip"), ("Vary", "Accept, Accept-Encoding"))
_PLAIN = (("Vary", "Accept, Accept-Encoding"),)
_REFRESH_SECONDS = 5


def exporter_routes(
    source: SnapshotSource,
    exposition: Exposition,
    health: Health,
    *,
    telemetry_path: str,
    interval: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Mapping[tuple[str, str], Handler]:
    """Routes of one node's exporter; ``interval`` is the poll interval in seconds."""

    def metrics(request: Request) -> Response:
        return metrics_response(exposition, request)

    def landing(request: Request) -> Response:
        from gpufleet.metrics.page import render  # nodes that nobody looks at don't pay for it
        from gpufleet.metrics.page_style import CONTENT_SECURITY_POLICY

        html = render(
            source.latest,
            now=monotonic(),
            interval=interval,
            telemetry_path=telemetry_path,
            refresh_seconds=None if "refresh=off" in request.query.split("&") else _REFRESH_SECONDS,
        )
        # The page has its style inside and loads nothing; a browser that is told so can't be made to.
        headers = (
            ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        )
        return Response(200, html.encode(), "text/html; charset=utf-8", headers)

    def healthy(_: Request) -> Response:
        return _probe(health.healthy(source.latest, monotonic()))

    def ready(_: Request) -> Response:
        return _probe(health.ready(source.latest, monotonic()))

    return {
        ("GET", "/"): landing,
        ("GET", telemetry_path): metrics,
        ("GET", "/-/healthy"): healthy,
        ("GET", "/-/ready"): ready,
    }


def metrics_response(exposition: Exposition, request: Request) -> Response:
    """The exposition in the format and encoding that the client accepts."""
    version = wants_openmetrics(request.headers.get("accept", ""))
    gzip = accepts_gzip(request.headers.get("accept-encoding", ""))
    body = exposition.body(openmetrics=version is not None, gzip=gzip)
    content_type = TEXT_CONTENT_TYPE if version is None else openmetrics_content_type(version)
    return Response(200, body, content_type, _GZIPPED if gzip else _PLAIN)


def _probe(verdict: Verdict) -> Response:
    return plain_response(200 if verdict.ok else 503, verdict.reason)
