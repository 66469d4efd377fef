"""What an SGLang server says of itself with ``--enable-metrics``: its schedulers and its tokenizer. Pure.

Each replica has a scheduler, which is told apart by its rank. The tokenizer is one for all of them: it goes on counting
where a replica begins anew, and what it counts has no rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.metrics.labels import pairs
from gpufleet.simulate.replica import Replica
from gpufleet.simulate.requests import EVERY, Lots, Spread, Spreads, observed, share_of
from gpufleet.simulate.told import Told

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
_QUEUE_BOUNDS = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0),
    *(1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0),
)
_TTFT: Spreads = (Spread(0.15, 0.5), Spread(0.4, 0.6), Spread(5.0, 0.7))
_ITL: Spreads = (Spread(0.015, 0.3), Spread(0.027, 0.35), Spread(0.06, 0.4))
_E2E: Spreads = (Spread(3.5, 0.6), Spread(7.0, 0.6), Spread(20.0, 0.6))
_QUEUE: Spreads = (Spread(0.008, 0.5), Spread(0.05, 0.8), Spread(4.0, 0.7))
_PROMPT_TOKENS, _GENERATED_TOKENS = 1100, 240
_ABORTED: Lots = (0.01, 0.02, 0.08)
_RETRACTED: Lots = (0.0, 0.008, 0.15)
_ENGINE = ("engine_type", "unified")
_RANKS = (("moe_ep_rank", "0"), ("pp_rank", "0"), ("tp_rank", "0"))
_STREAMING = (("is_streaming", "true"),)


def text(replicas: Sequence[Replica], answered: Mapping[str, Lots]) -> bytes:
    """The page of a node; ``answered`` is all that was asked of each model, by replicas that are gone, too."""
    told = Told("Simulated: no SGLang is behind this")
    schedulers = [
        (pairs((("dp_rank", str(each.number)), _ENGINE, ("model_name", each.model), *_RANKS)), each)
        for each in replicas
    ]

    def counter(name: str, meaning: str, shares: Lots, times: int = 1, more: tuple[tuple[str, str], ...] = ()) -> None:
        told.counter(
            f"sglang:{name}",
            meaning,
            [
                (pairs((_ENGINE, *more, ("model_name", model))), float(share_of(lots, shares) * times))
                for model, lots in answered.items()
            ],
        )

    def histogram(
        name: str,
        meaning: str,
        bounds: tuple[float, ...],
        spreads: Spreads,
        by: Sequence[tuple[str, Lots]],
        times: int = 1,
    ) -> None:
        rows = []
        for labels, lots in by:
            counts, total = observed(bounds, spreads, lots)
            rows.append((labels, [times * count for count in counts], times * total))
        told.histogram(f"sglang:{name}", meaning, [*map(str, bounds), "+Inf"], rows)

    told.gauge("sglang:num_running_reqs", "Requests in work.", [(who, float(it.running)) for who, it in schedulers])
    told.gauge("sglang:num_queue_reqs", "Requests that wait.", [(who, float(it.waiting)) for who, it in schedulers])
    told.gauge("sglang:token_usage", "Share of the KV cache in use.", [(who, it.cache_usage) for who, it in schedulers])
    told.gauge(
        "sglang:gen_throughput",
        "Tokens generated a second.",
        [(who, round(it.per_second * _GENERATED_TOKENS, 3)) for who, it in schedulers],
    )
    told.counter(
        "sglang:num_retracted_requests_total",
        "Requests put back.",
        [(who, float(share_of(it.lots, _RETRACTED))) for who, it in schedulers],
    )
    histogram(
        "queue_time_seconds", "Time in the queue.", _QUEUE_BOUNDS, _QUEUE, [(who, it.lots) for who, it in schedulers]
    )
    counter("num_requests_total", "Requests that have ended.", EVERY, more=_STREAMING)
    counter("num_aborted_requests_total", "Requests given up.", _ABORTED)
    counter("prompt_tokens_total", "Tokens of prompts.", EVERY, _PROMPT_TOKENS, _STREAMING)
    counter("generation_tokens_total", "Tokens generated.", EVERY, _GENERATED_TOKENS, _STREAMING)
    plain = [(pairs((_ENGINE, ("model_name", model))), lots) for model, lots in answered.items()]
    streaming = [(pairs((_ENGINE, *_STREAMING, ("model_name", model))), lots) for model, lots in answered.items()]
    histogram("time_to_first_token_seconds", "Time to the first token.", _TTFT_BOUNDS, _TTFT, streaming)
    histogram("inter_token_latency_seconds", "Time between tokens.", _ITL_BOUNDS, _ITL, plain, _GENERATED_TOKENS)
    histogram("e2e_request_latency_seconds", "Time of the whole request.", _E2E_BOUNDS, _E2E, streaming)
    return told.text()
