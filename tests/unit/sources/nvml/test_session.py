"""The library as a whole, and the functions that are bound to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.model.state import NvmlState
from gpufleet.sources.nvml import calls as nvml
from gpufleet.sources.nvml.calls import SIGNATURES, Calls, Library, NvmlError, Trace, return_name
from gpufleet.sources.nvml.events import MIG_CHANGE, OPTIONAL, XID, EventSet
from gpufleet.sources.nvml.identity import read_number, read_text, sysfs_bus_id
from gpufleet.sources.nvml.session import MOST_DEVICES, Session, SessionError, open_library
from gpufleet.sources.nvml.tally import UNWRITTEN, Tally
from gpufleet.sources.nvml.units import signed
from tests.unit.sources.nvml.answers import HANDLE, Answers, number, returns


def text(value: bytes) -> Callable[..., int]:
    """Writes a string into the buffer before its size."""

    def answer(*arguments: object) -> int:
        buffer = arguments[-2]
        assert isinstance(buffer, ctypes.Array)
        buffer.value = value
        return 0

    return answer


def well(**more: Callable[..., int]) -> Answers:
    """A driver that opens."""
    functions = {
        "nvmlInitWithFlags": returns(0),
        "nvmlShutdown": returns(0),
        "nvmlSystemGetDriverVersion": text(b"580.95.05"),
        "nvmlSystemGetNVMLVersion": text(b"13.580.95.05"),
        "nvmlSystemGetCudaDriverVersion": number(13010),
        "nvmlDeviceGetCount_v2": number(8),
    }
    return Answers(functions | more)


# --- opening ----------------------------------------------------------------------------------------------------------
def test_a_session_knows_its_versions() -> None:
    """CUDA's is a number of thousands and tens."""
    session = Session(well())

    assert (session.versions.driver, session.versions.nvml, session.versions.cuda) == (
        "580.95.05",
        "13.580.95.05",
        "13.1",
    )
    assert session.count() == 8


@pytest.mark.parametrize("code", [nvml.NOT_SUPPORTED, nvml.UNKNOWN])
def test_versions_that_are_not_told_are_not_known(code: int) -> None:
    """That is no reason not to read the GPUs."""
    system = ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion")
    session = Session(well(**{name: returns(code) for name in system}))

    assert (session.versions.driver, session.versions.nvml, session.versions.cuda) == (None, None, None)


@pytest.mark.parametrize(
    ("code", "can_open", "state", "words"),
    [
        (nvml.LIB_RM_VERSION_MISMATCH, True, NvmlState.MISMATCH, "reload the module or reboot"),
        (nvml.NO_PERMISSION, True, NvmlState.NO_PERMISSION, "only a new container"),
        (nvml.UNKNOWN, False, NvmlState.NO_PERMISSION, "only a new container"),
        (nvml.UNKNOWN, True, NvmlState.NO_DRIVER, "unknown (999)"),
        (nvml.DRIVER_NOT_LOADED, False, NvmlState.NO_DRIVER, "is the kernel module nvidia loaded?"),
        (nvml.LIBRARY_NOT_FOUND, True, NvmlState.NO_LIBRARY, "incomplete"),
        (nvml.FUNCTION_NOT_FOUND, True, NvmlState.NO_LIBRARY, "not NVIDIA's NVML"),
        (4711, True, NvmlState.NO_DRIVER, "code_4711"),
    ],
)
def test_a_failed_init_is_a_state_with_a_remedy(code: int, can_open: bool, state: NvmlState, words: str) -> None:
    """What the operator has to do depends on which it is."""
    with pytest.raises(SessionError) as raised:
        Session(well(nvmlInitWithFlags=returns(code)), lambda: can_open)

    assert raised.value.state is state
    assert words in raised.value.reason


def test_a_driver_that_goes_while_it_is_opened_is_not_there() -> None:
    """The version's call says so."""
    with pytest.raises(SessionError) as raised:
        Session(well(nvmlSystemGetDriverVersion=returns(nvml.UNINITIALIZED)))
    assert raised.value.state is NvmlState.NO_DRIVER


def test_a_count_from_elsewhere_is_bounded() -> None:
    """A driver that counts four billion GPUs has none of them opened one by one."""
    assert Session(well(nvmlDeviceGetCount_v2=number(0xFFFF_FFF0))).count() == MOST_DEVICES


def test_a_session_is_shut_down_once() -> None:
    """The driver counts: one more would end the session of another library in the process."""
    driver = well()
    session = Session(driver)
    session.close()
    session.close()
    assert driver.asked.count("nvmlShutdown") == 1


def test_errors_of_look_ups_name_call_and_code() -> None:
    """For the log and for the state of the GPU."""
    session = Session(
        well(
            nvmlDeviceGetHandleByIndex_v2=returns(nvml.NO_PERMISSION),
            nvmlDeviceGetHandleByUUID=returns(nvml.NOT_FOUND),
            nvmlDeviceGetCount_v2=returns(nvml.UNINITIALIZED),
        )
    )
    for find, function in (
        (lambda: session.handle(3), "nvmlDeviceGetHandleByIndex_v2"),
        (lambda: session.handle_of("GPU-é"), "nvmlDeviceGetHandleByUUID"),
        (session.count, "nvmlDeviceGetCount_v2"),
    ):
        with pytest.raises(NvmlError) as raised:
            find()
        assert raised.value.function == function
        assert str(raised.value).startswith(f"{function} returned ")


def test_a_library_that_is_not_there_or_none_is_told_with_the_remedy(tmp_path: Path) -> None:
    """Three things may be wrong: no driver, a container without its libraries, another place."""
    nothing = tmp_path / "libnvidia-ml.so.1"
    text_file = tmp_path / "text.so"
    text_file.write_text("not a library")
    for path in (nothing, text_file):
        with pytest.raises(SessionError) as raised:
            open_library(str(path))
        assert raised.value.state is NvmlState.NO_LIBRARY
        for part in (str(path), "install the NVIDIA driver", "NVIDIA_DRIVER_CAPABILITIES", "--nvml.library"):
            assert part in raised.value.reason


# --- binding ----------------------------------------------------------------------------------------------------------
def test_a_symbol_that_is_lacking_answers_as_an_old_driver_would() -> None:
    """A library that is not NVML at all has none of them."""
    calls = Calls(Library("libc.so.6"))

    assert len(calls) == len(SIGNATURES) == len(list(calls))
    assert not any(calls.has(name) for name in SIGNATURES)
    assert calls["nvmlDeviceGetName"](HANDLE, None, 0) == nvml.FUNCTION_NOT_FOUND


def test_every_signature_begins_with_what_the_function_is_of() -> None:
    """A handle that was passed as a plain number would be cut to 32 bits."""
    for name, arguments in SIGNATURES.items():
        if name.startswith("nvmlDevice") and name not in {
            "nvmlDeviceGetCount_v2",
            "nvmlDeviceGetHandleByIndex_v2",
            "nvmlDeviceGetHandleByUUID",
        }:
            assert arguments[0] is ctypes.c_void_p, name


def test_a_trace_names_the_call_that_a_thread_is_in() -> None:
    """It is noted when the function is looked up, which is just before it is called."""
    trace = Trace()
    calls = well().calls().traced(trace)

    calls["nvmlDeviceGetCount_v2"]
    assert trace.last == "nvmlDeviceGetCount_v2"
    assert calls.has("nvmlDeviceGetCount_v2")
    assert not trace.given_up


def test_codes_have_names() -> None:
    """The driver's own in small letters; one from a newer driver has its number."""
    assert [return_name(code) for code in (0, 15, 18, 999, 4711)] == [
        "success",
        "gpu_is_lost",
        "lib_rm_version_mismatch",
        "unknown",
        "code_4711",
    ]


# --- what is read once ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("driver", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("0000:af:00.0", "0000:af:00.0"),
        ("", ""),
    ],
)
def test_bus_ids_are_written_as_the_kernel_writes_them(driver: str, sysfs: str) -> None:
    """Four digits of domain, more where it has more, and small letters."""
    assert sysfs_bus_id(driver) == sysfs


def test_texts_are_taken_as_they_come() -> None:
    """Spaces at the end are none, bytes that are no text are replaced, nothing is None."""
    calls = well(nvmlDeviceGetName=text(b"NVIDIA \xff H100  "), nvmlDeviceGetSerial=text(b"")).calls()
    assert read_text(calls, "nvmlDeviceGetName", HANDLE) == "NVIDIA \N{REPLACEMENT CHARACTER} H100"
    assert read_text(calls, "nvmlDeviceGetSerial", HANDLE) is None
    assert read_text(calls, "nvmlDeviceGetVbiosVersion", HANDLE) is None


def test_numbers_that_are_all_ones_are_none() -> None:
    """That is how a driver says that it has no value."""
    calls = well(nvmlDeviceGetMinorNumber=number(3), nvmlDeviceGetNumFans=number(0xFFFF_FFFF)).calls()
    assert read_number(calls, "nvmlDeviceGetMinorNumber", HANDLE) == 3
    assert read_number(calls, "nvmlDeviceGetNumFans", HANDLE) is None
    with pytest.raises(NvmlError):
        read_number(well(nvmlDeviceGetNumFans=returns(nvml.GPU_IS_LOST)).calls(), "nvmlDeviceGetNumFans", HANDLE)


def test_margins_are_signed() -> None:
    """Whatever stands in the upper half."""
    assert [signed(raw) for raw in (5, 0xFFFF_FFF8, 0xAAAA_0000_FFFF_FFFF, 0x7FFF_FFFF)] == [5, -8, -1, 0x7FFF_FFFF]


# --- events and counts ------------------------------------------------------------------------------------------------
def test_event_types_are_registered_one_by_one() -> None:
    """One that is refused loses no other; those that the device does not have are not asked for."""
    asked: list[int] = []

    def supported(_: object, mask: ctypes.Array[ctypes.c_uint64]) -> int:
        mask[0] = XID | MIG_CHANGE | 0x8000
        return 0

    def register(_: object, bit: int, __: object) -> int:
        asked.append(bit)
        return nvml.NOT_SUPPORTED if bit == MIG_CHANGE else 0

    driver = well(
        nvmlEventSetCreate=returns(0),
        nvmlDeviceGetSupportedEventTypes=supported,
        nvmlDeviceRegisterEvents=register,
    )
    events, trace = EventSet(driver.calls()), Trace()

    assert events.register(HANDLE, trace)
    assert asked == [XID, MIG_CHANGE, 0x8000]
    assert set(asked) <= {XID, *OPTIONAL}
    assert trace.last == "nvmlDeviceRegisterEvents"

    trace.given_up = True
    assert not events.register(HANDLE, trace)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("code", "again"),
    [(nvml.NOT_SUPPORTED, False), (nvml.NO_PERMISSION, False), (nvml.TIMEOUT, True), (nvml.UNKNOWN, True)],
)
@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_registration_that_fails_for_now_is_tried_again(function: str, code: int, again: bool) -> None:
    """Otherwise a GPU's Xids would not be counted until the driver is opened anew, and nobody would know."""

    def supported(_: object, mask: ctypes.Array[ctypes.c_uint64]) -> int:
        mask[0] = XID
        return 0

    functions = {
        "nvmlEventSetCreate": returns(0),
        "nvmlDeviceGetSupportedEventTypes": supported,
        "nvmlDeviceRegisterEvents": returns(0),
    }
    events = EventSet(well(**(functions | {function: returns(code)})).calls())

    assert events.register(HANDLE, Trace()) is not again


def test_counts_add_up_and_tell_what_was_not_written() -> None:
    """Of a device and of those before it."""
    first, second = Tally(), Tally()
    for code in (15, 15, UNWRITTEN):
        first.error(code)
    second.error(15)

    first.add(second)

    assert first.errors == {"gpu_is_lost": 3, "unwritten": 1}
