from __future__ import annotations

import ctypes
import math

import pynvml
import pytest

from gpufleet.simulate.memory import MEMORY_V2
from gpufleet.simulate.mig import MigLayoutError, partition
from gpufleet.simulate.patterns import evals, idle
from gpufleet.simulate.profiles import MIB, load_profile
from gpufleet.simulate.scripts import sliced, uniform
from gpufleet.sources.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
)
from tests.support.scripted_caller import ALL_LINKS, Caller

GRAPHICS, SM, OCCUPANCY, TENSOR, HALF, DRAM, FP32 = 1, 2, 3, 5, 7, 10, 12
PCIE_TX, NVLINK_RX, NVLINK_LINK_0_RX = 20, 60, 62


def test_metrics_are_the_mean_over_exactly_the_interval() -> None:
    """Whatever the spacing of the samples, SM activity is that of the time between, and its parts fit into it."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    handle = caller.handles[0]
    for seconds in (0.1, 1.0, 30.0, 300.0):
        graphics, sm, occupancy, tensor, half, dram, fp32 = caller.activity(
            handle, seconds, GRAPHICS, SM, OCCUPANCY, TENSOR, HALF, DRAM, FP32
        )
        assert 90 < graphics <= 100
        assert 20 < sm <= 100
        assert half <= tensor <= sm
        assert occupancy <= sm
        assert 0 <= fp32 <= dram <= 100


def test_nvlink_rates_agree_with_the_counters() -> None:
    """MiB/s between two samples is the growth of the KiB counters in the same time."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    handle = caller.handles[0]
    before = caller.field(handle, 139, ALL_LINKS)
    total, of_link = caller.activity(handle, 20, NVLINK_RX, NVLINK_LINK_0_RX)
    after = caller.field(handle, 139, ALL_LINKS)

    assert total == pytest.approx((after - before) / 1024 / 20, rel=0.03)
    assert of_link == pytest.approx(total / 18)


def test_samples_that_are_too_close_hold_nothing() -> None:
    """Two samples of the same refresh give NaN, which the exporter must drop."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))

    assert all(math.isnan(value) for value in caller.activity(caller.handles[0], 0.01, SM, PCIE_TX))


def test_what_a_metric_call_refuses() -> None:
    """A wrong version, a sample that is empty or of another GPU, and metrics that the part lacks."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    older, newer, empty = caller.sample(), caller.sample(), caller.sample()
    caller.calls["nvmlGpmSampleGet"](caller.handles[0], older)
    caller.clock.forward(1)
    caller.calls["nvmlGpmSampleGet"](caller.handles[0], newer)

    assert caller.metrics(older, newer, SM, version=0x0100_0008)[0] == ARGUMENT_VERSION_MISMATCH
    assert caller.metrics(older, empty, SM)[0] == INVALID_ARGUMENT
    code, found = caller.metrics(older, newer, SM, 8, 166, 9999)
    assert code == SUCCESS
    assert [each for each, _ in found] == [SUCCESS, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED]
    caller.calls["nvmlGpmSampleGet"](caller.handles[1], newer)
    assert caller.metrics(older, newer, SM)[0] == INVALID_ARGUMENT
    assert caller.calls["nvmlGpmSampleFree"](older) == SUCCESS
    assert caller.calls["nvmlGpmSampleFree"](older) == INVALID_ARGUMENT
    assert caller.metrics(older, newer, SM)[0] == INVALID_ARGUMENT


def test_seven_slices_are_enumerated() -> None:
    """7 x 1g.10gb: ids, names, UUIDs, attributes and memory of each slice, and holes after the last."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    parent = caller.handles[0]
    slices = caller.slices(0)
    two = (ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)()

    assert caller.calls["nvmlDeviceGetMigMode"](parent, *two) == SUCCESS
    assert (two[0][0], two[1][0]) == (1, 1)
    assert caller.number("nvmlDeviceGetMaxMigDeviceCount", parent) == (SUCCESS, 7)
    assert len(slices) == 7
    assert [caller.number("nvmlDeviceGetGpuInstanceId", part)[1] for part in slices] == list(range(7, 14))
    assert {caller.number("nvmlDeviceGetComputeInstanceId", part) for part in slices} == {(SUCCESS, 0)}
    assert {caller.text("nvmlDeviceGetName", part) for part in slices} == {"NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
    uuids = [caller.text("nvmlDeviceGetUUID", part) for part in slices]
    assert len(set(uuids)) == 7
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    _, attributes = caller.read("nvmlDeviceGetAttributes_v2", slices[0], pynvml.c_nvmlDeviceAttributes)
    assert attributes.multiprocessorCount == 16
    assert attributes.memorySizeMB == 9984
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (1, 1)
    _, memory = caller.read("nvmlDeviceGetMemoryInfo_v2", slices[0], pynvml.c_nvmlMemory_v2_t, MEMORY_V2)
    assert (memory.total, memory.reserved) == (9984 * MIB, 0)
    assert memory.used + memory.free == memory.total


def test_two_compute_instances_share_a_gpu_instance() -> None:
    """They have the GPU instance's memory and sample in common, and each its own multiprocessors and name."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1c.3g.40gb+2c.3g.40gb", "1g.10gb"]))
    first, second, third = caller.slices(0)

    assert caller.number("nvmlDeviceGetGpuInstanceId", first) == caller.number("nvmlDeviceGetGpuInstanceId", second)
    assert [caller.number("nvmlDeviceGetComputeInstanceId", part)[1] for part in (first, second)] == [0, 1]
    names = [caller.text("nvmlDeviceGetName", part).rpartition(" ")[2] for part in (first, second, third)]
    assert names == ["1c.3g.40gb", "2c.3g.40gb", "1g.10gb"]
    counts = [
        caller.read("nvmlDeviceGetAttributes_v2", part, pynvml.c_nvmlDeviceAttributes)[1].multiprocessorCount
        for part in (first, second)
    ]
    assert counts == [20, 40]


def test_a_slice_refuses_what_belongs_to_the_whole_gpu() -> None:
    """Clocks, power, temperature, fields and events are the parent's."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 2))
    part = caller.slices(0)[0]

    assert caller.code("nvmlDeviceGetUtilizationRates", part) == NOT_SUPPORTED
    assert caller.code("nvmlDeviceGetPowerUsage", part) == NOT_SUPPORTED
    assert caller.code("nvmlDeviceGetTemperature", part, 0) == NOT_SUPPORTED
    assert caller.register(part, 0x8, caller.event_set()) == NOT_SUPPORTED
    assert caller.number("nvmlDeviceGetMemoryErrorCounter", part, 1, 0, 7, size=8) == (SUCCESS, 0)
    assert caller.code("nvmlDeviceGetMemoryErrorCounter", part, 0, 0, 7) == NOT_SUPPORTED
    assert caller.code("nvmlDeviceGetGpuInstanceId", caller.handles[0]) == INVALID_ARGUMENT


def test_slices_are_sampled_by_either_function() -> None:
    """By the slice's handle or by parent and GPU instance id the counts are the same; an unknown id fails."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    parent, part = caller.handles[0], caller.slices(0)[2]
    instance = caller.number("nvmlDeviceGetGpuInstanceId", part)[1]
    samples = [caller.sample() for _ in range(4)]
    caller.calls["nvmlGpmSampleGet"](part, samples[0])
    caller.calls["nvmlGpmMigSampleGet"](parent, instance, samples[1])
    caller.clock.forward(60)
    caller.calls["nvmlGpmSampleGet"](part, samples[2])
    caller.calls["nvmlGpmMigSampleGet"](parent, instance, samples[3])

    by_handle = caller.metrics(samples[0], samples[2], SM, TENSOR)
    assert by_handle == caller.metrics(samples[1], samples[3], SM, TENSOR)
    assert by_handle[1][0][1] > 0
    assert caller.calls["nvmlGpmMigSampleGet"](parent, 3, samples[0]) == INVALID_ARGUMENT


def test_the_whole_gpu_does_what_its_slices_do() -> None:
    """SM activity of the GPU is that of its slices, each weighted with its multiprocessors."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    handles = [caller.handles[0], *caller.slices(0)]
    older = [caller.sample() for _ in handles]
    newer = [caller.sample() for _ in handles]
    for handle, sample in zip(handles, older, strict=True):
        caller.calls["nvmlGpmSampleGet"](handle, sample)
    caller.clock.forward(120)
    for handle, sample in zip(handles, newer, strict=True):
        caller.calls["nvmlGpmSampleGet"](handle, sample)
    whole, *parts = [caller.metrics(a, b, SM)[1][0][1] for a, b in zip(older, newer, strict=True)]

    assert whole == pytest.approx(sum(parts) * 16 / 132, rel=0.001)


def test_processes_of_slices_name_their_instances() -> None:
    """The parent lists the processes of all slices with GPU and compute instance."""
    caller = Caller(sliced("h100-80gb-hbm3", ["3g.40gb", "2g.20gb"], pattern="sandbox"))
    count = (ctypes.c_uint32 * 1)(8)
    buffer = (ctypes.c_char * (8 * 24))()

    assert caller.calls["nvmlDeviceGetComputeRunningProcesses_v3"](caller.handles[0], count, buffer) == SUCCESS
    assert count[0] == 2
    found = [pynvml.c_nvmlProcessInfo_v2_t.from_buffer_copy(buffer, 24 * place) for place in range(2)]
    assert [(each.gpuInstanceId, each.computeInstanceId) for each in found] == [(1, 0), (3, 0)]
    own = (ctypes.c_uint32 * 1)(1)
    assert caller.calls["nvmlDeviceGetComputeRunningProcesses_v3"](caller.slices(0)[0], own, buffer) == SUCCESS
    assert own[0] == 1


def test_a_gpu_is_partitioned_anew_while_it_runs() -> None:
    """Old slice handles are refused, the new slices have other UUIDs, the counters of the GPU go on, an event tells."""
    caller = Caller(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    parent = caller.handles[0]
    events = caller.event_set()
    assert caller.register(parent, 0x100, events) == SUCCESS
    caller.clock.forward(100)
    energy = caller.field(parent, 83)
    old = caller.slices(0)
    old_uuids = {caller.text("nvmlDeviceGetUUID", part) for part in old}
    profile = load_profile("h100-80gb-hbm3")
    names = ["3g.40gb", "3g.40gb"]
    script = caller.driver.devices[0].gpu.script
    caller.driver.repartition(0, partition(profile, names, [evals(profile)] * 2, script.seed, generation=1))

    assert caller.wait(events) == (SUCCESS, (parent.value, 0x100, 0))
    assert {caller.code("nvmlDeviceGetGpuInstanceId", part) for part in old} == {INVALID_ARGUMENT}
    new = caller.slices(0)
    assert len(new) == 2
    assert not old_uuids & {caller.text("nvmlDeviceGetUUID", part) for part in new}
    assert caller.field(parent, 83) >= energy
    caller.driver.repartition(0, None, idle(profile))
    assert caller.slices(0) == []
    assert caller.code("nvmlDeviceGetUtilizationRates", parent) == SUCCESS


def test_parts_without_mig_say_so() -> None:
    """An L4 has no MIG mode at all; an H100 with MIG off has no slices."""
    small, big = Caller(uniform("l4", 1)), Caller(uniform("h100-80gb-hbm3", 1))
    out = (ctypes.c_void_p * 1)()

    assert small.calls["nvmlDeviceGetMigDeviceHandleByIndex"](small.handles[0], 0, out) == NOT_SUPPORTED
    assert big.calls["nvmlDeviceGetMigDeviceHandleByIndex"](big.handles[0], 0, out) == NOT_FOUND
    assert big.calls["nvmlDeviceGetMigDeviceHandleByIndex"](big.handles[0], 7, out) == INVALID_ARGUMENT
    _, info = big.profile_info(pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE)
    assert (info.instanceCount, info.multiprocessorCount, info.memorySizeMB) == (1, 132, 81080)
    assert big.profile_info(pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)[0] == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["1g.10gb"] * 8, "needs 8 of 7 compute slices"),
        (["4g.40gb", "4g.40gb"], "compute slices"),
        (["3g.40gb", "3g.40gb", "1g.10gb"], "9 of 8 memory slices"),
        (["1g.99gb"], "no MIG profile '1g.99gb'; it has 1g.10gb"),
        (["2c.3g.40gb+2c.3g.40gb"], "does not fit"),
        (["1c.3g.40gb+1c.2g.20gb"], "does not fit"),
    ],
)
def test_a_layout_without_room_is_refused(names: list[str], words: str) -> None:
    """The message says what is needed and what there is."""
    profile = load_profile("h100-80gb-hbm3")

    with pytest.raises(MigLayoutError, match=words):
        partition(profile, names, [idle(profile)] * len(names), 0)


def test_gb10_has_no_mig_profiles() -> None:
    """The message for a part without MIG says that it has none."""
    profile = load_profile("gb10")

    with pytest.raises(MigLayoutError, match="none: it has no MIG"):
        partition(profile, ["1g.10gb"], [idle(profile)], 0)
