"""GPU performance monitoring: SM, tensor and memory activity over exactly one poll interval (Hopper and newer).

Two host-side samples alternate; each poll fills the older one and has the driver compute the means between the two. The
window is ours alone: no second reader can shorten it. leptonai/gpud saw crashes when GPM was called from several
threads, so ``collect`` uses every instance of this class from one thread.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress

from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    LIBRARY_DOWN,
    NEVER_HERE,
    NO_PERMISSION,
    SUCCESS,
    Calls,
    NvmlError,
    Trace,
)
from gpufleet.sources.nvml.plan import same_keys
from gpufleet.sources.nvml.tally import UNWRITTEN, Tally

SHORTEST_SECONDS = 0.1
"""The driver gives invalid data for samples that are closer (NVIDIA/DCGM#310)."""
LONGEST_SECONDS = 600.0
"""Past this the window says nothing of now; the pair starts anew."""

_VERSION = 1
# nvmlGpmMetricsGet_t: version 0, numMetrics 4, sample1 8, sample2 16, then 40 bytes a metric: id 0, nvmlReturn 4, value
# (double) 8, three pointers. The library touches numMetrics entries only, so the header's 19,104 bytes are not needed.
_HEAD = struct.Struct("<II")
_METRIC = struct.Struct("<IId24x")
_METRIC_REPLY = "4xId24x"
_MEBIBYTE = 1 << 20
_RATES = frozenset({20, 21})
"""Metrics in MiB/s; the others are percentages."""
MOST_MEBIBYTES = 1 << 20
"""A second, over any link so far."""

GRAPHICS = (1, Key("utilization_ratio"))
"""The graphics and compute engine: stands for GPU utilization while MIG is on, when the driver has no other."""

DEVICE_METRICS: tuple[tuple[int, Key], ...] = (
    (2, Key("sm_active_ratio")),
    (3, Key("sm_occupancy_ratio")),
    (5, Key("tensor_active_ratio")),
    (10, Key("dram_active_ratio")),
    (4, Key("pipe_active_ratio", ("int",))),
    (13, Key("pipe_active_ratio", ("fp16",))),
    (12, Key("pipe_active_ratio", ("fp32",))),
    (11, Key("pipe_active_ratio", ("fp64",))),
    (7, Key("pipe_active_ratio", ("tensor_half",))),
    (9, Key("pipe_active_ratio", ("tensor_int8",))),
    (6, Key("pipe_active_ratio", ("tensor_fp64",))),
    (20, Key("pcie_transmit_bytes_per_second")),
    (21, Key("pcie_receive_bytes_per_second")),
)
SLICE_METRICS: tuple[tuple[int, Key], ...] = (
    (1, Key("mig_graphics_active_ratio")),
    (2, Key("mig_sm_active_ratio")),
    (3, Key("mig_sm_occupancy_ratio")),
    (5, Key("mig_tensor_active_ratio")),
    (10, Key("mig_dram_active_ratio")),
    (4, Key("mig_pipe_active_ratio", ("int",))),
    (13, Key("mig_pipe_active_ratio", ("fp16",))),
    (12, Key("mig_pipe_active_ratio", ("fp32",))),
    (11, Key("mig_pipe_active_ratio", ("fp64",))),
    (7, Key("mig_pipe_active_ratio", ("tensor_half",))),
)


def supports_gpm(calls: Calls, handle: ctypes.c_void_p) -> bool:
    """Whether the device has GPM; raises NvmlError when it or the library is down."""
    support = (ctypes.c_uint32 * 2)(1, 0)
    code = calls["nvmlGpmQueryDeviceSupport"](handle, support)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError("nvmlGpmQueryDeviceSupport", code)
    return code == SUCCESS and bool(support[1])


# Shared by all devices: at one poll a second every cache is cold, and what all of them read from is fetched once.
@lru_cache(maxsize=64)
def _request(metrics: tuple[int, ...]) -> tuple[tuple[tuple[int, bool], ...], bytes, struct.Struct]:
    """Place of each metric in the reply and whether it is a rate; what is asked; how the reply is read."""
    rows = tuple((2 * i, metric in _RATES) for i, metric in enumerate(metrics))
    template = b"".join(_METRIC.pack(metric, UNWRITTEN, 0.0) for metric in metrics)
    return rows, template, struct.Struct("<24x" + _METRIC_REPLY * len(metrics))


@lru_cache(maxsize=64)
def _names(metrics: tuple[tuple[int, Key], ...]) -> frozenset[str]:
    return frozenset(key.name for _, key in metrics)


class GpmReader:
    """The pair of samples of one device or one GPU instance."""

    def __init__(
        self,
        calls: Calls,
        handle: ctypes.c_void_p,
        metrics: Sequence[tuple[int, Key]],
        tally: Tally,
        trace: Trace,
        gpu_instance: int | None = None,
    ) -> None:
        """``trace`` is shared by all readers of a device: when one is given up, none calls the driver beside the new
        sampler.
        """
        self.tally = tally
        self.supported = True
        self.window_seconds: float | None = None
        """Length of the last window; what a ratio has to be multiplied with to integrate it."""
        self._trace = trace
        self._calls = calls.traced(trace)
        self._handle = handle
        self._instance = gpu_instance
        self._samples: list[ctypes.c_void_p] = []
        self._taken_at: float | None = None
        self._plan(metrics)

    def _plan(self, metrics: Sequence[tuple[int, Key]]) -> None:
        self._metrics = tuple(metrics)
        self.names = _names(self._metrics)
        """Names of the readings that it still asks for."""
        self._rows, self._template, self._reply = _request(tuple(metric for metric, _ in self._metrics))
        self._buffer = (ctypes.c_char * (24 + len(self._template)))()
        self._view = memoryview(self._buffer).cast("B")
        self._mask: list[bool] | None = None
        self._keys: tuple[Key, ...] = ()

    def _check(self, function: str, code: int) -> int:
        if code in DEVICE_DOWN or code in LIBRARY_DOWN:
            raise NvmlError(function, code)
        return code

    def _allocate(self) -> bool:
        while len(self._samples) < 2:
            sample = (ctypes.c_void_p * 1)()
            code = self._check("nvmlGpmSampleAlloc", self._calls["nvmlGpmSampleAlloc"](sample))
            if self._trace.given_up:
                # Kept: two half-made pairs would leak one sample a hang.
                if code == SUCCESS:
                    self._samples.append(ctypes.c_void_p(sample[0]))
                return False
            if code != SUCCESS:
                self.tally.error(code)
                return False
            self._samples.append(ctypes.c_void_p(sample[0]))
        return True

    def _may_sample(self, now: float) -> bool:
        if not self.supported or self._trace.given_up:
            return False
        return self._taken_at is None or now - self._taken_at >= SHORTEST_SECONDS

    def read(self, now: float) -> Readings | None:
        """Means since the previous call, ``None`` when there is no valid window yet.

        ``now`` is monotonic seconds. Raises NvmlError when the device or the library is down.
        """
        if not self._may_sample(now) or not self._allocate():
            return None
        older, newer = self._samples
        if self._instance is None:
            code = self._calls["nvmlGpmSampleGet"](self._handle, older)
        else:
            code = self._calls["nvmlGpmMigSampleGet"](self._handle, self._instance, older)
        if self._trace.given_up:
            self._taken_at = None
            return None
        if self._check(self._trace.last, code) != SUCCESS:
            self._refuse(code)
            return None
        previous, self._taken_at = self._taken_at, now
        self._samples = [newer, older]
        if previous is None or now - previous > LONGEST_SECONDS:
            return None
        self.window_seconds = now - previous
        return self._compute(first=newer, second=older)

    def _refuse(self, code: int) -> None:
        # A half-filled sample must not become one end of a window.
        self._taken_at = None
        self.tally.error(code)
        if code in NEVER_HERE or code == NO_PERMISSION:
            self.supported = False
            for _, key in self._metrics:
                self.tally.drop(key, code)

    def _compute(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> Readings | None:
        view = self._view
        view[:8] = _HEAD.pack(_VERSION, len(self._metrics))
        view[8:24] = struct.pack("<QQ", first.value or 0, second.value or 0)
        view[24:] = self._template
        code = self._check("nvmlGpmMetricsGet", self._calls["nvmlGpmMetricsGet"](self._buffer))
        if code != SUCCESS:
            self.tally.error(code)
            return None
        reply = self._reply.unpack_from(self._buffer)
        values: list[Number | None] = []
        add = values.append
        unsupported = False
        for at, is_rate in self._rows:
            failed, value = reply[at], reply[at + 1]
            if failed:
                add(None)
                if failed in NEVER_HERE:
                    unsupported = True
                else:
                    self.tally.error(failed)
            elif is_rate:
                add(self._bounded(len(values), value, MOST_MEBIBYTES, value * _MEBIBYTE))
            elif 0.0 <= value <= 100.0:
                add(value / 100)
            else:
                # Rounding puts a fully busy unit a hair over 100.
                add(self._bounded(len(values), value, 101.0, 1.0))
        readings = self._readings(values)
        if unsupported:
            self._plan([row for i, row in enumerate(self._metrics) if reply[2 * i] not in NEVER_HERE])
        return readings

    def _bounded(self, index: int, raw: float, high: float, value: Number) -> Number | None:
        if 0 <= raw <= high:
            return value
        # No sample in the window, or an engine that this part lacks, comes as NaN: not an error, and not a number.
        if not math.isnan(raw):
            self.tally.impossible(self._metrics[index][1])
        return None

    def _readings(self, values: list[Number | None]) -> Readings:
        mask = [value is not None for value in values]
        if mask != self._mask:
            self._keys = same_keys(tuple(compress((key for _, key in self._metrics), mask)))
            self._mask = mask
        return Readings(self._keys, tuple(values) if len(values) == len(self._keys) else tuple(compress(values, mask)))

    def close(self) -> bool:
        """Free the samples, as far as the call that frees one returns in time; whether none is left. Only before
        nvmlShutdown, and never while a call that uses them is out.
        """
        while self._samples and not self._trace.given_up:
            self._calls["nvmlGpmSampleFree"](self._samples.pop())
        self._taken_at = None
        return not self._samples
