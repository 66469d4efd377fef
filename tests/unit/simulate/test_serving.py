from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.scenario import Scenario
from gpufleet.simulate.scenario_file import default_scenario, parse_scenario
from gpufleet.simulate.staging import Stage
from tests.conftest import Golden
from tests.support.scripted_caller import Clock

ONE_REPLICA_EACH = """
nodes: [{name: a, profile: h200, gpus: 2}, {name: b, profile: l4, gpus: 1}]
quarantine: true
runs:
  - {name: r, pattern: inference, nodes: [a], gpus: [0], phase: 10h, server: vllm, model: m/one}
  - {name: s, pattern: inference, nodes: [a], gpus: [1], phase: 10h, server: sglang, model: m/two}
events:
  - {kind: overload, node: a, at: 19m, for: 5m}
  - {kind: loss, node: b, gpu: 0, at: 10m, for: 15m}
"""
MODEL = frozenset({"model_name"})
VLLM = MODEL | {"engine"}
TOKENIZER = MODEL | {"engine_type"}
STREAMED = TOKENIZER | {"is_streaming"}
SCHEDULER = TOKENIZER | {"dp_rank", "tp_rank", "pp_rank", "moe_ep_rank"}
LABELS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "vllm": {
        "num_requests_running": VLLM,
        "num_requests_waiting": VLLM,
        "kv_cache_usage_perc": VLLM,
        "num_preemptions_total": VLLM,
        "prompt_tokens_total": VLLM,
        "generation_tokens_total": VLLM,
        "prefix_cache_queries_total": VLLM,
        "prefix_cache_hits_total": VLLM,
        "request_success_total": VLLM | {"finished_reason"},
        "time_to_first_token_seconds_count": VLLM,
        "inter_token_latency_seconds_count": VLLM,
        "e2e_request_latency_seconds_count": VLLM,
        "request_queue_time_seconds_count": VLLM,
    },
    "sglang": {
        "num_running_reqs": SCHEDULER,
        "num_queue_reqs": SCHEDULER,
        "token_usage": SCHEDULER,
        "gen_throughput": SCHEDULER,
        "num_retracted_requests_total": SCHEDULER,
        "queue_time_seconds_count": SCHEDULER,
        "num_requests_total": STREAMED,
        "num_aborted_requests_total": TOKENIZER,
        "prompt_tokens_total": STREAMED,
        "generation_tokens_total": STREAMED,
        "time_to_first_token_seconds_count": STREAMED,
        "inter_token_latency_seconds_count": TOKENIZER,
        "e2e_request_latency_seconds_count": STREAMED,
    },
}
"""As vLLM 0.33 and SGLang 0.5.23 have them."""


def served(scenario: Scenario, minutes: float) -> tuple[Fleet, Clock]:
    """A fleet so many minutes into its scenario."""
    clock = Clock()
    fleet = Fleet(Stage(scenario), FleetOptions(), clock=clock, wall=lambda: 1.7e9 + clock.now)
    clock.forward(60 * minutes)
    return fleet, clock


def page(fleet: Fleet, node: str, kind: str) -> bytes:
    """The page of a server that has a replica."""
    text = fleet.server(node, kind)
    assert text is not None
    return text


def histograms(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], list[float]]:
    """The buckets of each histogram, in the order of the page."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                labels = frozenset(pair for pair in sample.labels.items() if pair[0] != "le")
                found.setdefault((sample.name, labels), []).append(sample.value)
    return found


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_page_of_a_server_is_as_reviewed(kind: str, golden: Golden) -> None:
    """In the second minute of a rush: names, labels, bounds and numbers."""
    fleet, _ = served(parse_scenario(ONE_REPLICA_EACH.encode(), "s"), 21)
    golden(f"simulated-{kind}.prom", page(fleet, "a", kind))


def test_the_page_of_the_quarantine_is_as_reviewed(golden: Golden) -> None:
    """While it holds the node whose GPU is lost."""
    fleet, _ = served(parse_scenario(ONE_REPLICA_EACH.encode(), "s"), 21)
    golden("simulated-quarantine.prom", fleet.quarantine())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_has_the_labels_of_the_real_one(kind: str) -> None:
    """Queries that are tried here hold elsewhere: what has no rank there has none here."""
    fleet, _ = served(default_scenario(), 5)
    found: dict[str, set[frozenset[str]]] = {}
    for family in parse(page(fleet, "gpu-node-07", kind).decode()):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_sum")):
                found.setdefault(sample.name.removeprefix(f"{kind}:"), set()).add(frozenset(sample.labels))

    assert found == {name: {labels} for name, labels in LABELS[kind].items()}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_buckets_rise_from_bound_to_bound_after_a_replica_began_anew(kind: str) -> None:
    """Also where what it had counted before is taken off."""
    text = (
        "nodes: [{name: a, profile: h200, gpus: 1}]\n"
        f"runs: [{{name: r, pattern: inference, nodes: [a], phase: 7h, server: {kind}}}]\n"
        "events: [{kind: loss, node: a, gpu: 0, at: 7m, for: 3m}]\n"
    )
    fleet, clock = served(parse_scenario(text.encode(), "s"), 10)
    for _ in range(60):
        clock.forward(7)
        for buckets in histograms(page(fleet, "a", kind)).values():
            assert buckets == sorted(buckets)


def test_the_tokenizer_goes_on_counting_where_a_replica_begins_anew() -> None:
    """Its count never falls, and grows more slowly while one of its two replicas is away."""
    fleet, clock = served(default_scenario(), 14)
    counts = []
    for _ in range(24):
        found = [
            sample.value
            for family in parse(page(fleet, "gpu-node-07", "sglang").decode())
            for sample in family.samples
            if sample.name == "sglang:num_requests_total"
        ]
        assert len(found) == 1
        counts += found
        clock.forward(60)

    grown = [after - before for before, after in pairwise(counts)]
    assert min(grown) > 0
    assert grown[3] == pytest.approx(grown[0] / 2, rel=0.1)
    assert grown[22] == pytest.approx(grown[0], rel=0.1)


def test_replicas_of_two_runs_are_told_apart() -> None:
    """One server a node and kind: no series is there twice."""
    text = (
        "nodes: [{name: a, profile: h200}]\n"
        "runs:\n"
        "  - {name: r, pattern: inference, nodes: [a], gpus: [0, 1], server: vllm}\n"
        "  - {name: s, pattern: inference, nodes: [a], gpus: [4], server: vllm}\n"
    )
    fleet, _ = served(parse_scenario(text.encode(), "s"), 1)
    lines = page(fleet, "a", "vllm").decode().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]

    assert len(series) == len(set(series))
    assert sum(line.startswith("vllm:num_requests_running") for line in series) == 3


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_any_name_of_a_model_is_one_label(kind: str) -> None:
    """Quotes, backslashes and line feeds come out as they went in."""
    text = (
        "nodes: [{name: a, profile: l4, gpus: 1}]\n"
        f'runs: [{{name: r, pattern: inference, nodes: [a], server: {kind}, model: "a\\"b\\\\c\\nd"}}]\n'
    )
    fleet, _ = served(parse_scenario(text.encode(), "s"), 1)
    models = {
        sample.labels["model_name"] for family in parse(page(fleet, "a", kind).decode()) for sample in family.samples
    }

    assert models == {'a"b\\c\nd'}
