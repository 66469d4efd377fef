from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.family import Level
from gpufleet.metrics.page_style import CONTENT_SECURITY_POLICY
from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.fleet_routes import FleetRoutes
from gpufleet.simulate.scenario import Scenario
from gpufleet.simulate.scenario_file import default_scenario, parse_scenario
from gpufleet.simulate.staging import Stage
from gpufleet.web.app import App
from gpufleet.web.message import Request, Response
from tests.support.scripted_caller import Clock

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def fleet_of(scenario: Scenario, level: Level = Level.STANDARD) -> tuple[Fleet, Clock]:
    """A fleet and its clock."""
    clock = Clock()
    return Fleet(Stage(scenario), FleetOptions(level=level), clock=clock, wall=lambda: 1.7e9 + clock.now), clock


def samples(text: bytes) -> Samples:
    """Every sample of an exposition."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def named(found: Samples, name: str, **labels: str) -> list[float]:
    """The values of a name's series that have these labels."""
    return [value for (each, own), value in found.items() if each == name and own >= set(labels.items())]


@pytest.fixture(scope="module")
def get() -> Callable[..., Response]:
    """Ask the fleet of the default scenario over its routes."""
    scenario = default_scenario()
    fleet, _ = fleet_of(scenario)
    app = App(FleetRoutes(fleet, scenario, address=lambda: "here:1", own_metrics=lambda: b"own 1\n").routes())

    def ask(
        path: str, headers: Mapping[str, str] | None = None, peer: str = "127.0.0.1", method: str = "GET"
    ) -> Response:
        request = Request(method, path, "", headers or {}, b"", peer)
        return app.admit(request) or app.respond(request)

    return ask


def test_every_node_of_the_default_scenario_is_served_and_says_that_it_is_simulated() -> None:
    """Each has its GPUs, all of them up at the start, under its own name."""
    fleet, _ = fleet_of(default_scenario())

    for name in fleet.names:
        found = samples(fleet.text(name))
        assert named(found, "gpufleet_simulated") == [1]
        assert named(found, "gpu_up") == [1] * 8
        assert len(named(found, "gpu_info", node=name)) == 8
    assert fleet.opened == 8


def test_a_node_costs_nothing_before_it_is_read() -> None:
    """A fleet of thousands starts at once."""
    fleet, _ = fleet_of(default_scenario())
    assert fleet.opened == 0

    fleet.text("gpu-node-03")
    assert fleet.opened == 1


def test_counters_go_up_and_agree_with_gauges_between_scrapes() -> None:
    """Energy grows by power, busy seconds by time; all nodes of a run are on one clock, whenever first read."""
    fleet, clock = fleet_of(default_scenario())
    fleet.text("gpu-node-02")
    clock.forward(30)
    first = samples(fleet.text("gpu-node-02"))
    clock.forward(30)
    second = samples(fleet.text("gpu-node-02"))

    for (name, labels), value in first.items():
        if name.endswith("_total"):
            assert second[name, labels] >= value, name

    def growth(name: str) -> list[float]:
        return [after - before for before, after in zip(named(first, name), named(second, name), strict=True)]

    assert len(growth("gpu_energy_joules_total")) == 8
    assert all(300 < joules / 30 < 700 for joules in growth("gpu_energy_joules_total"))
    assert growth("gpu_busy_seconds_total") == pytest.approx([30] * 8, rel=0.03)
    late = samples(fleet.text("gpu-node-04"))
    assert named(late, "gpu_sm_clock_hertz")


def test_a_lost_gpu_an_xid_and_a_return() -> None:
    """At 15 minutes GPU 6 of the serving node reports Xid 79 and is lost; the rest of the node stays."""
    fleet, clock = fleet_of(default_scenario())
    for _ in range(29):
        fleet.text("gpu-node-07")
        clock.forward(30)
    assert named(samples(fleet.text("gpu-node-07")), "gpu_up") == [1] * 8
    clock.forward(60)
    lost = samples(fleet.text("gpu-node-07"))

    assert sorted(named(lost, "gpu_up")) == [0] + [1] * 7
    assert named(lost, "gpu_up", gpu="6") == [0]
    assert named(lost, "gpu_state", gpu="6", state="lost") == [1]
    assert named(lost, "gpu_temperature_celsius", gpu="6") == []
    assert named(lost, "gpu_xid_errors_total", gpu="6", xid="79") == [1]


def test_a_driver_restart_is_survived() -> None:
    """While the driver is away the node says so; it is back with the next scrape after it."""
    fleet, clock = fleet_of(default_scenario())
    fleet.text("gpu-node-06")
    clock.forward(40 * 60 + 10)
    away = samples(fleet.text("gpu-node-06"))
    clock.forward(30)
    fleet.text("gpu-node-06")
    clock.forward(30)
    back = samples(fleet.text("gpu-node-06"))

    assert named(away, "gpufleet_nvml_up") == [0]
    assert named(back, "gpufleet_nvml_up") == [1]
    assert named(back, "gpu_up") == [1] * 8


def test_levels_are_kept() -> None:
    """At core a GPU has at most 70 series, at standard at most 160."""
    for level, most in ((Level.CORE, 70), (Level.STANDARD, 160)):
        fleet, clock = fleet_of(default_scenario(), level)
        fleet.text("gpu-node-01")
        clock.forward(30)
        found = samples(fleet.text("gpu-node-01"))
        for gpu in range(8):
            assert 40 < sum(("gpu", str(gpu)) in labels for _, labels in found) <= most


def test_scrapes_of_one_node_at_the_same_time_are_all_whole() -> None:
    """Two Prometheus servers may scrape the same node: neither gets half of the other's text."""
    fleet, _ = fleet_of(default_scenario())
    bodies: list[bytes] = []
    start = threading.Barrier(8)

    def scrape() -> None:
        start.wait()
        bodies.append(fleet.text("gpu-node-05"))

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(bodies) == 8
    assert {len(named(samples(body), "gpu_mig_info")) for body in bodies} == {56}


def test_discovery_lists_every_node(get: Callable[..., Response]) -> None:
    """Prometheus gets the address by which it asked, and for each node its path, instance and node label."""
    response = get("/sd", {"host": "sim.example:9837"})
    groups = json.loads(response.body)

    assert response.content_type == "application/json"
    assert {tuple(group["targets"]) for group in groups} == {("sim.example:9837",)}
    assert groups[0]["labels"] == {
        "__metrics_path__": "/node/gpu-node-01/metrics",
        "instance": "gpu-node-01",
        "node": "gpu-node-01",
        "__meta_gpufleet_profile": "h100-80gb-hbm3",
        "__meta_gpufleet_run": "llama3-pretrain",
    }
    assert len({group["labels"]["instance"] for group in groups}) == 8 + 2 + 1
    assert [group["labels"] for group in groups[8:]] == [
        {"__metrics_path__": "/node/gpu-node-07/vllm/metrics", "instance": "gpu-node-07:8000", "job": "vllm"},
        {"__metrics_path__": "/node/gpu-node-07/sglang/metrics", "instance": "gpu-node-07:30000", "job": "sglang"},
        {"__metrics_path__": "/quarantine/metrics", "instance": "quarantine", "job": "gpufleet-quarantine"},
    ]


@pytest.mark.parametrize("host", ["", 'a"b', "a b", "<script>", "a:b:c", "[::1", "x:123456"])
def test_a_host_header_that_is_none_is_not_repeated(get: Callable[..., Response], host: str) -> None:
    """What a stranger sends as Host is used only if it is a host and a port."""
    groups = json.loads(get("/sd", {"host": host}).body)

    assert groups[0]["targets"] == ["here:1"]


def test_metrics_in_both_formats(get: Callable[..., Response]) -> None:
    """The text format by default, OpenMetrics where it is asked for; compressed only over a network."""
    text = get("/node/gpu-node-02/metrics", {"accept-encoding": "gzip"})
    openmetrics = get("/node/gpu-node-02/metrics", {"accept": "application/openmetrics-text; version=1.0.0"})
    remote = get("/node/gpu-node-02/metrics", {"accept-encoding": "gzip"}, peer="192.0.2.7")

    assert text.content_type.startswith("text/plain; version=0.0.4")
    assert text.headers == ()
    assert samples(text.body)
    assert openmetrics.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert list(parse_openmetrics(openmetrics.body.decode()))
    assert remote.headers == (("Content-Encoding", "gzip"),)
    assert len(remote.body) < len(text.body) / 5


def test_pages_say_that_they_are_simulated(get: Callable[..., Response]) -> None:
    """The list of nodes and each node's page; a node's page without the last slash leads to it."""
    index = get("/").body.decode()
    page = get("/node/gpu-node-01/").body.decode()

    assert "Simulated" in index
    assert index.count("/metrics") >= 8
    assert "imulated" in page
    assert get("/node/gpu-node-01").status == 301
    assert get("/metrics").body == b"own 1\n"
    assert get("/-/healthy").status == 200


def test_a_browser_may_show_all_of_a_nodes_page(get: Callable[..., Response]) -> None:
    """A simulated node's page comes with the policy that was made for it: the index's would refuse its icon."""
    headers = dict(get("/node/gpu-node-01/").headers)
    assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert dict(get("/").headers)["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("path", ["/node/none/metrics", "/node/gpu-node-01/other", "/node/", "/node//metrics", "/x"])
def test_what_is_not_there_is_not_found(get: Callable[..., Response], path: str) -> None:
    """Any path that names no node of the fleet is a 404."""
    assert get(path).status == 404


def test_ready_when_every_node_has_been_read() -> None:
    """Before that each first scrape opens a node, which takes longer."""
    scenario = parse_scenario(b"nodes: [{name: a, profile: t4, gpus: 1}, {name: b, profile: l4, gpus: 1}]", "s.yaml")
    fleet, _ = fleet_of(scenario)
    routes = FleetRoutes(fleet, scenario, address=lambda: "", own_metrics=lambda: b"").routes()
    request = Request("GET", "/-/ready", "", {}, b"", "::1")

    fleet.text("a")
    waiting = routes["GET", "/-/ready"](request)
    assert (waiting.status, waiting.body.split()[:3]) == (503, [b"1", b"of", b"2"])
    fleet.text("b")
    assert routes["GET", "/-/ready"](request).status == 200
