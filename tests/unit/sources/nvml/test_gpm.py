"""Activity between two samples."""

from __future__ import annotations

import ctypes
import math
import struct

import pytest

from gpufleet.model.readings import Key, Readings
from gpufleet.sources.nvml.calls import (
    GPU_IS_LOST,
    NO_DATA,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    NvmlError,
    Trace,
)
from gpufleet.sources.nvml.gpm import LONGEST_SECONDS, SHORTEST_SECONDS, GpmReader, supports_gpm
from gpufleet.sources.nvml.tally import Tally
from tests.unit.sources.nvml.answers import HANDLE, Answers, number, returns

METRICS = ((2, Key("sm_active_ratio")), (20, Key("pcie_transmit_bytes_per_second")))


class Gpm:
    """A driver's GPM: samples are numbered, filled by the number of the fill, and compared."""

    def __init__(self) -> None:
        self.fills = 0
        self.filled: dict[int, int] = {}
        self.freed: list[int] = []
        self.metrics: dict[int, tuple[int, float]] = {2: (0, 50.0), 20: (0, 3.0)}
        self.code = {"nvmlGpmSampleAlloc": 0, "nvmlGpmSampleGet": 0, "nvmlGpmMetricsGet": 0}
        self.windows: list[tuple[int, int]] = []
        self.answers = Answers(
            {
                "nvmlGpmSampleAlloc": self._alloc,
                "nvmlGpmSampleFree": self._free,
                "nvmlGpmSampleGet": lambda _, sample: self._get(sample),
                "nvmlGpmMigSampleGet": lambda _, __, sample: self._get(sample),
                "nvmlGpmMetricsGet": self._compute,
            }
        )
        self.tally, self.trace = Tally(), Trace()
        self.reader = GpmReader(self.answers.calls(), HANDLE, METRICS, self.tally, self.trace)

    def _alloc(self, out: ctypes.Array[ctypes.c_void_p]) -> int:
        if not self.code["nvmlGpmSampleAlloc"]:
            self.filled[sample := 0x5000 + len(self.filled)] = 0
            out[0] = sample
        return self.code["nvmlGpmSampleAlloc"]

    def _free(self, sample: ctypes.c_void_p) -> int:
        self.freed.append(sample.value or 0)
        return 0

    def _get(self, sample: ctypes.c_void_p) -> int:
        self.fills += 1
        self.filled[sample.value or 0] = self.fills
        return self.code["nvmlGpmSampleGet"]

    def _compute(self, buffer: ctypes.Array[ctypes.c_char]) -> int:
        version, count, first, second = struct.unpack_from("<IIQQ", buffer)
        assert version == 1
        self.windows.append((self.filled[first], self.filled[second]))
        for place in range(count):
            metric = struct.unpack_from("<I", buffer, 24 + 40 * place)[0]
            struct.pack_into("<Id", buffer, 24 + 40 * place + 4, *self.metrics.get(metric, (NOT_SUPPORTED, 0.0)))
        return self.code["nvmlGpmMetricsGet"]


@pytest.fixture
def gpm() -> Gpm:
    """A fresh pair of samples."""
    return Gpm()


def test_a_first_sample_has_no_window(gpm: Gpm) -> None:
    """The second has one, from the older to the newer, and so on; two samples are enough for ever."""
    assert gpm.reader.read(0.0) is None

    for second in range(1, 5):
        found = gpm.reader.read(float(second))
        assert found == Readings((METRICS[0][1], METRICS[1][1]), (0.5, 3 * 1024 * 1024))
        assert gpm.reader.window_seconds == 1.0

    assert gpm.windows == [(1, 2), (2, 3), (3, 4), (4, 5)]
    assert len(gpm.filled) == 2


def test_samples_are_not_taken_too_close(gpm: Gpm) -> None:
    """The driver would compute nonsense: it is not asked, and the window goes on."""
    gpm.reader.read(0.0)
    assert gpm.reader.read(SHORTEST_SECONDS / 2) is None
    assert gpm.fills == 1
    assert gpm.reader.read(1.0) is not None
    assert gpm.reader.window_seconds == 1.0


def test_a_window_that_is_too_long_begins_anew(gpm: Gpm) -> None:
    """A mean over a night says nothing of now."""
    gpm.reader.read(0.0)
    assert gpm.reader.read(LONGEST_SECONDS + 1) is None
    assert gpm.reader.read(LONGEST_SECONDS + 2) is not None
    assert gpm.windows == [(2, 3)]


@pytest.mark.parametrize(
    ("value", "expected", "counted"),
    [
        (0.0, 0.0, 0),
        (100.0, 1.0, 0),
        (100.4, 1.0, 0),
        (101.5, None, 1),
        (-0.1, None, 1),
        (math.nan, None, 0),
        (math.inf, None, 1),
    ],
)
def test_ratios_are_held_to_what_can_be_true(gpm: Gpm, value: float, expected: float | None, counted: int) -> None:
    """Rounding is forgiven, no sample in the window is no error, all else is dropped and counted."""
    gpm.metrics[2] = (0, value)
    gpm.reader.read(0.0)
    found = gpm.reader.read(1.0)

    assert found is not None
    assert found.get("sm_active_ratio") == expected
    assert sum(gpm.tally.invalid.values()) == counted


def test_a_metric_that_fails_for_now_is_asked_again(gpm: Gpm) -> None:
    """One that is not supported is not."""
    gpm.metrics = {2: (NO_DATA, 0.0)}
    gpm.reader.read(0.0)
    found = gpm.reader.read(1.0)
    assert found == Readings((), ())
    assert gpm.tally.errors == {"no_data": 1}

    gpm.metrics = {2: (0, 10.0), 20: (0, 3.0)}

    assert gpm.reader.read(2.0) == Readings((METRICS[0][1],), (0.1,))


@pytest.mark.parametrize("code", [UNKNOWN, NO_DATA])
def test_an_error_of_a_sample_starts_the_pair_anew(gpm: Gpm, code: int) -> None:
    """A half-filled sample must not become one end of a window; the same samples serve on."""
    gpm.reader.read(0.0)
    gpm.reader.read(1.0)
    gpm.code["nvmlGpmSampleGet"] = code
    assert gpm.reader.read(2.0) is None
    gpm.code["nvmlGpmSampleGet"] = 0
    assert gpm.reader.read(3.0) is None
    assert gpm.reader.read(4.0) is not None

    assert gpm.windows[-1] == (4, 5)
    assert len(gpm.filled) == 2
    assert sum(gpm.tally.errors.values()) == 1


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_refusal_is_for_good(gpm: Gpm, code: int) -> None:
    """And told once for each reading."""
    gpm.code["nvmlGpmSampleGet"] = code
    gpm.reader.read(0.0)
    assert not gpm.reader.supported
    gpm.reader.read(1.0)

    assert gpm.fills == 1
    assert set(gpm.tally.dropped) == {key for _, key in METRICS}


def test_an_allocation_that_fails_is_tried_again(gpm: Gpm) -> None:
    """No sample is lost by it."""
    gpm.code["nvmlGpmSampleAlloc"] = UNKNOWN
    assert gpm.reader.read(0.0) is None
    gpm.code["nvmlGpmSampleAlloc"] = 0
    gpm.reader.read(1.0)
    assert gpm.reader.read(2.0) is not None
    assert len(gpm.filled) == 2


def test_a_computation_that_fails_costs_its_window_only(gpm: Gpm) -> None:
    """The samples are as good as before."""
    gpm.reader.read(0.0)
    gpm.code["nvmlGpmMetricsGet"] = UNKNOWN
    assert gpm.reader.read(1.0) is None
    gpm.code["nvmlGpmMetricsGet"] = 0
    assert gpm.reader.read(2.0) is not None
    assert gpm.windows[-1] == (2, 3)


@pytest.mark.parametrize("function", ["nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_gpu_that_is_lost_is_told_by_any_of_them(gpm: Gpm, function: str) -> None:
    """With the name of the call."""
    gpm.reader.read(0.0)
    gpm.reader._samples = [] if function == "nvmlGpmSampleAlloc" else gpm.reader._samples
    gpm.code[function] = GPU_IS_LOST

    with pytest.raises(NvmlError) as raised:
        gpm.reader.read(1.0)

    assert (raised.value.function, raised.value.code) == (function, GPU_IS_LOST)


def test_a_reader_that_was_given_up_does_not_call(gpm: Gpm) -> None:
    """Another thread is in the driver by then; the pair begins anew when it is allowed to again."""
    gpm.reader.read(0.0)
    gpm.trace.given_up = True
    asked = len(gpm.answers.asked)
    assert gpm.reader.read(1.0) is None
    assert not gpm.reader.close()
    assert len(gpm.answers.asked) == asked

    gpm.trace.given_up = False
    assert gpm.reader.close()
    assert sorted(gpm.freed) == sorted(gpm.filled)


def test_a_call_that_returns_after_it_was_given_up_brings_nothing(gpm: Gpm) -> None:
    """When it began is not when it was taken."""
    gpm.reader.read(0.0)

    def late(_: object, sample: ctypes.c_void_p) -> int:
        gpm.trace.given_up = True
        return gpm._get(sample)

    before = gpm.answers.functions["nvmlGpmSampleGet"]
    gpm.answers.functions["nvmlGpmSampleGet"] = late
    assert gpm.reader.read(1.0) is None
    gpm.answers.functions["nvmlGpmSampleGet"], gpm.trace.given_up = before, False
    assert gpm.reader.read(2.0) is None
    assert gpm.reader.read(3.0) is not None
    assert gpm.windows == [(3, 4)]


@pytest.mark.parametrize(("code", "supported"), [(0, True), (NOT_SUPPORTED, False), (UNKNOWN, False)])
def test_support_is_asked_for(code: int, supported: bool) -> None:
    """Hopper and newer have it."""

    def support(_: object, buffer: ctypes.Array[ctypes.c_uint32]) -> int:
        assert buffer[0] == 1, "a plain version, not one with the size in it"
        buffer[1] = 1
        return code

    assert supports_gpm(Answers({"nvmlGpmQueryDeviceSupport": support}).calls(), HANDLE) is supported


def test_a_device_that_is_down_is_not_taken_for_one_without_activity() -> None:
    """It is not opened at all."""
    with pytest.raises(NvmlError):
        supports_gpm(Answers({"nvmlGpmQueryDeviceSupport": returns(GPU_IS_LOST)}).calls(), HANDLE)
    assert not supports_gpm(Answers({"nvmlGpmQueryDeviceSupport": number(1)}).calls(), HANDLE)
