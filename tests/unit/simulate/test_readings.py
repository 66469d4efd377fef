from __future__ import annotations

import ctypes
import struct

import pynvml
import pytest

from gpufleet.simulate.memory import MEMORY_V2, SRAM_V1
from gpufleet.simulate.profiles import MIB, load_profile, profile_names
from gpufleet.simulate.readings import FABRIC_V2, FABRIC_V3, MARGIN_V1, TEMPERATURE_V1
from gpufleet.simulate.scripts import sliced, uniform
from gpufleet.sources.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
)
from tests.support.scripted_caller import ALL_LINKS, UNWRITTEN, Caller

POWER_AVERAGE, POWER_INSTANT, ENERGY = 185, 186, 83


@pytest.fixture
def hopper() -> Caller:
    """Eight H100s that have trained for two minutes."""
    caller = Caller(uniform("h100-80gb-hbm3"))
    caller.clock.forward(120)
    return caller


def test_memory_in_both_versions(hopper: Caller) -> None:
    """Version 2 has the reserve apart, version 1 counts it as used; both add up to the total."""
    code, v2 = hopper.read("nvmlDeviceGetMemoryInfo_v2", hopper.handles[0], pynvml.c_nvmlMemory_v2_t, MEMORY_V2)
    code_1, v1 = hopper.read("nvmlDeviceGetMemoryInfo", hopper.handles[0], pynvml.c_nvmlMemory_t)

    assert code == code_1 == SUCCESS
    assert v2.total == v1.total == 81559 * MIB
    assert v2.reserved + v2.used + v2.free == v2.total
    assert v1.used == v2.used + v2.reserved
    assert v1.used + v1.free == v1.total
    assert 0.8 < v2.used / v2.total < 0.95


@pytest.mark.parametrize(
    ("function", "layout"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", pynvml.c_nvmlMemory_v2_t),
        ("nvmlDeviceGetTemperatureV", pynvml.c_nvmlTemperature_v1_t),
        ("nvmlDeviceGetMarginTemperature", pynvml.c_nvmlMarginTemperature_v1_t),
        ("nvmlDeviceGetSramEccErrorStatus", pynvml.c_nvmlEccSramErrorStatus_v1_t),
        ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t),
        ("nvmlGpmQueryDeviceSupport", pynvml.c_nvmlGpmSupport_t),
    ],
)
def test_a_version_word_that_is_not_known_is_refused(
    hopper: Caller, function: str, layout: type[ctypes.Structure]
) -> None:
    """Versioned structs must be stamped before every call, or the driver refuses them."""
    assert hopper.read(function, hopper.handles[0], layout, 0x0900_0001)[0] == ARGUMENT_VERSION_MISMATCH
    assert hopper.read(function, hopper.handles[0], layout)[0] == ARGUMENT_VERSION_MISMATCH


def test_temperature_by_either_function_and_the_margin(hopper: Caller) -> None:
    """Old and new call agree, and the margin is what is left to T.Limit (87 degrees on an H100)."""
    handle = hopper.handles[3]
    code, new = hopper.read("nvmlDeviceGetTemperatureV", handle, pynvml.c_nvmlTemperature_v1_t, TEMPERATURE_V1)
    old = hopper.number("nvmlDeviceGetTemperature", handle, 0)
    margin_code, margin = hopper.read(
        "nvmlDeviceGetMarginTemperature", handle, pynvml.c_nvmlMarginTemperature_v1_t, MARGIN_V1
    )

    assert (code, new.temperature) == old
    assert margin_code == SUCCESS
    assert margin.marginTemperature == 87 - new.temperature
    assert 50 <= new.temperature <= 70
    assert new.temperature < hopper.field(handle, pynvml.NVML_FI_DEV_MEMORY_TEMP) < new.temperature + 20
    assert hopper.code("nvmlDeviceGetTemperature", handle, 1) == INVALID_ARGUMENT


def test_utilization_clocks_and_states_of_a_busy_gpu(hopper: Caller) -> None:
    """A GPU that trains shows full utilization, clocks near the highest and performance state 0."""
    handle = hopper.handles[0]
    code, utilization = hopper.read("nvmlDeviceGetUtilizationRates", handle, pynvml.c_nvmlUtilization_t)
    clocks = [hopper.number("nvmlDeviceGetClockInfo", handle, kind)[1] for kind in range(4)]
    highest = [hopper.number("nvmlDeviceGetMaxClockInfo", handle, kind)[1] for kind in range(4)]

    assert code == SUCCESS
    assert utilization.gpu >= 98
    assert 0 < utilization.memory <= 100
    assert highest == [1980, 1980, 2619, 1545]
    assert clocks[0] == clocks[1]
    assert 1500 < clocks[1] <= 1980
    assert clocks[2:] == highest[2:]
    assert hopper.number("nvmlDeviceGetPerformanceState", handle) == (SUCCESS, 0)
    assert hopper.code("nvmlDeviceGetClockInfo", handle, 4) == INVALID_ARGUMENT


def test_an_idle_gpu_rests() -> None:
    """Nothing runs: no utilization, low clocks, idle power and reason; an L4 drops to P8 and PCIe generation 1."""
    caller = Caller(uniform("l4", 1, pattern="idle"))
    handle = caller.handles[0]
    caller.clock.forward(60)

    assert caller.read("nvmlDeviceGetUtilizationRates", handle, pynvml.c_nvmlUtilization_t)[1].gpu == 0
    assert caller.number("nvmlDeviceGetClockInfo", handle, 1) == (SUCCESS, 210)
    assert caller.number("nvmlDeviceGetClockInfo", handle, 2) == (SUCCESS, 405)
    assert caller.number("nvmlDeviceGetPerformanceState", handle) == (SUCCESS, 8)
    assert caller.number("nvmlDeviceGetCurrPcieLinkGeneration", handle) == (SUCCESS, 1)
    assert caller.number("nvmlDeviceGetCurrentClocksEventReasons", handle, size=8) == (SUCCESS, 1)
    assert 12_000 < caller.field(handle, POWER_AVERAGE) < 15_000
    count = (ctypes.c_uint32 * 1)()
    assert caller.calls["nvmlDeviceGetComputeRunningProcesses_v3"](handle, count, None) == SUCCESS
    assert count[0] == 0


def test_one_batch_answers_every_field_in_place(hopper: Caller) -> None:
    """Known and unknown fields, several scopes and duplicates each get an answer in their own entry."""
    handle = hopper.handles[0]
    wanted = [(83, 0), (9999, 0), (186, 0), (83, 0), (165, 0), (165, 17), (165, 18), (138, ALL_LINKS), (138, 0)]
    answers = hopper.fields(handle, *wanted)

    assert [code for code, _ in answers] == [0, NOT_SUPPORTED, 0, 0, 0, 0, NOT_SUPPORTED, 0, 0]
    assert answers[0] == answers[3]
    assert answers[4] == answers[5] == (SUCCESS, 1)
    links = hopper.fields(handle, *((138, link) for link in range(18)))
    assert sum(value for _, value in links) == answers[7][1]


def test_entries_carry_type_timestamp_and_latency(hopper: Caller) -> None:
    """nvmlFieldValue_t: the id and scope stay, an answer has a time, one that is not supported has none."""
    buffer = (ctypes.c_char * 80)()
    struct.pack_into("<IIqqIIQ", buffer, 0, 83, 0, 0, 0, 0, UNWRITTEN, 0)
    struct.pack_into("<IIqqIIQ", buffer, 40, 31, 7, 0, 0, 0, UNWRITTEN, 0)
    assert hopper.calls["nvmlDeviceGetFieldValues"](hopper.handles[0], 2, buffer) == SUCCESS
    known, unknown = struct.iter_unpack("<IIqqIIQ", bytes(buffer))

    assert known[:2] == (83, 0)
    assert known[2] == (1_700_000_000 + 120) * 1_000_000
    assert known[3] > 0
    assert known[4] == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert unknown == (31, 7, 0, 0, 0, NOT_SUPPORTED, 0)


def test_an_empty_batch_is_refused(hopper: Caller) -> None:
    """A count of zero is an invalid argument."""
    assert hopper.calls["nvmlDeviceGetFieldValues"](hopper.handles[0], 0, (ctypes.c_char * 40)()) == INVALID_ARGUMENT


def test_the_signed_offsets_fill_the_low_half_of_the_union(hopper: Caller) -> None:
    """The driver writes a 32-bit member: whoever reads all eight bytes as signed gets 4294967288, not -8."""
    assert hopper.field(hopper.handles[0], 193) == 2**32 - 8


@pytest.mark.parametrize(
    ("driver_version", "here", "elsewhere"),
    [("575.57.08", 251, 269), ("580.65.06", 252, 270), ("580.95.05", 269, 251), ("590.48.01", 271, 253)],
)
def test_the_slowdown_counters_are_where_the_driver_has_them(driver_version: str, here: int, elsewhere: int) -> None:
    """575 and early 580 have them at 251 to 253, where others have power smoothing (not on Hopper)."""
    caller = Caller(uniform("h100-80gb-hbm3", 1), driver_version=driver_version)
    handle = caller.handles[0]

    assert [code for code, _ in caller.fields(handle, (here, 0), (elsewhere, 0))] == [SUCCESS, NOT_SUPPORTED]


def test_below_575_there_are_no_slowdown_counters() -> None:
    """An older driver knows neither set of ids."""
    caller = Caller(uniform("h100-80gb-hbm3", 1), driver_version="570.86.15")

    assert {code for code, _ in caller.fields(caller.handles[0], (251, 0), (269, 0))} == {NOT_SUPPORTED}


def test_nvlink_of_hopper_and_of_blackwell() -> None:
    """Hopper counts KiB at 138 and has the old error ids; Blackwell counts bytes at 202 and has its own."""
    hopper = Caller(uniform("h100-80gb-hbm3", 1))
    blackwell = Caller(uniform("b200", 1))
    for caller in (hopper, blackwell):
        caller.clock.forward(60)
    wanted = [(138, ALL_LINKS), (202, ALL_LINKS), (204, ALL_LINKS), (161, 0), (163, 0), (206, 0), (221, 0), (214, 3)]

    assert [c for c, _ in hopper.fields(hopper.handles[0], *wanted)] == [0, 3, 3, 0, 0, 3, 3, 3]
    assert [c for c, _ in blackwell.fields(blackwell.handles[0], *wanted)] == [3, 0, 0, 3, 3, 0, 0, 0]
    kibibytes = hopper.field(hopper.handles[0], 138, ALL_LINKS)
    assert 1e9 < kibibytes * 1024 / 60 < 450e9
    assert 1e9 < blackwell.field(blackwell.handles[0], 204, ALL_LINKS) / 60 < 900e9
    assert blackwell.field(blackwell.handles[0], 91) == 18


def test_memory_power_is_a_scope_of_its_own(hopper: Caller) -> None:
    """Scope 2 of the averaged power is the memory's, scope 0 the GPU's."""
    (gpu, memory, module) = hopper.fields(hopper.handles[0], (185, 0), (185, 2), (185, 1))

    assert gpu[0] == memory[0] == SUCCESS
    assert 0 < memory[1] < gpu[1] / 3
    assert module[0] == NOT_SUPPORTED


def test_fabric_versions(hopper: Caller) -> None:
    """Version 3 needs driver 580, version 2 works before; the state is one byte and its padding is left alone."""
    handle = hopper.handles[0]
    code, v3 = hopper.read("nvmlDeviceGetGpuFabricInfoV", handle, pynvml.c_nvmlGpuFabricInfo_v3_t, FABRIC_V3)
    code_v2, v2 = hopper.read("nvmlDeviceGetGpuFabricInfoV", handle, pynvml.c_nvmlGpuFabricInfo_v2_t, FABRIC_V2)
    code_v1, v1 = hopper.read("nvmlDeviceGetGpuFabricInfo", handle, pynvml.c_nvmlGpuFabricInfo_t)
    older = Caller(uniform("h100-80gb-hbm3", 1), driver_version="570.86.15")

    assert code == code_v2 == code_v1 == SUCCESS
    assert [info.state & 0xFF for info in (v3, v2, v1)] == [3, 3, 3]
    assert bytes(v3.clusterUuid) == bytes(v2.clusterUuid) == bytes(v1.clusterUuid) != bytes(16)
    refused = older.read("nvmlDeviceGetGpuFabricInfoV", older.handles[0], pynvml.c_nvmlGpuFabricInfo_v3_t, FABRIC_V3)
    assert refused[0] == ARGUMENT_VERSION_MISMATCH
    buffer = (ctypes.c_char * 40)(*([b"\xff"] * 40))
    struct.pack_into("<I", buffer, 0, FABRIC_V3)
    hopper.calls["nvmlDeviceGetGpuFabricInfoV"](handle, buffer)
    assert buffer.raw[28:32] == b"\x03\xff\xff\xff"


def test_fabric_health_of_blackwell_is_told() -> None:
    """A Hopper node answers "not supported" to every health item (mask 0); Blackwell says that all is well."""
    caller = Caller(uniform("b200", 1))
    _, info = caller.read("nvmlDeviceGetGpuFabricInfoV", caller.handles[0], pynvml.c_nvmlGpuFabricInfo_v3_t, FABRIC_V3)

    groups = [(info.healthMask >> shift) & 3 for shift in (0, 2, 4, 6)]
    assert groups == [2, 2, 2, 2]
    assert (info.healthMask >> 8) & 15 == 1
    assert info.healthSummary == 1


def test_processes_are_asked_for_twice(hopper: Caller) -> None:
    """Without room the driver tells how many there are; with room it writes 24 bytes for each."""
    handle = hopper.handles[0]
    count = (ctypes.c_uint32 * 1)()

    assert hopper.calls["nvmlDeviceGetComputeRunningProcesses_v3"](handle, count, None) == INSUFFICIENT_SIZE
    assert count[0] == 1
    buffer = (ctypes.c_char * 24)()
    assert hopper.calls["nvmlDeviceGetComputeRunningProcesses_v3"](handle, count, buffer) == SUCCESS
    pid, used, gpu_instance, compute_instance = struct.unpack("<I4xQII", buffer)
    assert pid > 1000
    assert used > 60_000 * MIB
    assert (gpu_instance, compute_instance) == (0xFFFF_FFFF, 0xFFFF_FFFF)


def test_bar1_ecc_and_rows_of_a_healthy_gpu(hopper: Caller) -> None:
    """The slow readings come in their layouts and say that nothing is wrong."""
    handle = hopper.handles[0]
    code, bar1 = hopper.read("nvmlDeviceGetBAR1MemoryInfo", handle, pynvml.c_nvmlBAR1Memory_t)
    rows_code, rows = hopper.read("nvmlDeviceGetRowRemapperHistogram", handle, pynvml.c_nvmlRowRemapperHistogramValues)
    sram_code, sram = hopper.read(
        "nvmlDeviceGetSramEccErrorStatus", handle, pynvml.c_nvmlEccSramErrorStatus_v1_t, SRAM_V1
    )

    assert code == rows_code == sram_code == SUCCESS
    assert bar1.bar1Used + bar1.bar1Free == bar1.bar1Total == 131072 * MIB
    assert (rows.max, rows.high, rows.partial, rows.low, rows.none) == (640, 0, 0, 0, 0)
    assert sram.bThresholdExceeded == 0
    current, pending = (ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)()
    assert hopper.calls["nvmlDeviceGetEccMode"](handle, current, pending) == SUCCESS
    assert (current[0], pending[0]) == (1, 1)
    for location in (2, 7):
        assert hopper.number("nvmlDeviceGetMemoryErrorCounter", handle, 1, 0, location, size=8) == (SUCCESS, 0)
    assert hopper.code("nvmlDeviceGetMemoryErrorCounter", handle, 0, 0, 0) == NOT_SUPPORTED
    assert hopper.code("nvmlDeviceGetMemoryErrorCounter", handle, 2, 0, 2) == INVALID_ARGUMENT


_REFUSED = {
    # Function, arguments: the profiles that answer NOT_SUPPORTED, as the real parts do.
    ("nvmlDeviceGetMemoryInfo", ()): {"gb10"},
    ("nvmlDeviceGetBAR1MemoryInfo", ()): {"gb10"},
    ("nvmlDeviceGetMaxClockInfo", (2,)): {"gb10"},
    ("nvmlDeviceGetClockInfo", (2,)): {"gb10"},
    ("nvmlDeviceGetTemperatureThreshold", (0,)): {"h100-80gb-hbm3", "h200", "b200", "l4", "gb10"},
    ("nvmlDeviceGetTemperatureThreshold", (2,)): {"h100-80gb-hbm3", "h200", "b200", "l4", "gb10", "t4"},
    ("nvmlDeviceGetRowRemapperHistogram", ()): {"t4", "gb10"},
    ("nvmlDeviceGetMemoryErrorCounter", (0, 0, 2)): {"gb10"},
    ("nvmlDeviceGetMaxMigDeviceCount", ()): set(),
    ("nvmlDeviceGetFanSpeed_v2", (0,)): set(profile_names()),
    ("nvmlDeviceGetGpuFabricInfo", ()): {"a100-80gb", "l4", "t4", "gb10"},
}


@pytest.mark.parametrize(("function", "arguments"), _REFUSED)
def test_profiles_refuse_what_the_part_lacks(function: str, arguments: tuple[int, ...]) -> None:
    """Each profile answers NOT_SUPPORTED exactly where the real part does."""
    refused = set()
    for profile in profile_names():
        caller = Caller(uniform(profile, 1))
        if caller.code(function, caller.handles[0], *arguments) == NOT_SUPPORTED:
            refused.add(profile)

    assert refused == _REFUSED[function, arguments]


@pytest.mark.parametrize(
    ("field", "having"),
    [
        (POWER_AVERAGE, {"h100-80gb-hbm3", "h200", "b200", "l4", "gb10"}),
        (POWER_INSTANT, set(profile_names())),
        (82, {"h100-80gb-hbm3", "h200", "b200", "a100-80gb"}),
        (142, {"h100-80gb-hbm3", "h200", "b200", "a100-80gb", "l4"}),
        (29, {"t4"}),
        (190, set(profile_names()) - {"gb10"}),
        (193, {"h100-80gb-hbm3", "h200", "b200", "l4", "gb10"}),
        (195, {"h100-80gb-hbm3", "h200", "b200"}),
        (1, set(profile_names()) - {"gb10"}),
        (230, set(profile_names())),
        (31, {"t4"}),
    ],
)
def test_profiles_have_the_fields_of_the_part(field: int, having: set[str]) -> None:
    """A field that the part lacks is NOT_SUPPORTED in its own entry, while the call succeeds."""
    found = set()
    for profile in profile_names():
        caller = Caller(uniform(profile, 1))
        ((code, _),) = caller.fields(caller.handles[0], (field, 0))
        assert code in (SUCCESS, NOT_SUPPORTED)
        if code == SUCCESS:
            found.add(profile)

    assert found == having


def test_gpm_only_on_hopper_and_newer_boards() -> None:
    """A100, L4, T4 and GB10 have no GPM, and say so both when asked and when sampled."""
    having = set()
    for profile in profile_names():
        caller = Caller(uniform(profile, 1))
        _, support = caller.read("nvmlGpmQueryDeviceSupport", caller.handles[0], pynvml.c_nvmlGpmSupport_t, 1)
        sampled = caller.calls["nvmlGpmSampleGet"](caller.handles[0], caller.sample())
        assert (sampled == SUCCESS) == bool(support.isSupportedDevice) == load_profile(profile).gpm
        if support.isSupportedDevice:
            having.add(profile)

    assert having == {"h100-80gb-hbm3", "h200", "b200"}


def test_a_gpu_in_mig_mode_refuses_utilization_and_links() -> None:
    """With MIG on there is no utilization, codec, link or row-remap figure for the whole GPU; power and ECC stay."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    handle = caller.handles[0]
    two = (ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)()

    assert caller.code("nvmlDeviceGetUtilizationRates", handle) == NOT_SUPPORTED
    assert caller.calls["nvmlDeviceGetEncoderUtilization"](handle, *two) == NOT_SUPPORTED
    assert caller.code("nvmlDeviceGetRowRemapperHistogram", handle) == NOT_SUPPORTED
    codes = [code for code, _ in caller.fields(handle, (165, 0), (138, ALL_LINKS), (142, 0), (186, 0), (83, 0), (4, 0))]
    assert codes == [3, 3, 3, 0, 0, 0]
