"""Cases of the alerts about runs and what training reports."""

from __future__ import annotations

from tests.mixin.alert_case import BUSY, IDLE, LONG, Case, Series, of_gpu, rises, stays, text, there

RUN = {"project": "p", "run": "r", "task": "t"}
NODES = ("n1", "n2", "n3", "n4")
MAX = {"gpu_sm_clock_max_hertz": stays(2e9)}
FAST = {**MAX, "gpu_sm_clock_hertz": stays(1.9e9)}
SLOW = {**MAX, "gpu_sm_clock_hertz": f"1.9e9x20 1.3e9x{LONG}"}
HELD = 'gpu_clock_event_seconds_total{reason="hw_thermal_slowdown"}'
COUNTED = {HELD: stays(0)}
THROTTLED = {HELD: f"0x20 0+40x{LONG}"}


def fleet(parts: dict[str, Series], nodes: tuple[str, ...] = NODES, run: str = "r") -> dict[str, str]:
    """A run of a GPU on each node; ``parts`` are the readings of some nodes, the others are fast and well."""
    made: dict[str, str] = {}
    for node in nodes:
        made |= there(0, node, run) | of_gpu(parts.get(node, {**FAST, **COUNTED}), 0, node)
    return made


def rank(readings: Series, number: int = 0, node: str = "n1", run: str = "r") -> dict[str, str]:
    """What a process of a run reports."""
    labels = {
        "project": "p",
        "run": run,
        "task": "t",
        "attempt": "1",
        "node": node,
        "rank": str(number),
        "instance": node,
    }
    made = {text("train_info", {**labels, "world_size": "4"}): readings.get("train_info", stays(1))}
    for reading, values in readings.items():
        name, _, more = reading.partition("{")
        series = text(name, labels)
        made[f"{series[:-1]},{more}" if more else series] = values
    return made


def ranks(readings: Series, count: int = 4, run: str = "r") -> dict[str, str]:
    """Several processes that report the same."""
    made: dict[str, str] = {}
    for number in range(count):
        made |= rank(readings, number, f"n{number}", run)
    return made


def unwatched(node: str) -> dict[str, str]:
    """A node of the run whose exporter does not answer after 20 minutes."""
    target = {"job": "gpufleet", "instance": f"{node}:9837"}
    return {
        **there(0, node, values="1x20"),
        text("gpufleet_node_info", {**target, "node": node}): "1x20",
        text("up", target): f"1x20 0x{LONG}",
    }


LAST = "train_last_step_timestamp_seconds"
CHECKPOINT = "train_last_checkpoint_timestamp_seconds"
OK = 'train_checkpoints_total{outcome="ok"}'
FAILED = 'train_checkpoints_total{outcome="failed"}'
STEPS = {"train_steps_total": rises(15), LAST: rises(60)}
# Steps of about 4 s, all in one bucket.
TIMES = {
    'train_step_duration_seconds_bucket{le="4"}': rises(15),
    'train_step_duration_seconds_bucket{le="+Inf"}': rises(15),
}
# Steps of about five minutes.
LONG_TIMES = {
    'train_step_duration_seconds_bucket{le="120"}': rises(0),
    'train_step_duration_seconds_bucket{le="300"}': rises(1),
    'train_step_duration_seconds_bucket{le="+Inf"}': rises(1),
}
TENSOR = "gpu_tensor_active_seconds_total"
WORKS = {TENSOR: rises(25)}


def tensor(values: str, nodes: tuple[str, ...] = ("n1",)) -> dict[str, str]:
    """A run of three nodes, some of which use their tensor cores so."""
    made: dict[str, str] = {}
    for node in ("n1", "n2", "n3"):
        made |= there(0, node) | of_gpu({TENSOR: values} if node in nodes else WORKS, 0, node)
    return made


ALL = ("n1", "n2", "n3")
IDLE_FROM_40 = f"0+25x40 1000x{LONG}"
LARGE = tuple([f"n{place}" for place in range(1, 33)])
NAMED = {"node": "n1", **RUN}

CASES = [
    Case(
        "GpuRunStragglerNode",
        "one of four is throttled",
        fleet({"n1": {**SLOW, **THROTTLED}}),
        "45m",
        [{**NAMED, "severity": "warning"}],
    ),
    Case(
        "GpuRunStragglerNode",
        "one of thirty-two wakes someone",
        fleet({"n1": {**SLOW, **THROTTLED}}, LARGE),
        "45m",
        [{**NAMED, "severity": "critical"}],
    ),
    Case(
        "GpuRunStragglerNode", "slow, but not throttled: clocks were locked", fleet({"n1": {**SLOW, **COUNTED}}), "60m"
    ),
    Case(
        "GpuRunStragglerNode",
        "throttled, but not slower than the others",
        fleet({node: {**FAST, **THROTTLED} for node in NODES}),
        "45m",
    ),
    Case("GpuRunStragglerNode", "all are equally slow", fleet({node: {**SLOW, **THROTTLED} for node in NODES}), "45m"),
    Case("GpuRunStragglerNode", "two nodes have no median", fleet({"n1": {**SLOW, **THROTTLED}}, ("n1", "n2")), "45m"),
    Case(
        "GpuRunStragglerNode",
        "a node alone",
        fleet({"n1": {**SLOW, **THROTTLED}}, ("n1",)),
        "45m",
    ),
    Case(
        "GpuRunStragglerNode",
        "a few minutes of it",
        fleet({"n1": {**MAX, "gpu_sm_clock_hertz": f"1.9e9x20 1.3e9x6 1.9e9x{LONG}", HELD: f"0x20 0+40x6 240x{LONG}"}}),
        "40m",
    ),
    Case(
        "GpuRunStragglerNode",
        "nothing counts throttling: slower by more, and for longer",
        fleet({node: SLOW if node == "n1" else FAST for node in NODES}),
        "50m",
        [{**NAMED, "severity": "info"}],
    ),
    Case(
        "GpuRunStragglerNode",
        "models with other clocks in one run",
        fleet({"n1": {"gpu_sm_clock_max_hertz": stays(1.4e9), "gpu_sm_clock_hertz": stays(1.33e9), **THROTTLED}}),
        "45m",
    ),
    Case(
        "GpuRunStragglerNode",
        "two runs on the slow node: each waits for it",
        fleet({"n1": {**SLOW, **THROTTLED}})
        | {
            key: value
            for node in NODES
            for key, value in {
                **there(1, node, "other"),
                **of_gpu({**SLOW, **THROTTLED} if node == "n1" else {**FAST, **COUNTED}, 1, node),
            }.items()
        },
        "45m",
        [{**NAMED, "severity": "warning"}, {**NAMED, "run": "other", "severity": "warning"}],
    ),
    Case(
        "GpuRunStalled",
        "no step for a quarter of an hour",
        ranks({**TIMES, "train_steps_total": f"0+15x30 450x{LONG}", LAST: f"0+60x30 1800x{LONG}"}),
        "50m",
        [{**RUN, "severity": "critical"}],
    ),
    Case("GpuRunStalled", "it steps", ranks({**TIMES, **STEPS}), "50m"),
    Case(
        "GpuRunStalled",
        "a step takes five minutes, and twelve are no stall",
        ranks({**LONG_TIMES, LAST: f"0+60x30 1800x{LONG}"}),
        "45m",
    ),
    Case(
        "GpuRunStalled",
        "it has ended: all of it is gone",
        ranks({**dict.fromkeys(TIMES, "0+15x30"), LAST: "0+60x30", "train_info": "1x30"}),
        "50m",
    ),
    Case(
        "GpuRunStalled",
        "without the reporter: tensor cores stop",
        tensor(IDLE_FROM_40, ALL),
        "75m",
        [{**RUN, "severity": "warning"}],
    ),
    Case("GpuRunStalled", "it has not begun yet", tensor(rises(0), ALL), "50m"),
    Case(
        "GpuRunStalled",
        "the reporter knows better: a long evaluation",
        tensor(IDLE_FROM_40, ALL) | ranks({**TIMES, **STEPS}, 3),
        "75m",
    ),
    Case(
        "GpuRunPartialActivity",
        "one node does nothing",
        tensor(rises(0)),
        "40m",
        [NAMED],
    ),
    Case("GpuRunPartialActivity", "all wait", tensor(rises(0), ALL), "40m"),
    Case("GpuRunPartialActivity", "for a few minutes", tensor(f"0+25x20 500+0x6 500+25x{LONG}"), "35m"),
    Case(
        "GpuRunNodeMissing",
        "one of four has vanished",
        {**ranks({}, 3), **rank({"train_info": "1x20"}, 3, "n9")},
        "30m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunNodeMissing",
        "the exporter of a node is down, and the run makes its steps",
        {**ranks({LAST: rises(60)}, 3), **rank({"train_info": "1x20"}, 3, "n9"), **unwatched("n9")},
        "30m",
    ),
    Case(
        "GpuRunNodeMissing",
        "a node is down with its exporter, and the others wait",
        {**ranks({LAST: f"0+60x20 1200x{LONG}"}, 3), **rank({"train_info": "1x20"}, 3, "n9"), **unwatched("n9")},
        "30m",
        [{**RUN, "severity": "critical"}],
    ),
    Case("GpuRunNodeMissing", "the run has ended", ranks({"train_info": "1x20"}), "30m"),
    Case(
        "GpuRunNodeMissing", "it has grown", {**ranks({}, 3), **rank({"train_info": f"_x20 1x{LONG}"}, 3, "n9")}, "30m"
    ),
    Case(
        "GpuRunNodeMissing",
        "an elastic run that gave a node back an hour ago",
        {**ranks({}, 3), **rank({"train_info": "1x20"}, 3, "n9")},
        "90m",
    ),
    Case(
        "GpuRunCheckpointOverdue",
        "it wrote one each half hour, and none for two",
        ranks({**STEPS, OK: f"0+0.0333333x240 8x{LONG}", CHECKPOINT: f"0+60x240 14400x{LONG}"}, 1),
        "400m",
        [RUN],
    ),
    Case(
        "GpuRunCheckpointOverdue",
        "it writes one each hour",
        ranks({**STEPS, OK: rises(1 / 60), CHECKPOINT: rises(60)}, 1),
        "360m",
    ),
    Case("GpuRunCheckpointOverdue", "a run of five hours without any", ranks(STEPS, 1), "300m", [RUN]),
    Case("GpuRunCheckpointOverdue", "a new run", ranks(STEPS, 1), "60m"),
    Case(
        "GpuRunCheckpointFailed",
        "the first one failed: the counter is born at one",
        ranks({**STEPS, FAILED: f"_x30 1x{LONG}"}, 1),
        "40m",
        [RUN],
    ),
    Case(
        "GpuRunCheckpointFailed",
        "the fourth failed",
        ranks({**STEPS, FAILED: f"0x30 1x{LONG}", CHECKPOINT: stays(60)}, 1),
        "40m",
        [RUN],
    ),
    Case(
        "GpuRunCheckpointFailed",
        "one has succeeded since",
        ranks({**STEPS, FAILED: f"0x30 1x{LONG}", CHECKPOINT: f"60x34 2100x{LONG}"}, 1),
        "37m",
    ),
    Case("GpuRunCheckpointFailed", "it failed hours ago", ranks({**STEPS, FAILED: stays(2)}, 1), "200m"),
    Case(
        "GpuRunLossNonFinite",
        "a step without a number",
        ranks({**STEPS, "train_nonfinite_steps_total": f"0x30 1x{LONG}"}, 2),
        "33m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunLossNonFinite",
        "all numbers",
        ranks({**STEPS, "train_nonfinite_steps_total": stays(0), "train_loss": stays(2)}),
        "33m",
    ),
    Case("GpuRunLossNonFinite", "long ago", ranks({**STEPS, "train_nonfinite_steps_total": stays(3)}), "33m"),
    Case("GpuRunRestarts", "four in an hour", ranks({"train_restarts_total": rises(1 / 15)}), "70m", [RUN]),
    Case("GpuRunRestarts", "one in an hour", ranks({"train_restarts_total": f"0x30 1x{LONG}"}), "70m"),
    Case(
        "GpuRunLossDivergence",
        "loss and gradient leave their past",
        ranks({"train_loss": f"2x90 5x{LONG}", "train_grad_norm": f"1x90 20x{LONG}"}, 1),
        "112m",
        [RUN],
    ),
    Case(
        "GpuRunLossDivergence",
        "the loss alone: new data",
        ranks({"train_loss": f"2x90 5x{LONG}", "train_grad_norm": stays(1)}, 1),
        "112m",
    ),
    Case("GpuRunEfficiencyDrop", "half of what it was", tensor(f"0+25x300 7500+10x{LONG}", ALL), "345m", [RUN]),
    Case("GpuRunEfficiencyDrop", "as ever", tensor(rises(25), ALL), "345m"),
    Case(
        "GpuAllocatedIdle",
        "for more than an hour",
        {**there(), **of_gpu(IDLE)},
        "90m",
        [{**RUN, "severity": "info"}],
    ),
    Case(
        "GpuAllocatedIdle", "for more than four", {**there(), **of_gpu(IDLE)}, "260m", [{**RUN, "severity": "warning"}]
    ),
    Case("GpuAllocatedIdle", "a run of half an hour", {**there(), **of_gpu(IDLE)}, "40m"),
    Case("GpuAllocatedIdle", "it works", {**there(), **of_gpu(BUSY)}, "260m"),
    Case(
        "GpuAllocatedIdle",
        "it worked a moment ago",
        {**there(), **of_gpu({"gpu_busy_seconds_total": f"0+54x60 3240x{LONG}"})},
        "100m",
    ),
    Case("GpuAllocatedIdle", "a notebook", {**there(project="team-notebooks"), **of_gpu(IDLE)}, "260m"),
    Case("GpuAllocatedIdle", "what nobody holds", {**there(project="(unallocated)", run=""), **of_gpu(IDLE)}, "260m"),
]
