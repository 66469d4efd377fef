"""The stand-in driver does what a test tells it, so that what the exporter makes of it means something."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import SYSTEM
from tests.support.fake_nvml_profiles import A100, GB10, H100, PROFILES, T4, Profile
from tests.support.nvml_client import Aside, Client

UTILIZATION = "nvmlDeviceGetUtilizationRates"


def opened(fake: FakeNvml, count: int = 2, profile: Profile = H100) -> tuple[Client, list[ctypes.c_void_p]]:
    """A client with the library open, and the handles of all GPUs."""
    fake.set_gpus(count, profile)
    client = Client(fake)
    assert client.init() == 0
    return client, [client.handle(index) for index in range(count)]


def utilization(client: Client, handle: ctypes.c_void_p) -> tuple[int, int]:
    """Return code and GPU utilization."""
    out = (ctypes.c_uint32 * 2)()
    return client.calls[UTILIZATION](handle, out), out[0]


def test_calls_are_counted_by_function_and_gpu(fake_nvml: FakeNvml) -> None:
    """Each call counts once, for its GPU; what concerns no GPU counts apart."""
    client, handles = opened(fake_nvml)
    fake_nvml.reset_counts()

    for _ in range(3):
        utilization(client, handles[1])
    client.count()

    assert fake_nvml.counts() == {(UTILIZATION, 1): 3, ("nvmlDeviceGetCount_v2", None): 1}
    assert fake_nvml.calls_of(1) == 3
    fake_nvml.reset_counts()
    assert fake_nvml.counts() == {}


def test_a_hanging_call_returns_when_released(fake_nvml: FakeNvml) -> None:
    """A call hangs for one GPU only, its late answer is complete, and later calls pass."""
    client, handles = opened(fake_nvml)
    fake_nvml.hang(UTILIZATION, 1)

    stuck = Aside(utilization, client, handles[1])
    fake_nvml.wait_until_stuck(1)

    assert utilization(client, handles[0]) == (0, 80)
    assert client.number("nvmlDeviceGetMinorNumber", handles[1])[0] == 0
    assert stuck.out
    fake_nvml.release(UTILIZATION, 1)
    assert stuck.done() == (0, 81)
    assert utilization(client, handles[1]) == (0, 81)
    assert (fake_nvml.stuck(1), fake_nvml.control.max_stuck[1]) == (0, 1)


def test_a_call_hangs_for_as_long_as_told(fake_nvml: FakeNvml) -> None:
    """A hang with a limit ends by itself."""
    client, handles = opened(fake_nvml)
    fake_nvml.hang(UTILIZATION, 0, ms=30)
    begun = time.monotonic()

    assert utilization(client, handles[0]) == (0, 80)
    assert time.monotonic() - begun >= 0.03


def test_a_driver_wide_lock_lets_one_stuck_call_block_all(fake_nvml: FakeNvml) -> None:
    """With one lock for the driver a call that hangs on one GPU blocks calls on the others."""
    client, handles = opened(fake_nvml)
    fake_nvml.serialize()
    fake_nvml.hang(UTILIZATION, 0)

    first = Aside(utilization, client, handles[0])
    fake_nvml.wait_until_stuck(0)
    second = Aside(utilization, client, handles[1])
    fake_nvml.wait_until_stuck(1)

    assert first.out
    assert second.out
    fake_nvml.release()
    assert first.done() == (0, 80)
    assert second.done() == (0, 81)


def test_another_process_may_hold_the_drivers_lock(fake_nvml: FakeNvml) -> None:
    """While all is held not even the count or an event comes back."""
    client, handles = opened(fake_nvml)
    events = client.event_set()
    fake_nvml.hold_all()

    asides = [
        Aside(utilization, client, handles[0]),
        Aside(client.count),
        Aside(client.wait_event, events, 1),
        Aside(client.shutdown),
    ]
    fake_nvml.wait_until(lambda: (fake_nvml.stuck(0), fake_nvml.stuck(None)) == (1, 3))

    fake_nvml.release_all()
    results = [aside.done() for aside in asides]
    assert results[3] == 0


def test_a_return_code_can_be_set_for_one_function_and_gpu(fake_nvml: FakeNvml) -> None:
    """An override hits its function and GPU and ends when it is taken back."""
    client, handles = opened(fake_nvml)

    fake_nvml.set_return(UTILIZATION, 1, 4)

    assert utilization(client, handles[0])[0] == 0
    assert utilization(client, handles[1])[0] == 4
    fake_nvml.set_return(UTILIZATION, 1, 0)
    assert utilization(client, handles[1])[0] == 0


def test_a_lost_gpu_answers_everything_with_lost(fake_nvml: FakeNvml) -> None:
    """Every call on the GPU fails, the look-up of its handle included; the others do not notice."""
    client, handles = opened(fake_nvml)

    fake_nvml.lose(1)

    assert utilization(client, handles[1])[0] == 15
    out = (ctypes.c_void_p * 1)()
    assert client.calls["nvmlDeviceGetHandleByUUID"](fake_nvml.uuid(1).encode(), out) == 15
    assert client.count() == (0, 2)
    assert utilization(client, handles[0])[0] == 0


def test_after_a_driver_restart_the_library_must_be_opened_anew(fake_nvml: FakeNvml) -> None:
    """Calls fail until the library has been shut down and initialised; another init on top does not help."""
    client, handles = opened(fake_nvml)

    fake_nvml.restart_driver()

    assert utilization(client, handles[0])[0] == 1
    assert client.count()[0] == 1
    assert client.init() == 0
    assert client.count()[0] == 1
    assert (client.shutdown(), client.shutdown(), client.init()) == (0, 0, 0)
    assert utilization(client, client.handle(0)) == (0, 80)


def test_a_driver_can_be_away(fake_nvml: FakeNvml) -> None:
    """Without the module init says so, and succeeds once it is back."""
    client, _ = opened(fake_nvml)

    fake_nvml.unload_driver(code=999)

    assert client.count()[0] == 999
    assert client.shutdown() == 0
    assert client.init() == 9
    fake_nvml.load_driver()
    assert client.init() == 0


@pytest.mark.parametrize("code", [9, 18, 999])
def test_init_can_fail(fake_nvml: FakeNvml, code: int) -> None:
    """A failed init leaves nothing open, and needs no shutdown."""
    fake_nvml.set_gpus(1)
    fake_nvml.fail_init(code)
    client = Client(fake_nvml)

    assert client.init() == code
    assert fake_nvml.open_files() == []
    fake_nvml.fail_init(0)
    assert client.init() == 0


def test_an_upgraded_library_does_not_match_the_loaded_module(fake_nvml: FakeNvml) -> None:
    """Who mapped the old library works until the module is reloaded; who loads the new one gets 18 until then.

    Opening the same path again in one process gives the old library: the new one has to come by another path here.
    """
    old, handles = opened(fake_nvml)

    fake_nvml.upgrade_library()

    assert Client(fake_nvml).init() == 0
    another_path = fake_nvml.directory / "libnvidia-ml.so"
    another_path.symlink_to(fake_nvml.library)
    new = Client(fake_nvml, another_path)
    assert utilization(old, handles[0])[0] == 0
    assert new.init() == 18
    fake_nvml.load_upgraded_module()
    assert utilization(old, handles[0])[0] == 18
    assert (old.shutdown(), old.shutdown(), old.init()) == (0, 0, 18)
    assert new.init() == 0


def test_no_gpu_fails_a_plain_init_only(fake_nvml: FakeNvml) -> None:
    """With the flag for it the library opens without a GPU and counts none."""
    fake_nvml.set_gpus(0)
    client = Client(fake_nvml)

    assert client.init(0) == 9
    assert client.init(1) == 0
    assert client.count() == (0, 0)


def test_device_files_are_open_from_init_to_the_last_shutdown(fake_nvml: FakeNvml) -> None:
    """The library holds the control node and each GPU's node, and counts how often it was initialised."""
    client, _ = opened(fake_nvml)
    minors = sorted(f"nvidia{fake_nvml.gpus[gpu].minor}" for gpu in range(2))

    assert fake_nvml.open_files() == [*minors, "nvidiactl"]
    assert client.init() == 0
    assert client.shutdown() == 0
    assert fake_nvml.open_files() == [*minors, "nvidiactl"]
    assert client.shutdown() == 0
    assert fake_nvml.open_files() == []
    assert (fake_nvml.control.open_descriptors, fake_nvml.control.initialized) == (0, 0)


def test_enumeration_order_is_not_the_minor_number(fake_nvml: FakeNvml) -> None:
    """GPUs come in the order set, which an open library does not notice before its next init."""
    client, _ = opened(fake_nvml, 3)
    fake_nvml.set_order([2, 0, 1])

    assert client.uuid(client.handle(0)) == fake_nvml.uuid(0)
    client.shutdown()
    client.init()
    assert [client.uuid(client.handle(index)) for index in range(3)] == [fake_nvml.uuid(gpu) for gpu in (2, 0, 1)]
    assert client.number("nvmlDeviceGetMinorNumber", client.handle(0)) == (0, fake_nvml.gpus[2].minor)
    assert fake_nvml.gpus[2].minor not in {0, 2}


def test_a_gpu_can_be_taken_out(fake_nvml: FakeNvml) -> None:
    """Its handle dies at once, the count changes with the next init."""
    client, handles = opened(fake_nvml, 3)

    fake_nvml.remove_gpu(1)

    assert utilization(client, handles[1])[0] == 15
    assert client.count() == (0, 3)
    client.shutdown()
    client.init()
    assert client.count() == (0, 2)
    assert client.uuid(client.handle(1)) == fake_nvml.uuid(2)


def test_another_process_is_scripted_while_it_runs(fake_nvml: FakeNvml) -> None:
    """A test hangs and releases a call of a subprocess, and sees what that one holds open."""
    fake_nvml.set_gpus(1)
    program = (
        "import ctypes; library = ctypes.CDLL('libnvidia-ml.so.1'); print(library.nvmlInit_v2(), flush=True)\n"
        "number = ctypes.c_uint(); print(library.nvmlDeviceGetCount_v2(ctypes.byref(number)), number.value)\n"
        "input(); print(library.nvmlShutdown(), flush=True); input()"
    )
    fake_nvml.hang("nvmlDeviceGetCount_v2", SYSTEM)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **fake_nvml.environment()},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        fake_nvml.wait_until_stuck(None)
        assert fake_nvml.open_files(process.pid) == ["nvidia3", "nvidiactl"]
        fake_nvml.release()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0 1\n"
        assert process.stdout.readline() == "0\n"
        assert fake_nvml.open_files(process.pid) == []
        process.stdin.write("\n")
    assert process.returncode == 0
    assert fake_nvml.misuse() == {}


@pytest.mark.usefixtures("nvml_build")
def test_a_library_without_its_control_file_says_so(tmp_path: Path) -> None:
    """A forgotten or outdated control file ends the program with a message instead of answering nonsense."""
    with FakeNvml() as fake:
        (tmp_path / "control").write_bytes(b"too short")
        done = subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(fake.library)!r})"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "GPUFLEET_FAKE_NVML_CONTROL": str(tmp_path / "control")},
        )

    assert done.returncode != 0
    assert "control file" in done.stderr


def test_modelled_latency_takes_time(fake_nvml: FakeNvml) -> None:
    """PCIe throughput is sampled over 20 ms on a real board; without the model it costs nothing to speak of."""
    fake_nvml.set_gpus(1)
    library = ctypes.CDLL(str(fake_nvml.library))
    library.nvmlInit_v2()
    handle = ctypes.c_void_p()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    fake_nvml.set_latency(model=True)
    begun = time.monotonic()

    assert library.nvmlDeviceGetPcieThroughput(handle, 0, ctypes.byref(ctypes.c_uint())) == 0
    assert time.monotonic() - begun >= 0.019


def test_readings_move_when_told(fake_nvml: FakeNvml) -> None:
    """Counters rise with time, and stand still until then."""
    client, handles = opened(fake_nvml)
    still = [client.field(handles[0], 83) for _ in range(2)]
    fake_nvml.move()

    fake_nvml.wait_until(lambda: client.field(handles[0], 83) > still[0])

    assert still[0] == still[1]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_each_profile_opens(fake_nvml: FakeNvml, profile: Profile) -> None:
    """Names, generation and what the model lacks are as on the card."""
    client, (handle, _) = opened(fake_nvml, 2, profile)
    memory = (ctypes.c_char * 40)()
    struct.pack_into("<I", memory, 0, 0x02000028)

    assert client.text("nvmlDeviceGetName", handle) == profile.name
    assert client.calls["nvmlDeviceGetMemoryInfo_v2"](handle, memory) == (3 if profile is GB10 else 0)
    if profile is not GB10:
        total, reserved, free, used = struct.unpack_from("<8xQQQQ", memory)
        assert total == reserved + free + used
    support = (ctypes.c_uint32 * 2)(1, 7)
    assert client.calls["nvmlGpmQueryDeviceSupport"](handle, support) == 0
    assert support[1] == profile.gpm
    assert client.field(handle, 142)[0] == (0 if profile.remapping else 3)
    assert client.field(handle, 185)[0] == (0 if profile.average_power else 3)
    assert (profile.gpm, profile.average_power) == ((False, False) if profile in {A100, T4} else (profile.gpm, True))
