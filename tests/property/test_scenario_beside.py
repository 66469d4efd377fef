"""Counts of what a scenario has beside its GPUs: training processes, adapters, model servers."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from gpufleet.model.training import TrainingRow
from gpufleet.simulate.nics import NodeNics
from gpufleet.simulate.scenario_file import parse_scenario
from gpufleet.simulate.serving import NodeServer
from gpufleet.simulate.staging import Stage
from gpufleet.simulate.training import NodeTraining

REPEAT = 600
MOMENTS = st.lists(st.integers(0, 3 * REPEAT * 1000), min_size=2, max_size=8).map(sorted)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    """Two nodes that train and one that serves, with losses, heat, flaps and rushes."""
    events: list[dict[str, object]] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("loss", "heat", "power_brake", "nic", "overload", "driver_restart")))
        at = draw(st.integers(0, REPEAT - 60))
        lasts = draw(st.integers(40, REPEAT - at))
        event: dict[str, object] = {"kind": kind, "at": f"{at}s", "for": f"{lasts}s"}
        event["node"] = "s" if kind == "overload" else draw(st.sampled_from(("a", "b", "s")))
        if kind in ("loss", "heat"):
            event["gpu"] = draw(st.integers(0, 1))
        if kind == "nic":
            event |= {"nic": 0, "flaps": draw(st.integers(0, 2)), "down": "20s", "retransmits_per_hour": 70_000}
        events.append(event)
    tree: dict[str, object] = {
        "nodes": [{"name": name, "profile": "h100-80gb-hbm3", "gpus": 2} for name in ("a", "b", "s")],
        "runs": [
            {
                "name": "t",
                "pattern": "train",
                "nodes": ["a", "b"],
                "step": f"{draw(st.integers(300, 40_000))}ms",
                "phase": f"{draw(st.integers(0, 900))}s",
                "checkpoint_every": f"{draw(st.integers(30, 400))}s",
            },
            {"name": "v", "pattern": "inference", "nodes": ["s"], "gpus": [0], "server": "vllm", "day": "20m"},
            {"name": "g", "pattern": "inference", "nodes": ["s"], "gpus": [1], "server": "sglang", "day": "20m"},
        ],
        "events": events,
    }
    if draw(st.booleans()):
        tree["repeat"] = f"{REPEAT}s"
    return Stage(parse_scenario(yaml.safe_dump(tree).encode(), "s"))


def counts(row: TrainingRow) -> list[float]:
    """All that only grows while a process lives."""
    durations = row.step_durations
    assert durations is not None
    assert row.steps is not None
    assert row.tokens is not None
    assert row.checkpoint_seconds is not None
    assert durations.counts[-1] == row.steps
    assert list(durations.counts) == sorted(durations.counts)
    checkpoints = [count for _, count in row.checkpoints]
    return [row.steps, row.tokens, *durations.counts, durations.sum, *checkpoints, row.checkpoint_seconds]


@given(stage=stages(), moments=MOMENTS)
def test_a_training_process_counts_up_or_begins_anew(stage: Stage, moments: list[int]) -> None:
    """While as many restarts are told every count stays or grows; the last step is never in the future."""
    process = NodeTraining(stage, "a", 2)
    before: tuple[int, list[float]] | None = None
    for moment in moments:
        for row in process.rows(moment, float):
            now = counts(row)
            assert row.restarts is not None
            assert min(now) >= 0
            for at in (row.last_step_at, row.last_checkpoint_at):
                assert at is None or 0 <= at <= moment
            if before is not None:
                assert row.restarts >= before[0]
                if row.restarts == before[0]:
                    assert all(late >= early for late, early in zip(now, before[1], strict=True))
            before = row.restarts, now


@given(stage=stages(), moments=MOMENTS, node=st.sampled_from(("a", "s")))
def test_an_adapter_counts_up(stage: Stage, moments: list[int], node: str) -> None:
    """Bytes and retransmits, through flaps and the story's new start."""
    adapters = NodeNics(stage, stage.node(node))
    before = [-1] * 2 * 5
    for moment in moments:
        now = []
        for port in adapters.ports(moment):
            assert port.transmitted is not None
            assert port.received is not None
            now += [port.transmitted, port.received, *[count for _, count in port.retransmits]]
        assert all(late >= early for late, early in zip(now, before, strict=True))
        before = now


@given(stage=stages(), moments=MOMENTS)
def test_a_servers_page_is_sound_at_any_moment(stage: Stage, moments: list[int]) -> None:
    """No bucket below the one before it, nothing below zero, and the tokenizer's counts never fall."""
    servers = {kind: NodeServer(stage, "s", kind) for kind in ("vllm", "sglang")}
    counted: dict[str, float] = {}
    for moment in moments:
        for kind, server in servers.items():
            text = server.text(moment)
            if text is None:
                continue
            for family in parse(text.decode()):
                last = 0.0
                for sample in family.samples:
                    if sample.name.endswith("_bucket"):
                        assert sample.value >= last
                        last = sample.value
                    if "+Inf" in sample.labels.values():
                        last = 0.0
                    assert sample.value >= 0
                    if kind == "sglang" and family.type == "counter" and "dp_rank" not in sample.labels:
                        assert sample.value >= counted.get(sample.name, 0)
                        counted[sample.name] = sample.value
