"""What a simulated fleet shows beside its GPUs: training processes, RDMA adapters, model servers, the quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from gpufleet.model.nic import NicPort
from gpufleet.model.training import TrainingRow
from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.requests import Demand, Spread, observed
from gpufleet.simulate.scenario import ScenarioError
from gpufleet.simulate.scenario_file import default_scenario, parse_scenario
from gpufleet.simulate.staging import Stage

TRAIN, SERVE = "gpu-node-01", "gpu-node-07"
MINUTE = 60.0


@dataclass
class Story:
    """The default scenario, or another one, on a clock that is moved by hand."""

    text: str = ""
    now: float = 1000.0
    fleet: Fleet = field(init=False)

    def __post_init__(self) -> None:
        scenario = parse_scenario(self.text.encode(), "s") if self.text else default_scenario()
        self.fleet = Fleet(Stage(scenario), FleetOptions(), clock=lambda: self.now, wall=lambda: self.now + 1e9)

    def at(self, minutes: float) -> None:
        """Go to a time of the story."""
        self.now = 1000.0 + MINUTE * minutes

    def training(self, node: str = TRAIN) -> tuple[TrainingRow, ...]:
        """What its processes tell."""
        return self.fleet.snapshot(node).training

    def ports(self, node: str) -> tuple[NicPort, ...]:
        """Its adapters."""
        return self.fleet.snapshot(node).nics

    def server(self, kind: str) -> Mapping[str, float]:
        """Sums of what a server shows, by series without labels."""
        text = self.fleet.server(SERVE, kind)
        assert text is not None
        return sums(text)

    def quarantine(self) -> Mapping[str, float]:
        """What the quarantine shows."""
        return sums(self.fleet.quarantine())


def sums(text: bytes) -> Mapping[str, float]:
    """Each series' values added up, by name."""
    found: dict[str, float] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def told(value: float | None) -> float:
    """What must be there."""
    assert value is not None
    return value


def test_a_training_process_makes_steps_at_the_pace_of_its_run() -> None:
    """Four and a half seconds each, and half as much again while a GPU of the run is hot."""
    story = Story()
    rates = []
    for minutes in ((0.2, 1.2), (5.0, 8.0)):
        steps = []
        for minute in minutes:
            story.at(minute)
            (row,) = story.training()
            steps.append(told(row.steps))
        rates.append((steps[1] - steps[0]) / (minutes[1] - minutes[0]))
    calm, hot = rates
    assert calm == pytest.approx(60 / 4.5, abs=1.0)
    assert hot == pytest.approx(calm / 1.5, rel=0.1)


def test_what_a_training_process_reports_hangs_together() -> None:
    """As many durations as steps, tokens by steps, a checkpoint each quarter of an hour, a loss that falls."""
    story = Story()
    story.at(1)
    (early,) = story.training()
    story.at(31)
    (late,) = story.training()
    assert late.step_durations is not None
    assert late.step_durations.counts[-1] == late.steps
    assert told(late.tokens) % told(late.steps) == 0
    assert dict(late.checkpoints)["ok"] - dict(early.checkpoints)["ok"] == 2
    assert late.last_checkpoint_at is not None
    assert 0 <= story.now + 1e9 - told(late.last_step_at) < 60
    assert told(late.loss) < told(early.loss)
    assert (late.who.run, late.who.rank, late.who.world_size) == ("llama3-pretrain", "0", "4")


def test_nodes_without_training_report_none() -> None:
    """Nor have they adapters that carry anything."""
    assert Story().training(SERVE) == ()


def test_counts_of_a_process_that_is_started_anew_begin_at_zero() -> None:
    """A lost GPU ends its run; the run comes back with it, one restart older."""
    story = Story(
        "nodes: [{name: a, profile: h100-80gb-hbm3, gpus: 2}, {name: b, profile: h100-80gb-hbm3, gpus: 2}]\n"
        "runs: [{name: r, pattern: train, nodes: [a, b], step: 2s}]\n"
        "events: [{kind: loss, node: a, gpu: 0, at: 10m, for: 10m}]\n"
    )
    story.at(9)
    (before,) = story.training("b")
    story.at(15)
    assert story.training("b") == ()
    story.at(21)
    (after,) = story.training("b")
    assert told(after.steps) < told(before.steps)
    assert told(after.restarts) == told(before.restarts) + 1


def test_a_link_that_flaps_goes_down_and_carries_nothing_then() -> None:
    """Eight times in fifty minutes, forty seconds each; the other ports stay up."""
    story = Story()
    down = set()
    for second in range(5 * 60, 15 * 60, 5):
        story.at(second / 60)
        down |= {(port.identity.nic, second) for port in story.ports("gpu-node-04") if not port.link_up}
    assert {nic for nic, _ in down} == {"mlx5_2"}
    assert len(down) == 2 * 8

    story.at(5.05)
    before = story.ports("gpu-node-04")[2]
    story.at(5.5)
    after = story.ports("gpu-node-04")[2]
    assert before.transmitted == after.transmitted != 0


def test_packets_are_sent_again_on_the_bad_adapter_alone() -> None:
    """By what showed the loss."""
    story = Story()
    story.at(50)
    lost = [sum(count for _, count in port.retransmits) for port in story.ports("gpu-node-04")]
    assert max(lost) == lost[2] > 1000 * sum(lost[:2] + lost[3:])


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_servers_counts_only_grow_and_agree(kind: str) -> None:
    """Requests, tokens and each histogram's total."""
    story = Story()
    before: Mapping[str, float] = {}
    for minutes in (1, 2, 5, 14):
        story.at(minutes)
        now = story.server(kind)
        for name, value in before.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert now[name] >= value, name
        before = now
    finished = {"vllm": "vllm:request_success_total", "sglang": "sglang:num_requests_total"}[kind]
    assert before[finished] == pytest.approx(before[f"{kind}:e2e_request_latency_seconds_count"], rel=0.01)


def test_an_overload_queues_and_makes_answers_late() -> None:
    """More than twice the usual requests, for eight minutes."""
    story = Story()
    story.at(20)
    calm = story.server("vllm")
    story.at(26)
    rush = story.server("vllm")
    assert calm["vllm:num_requests_waiting"] == 0
    assert rush["vllm:num_requests_waiting"] > rush["vllm:num_requests_running"]
    means = []
    for first, last in ((19, 21), (24, 29)):
        story.at(first)
        before = story.server("vllm")
        story.at(last)
        after = story.server("vllm")
        name = "vllm:time_to_first_token_seconds"
        means.append(
            (after[f"{name}_sum"] - before[f"{name}_sum"]) / (after[f"{name}_count"] - before[f"{name}_count"])
        )
    assert means[1] > 5 * means[0]


def test_a_replica_is_away_with_its_gpu_and_counts_anew() -> None:
    """GPU 6 is lost for twenty minutes: one of two replicas is left."""
    story = Story()
    replicas = []
    for minutes in (10, 20, 36):
        story.at(minutes)
        text = story.fleet.server(SERVE, "sglang") or b""
        replicas.append({line.split('dp_rank="')[1][0] for line in text.decode().splitlines() if "dp_rank" in line})
    assert replicas == [{"0", "1"}, {"1"}, {"0", "1"}]


def test_what_is_not_there_is_no_page() -> None:
    """A node that serves nothing, and a scenario without a quarantine."""
    story = Story("nodes: [{name: a, profile: l4}]\n")
    with pytest.raises(KeyError):
        story.fleet.server("a", "vllm")
    with pytest.raises(KeyError):
        story.fleet.quarantine()
    with pytest.raises(KeyError):
        Story().fleet.server(SERVE, "tgi")


def test_the_quarantine_takes_out_the_node_whose_gpu_is_lost() -> None:
    """One of eight, until the GPU is back; decisions and actions are counted."""
    story = Story()
    seen = []
    for minutes in (10, 20, 40, 80):
        story.at(minutes)
        now = story.quarantine()
        seen.append(
            (
                now["gpufleet_quarantine_nodes"],
                now["gpufleet_quarantine_decisions_total"],
                now["gpufleet_quarantine_budget"],
                now["gpufleet_quarantine_breaker_open"],
            )
        )
    assert seen == [(0, 0, 1, 0), (1, 1, 1, 0), (0, 1, 1, 0), (1, 2, 1, 0)]


def test_a_second_node_is_refused_while_the_budget_is_spent() -> None:
    """A tenth of ten nodes is one."""
    nodes = ", ".join(f"{{name: n{place}, profile: l4, gpus: 1}}" for place in range(10))
    story = Story(
        f"nodes: [{nodes}]\nquarantine: true\n"
        "events: [{kind: loss, node: n1, gpu: 0, at: 1m, for: 9m}, {kind: loss, node: n2, gpu: 0, at: 2m, for: 9m}]\n"
    )
    story.at(5)
    text = story.fleet.quarantine().decode()
    assert 'decision="refuse",reason="budget"} 1.0' in text
    assert story.quarantine()["gpufleet_quarantine_nodes"] == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("events: [{kind: nic, node: a, nic: 9, at: 1m, for: 5m, flaps: 1}]", "there is no adapter 9; they are 0 to 1"),
        ("events: [{kind: nic, node: a, nic: 0, at: 1m, for: 5m}]", "nothing happens"),
        ("events: [{kind: nic, node: a, nic: 0, at: 1m, for: 5m, flaps: 20, down: 1m}]", "do not fit into the time"),
        ("events: [{kind: nic, node: b, nic: 0, at: 1m, for: 5m, flaps: 1}]", "the node has none"),
        ("events: [{kind: overload, node: a, at: 1m, for: 5m}]", "nothing serves on 'a'"),
        ("runs: [{name: r, pattern: train, nodes: [a], server: vllm}]", "serves nothing"),
        ("runs: [{name: r, pattern: inference, nodes: [a], server: tgi}]", "server"),
    ],
)
def test_what_can_not_happen_is_refused(more: str, words: str) -> None:
    """With the path of the key, and what to write."""
    text = f"nodes: [{{name: a, profile: h100-80gb-hbm3, gpus: 2}}, {{name: b, profile: l4}}]\n{more}\n"
    with pytest.raises(ScenarioError, match=words):
        parse_scenario(text.encode(), "s")


OVERLOADS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600), st.floats(1.1, 5.0)), max_size=3).map(
    lambda all_of: [(start, start + length, factor) for start, length, factor in all_of]
)


@settings(deadline=None)
@given(
    overloads=OVERLOADS,
    times=st.lists(st.integers(0, 20_000), min_size=2, max_size=6),
    period=st.sampled_from([0, 3700]),
)
def test_requests_never_become_fewer(overloads: list[tuple[int, int, float]], times: list[int], period: int) -> None:
    """Whatever rush comes when: each lot grows, and so does each bucket."""
    demand = Demand(5.0, day=5000, phase=700, overloads=overloads, period=period)
    spreads = (Spread(0.2, 0.5), Spread(0.5, 0.5), Spread(3.0, 0.5))
    before: list[float] = [0.0] * 4
    for time in sorted(times):
        lots = demand.lots(time)
        counts, total = observed((0.1, 1.0), spreads, lots)
        now = [*map(float, counts), total]
        assert all(late >= early - 1e-9 for late, early in zip(now, before, strict=True))
        assert counts == sorted(counts)
        before = now


def test_a_fault_names_who_held_the_gpu() -> None:
    """As a real exporter does: the run that the lost GPU served."""
    story = Story()
    pages = []
    for minutes in (14.0, 15.1, 16.0):
        story.at(minutes)
        pages.append(story.fleet.text(SERVE).decode())
    (incident,) = [
        line for line in pages[-1].splitlines() if line.startswith("gpu_fault_active") and 'fault="79"' in line
    ]
    assert 'project="products",run="search-answers",task="serve"' in incident
