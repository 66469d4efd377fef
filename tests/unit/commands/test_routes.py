"""What the exporter answers over HTTP, from request to response."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpufleet.commands.health import Health
from gpufleet.commands.routes import exporter_routes
from gpufleet.metrics.exposition import Exposition
from gpufleet.metrics.selfmetrics import SelfMetrics
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.state import NvmlState
from gpufleet.web.app import App
from gpufleet.web.message import Request, Response
from tests.unit.metrics.snapshots import hopper_node


class Node:
    """A poller in the test's hand."""

    def __init__(self) -> None:
        self.latest = hopper_node()
        self.now = self.latest.monotonic

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        pass


@pytest.fixture
def node() -> Node:
    """A node of eight Hopper GPUs."""
    return Node()


@pytest.fixture
def get(node: Node) -> Callable[..., Response]:
    """Ask the exporter for a path."""
    clock = lambda: node.now  # noqa: E731 - a clock is a name's worth
    exposition = Exposition(node, SelfMetrics(), interval=1.0, clock=clock)
    app = App(
        exporter_routes(node, exposition, Health(1.0), telemetry_path="/gpus", interval=1.0, monotonic=clock),
    )

    def ask(path: str, query: str = "", **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request("GET", path, query, named, b"", "127.0.0.1")
        return app.admit(request) or app.respond(request)

    return ask


def test_metrics_are_text_for_whoever_asks_for_nothing_else(get: Callable[..., Response]) -> None:
    """curl and old scrapers."""
    response = get("/gpus")
    assert (response.status, response.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"\ngpu_utilization_ratio{" in response.body
    assert dict(response.headers) == {"Vary": "Accept, Accept-Encoding"}


def test_metrics_are_openmetrics_and_compressed_for_prometheus(get: Callable[..., Response]) -> None:
    """What Prometheus asks for is what it gets."""
    response = get(
        "/gpus", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5", accept_encoding="gzip"
    )
    assert response.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert dict(response.headers)["Content-Encoding"] == "gzip"
    assert gzip.decompress(response.body).endswith(b"# EOF\n")


def test_the_landing_page_links_to_the_metrics_and_may_load_nothing(get: Callable[..., Response]) -> None:
    """A browser that is told so can't be made to, whatever a name in the page tries."""
    response = get("/")
    assert (response.status, response.content_type) == (200, "text/html; charset=utf-8")
    assert b'href="/gpus"' in response.body
    assert b'http-equiv="refresh"' in response.body
    assert dict(response.headers)["Content-Security-Policy"].startswith("default-src 'none'")


def test_the_landing_page_can_be_told_to_stand_still(get: Callable[..., Response]) -> None:
    """Somebody reads it."""
    assert b'http-equiv="refresh"' not in get("/", "refresh=off").body


def test_probes_answer_with_status_and_reason(get: Callable[..., Response], node: Node) -> None:
    """A driver that is unloaded makes the node unready, not unhealthy, and its metrics go on."""
    assert (get("/-/healthy").status, get("/-/ready").status) == (200, 200)
    node.latest = replace(node.latest, nvml_state=NvmlState.NO_DRIVER, reason="the kernel module was unloaded", gpus=())
    assert (get("/-/healthy").status, get("/-/healthy").body) == (200, b"ok\n")
    assert (get("/-/ready").status, get("/-/ready").body) == (503, b"no_driver: the kernel module was unloaded\n")
    assert b"gpufleet_nvml_up 0\n" in get("/gpus").body


def test_a_poll_loop_that_stands_still_fails_both_probes_and_shows_no_readings(
    get: Callable[..., Response], node: Node
) -> None:
    """Nothing old is served as current."""
    node.now += 20
    assert (get("/-/healthy").status, get("/-/ready").status) == (503, 503)
    assert b"\ngpu_utilization_ratio{" not in get("/gpus").body


def test_nothing_else_is_there(get: Callable[..., Response]) -> None:
    """Also not the usual path, where another was chosen."""
    assert get("/metrics").status == 404
    assert get("/-/quit").status == 404
