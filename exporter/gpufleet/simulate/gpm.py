"""GPM: samples of a GPU's or a slice's counters, and the metrics between two of them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.field_answers import Kind
from gpufleet.simulate.gpu import ScriptedGpu
from gpufleet.simulate.profiles import MIB
from gpufleet.simulate.timeline import (
    DECODER,
    DRAM,
    FP16,
    FP32,
    FP64,
    GRAPHICS,
    INTEGER,
    JPEG,
    NVLINK_RECEIVE,
    NVLINK_TRANSMIT,
    OCCUPANCY,
    PCIE_RECEIVE,
    PCIE_TRANSMIT,
    SM,
    TENSOR,
    TENSOR_FP64,
    TENSOR_HALF,
    TENSOR_INT8,
    Totals,
)
from gpufleet.sources.nvml.calls import ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS

VERSION = 1
"""Answer nvmlGpmMetricsGet_t and nvmlGpmSupport_t carry a plain version, not one with the size in it."""
_HEADER = struct.Struct("<IIQQ")
_HEADER_WORDS = 3
_ENTRY_WORDS = 5
_NAN = float("nan")

_RATIOS = {
    1: GRAPHICS,
    2: SM,
    3: OCCUPANCY,
    4: INTEGER,
    5: TENSOR,
    6: TENSOR_FP64,
    7: TENSOR_HALF,
    9: TENSOR_INT8,
    10: DRAM,
    11: FP64,
    12: FP32,
    13: FP16,
}
_RATES = {20: PCIE_TRANSMIT, 21: PCIE_RECEIVE, 60: NVLINK_RECEIVE, 61: NVLINK_TRANSMIT}


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a sample holds: whose counters, when, and what they had come to."""

    gpu: ScriptedGpu
    kind: Kind
    instance: int | None
    """MIG GPU instance, None for the whole GPU."""
    time: int
    totals: Totals
    bits: int


class Sample:
    """A sample buffer; empty until it is first filled."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content: Sampled | None = None


Metric = Callable[[Sequence[int], float], float]
"""From growths and milliseconds to the value in NVML's unit (percent, MiB/s)."""


def _percent(counter: int) -> Metric:
    return lambda growth, scale: growth[counter] * scale


def _mib(counter: int, links: int = 1) -> Metric:
    # The scale turns millionths and milliseconds into percent; bytes a millisecond have to become MiB a second.
    return lambda growth, scale: growth[counter] * scale * 1e4 * 1000 / MIB / links


@lru_cache(maxsize=1024)
def metric_for(kind: Kind, metric: int) -> Metric | None:
    """How a part computes a metric; ``None`` where it has none of it."""
    profile, branch = kind.profile, kind.branch
    engines = profile.engines
    links = profile.nvlink.links if profile.nvlink else 0
    if metric in _RATIOS:
        return _percent(_RATIOS[metric])
    if metric in _RATES and (metric < 60 or links):
        return _mib(_RATES[metric])
    if 30 <= metric < 30 + engines.decoders:
        return _percent(DECODER)
    if 40 <= metric < 40 + engines.jpeg:
        return _percent(JPEG)
    if 50 <= metric < 50 + engines.ofa or (branch >= 575 and 166 <= metric < 166 + engines.encoders):
        return _zero
    if 62 <= metric < 62 + 2 * links:
        return _mib(NVLINK_TRANSMIT if metric % 2 else NVLINK_RECEIVE, links)
    return None


def _zero(_: Sequence[int], __: float) -> float:
    return 0.0


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    return struct.Struct("<" + "I36x" * count)


@lru_cache(maxsize=256)
def _plan(kind: Kind, ids: tuple[int, ...]) -> tuple[tuple[Metric | None, ...], array[int]]:
    metrics = tuple(metric_for(kind, metric) for metric in ids)
    heads = [
        metric | (SUCCESS if known is not None else NOT_SUPPORTED) << 32
        for metric, known in zip(ids, metrics, strict=True)
    ]
    return metrics, array("Q", heads)


def metrics_between(samples: dict[int, Sample], buffer: Buffer) -> int:
    """Answer nvmlGpmMetricsGet: the struct's two samples, the older one first; returns NVML's code."""
    version, count, first, second = _HEADER.unpack_from(buffer)
    if version != VERSION:
        return ARGUMENT_VERSION_MISMATCH
    if first not in samples or second not in samples:
        return INVALID_ARGUMENT
    older, newer = samples[first].content, samples[second].content
    if older is None or newer is None or older.gpu is not newer.gpu or older.instance != newer.instance:
        return INVALID_ARGUMENT
    view = memoryview(buffer).cast("B")[: 8 * (_HEADER_WORDS + _ENTRY_WORDS * count)]
    ids = _words(count).unpack_from(buffer, 8 * _HEADER_WORDS)
    metrics, heads = _plan(newer.kind, ids)
    elapsed = newer.time - older.time
    if elapsed <= 0:
        # Samples closer than the hardware's spacing hold the same counts: nothing over nothing.
        values = [_NAN if metric else 0.0 for metric in metrics]
    else:
        growth = [now - then for now, then in zip(newer.totals, older.totals, strict=True)]
        # One factor for all: what is a part of another stays one.
        wobble = newer.gpu.activity_gain * (1 - (newer.bits >> 40) % 16 / 1500)
        scale = wobble / elapsed / 1e4
        values = [metric(growth, scale) if metric else 0.0 for metric in metrics]
    view.cast("Q")[_HEADER_WORDS::_ENTRY_WORDS] = memoryview(heads)
    view.cast("d")[_HEADER_WORDS + 1 :: _ENTRY_WORDS] = memoryview(array("d", values))
    return SUCCESS
