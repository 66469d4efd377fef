"""What an SGLang server says of itself with ``--enable-metrics``: its scheduler and its tokenizer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpufleet.simulate.requests import Lots, Spread, Spreads, observed, share_of
from gpufleet.simulate.told import Told

if TYPE_CHECKING:
    from gpufleet.simulate.serving import Replica

_TTFT_BOUNDS = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
    *(10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)
_ITL_BOUNDS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04),
    *(0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
_E2E_BOUNDS = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0),
    *(60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0, 1800.0, 2400.0),
)
_QUEUE_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 60.0, 100.0, 600.0)
_TTFT: Spreads = (Spread(0.15, 0.5), Spread(0.4, 0.6), Spread(5.0, 0.7))
_ITL: Spreads = (Spread(0.015, 0.3), Spread(0.027, 0.35), Spread(0.06, 0.4))
_E2E: Spreads = (Spread(3.5, 0.6), Spread(7.0, 0.6), Spread(20.0, 0.6))
_QUEUE: Spreads = (Spread(0.008, 0.5), Spread(0.05, 0.8), Spread(4.0, 0.7))
_PROMPT_TOKENS, _GENERATED_TOKENS = 1100, 240
_ABORTED: Lots = (0.01, 0.02, 0.08)
_RETRACTED: Lots = (0.0, 0.008, 0.15)
EVERY: Lots = (1.0, 1.0, 1.0)


def text(replicas: Sequence[Replica]) -> bytes:
    """The page of all replicas of a node, told apart by ``dp_rank``."""
    told = Told("Simulated: no SGLang is behind this")
    tokenizers = [f'dp_rank="{each.number}",engine_type="unified",model_name="{each.model}"' for each in replicas]
    schedulers = [
        f'dp_rank="{each.number}",engine_type="unified",model_name="{each.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        for each in replicas
    ]

    def values(labels: Sequence[str], value: Callable[[Replica], float]) -> list[tuple[str, float]]:
        return [(name, value(each)) for name, each in zip(labels, replicas, strict=True)]

    def counted(shares: Lots, times: float = 1) -> Callable[[Replica], float]:
        return lambda each: float(round(share_of(each.lots, each.before, shares) * times))

    def histogram(name: str, meaning: str, bounds: tuple[float, ...], spreads: Spreads, times: int = 1) -> None:
        rows = []
        for labels, each in zip(tokenizers, replicas, strict=True):
            counts, total = observed(bounds, spreads, each.lots, each.before)
            rows.append((labels, [times * count for count in counts], times * total))
        told.histogram(f"sglang:{name}", meaning, [*map(str, bounds), "+Inf"], rows)

    told.gauge("sglang:num_running_reqs", "Requests in work.", values(schedulers, lambda each: float(each.running)))
    told.gauge("sglang:num_queue_reqs", "Requests that wait.", values(schedulers, lambda each: float(each.waiting)))
    told.gauge("sglang:token_usage", "Share of the KV cache in use.", values(schedulers, lambda each: each.cache_usage))
    told.gauge(
        "sglang:gen_throughput",
        "Tokens generated a second.",
        values(schedulers, lambda each: round(each.per_second * _GENERATED_TOKENS, 3)),
    )
    told.counter("sglang:num_retracted_requests_total", "Requests put back.", values(schedulers, counted(_RETRACTED)))
    told.counter("sglang:num_requests_total", "Requests that have ended.", values(tokenizers, counted(EVERY)))
    told.counter("sglang:num_aborted_requests_total", "Requests given up.", values(tokenizers, counted(_ABORTED)))
    told.counter("sglang:prompt_tokens_total", "Tokens of prompts.", values(tokenizers, counted(EVERY, _PROMPT_TOKENS)))
    told.counter(
        "sglang:generation_tokens_total", "Tokens generated.", values(tokenizers, counted(EVERY, _GENERATED_TOKENS))
    )
    histogram("time_to_first_token_seconds", "Time to the first token.", _TTFT_BOUNDS, _TTFT)
    histogram("inter_token_latency_seconds", "Time between tokens.", _ITL_BOUNDS, _ITL, _GENERATED_TOKENS)
    histogram("e2e_request_latency_seconds", "Time of the whole request.", _E2E_BOUNDS, _E2E)
    histogram("queue_time_seconds", "Time in the queue.", _QUEUE_BOUNDS, _QUEUE)
    return told.text()
