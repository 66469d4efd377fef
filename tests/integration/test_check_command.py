"""``gpufleet check`` and the incidents behind it, through the driver's C interface and a kernel log that is a file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

READING = r"^gpu_power_watts\{"
GPUFLEET = str(Path(sys.executable).with_name("gpufleet"))


@pytest.fixture
def nvml(fake_nvml: FakeNvml) -> FakeNvml:
    """A driver with three H100."""
    fake_nvml.set_gpus(3, H100)
    return fake_nvml


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    """A kernel log that says nothing yet."""
    file = tmp_path / "kmsg"
    file.touch()
    return file


def address(nvml: FakeNvml, gpu: int) -> str:
    """PCI address of a GPU of the stand-in as the driver's messages have it: without a function."""
    placed = nvml.gpus[gpu]
    return f"{placed.domain:04x}:{placed.bus:02x}:{placed.device:02x}"


def lose(nvml: FakeNvml, kmsg: Path, gpu: int) -> None:
    """The kernel says that a GPU fell off the bus."""
    said = f"NVRM: Xid (PCI:{address(nvml, gpu)}): 79, pid=1234, name=python3, GPU has fallen off the bus."
    with kmsg.open("a") as file:
        file.write(f"2,1,{int(time.monotonic() * 1e6)},-;{said}\n")


def check(nvml: FakeNvml, directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Check as a scheduler does, with the flags of an exporter that may or may not run."""
    return subprocess.run(
        [
            GPUFLEET,
            "check",
            f"--control.socket={directory / 'control.sock'}",
            f"--state.dir={directory / 'state'}",
            f"--nvml.library={nvml.library}",
            f"--path.procfs={nvml.procfs}",
            *flags,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def faults(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask the exporter for its incidents."""
    return subprocess.run(
        [GPUFLEET, "faults", *words, f"--control.socket={directory / 'control.sock'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def unfit(nvml: FakeNvml, directory: Path) -> subprocess.CompletedProcess[str]:
    """Check until something must not get work."""

    def checked() -> subprocess.CompletedProcess[str] | None:
        done = check(nvml, directory)
        return done if done.returncode == 2 else None

    done = until(checked, "something is unfit")
    assert done is not None
    return done


def first_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a node condition shows."""
    return done.stdout.splitlines()[0]


def test_a_fault_in_the_kernels_log_is_listed_checked_and_cleared(nvml: FakeNvml, tmp_path: Path, kmsg: Path) -> None:
    """From the line to the status of a prolog, and back when a person says so."""
    with ExporterProcess(nvml, tmp_path, f"--kmsg.path={kmsg}") as exporter:
        exporter.wait_for(READING)
        healthy = check(nvml, tmp_path)
        assert (healthy.returncode, first_line(healthy)) == (0, "healthy: 3 GPUs")
        assert "note:" not in healthy.stdout
        assert faults(tmp_path, "list").returncode == 0

        lose(nvml, kmsg, 1)
        bad = unfit(nvml, tmp_path)
        assert first_line(bad) == "unfit: GPU 1: Xid 79, hardware; reboot the node"
        assert [check(nvml, tmp_path, f"--gpu={name}").returncode for name in ("0", "1", nvml.uuid(1))] == [0, 2, 2]

        listed = faults(tmp_path, "list", "--json")
        (incident,) = json.loads(listed.stdout)["active"]
        assert (listed.returncode, incident["uuid"], incident["fault"]) == (1, nvml.uuid(1), "79")

        cleared = faults(tmp_path, "clear", incident["incident"])
        assert (cleared.returncode, cleared.stdout) == (0, f"cleared {incident['incident']}\n")
        until(lambda: check(nvml, tmp_path).returncode == 0, "the GPU may get work again")
        assert faults(tmp_path, "clear", incident["incident"]).returncode == 1


def test_a_quiesced_exporter_is_degraded_and_the_driver_stays_free(nvml: FakeNvml, tmp_path: Path, kmsg: Path) -> None:
    """A check in the middle of a reset must not take the GPUs up again."""
    with ExporterProcess(nvml, tmp_path, f"--kmsg.path={kmsg}") as exporter:
        exporter.wait_for(READING)
        assert exporter.gpufleet("quiesce").returncode == 0
        done = check(nvml, tmp_path)
        assert done.returncode == 1
        assert first_line(done).startswith("degraded: quiesced: the exporter has let go of the GPUs")
        assert "note:" not in done.stdout


def test_a_gpu_that_hangs_must_not_get_work_and_the_others_may(nvml: FakeNvml, tmp_path: Path, kmsg: Path) -> None:
    """The exporter names the call; the check does not wait for it."""
    with ExporterProcess(nvml, tmp_path, f"--kmsg.path={kmsg}") as exporter:
        exporter.wait_for(READING)
        nvml.hang("nvmlDeviceGetFieldValues", 2)
        try:
            bad = unfit(nvml, tmp_path)
            assert first_line(bad).startswith("unfit: GPU 2: hung: ")
            assert check(nvml, tmp_path, "--gpu=0").returncode == 0
        finally:
            nvml.release_all()


def test_what_a_killed_exporter_knew_still_counts(nvml: FakeNvml, tmp_path: Path, kmsg: Path) -> None:
    """It is on disk before it is shown; who looked is said."""
    with ExporterProcess(nvml, tmp_path, f"--kmsg.path={kmsg}") as exporter:
        exporter.wait_for(READING)
        lose(nvml, kmsg, 1)
        until(lambda: faults(tmp_path, "list").returncode == 1, "the fault is shown")
        exporter.process.send_signal(signal.SIGKILL)
        exporter.process.wait(30)
    done = check(nvml, tmp_path, "--timeout=20s")
    assert (done.returncode, first_line(done)) == (2, "unfit: GPU 1: Xid 79, hardware; reboot the node")
    assert "note: looked through the driver, since no exporter answers (" in done.stdout
    assert f"note: incidents are those that were kept in {tmp_path}/state/faults.json" in done.stdout
    assert check(nvml, tmp_path, "--timeout=20s", "--gpu=0").returncode == 0


def test_a_look_without_an_exporter_gives_everything_back(nvml: FakeNvml, tmp_path: Path) -> None:
    """Nothing is left open, and nothing is written: the next reset is not in anybody's way."""
    done = check(nvml, tmp_path, "--timeout=20s")
    assert (done.returncode, first_line(done)) == (0, "healthy: 3 GPUs")
    assert not nvml.misuse()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("function", "gpu", "said"),
    [
        ("nvmlInitWithFlags", None, "unfit: driver: hung: nvmlInit has not returned"),
        ("nvmlDeviceGetCount_v2", None, "unfit: driver: hung: nvmlDeviceGetCount has not returned"),
        ("nvmlDeviceGetFieldValues", 0, "unfit: GPU 0: hung: nvmlDeviceGetFieldValues has not returned"),
        ("nvmlShutdown", None, "healthy: 3 GPUs"),
    ],
)
def test_without_an_exporter_a_hung_driver_is_named_within_the_time(
    nvml: FakeNvml, tmp_path: Path, function: str, gpu: int | None, said: str
) -> None:
    """The process ends although a call of it never does."""
    nvml.hang(function, gpu)
    try:
        done = check(nvml, tmp_path, "--timeout=2s")
    finally:
        nvml.release_all()
    assert first_line(done).startswith(said)
    assert done.returncode == (0 if said.startswith("healthy") else 2)


def test_a_driver_that_can_not_be_reached_passes_only_where_no_gpu_is_allowed(tmp_path: Path, nvml: FakeNvml) -> None:
    """One health check for a cluster's nodes with and without GPUs."""
    nvml.library.unlink()
    assert check(nvml, tmp_path).returncode == 2
    assert check(nvml, tmp_path, "--missing-ok").returncode == 0
    # The kernel's driver has a GPU all the same: it is the library that is missing.
    (nvml.procfs / "driver/nvidia/gpus/0000:1b:00.0").mkdir(parents=True)
    assert check(nvml, tmp_path, "--missing-ok").returncode == 2
