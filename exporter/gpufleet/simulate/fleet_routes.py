"""What a simulated fleet answers over HTTP: each node's metrics, service discovery that finds them, a list of nodes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from html import escape

from gpufleet.metrics.exposition import TEXT_CONTENT_TYPE, compressed, openmetrics_content_type
from gpufleet.simulate.fleet import EXPECTED_INTERVAL, Fleet
from gpufleet.simulate.scenario import Node, Scenario
from gpufleet.simulate.scenario_checks import kinds_of
from gpufleet.web.message import Handler, Request, Response, plain_response
from gpufleet.web.negotiate import accepts_gzip, wants_openmetrics

NODE_PATH = "/node/"
METRICS = "/metrics"
QUARANTINE_PATH = "/quarantine/metrics"
PORTS = {"vllm": 8000, "sglang": 30000}
"""Where servers listen by default; part of the instance that they are shown as."""
_AT_ONCE = 2
"""Nodes computed at the same time: they share one interpreter, so more would only make each wait longer."""
_REFRESH_SECONDS = 5
_LOOPBACK = ("127.", "::1")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_INDEX_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class FleetRoutes:
    """Handlers of a fleet.

    ``address`` is where it is reached when a client does not say; ``own_metrics`` the text of the process's own.
    """

    def __init__(
        self, fleet: Fleet, scenario: Scenario, *, address: Callable[[], str], own_metrics: Callable[[], bytes]
    ) -> None:
        self._fleet = fleet
        self._names = frozenset(fleet.names)
        self._address = address
        self._own_metrics = own_metrics
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._labels = _labels(scenario)
        self._index = _index(scenario).encode()

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """For ``web.app.App``."""
        return {
            ("GET", "/"): self.index,
            ("GET", f"{NODE_PATH}*"): self.node,
            ("GET", QUARANTINE_PATH): self.quarantine,
            ("GET", "/sd"): self.discover,
            ("GET", METRICS): self.own,
            ("GET", "/-/healthy"): lambda _: plain_response(200, "ok"),
            ("GET", "/-/ready"): self.ready,
        }

    def node(self, request: Request) -> Response:
        """The page or the metrics of a node."""
        name, slash, rest = request.path.removeprefix(NODE_PATH).partition("/")
        kind, below, of_server = rest.partition("/")
        if below and name in self._names and of_server == METRICS[1:]:
            return self._server(name, kind)
        if name not in self._names or rest not in ("", METRICS[1:]):
            return plain_response(404, "there is no such node; / lists them")
        if not rest:
            return self._page(name, request) if slash else _moved(f"{NODE_PATH}{name}/")
        version = wants_openmetrics(request.headers.get("accept", ""))
        with self._turns:
            body = self._fleet.text(name, openmetrics=version is not None)
            content_type = TEXT_CONTENT_TYPE if version is None else openmetrics_content_type(version)
            # Nothing is gained by compressing what does not leave the machine.
            if request.peer.startswith(_LOOPBACK) or not accepts_gzip(request.headers.get("accept-encoding", "")):
                return Response(200, body, content_type)
            return Response(200, compressed(body), content_type, (("Content-Encoding", "gzip"),))

    def _server(self, name: str, kind: str) -> Response:
        try:
            with self._turns:
                body = self._fleet.server(name, kind)
        except KeyError:
            return plain_response(404, "nothing of that kind serves on this node; /sd lists what does")
        if body is None:
            return plain_response(503, "no replica is up on this node")
        return Response(200, body, TEXT_CONTENT_TYPE)

    def quarantine(self, _: Request) -> Response:
        """What the quarantine service says of itself, where the scenario has one."""
        try:
            return Response(200, self._fleet.quarantine(), TEXT_CONTENT_TYPE)
        except KeyError:
            return plain_response(404, "this scenario has no quarantine service")

    def _page(self, name: str, request: Request) -> Response:
        from gpufleet.metrics.page import render  # only people who look at it pay for it
        from gpufleet.metrics.page_style import CONTENT_SECURITY_POLICY

        snapshot = self._fleet.snapshot(name)
        page = render(
            snapshot,
            now=snapshot.monotonic,
            interval=EXPECTED_INTERVAL,
            telemetry_path=f"{NODE_PATH}{name}{METRICS}",
            refresh_seconds=None if request.query == "refresh=off" else _REFRESH_SECONDS,
        )
        return _page_response(page.encode(), CONTENT_SECURITY_POLICY)

    def discover(self, request: Request) -> Response:
        """Prometheus's HTTP service discovery: a target each node and server, at the address by which we were asked."""
        host = request.headers.get("host", "")
        target = host if _HOST.fullmatch(host) else self._address()
        groups = [{"targets": [target], "labels": labels} for labels in self._labels]
        return Response(200, json.dumps(groups).encode(), "application/json")

    def own(self, _: Request) -> Response:
        """What the process itself uses."""
        with self._turns:
            return Response(200, self._own_metrics(), TEXT_CONTENT_TYPE)

    def index(self, _: Request) -> Response:
        """A list of all nodes."""
        return _page_response(self._index, _INDEX_POLICY)

    def ready(self, _: Request) -> Response:
        """Ready once every node has been read: from then on a scrape takes milliseconds."""
        opened, all_nodes = self._fleet.opened, len(self._names)
        if opened < all_nodes:
            return plain_response(503, f"{opened} of {all_nodes} nodes have been read; any of them can be scraped")
        return plain_response(200, "ok")


def _page_response(body: bytes, policy: str) -> Response:
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-store"),
    )
    return Response(200, body, "text/html; charset=utf-8", headers)


def _moved(path: str) -> Response:
    return plain_response(301, "moved", ("Location", path))


def _runs_of(scenario: Scenario) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for run in scenario.runs:
        for node in dict.fromkeys(run.nodes):
            runs.setdefault(node, []).append(run.name)
    return runs


def _labels(scenario: Scenario) -> list[dict[str, str]]:
    runs = _runs_of(scenario)
    return [
        {
            "__metrics_path__": f"{NODE_PATH}{node.name}{METRICS}",
            # All targets have one address: without a name of its own each would look like the same instance.
            "instance": node.name,
            "node": node.name,
            "__meta_gpufleet_profile": ",".join(dict.fromkeys(kinds_of(node))),
            "__meta_gpufleet_run": ",".join(runs.get(node.name, ())),
        }
        for node in scenario.nodes
    ] + _beside(scenario)


def _beside(scenario: Scenario) -> list[dict[str, str]]:
    """What is served beside the nodes: model servers, and the quarantine service."""
    servers = dict.fromkeys((node, run.server) for run in scenario.runs if run.server for node in run.nodes)
    found = [
        {"__metrics_path__": f"{NODE_PATH}{node}/{kind}{METRICS}", "instance": f"{node}:{PORTS[kind]}", "job": kind}
        for node, kind in servers
    ]
    if scenario.quarantine:
        found.append({"__metrics_path__": QUARANTINE_PATH, "instance": "quarantine", "job": "gpufleet-quarantine"})
    return found


def _kinds(node: Node) -> str:
    kinds = kinds_of(node)
    text = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    layouts = "; ".join(" + ".join(f"{n} {name}" for name, n in mig.layout.items()) for mig in node.mig)
    return f"{text}, MIG {layouts}" if layouts else text


def _index(scenario: Scenario) -> str:
    runs = _runs_of(scenario)
    rows = "\n".join(
        f'<tr><td><a href="{NODE_PATH}{escape(node.name)}/">{escape(node.name)}</a></td>'
        f'<td><a href="{NODE_PATH}{escape(node.name)}{METRICS}">metrics</a></td>'
        f"<td>{escape(_kinds(node))}</td><td>{escape(', '.join(runs.get(node.name, ())))}</td></tr>"
        for node in scenario.nodes
    )
    links = ", ".join(
        f'<a href="{escape(each["__metrics_path__"])}">{escape(each["job"])} ({escape(each["instance"])})</a>'
        for each in _beside(scenario)
    )
    beside = f"<p>Beside the nodes: {links}.</p>" if links else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>gpufleet: a simulated fleet</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1d2433; background: #fff }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem 1rem .2rem 0; text-align: left }}
strong {{ background: #fff3c4; padding: .1rem .4rem }} code {{ background: #eef1f6; padding: .1rem .3rem }}
@media (prefers-color-scheme: dark) {{ body {{ color: #e4e8f0; background: #14181f }} a {{ color: #8ab4ff }}
strong {{ color: #14181f }} code {{ background: #262c38 }} }}
</style>
</head>
<body>
<h1>A simulated fleet</h1>
<p><strong>Simulated</strong> No real GPU is behind these {len(scenario.nodes)} nodes
({escape(scenario.name)}).</p>
<p>Prometheus finds all nodes by <a href="/sd"><code>http_sd_configs</code></a>; this process's own metrics are at
<a href="/metrics">/metrics</a>.</p>
<table>
<tr><th>Node</th><th></th><th>GPUs</th><th>Run</th></tr>
{rows}
</table>
{beside}
</body>
</html>
"""
