"""The byte offsets that the exporter reads are those of the official header's structs, not only plausible ones."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.sources.nvml import batch, events, gpm, mig, queries
from gpufleet.sources.nvml.health_queries import HEALTH_QUERIES
from gpufleet.sources.nvml.queries import FAST_QUERIES, MEDIUM_QUERIES, POWER_USAGE, SLOW_QUERIES, Query
from tests.support.fake_nvml_build import measure

# What each call writes behind its first pointer, and the members that the exporter takes from it, in its order.
# A version word tells two structs of one function apart.
STRUCTS: dict[tuple[str, int], tuple[str, tuple[str, ...]]] = {
    ("nvmlDeviceGetMemoryInfo_v2", 0x02000028): ("nvmlMemory_v2_t", ("total", "reserved", "free", "used")),
    ("nvmlDeviceGetMemoryInfo", 0): ("nvmlMemory_t", ("total", "free", "used")),
    ("nvmlDeviceGetUtilizationRates", 0): ("nvmlUtilization_t", ("gpu", "memory")),
    ("nvmlDeviceGetTemperatureV", 0x0100000C): ("nvmlTemperature_v1_t", ("temperature",)),
    ("nvmlDeviceGetMarginTemperature", 0x01000008): ("nvmlMarginTemperature_v1_t", ("marginTemperature",)),
    ("nvmlDeviceGetBAR1MemoryInfo", 0): ("nvmlBAR1Memory_t", ("bar1Total", "bar1Used")),
    ("nvmlDeviceGetSramEccErrorStatus", 0x01000068): (
        "nvmlEccSramErrorStatus_v1_t",
        (
            "aggregateUncParity",
            "aggregateUncSecDed",
            "aggregateCor",
            "volatileUncParity",
            "volatileUncSecDed",
            "volatileCor",
            "bThresholdExceeded",
        ),
    ),
    ("nvmlDeviceGetRowRemapperHistogram", 0): (
        "nvmlRowRemapperHistogramValues_t",
        ("max", "high", "partial", "low", "none"),
    ),
    ("nvmlDeviceGetGpuFabricInfoV", 0x03000028): ("nvmlGpuFabricInfo_v3_t", ("state", "healthMask")),
    ("nvmlDeviceGetGpuFabricInfoV", 0x02000024): ("nvmlGpuFabricInfo_v2_t", ("state", "healthMask")),
    ("nvmlDeviceGetGpuFabricInfo", 0): ("nvmlGpuFabricInfo_t", ("state",)),
}
# Functions that write one number.
NUMBERS = {
    "nvmlDeviceGetClockInfo": "unsigned int",
    "nvmlDeviceGetTemperature": "unsigned int",
    "nvmlDeviceGetPerformanceState": "nvmlPstates_t",
    "nvmlDeviceGetPowerUsage": "unsigned int",
    "nvmlDeviceGetEncoderUtilization": "unsigned int",
    "nvmlDeviceGetDecoderUtilization": "unsigned int",
    "nvmlDeviceGetJpgUtilization": "unsigned int",
    "nvmlDeviceGetOfaUtilization": "unsigned int",
    "nvmlDeviceGetMigMode": "unsigned int",
    "nvmlDeviceGetMemoryErrorCounter": "unsigned long long",
    "nvmlDeviceGetCurrPcieLinkGeneration": "unsigned int",
    "nvmlDeviceGetCurrPcieLinkWidth": "unsigned int",
    "nvmlDeviceGetFanSpeed_v2": "unsigned int",
    "nvmlDeviceGetCurrentClocksEventReasons": "unsigned long long",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "unsigned long long",
}
MEMBER_SIZES = {
    ("nvmlGpuFabricInfo_v3_t", "state"): 1,
    ("nvmlGpuFabricInfo_v2_t", "state"): 1,
    ("nvmlGpuFabricInfo_t", "state"): 1,
}


def every_query() -> Iterator[Query]:
    """Each row of the exporter's table, with what stands in for it on older drivers."""

    def flat(query: Query) -> Iterator[Query]:
        yield query
        for other in query.instead:
            yield from flat(other)

    rows = [*FAST_QUERIES, *MEDIUM_QUERIES, *SLOW_QUERIES, *HEALTH_QUERIES, POWER_USAGE]
    for row in [*rows, queries.fan(0), queries.clock_events(None), mig._memory_query()]:
        yield from flat(row)


def places(layout: str) -> list[tuple[int, int]]:
    """(offset, size) of each value that a struct format yields."""
    assert layout.startswith("<"), f"{layout!r} depends on the machine"
    found = []
    offset = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout):
        for _ in range(int(count or 1)):
            size = struct.calcsize("<" + code)
            if code != "x":
                found.append((offset, size))
            offset += size
    return found


@pytest.fixture(scope="module")
def measured(nvml_build: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:  # noqa: ARG001
    """Sizes and offsets from the compiler."""
    members: dict[str, set[str]] = {}
    for ctype, names in [*STRUCTS.values(), *OTHERS.values()]:
        members.setdefault(ctype, set()).update(names)
    wanted = {ctype: tuple(sorted(names)) for ctype, names in members.items()}
    for ctype in set(NUMBERS.values()):
        wanted[ctype] = ()
    return measure("<nvml.h>", wanted, directory=tmp_path_factory.mktemp("measure"))


@pytest.mark.parametrize("query", list(every_query()), ids=lambda query: f"{query.function}-{query.version:x}")
def test_a_query_reads_at_the_headers_offsets(query: Query, measured: dict[str, dict[str, int]]) -> None:
    """Each value comes from the member that it is meant to come from, and the buffer holds the whole struct."""
    size = struct.calcsize(query.layout)
    if query.function in NUMBERS:
        assert places(query.layout) == [(0, measured[NUMBERS[query.function]][""])]
        assert query.version == 0
        return
    ctype, members = STRUCTS[query.function, query.version]
    if query.function == "nvmlDeviceGetMemoryInfo_v2" and len(places(query.layout)) == 3:
        members = ("total", "free", "used")

    assert size == measured[ctype][""]
    assert [offset for offset, _ in places(query.layout)] == [measured[ctype][member] for member in members]
    for (_, width), member in zip(places(query.layout), members, strict=True):
        assert width == MEMBER_SIZES.get((ctype, member), width)
    if query.version:
        assert query.version & 0xFFFFFF == size


OTHERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "field entry, written": (
        "nvmlFieldValue_t",
        ("fieldId", "scopeId", "timestamp", "latencyUsec", "valueType", "nvmlReturn", "value"),
    ),
    "field entry, reply": ("nvmlFieldValue_t", ("nvmlReturn", "value")),
    "field entry, probe": ("nvmlFieldValue_t", ("timestamp", "nvmlReturn", "value")),
    "event": ("nvmlEventData_t", ("device", "eventType", "eventData", "gpuInstanceId", "computeInstanceId")),
    "slice": (
        "nvmlDeviceAttributes_t",
        ("multiprocessorCount", "gpuInstanceSliceCount", "computeInstanceSliceCount", "memorySizeMB"),
    ),
    "gpm metric, written": ("nvmlGpmMetric_t", ("metricId", "nvmlReturn", "value")),
    "gpm metric, reply": ("nvmlGpmMetric_t", ("nvmlReturn", "value")),
}
LAYOUTS = {
    "field entry, written": batch._ENTRY.format,
    "field entry, reply": "<" + batch._REPLY_ENTRY,
    "field entry, probe": "<" + batch._PROBE_ENTRY,
    "event": events._DATA.format,
    "slice": mig._ATTRIBUTES.format,
    "gpm metric, written": gpm._METRIC.format,
    "gpm metric, reply": "<" + gpm._METRIC_REPLY,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_structs_are_read_at_the_headers_offsets(name: str, measured: dict[str, dict[str, int]]) -> None:
    """Field entries, GPM metrics, events and slices: offsets, and a stride that is the struct's size."""
    ctype, members = OTHERS[name]

    assert struct.calcsize(LAYOUTS[name]) == measured[ctype][""]
    assert [offset for offset, _ in places(LAYOUTS[name])] == [measured[ctype][member] for member in members]


def test_every_struct_of_the_table_is_used() -> None:
    """The table proves what the exporter asks; a row that nothing uses proves nothing."""
    asked = {(query.function, query.version) for query in every_query()}

    assert asked - {(name, 0) for name in NUMBERS} == set(STRUCTS)
