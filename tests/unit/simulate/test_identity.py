from __future__ import annotations

import ctypes

import pynvml
import pytest

from gpufleet.simulate.profiles import ARCHITECTURES, load_profile, profile_names
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    SIGNATURES,
    SUCCESS,
    UNINITIALIZED,
    Calls,
)
from tests.support.scripted_caller import Caller, Clock


def test_every_function_that_the_exporter_calls_is_answered() -> None:
    """A function of the call table that the scripted driver lacked would never be tried without a GPU."""
    calls = Caller(uniform("h100-80gb-hbm3", 1)).calls

    assert [name for name in SIGNATURES if not calls.has(name)] == []


@pytest.mark.parametrize("profile", profile_names())
def test_each_profile_says_who_it_is(profile: str) -> None:
    """Name, UUID, architecture, VBIOS and PCI address come in the layouts of nvml.h."""
    caller = Caller(uniform(profile, 2))
    handle = caller.handles[1]
    expected = load_profile(profile)

    assert caller.text("nvmlDeviceGetName", handle) == expected.name
    assert caller.text("nvmlDeviceGetVbiosVersion", handle) == expected.vbios
    uuid = caller.text("nvmlDeviceGetUUID", handle)
    assert uuid.startswith("GPU-")
    assert [len(part) for part in uuid.removeprefix("GPU-").split("-")] == [8, 4, 4, 4, 12]
    assert caller.number("nvmlDeviceGetArchitecture", handle) == (SUCCESS, ARCHITECTURES[expected.architecture])
    code, pci = caller.read("nvmlDeviceGetPciInfo_v3", handle, pynvml.nvmlPciInfo_t)
    assert code == SUCCESS
    assert pci.busId == "00000000:43:00.0"
    assert pci.busIdLegacy == "0000:43:00.0"
    assert (pci.domain, pci.bus, pci.device) == (0, 0x43, 0)
    assert pci.pciDeviceId == expected.pci_device_id


def test_gpus_differ_and_are_the_same_for_the_same_seed() -> None:
    """UUIDs and serial numbers are unique, and those of tomorrow's run are today's."""

    def identities(seed: int) -> list[tuple[str, str]]:
        caller = Caller(uniform("h100-80gb-hbm3", 8, seed=seed))
        return [
            (caller.text("nvmlDeviceGetUUID", h), caller.text("nvmlDeviceGetSerial", h, 30)) for h in caller.handles
        ]

    first = identities(1)

    assert len({uuid for uuid, _ in first}) == len({serial for _, serial in first}) == 8
    assert identities(1) == first
    assert not {uuid for uuid, _ in identities(2)} & {uuid for uuid, _ in first}


def test_handles_are_pointers_above_32_bits() -> None:
    """Whoever cuts a handle to an int of C finds out without a GPU."""
    assert all((handle.value or 0) > 0xFFFF_FFFF for handle in Caller(uniform("h100-80gb-hbm3", 8)).handles)


def test_a_text_that_does_not_fit_is_refused() -> None:
    """A buffer without room for the closing zero gets INSUFFICIENT_SIZE, as in the real library."""
    caller = Caller(uniform("t4", 1))
    name = "Tesla T4"

    for size, expected in ((len(name), INSUFFICIENT_SIZE), (len(name) + 1, SUCCESS)):
        buffer = (ctypes.c_char * size)()
        assert caller.calls["nvmlDeviceGetName"](caller.handles[0], buffer, size) == expected


def test_a_gpu_is_found_by_uuid() -> None:
    """The exporter finds a lost GPU again by its UUID; one that is not there is NOT_FOUND."""
    caller = Caller(uniform("h100-80gb-hbm3", 3))
    out = (ctypes.c_void_p * 1)()
    uuid = caller.text("nvmlDeviceGetUUID", caller.handles[2])

    assert caller.calls["nvmlDeviceGetHandleByUUID"](uuid.encode(), out) == SUCCESS
    assert out[0] == caller.handles[2].value
    assert caller.calls["nvmlDeviceGetHandleByUUID"](b"GPU-none", out) == NOT_FOUND


def test_a_handle_is_void_in_the_next_session() -> None:
    """A handle kept over shutdown and init would point to freed memory in the real library: it is refused here."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    old = caller.handles[0]

    assert caller.calls["nvmlShutdown"]() == SUCCESS
    assert caller.code("nvmlDeviceGetMinorNumber", old) == UNINITIALIZED
    caller.open()
    assert caller.code("nvmlDeviceGetMinorNumber", old) == INVALID_ARGUMENT
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS


def test_init_is_counted() -> None:
    """Two inits need two shutdowns, or the driver stays open: the exporter must count, too."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    caller.calls["nvmlInitWithFlags"](0)

    caller.calls["nvmlShutdown"]()
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS
    caller.calls["nvmlShutdown"]()
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == UNINITIALIZED
    assert caller.calls["nvmlShutdown"]() == UNINITIALIZED


def test_system_versions() -> None:
    """Driver, NVML and CUDA versions come as they do from the library."""
    caller = Caller(uniform("h100-80gb-hbm3", 1), driver_version="570.86.15")
    for function, expected in (
        ("nvmlSystemGetDriverVersion", b"570.86.15"),
        ("nvmlSystemGetNVMLVersion", b"13.570.86.15"),
    ):
        buffer = (ctypes.c_char * 80)()
        assert caller.calls[function](buffer, 80) == SUCCESS
        assert buffer.value == expected
    number = (ctypes.c_int * 1)()
    assert caller.calls["nvmlSystemGetCudaDriverVersion"](number) == SUCCESS
    assert number[0] == 13000


@pytest.mark.parametrize(
    ("version", "lacking"),
    [
        ("515.105.01", {"nvmlGpmSampleGet", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetGpuFabricInfo"}),
        ("525.147.05", {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSramEccErrorStatus"}),
        ("550.54.15", {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature"}),
    ],
)
def test_an_old_driver_lacks_newer_functions(version: str, lacking: set[str]) -> None:
    """A symbol is missing before the branch that brought it, and there from then on."""
    old = Caller(uniform("h100-80gb-hbm3", 1), driver_version=version).calls
    new = Caller(uniform("h100-80gb-hbm3", 1), driver_version="580.95.05").calls

    assert all(not old.has(name) for name in lacking)
    assert all(new.has(name) for name in lacking)
    assert old.has("nvmlDeviceGetTemperature")


def test_functions_can_be_left_out() -> None:
    """A test can take away any function, whatever the version."""
    caller = Caller(uniform("h100-80gb-hbm3", 1), lacking=["nvmlDeviceGetMemoryInfo_v2"])

    assert not caller.calls.has("nvmlDeviceGetMemoryInfo_v2")
    assert caller.code("nvmlDeviceGetMemoryInfo_v2", caller.handles[0]) == 13


def test_calls_before_init_are_refused() -> None:
    """Without a session there is nothing to ask."""
    from gpufleet.simulate.driver import ScriptedDriver

    calls = Calls(ScriptedDriver(uniform("t4", 1), clock=Clock()))

    assert calls["nvmlDeviceGetCount_v2"]((ctypes.c_uint32 * 1)()) == UNINITIALIZED
    assert calls["nvmlDeviceGetMinorNumber"](ctypes.c_void_p(1), (ctypes.c_uint32 * 1)()) == UNINITIALIZED
    assert calls.simulated


def test_serial_and_thresholds_where_the_part_has_them() -> None:
    """GB10 has no serial number; an A100 has absolute thresholds, an H100 offsets from T.Limit."""
    spark = Caller(uniform("gb10", 1))
    ampere = Caller(uniform("a100-80gb", 1))
    hopper = Caller(uniform("h100-80gb-hbm3", 1))

    assert spark.calls["nvmlDeviceGetSerial"](spark.handles[0], (ctypes.c_char * 30)(), 30) == NOT_SUPPORTED
    kinds = [ampere.number("nvmlDeviceGetTemperatureThreshold", ampere.handles[0], kind) for kind in range(4)]
    assert kinds == [(SUCCESS, 92), (SUCCESS, 89), (SUCCESS, 95), (SUCCESS, 85)]
    assert hopper.code("nvmlDeviceGetTemperatureThreshold", hopper.handles[0], 0) == NOT_SUPPORTED
    offsets = hopper.fields(hopper.handles[0], *((field, 0) for field in range(193, 197)))
    assert [ctypes.c_int32(value).value for _, value in offsets] == [-8, -2, 0, 0]
    assert [code for code, _ in ampere.fields(ampere.handles[0], (193, 0))] == [NOT_SUPPORTED]
