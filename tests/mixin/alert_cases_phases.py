"""Traps of alerts about runs and served models: phases, attempts, shared nodes, servers, what is not reported, ends."""

from __future__ import annotations

from tests.mixin.alert_case import IDLE, LONG, Case, Series, gpu, of_gpu, rises, stays, text, there
from tests.mixin.alert_cases_rest import ERRORS, FINISHED, MODEL, TTFT, vllm
from tests.mixin.alert_cases_runs import CHECKPOINT, FAILED, LAST, RUN, STEPS, TENSOR, TIMES, WORKS, ranks

PROCESS = {"project": "p", "run": "r", "task": "t"}
STOPS = {"train_steps_total": f"0+15x30 450x{LONG}", LAST: f"0+60x30 1800x{LONG}"}
GONE_AT_30 = "1x30"


def process(number: int, readings: Series, attempt: int = 1, world: int = 4) -> dict[str, str]:
    """A process of a run, of which there are ``world`` as far as it knows."""
    labels = {**PROCESS, "attempt": str(attempt), "node": f"n{number}", "rank": str(number), "instance": f"n{number}"}
    made = {}
    for reading, values in readings.items():
        name, _, more = reading.partition("{")
        known = {**labels, "world_size": str(world)} if name == "train_info" else labels
        made[f"{text(name, known)[:-1]}{',' + more if more else '}'}"] = values
    return made


def processes(values: str, numbers: range, attempt: int = 1, world: int = 4) -> dict[str, str]:
    """Several processes, which are there as ``values`` say."""
    made: dict[str, str] = {}
    for number in numbers:
        made |= process(number, {"train_info": values}, attempt, world)
    return made


def on_nodes(*tensor: tuple[str, str], project: str = "p") -> dict[str, str]:
    """A run of a GPU on each node: when it is there, and how it uses its tensor cores."""
    made: dict[str, str] = {}
    for number, (present, active) in enumerate(tensor):
        node = f"n{number}"
        made |= there(0, node, project=project, values=present) | of_gpu({TENSOR: active}, 0, node)
    return made


def server(pod: str, readings: Series | None = None) -> dict[str, str]:
    """A vLLM server that tells its pod."""
    labels = {"model_name": "m", "instance": "s1", "job": "vllm", "namespace": "ns", "pod": pod}
    series = {"num_requests_waiting": stays(0), **(readings or {})}
    return {text(f"vllm:{name}", labels): values for name, values in series.items()}


def triton(good: str, bad: str) -> dict[str, str]:
    """A Triton server, which counts what fails apart from what succeeds."""
    labels = {"model": "m", "version": "1", "instance": "s1", "job": "triton"}
    return {
        text("nv_inference_request_success", labels): good,
        text("nv_inference_request_failure", labels): bad,
    }


def buckets(bounds: Series) -> dict[str, str]:
    """First tokens by bound."""
    return vllm({f'{TTFT}_bucket{{le="{bound}"}}': values for bound, values in bounds.items()})


HALF_AN_HOUR = f"0+25x40 1000x{LONG}"
CASES = [
    Case(
        "GpuRunStalled",
        "it evaluates for half an hour: tensor cores work on",
        ranks({**TIMES, **STOPS}) | there(0, "n1") | of_gpu(WORKS, 0, "n1"),
        "50m",
    ),
    Case(
        "GpuRunStalled",
        "it waits for what never comes: kernels run, tensor cores do not",
        ranks({**TIMES, **STOPS}) | there(0, "n1") | of_gpu({TENSOR: f"0+25x30 750x{LONG}"}, 0, "n1"),
        "50m",
        [{**RUN, "severity": "critical"}],
    ),
    Case("GpuRunStalled", "it starts: no step yet", ranks({"train_info": stays(1)}), "60m"),
    Case(
        "GpuRunStalled",
        "without the reporter it still stands after hours",
        on_nodes(*[(stays(1), HALF_AN_HOUR)] * 3),
        "180m",
        [{**RUN, "severity": "warning"}],
    ),
    Case("GpuRunStalled", "ten minutes of work are no run", on_nodes(*[(stays(1), f"0+25x10 250x{LONG}")] * 3), "60m"),
    Case("GpuRunStalled", "a node alone is left to its owner", on_nodes((stays(1), HALF_AN_HOUR)), "90m"),
    Case(
        "GpuRunStalled",
        "notebooks on three nodes rest",
        on_nodes(*[(stays(1), HALF_AN_HOUR)] * 3, project="notebooks"),
        "90m",
    ),
    Case(
        "GpuRunStalled",
        "a served model on three nodes is not asked",
        on_nodes(*[(stays(1), HALF_AN_HOUR)] * 3) | server("pod"),
        "90m",
    ),
    Case(
        "GpuRunStalled",
        "without the reporter a run ends: all of it is gone",
        on_nodes(*[("1x40", "0+25x40")] * 3),
        "60m",
    ),
    Case(
        "GpuRunPartialActivity",
        "a replica of a served model is not asked",
        on_nodes((stays(1), rises(0)), (stays(1), rises(25)), (stays(1), rises(25))) | server("pod"),
        "40m",
    ),
    Case(
        "GpuRunPartialActivity",
        "two runs on a node: the one that works hides none of the other",
        on_nodes((stays(1), rises(0)), (stays(1), rises(25)), (stays(1), rises(25)))
        | there(1, "n0", "other")
        | of_gpu(WORKS, 1, "n0"),
        "40m",
        [{"node": "n0", **RUN}],
    ),
    Case(
        "GpuRunNodeMissing",
        "it is still missing after hours, and the others wait",
        processes(stays(1), range(3)) | processes(GONE_AT_30, range(3, 4)),
        "200m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunNodeMissing",
        "the others were told, and go on as three",
        processes(GONE_AT_30, range(4)) | processes(f"_x31 1x{LONG}", range(3), world=3),
        "40m",
    ),
    Case(
        "GpuRunNodeMissing",
        "a new attempt began beside the old one",
        processes(GONE_AT_30, range(4)) | processes(f"_x29 1x{LONG}", range(4), attempt=2),
        "40m",
    ),
    Case(
        "GpuRunNodeMissing",
        "it goes on: an exporter is missing, not a process",
        processes(stays(1), range(3)) | processes(GONE_AT_30, range(3, 4)) | process(0, STEPS),
        "50m",
    ),
    Case(
        "GpuRunNodeMissing",
        "one of four reports, as it always did",
        processes(stays(1), range(1)),
        "200m",
    ),
    Case(
        "GpuRunNodeMissing",
        "without the reporter: a node is gone and the others wait",
        on_nodes(("1x30", "0+25x30"), *[(stays(1), f"0+25x30 750x{LONG}")] * 2),
        "45m",
        [{**RUN, "severity": "warning"}],
    ),
    Case(
        "GpuRunNodeMissing",
        "without the reporter: pods end one by one and the rest works",
        on_nodes(("1x30", "0+25x30"), *[(stays(1), rises(25))] * 2),
        "45m",
    ),
    Case(
        "GpuRunNodeMissing",
        "without the reporter: all are gone",
        on_nodes(*[("1x30", "0+25x30")] * 3),
        "40m",
    ),
    Case(
        "GpuRunCheckpointFailed",
        "one has succeeded a quarter of an hour ago, after it",
        ranks({**STEPS, FAILED: f"0x30 1x{LONG}", CHECKPOINT: f"60x34 2100x{LONG}"}, 1),
        "52m",
    ),
    Case(
        "GpuRunCheckpointFailed",
        "a second rank begins with a failure, the first has counted none",
        process(0, {**STEPS, "train_info": stays(1), FAILED: stays(0)}) | process(1, {FAILED: f"_x30 1x{LONG}"}),
        "35m",
        [RUN],
    ),
    Case(
        "GpuRunCheckpointFailed",
        "it succeeded after that, and ended",
        process(0, {"train_info": "1x30", FAILED: "0x20 1x10", CHECKPOINT: "60x25 1500x5"}),
        "40m",
    ),
    Case(
        "GpuRunLossNonFinite",
        "the loss is not a number",
        ranks({**STEPS, "train_loss": "2x30 " + "NaN " * 20}, 1),
        "33m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunLossNonFinite",
        "the loss is infinite",
        ranks({**STEPS, "train_loss": "2x30 " + "+Inf " * 20}, 1),
        "33m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunLossNonFinite",
        "a new attempt begins with one",
        process(0, {"train_nonfinite_steps_total": "0x30"})
        | process(0, {"train_nonfinite_steps_total": f"_x31 1x{LONG}"}, attempt=2),
        "36m",
        [{**RUN, "severity": "critical"}],
    ),
    Case(
        "GpuRunRestarts",
        "four attempts, each of which counts from zero",
        {
            series: values
            for number in range(4)
            for series, values in process(
                0,
                dict.fromkeys(["train_info", "train_restarts_total"], f"_x{15 * number} {number % 1}x14"),
                attempt=number + 1,
            ).items()
        },
        "58m",
        [RUN],
    ),
    Case(
        "GpuRunRestarts",
        "a second attempt, whose count begins anew",
        process(0, {"train_info": "1x30", "train_restarts_total": "5x30"})
        | process(0, {"train_info": f"_x31 1x{LONG}", "train_restarts_total": f"_x31 0x{LONG}"}, attempt=2),
        "58m",
    ),
    Case(
        "GpuRunRestarts",
        "many ranks start together: that is one start",
        ranks({"train_restarts_total": f"0x30 1x{LONG}"}, 8),
        "60m",
    ),
    Case(
        "GpuRunLossDivergence",
        "a loss below zero gets smaller",
        ranks({"train_loss": stays(-2), "train_grad_norm": f"1x90 20x{LONG}"}, 1),
        "112m",
    ),
    Case(
        "GpuRunEfficiencyDrop",
        "a run of an hour has nothing to compare with",
        on_nodes(*[(stays(1), f"0+40x50 2000+10x{LONG}")] * 3),
        "85m",
    ),
    Case("GpuAllocatedIdle", "a server that waits for requests", {**there(), **of_gpu(IDLE), **server("pod")}, "260m"),
    Case(
        "GpuAllocatedIdle",
        "the server is another run's",
        {**there(), **of_gpu(IDLE), **server("other")},
        "260m",
        [{**RUN, "severity": "warning"}],
    ),
    Case(
        "GpuAllocatedIdle",
        "two runs share the GPU, and one of them works",
        {
            **there(values=stays(0.5)),
            text(
                "gpu_owner_share",
                {**gpu(), "node": "n1", "project": "p", "run": "other", "task": "t", "workload_pod": "pod2"},
            ): stays(0.5),
            **of_gpu({"gpu_busy_seconds_total": rises(54)}),
        },
        "260m",
    ),
    Case("GpuAllocatedIdle", "nothing tells how busy it is", there(), "260m"),
    Case(
        "GpuAllocatedIdle",
        "it has ended after hours of nothing",
        {**there(values="1x200"), **of_gpu({"gpu_busy_seconds_total": "0x200"})},
        "220m",
    ),
    Case(
        "InferenceNoProgress",
        "embeddings: requests end, and there are no tokens",
        vllm({"num_requests_running": stays(4), "generation_tokens_total": stays(0), FINISHED: rises(60)}),
        "20m",
    ),
    Case(
        "InferenceNoProgress",
        "one request now and then",
        vllm({"num_requests_running": "0x3 1x1 " * 30, "generation_tokens_total": stays(100)}),
        "60m",
    ),
    Case("InferenceNoProgress", "it does not tell of tokens", vllm({"num_requests_running": stays(4)}), "20m"),
    Case(
        "InferenceErrorsHigh",
        "the count of failures begins with the first: a bad quarter of an hour after hours without",
        vllm({FINISHED: rises(60), ERRORS: f"_x360 1+15x{LONG}"}),
        "378m",
    ),
    Case(
        "InferenceErrorsHigh",
        "all fail, and are counted apart",
        triton(stays(5), rises(60)),
        "80m",
        [
            {"model": "m", "system": "triton", "severity": "critical"},
            {"model": "m", "system": "triton", "severity": "warning"},
        ],
    ),
    Case("InferenceErrorsHigh", "few fail, and are counted apart", triton(rises(60), rises(0.5)), "400m"),
    Case(
        "InferenceLatencyBurn",
        "bounds of another system, none of them the objective",
        buckets({"1": rises(2), "2": rises(5), "4": rises(6), "60": rises(60), "+Inf": rises(60)}),
        "80m",
        [{**MODEL, "severity": "critical"}, {**MODEL, "severity": "warning"}],
    ),
    Case(
        "InferenceLatencyBurn",
        "bounds of another system, and all is well",
        buckets({"1": rises(50), "2": rises(59), "4": rises(60), "60": rises(60), "+Inf": rises(60)}),
        "400m",
    ),
    Case(
        "InferenceLatencyBurn",
        "it was late an hour ago",
        buckets({"1": f"0x60 0+60x{LONG}", "4": f"0x60 0+60x{LONG}", "+Inf": rises(60)}),
        "90m",
    ),
    Case(
        "InferenceQueueGrowing",
        "a peak of a few minutes",
        vllm({"num_requests_running": stays(8), "num_requests_waiting": f"0x20 10+10x5 0x{LONG}"}),
        "30m",
    ),
    Case(
        "InferenceQueueGrowing",
        "two engines of one model, and one of them queues little",
        vllm({'num_requests_running{engine="0"}': stays(8), 'num_requests_running{engine="1"}': stays(8)})
        | vllm({'num_requests_waiting{engine="0"}': f"0+0.2x{LONG}", 'num_requests_waiting{engine="1"}': stays(0)}),
        "40m",
    ),
    Case(
        "InferenceKvCacheSaturated",
        "preempted long ago",
        vllm({"kv_cache_usage_perc": stays(0.99), "num_preemptions_total": f"0+2x20 40x{LONG}"}),
        "40m",
    ),
]
