"""What a vLLM server says of itself, a replica each engine: names, labels and bounds of its engine since V1. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpufleet.metrics.labels import pairs
from gpufleet.simulate.replica import Replica
from gpufleet.simulate.requests import EVERY, Lots, Spread, Spreads, observed, share_of
from gpufleet.simulate.told import Told

_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_E2E_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TTFT: Spreads = (Spread(0.18, 0.5), Spread(0.45, 0.6), Spread(6.0, 0.7))
_ITL: Spreads = (Spread(0.018, 0.3), Spread(0.032, 0.35), Spread(0.07, 0.4))
_E2E: Spreads = (Spread(4.0, 0.6), Spread(8.0, 0.6), Spread(24.0, 0.6))
_QUEUE: Spreads = (Spread(0.01, 0.5), Spread(0.06, 0.8), Spread(5.0, 0.7))
_PROMPT_TOKENS, _GENERATED_TOKENS = 900, 220
"""Of a request."""
_PREFIX_HITS = 0.4
_REASONS: tuple[tuple[str, Lots], ...] = (
    ("stop", (0.9, 0.89, 0.8)),
    ("length", (0.08, 0.08, 0.07)),
    ("abort", (0.018, 0.027, 0.1)),
    ("error", (0.002, 0.003, 0.03)),
)
"""How the requests of each lot end."""
_PREEMPTED: Lots = (0.0, 0.01, 0.2)


def text(replicas: Sequence[Replica]) -> bytes:
    """The page of all replicas of a node, one engine each."""
    told = Told("Simulated: no vLLM is behind this")
    names = [pairs((("engine", str(each.number)), ("model_name", each.model))) for each in replicas]

    def values(value: Callable[[Replica], float], more: str = "") -> list[tuple[str, float]]:
        return [(name + more, value(each)) for name, each in zip(names, replicas, strict=True)]

    def counted(shares: Lots, times: float = 1) -> Callable[[Replica], float]:
        return lambda each: float(round(share_of(each.lots, shares) * times))

    def histogram(name: str, meaning: str, bounds: tuple[float, ...], spreads: Spreads, times: int = 1) -> None:
        rows = []
        for labels, each in zip(names, replicas, strict=True):
            counts, total = observed(bounds, spreads, each.lots)
            rows.append((labels, [times * count for count in counts], times * total))
        told.histogram(f"vllm:{name}", meaning, [*map(str, bounds), "+Inf"], rows)

    told.gauge("vllm:num_requests_running", "Requests in work.", values(lambda each: float(each.running)))
    told.gauge("vllm:num_requests_waiting", "Requests that wait.", values(lambda each: float(each.waiting)))
    told.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use.", values(lambda each: each.cache_usage))
    told.counter("vllm:prompt_tokens_total", "Tokens of prompts.", values(counted(EVERY, _PROMPT_TOKENS)))
    told.counter("vllm:generation_tokens_total", "Tokens generated.", values(counted(EVERY, _GENERATED_TOKENS)))
    told.counter("vllm:num_preemptions_total", "Requests put back.", values(counted(_PREEMPTED)))
    told.counter("vllm:prefix_cache_queries_total", "Tokens looked up.", values(counted(EVERY, _PROMPT_TOKENS)))
    told.counter("vllm:prefix_cache_hits_total", "Tokens found.", values(counted(EVERY, _PROMPT_TOKENS * _PREFIX_HITS)))
    told.counter(
        "vllm:request_success_total",
        "Requests that have ended, by reason.",
        [row for reason, shares in _REASONS for row in values(counted(shares), f',finished_reason="{reason}"')],
    )
    histogram("time_to_first_token_seconds", "Time to the first token.", _TTFT_BOUNDS, _TTFT)
    histogram("inter_token_latency_seconds", "Time between tokens.", _ITL_BOUNDS, _ITL, _GENERATED_TOKENS)
    histogram("e2e_request_latency_seconds", "Time of the whole request.", _E2E_BOUNDS, _E2E)
    histogram("request_queue_time_seconds", "Time in the queue.", _E2E_BOUNDS, _QUEUE)
    return told.text()
