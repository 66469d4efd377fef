"""The exporter as a process: it starts with and without a driver, obeys, recovers, and ends when it is told to."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gpufleet.sources.nvml.calls import NO_PERMISSION
from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

DOWN = r"^gpufleet_nvml_up 0$"
READING = r"^gpu_power_watts\{"


@pytest.fixture
def nvml(fake_nvml: FakeNvml) -> FakeNvml:
    """A driver with two H100."""
    fake_nvml.set_gpus(2, H100)
    return fake_nvml


def readings(exposition: str) -> int:
    """How many GPUs show a driver reading."""
    return len(re.findall(READING, exposition, re.MULTILINE))


def test_a_node_is_served_and_the_process_ends_cleanly_on_sigterm(nvml: FakeNvml, tmp_path: Path) -> None:
    """Status 0, promptly, and the driver's handles given back."""
    with ExporterProcess(nvml, tmp_path) as exporter:
        assert readings(exporter.wait_for(READING)) == 2
        assert exporter.get("/-/healthy") == exporter.get("/-/ready") == (200, "ok\n")
        assert exporter.get("/")[1].startswith("<!DOCTYPE html>")
        assert exporter.get("/nothing")[0] == 404
        started = exporter.said("gpufleet starts")[0]
        assert (started["poll.interval"], started["node.name"]) == ("1s", "node-1")
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0
        assert exporter.said("stopped")
    assert not exporter.control.exists()
    assert not nvml.misuse()


def test_without_a_library_it_serves_says_so_and_recovers_when_one_comes(nvml: FakeNvml, tmp_path: Path) -> None:
    """An exporter that starts before the driver is installed is an ordinary start."""
    aside = nvml.library.with_suffix(".aside")
    nvml.library.rename(aside)
    with ExporterProcess(nvml, tmp_path) as exporter:
        exposition = exporter.wait_for(r'^gpufleet_nvml_state\{state="no_library"\} 1$')
        assert "\ngpufleet_nvml_up 0\n" in exposition
        assert readings(exposition) == 0
        assert exporter.get("/-/healthy")[0] == 200
        status, reason = exporter.get("/-/ready")
        assert status == 503
        assert reason.startswith("no_library: ")
        assert exporter.process.poll() is None
        aside.rename(nvml.library)
        assert readings(exporter.wait_for(READING)) == 2
        assert exporter.get("/-/ready")[0] == 200


def test_a_driver_that_is_unloaded_for_a_while_costs_its_readings_only(nvml: FakeNvml, tmp_path: Path) -> None:
    """During it: no reading, not ready, and no restart afterwards."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        nvml.unload_driver()
        exposition = exporter.wait_for(DOWN)
        assert readings(exposition) == 0
        assert exporter.get("/-/ready")[0] == 503
        assert exporter.get("/-/healthy")[0] == 200
        nvml.load_driver()
        assert readings(exporter.wait_for(READING)) == 2
        assert exporter.get("/-/ready")[0] == 200
        assert len(exporter.said("gpufleet starts")) == 1


def test_devices_that_are_taken_away_make_the_process_unhealthy(nvml: FakeNvml, tmp_path: Path) -> None:
    """A systemd reload does that to a container; only a new container has them again, so its probe has to fail."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        nvml.fail_init(NO_PERMISSION)
        nvml.restart_driver()
        exposition = exporter.wait_for(r'^gpufleet_nvml_state\{state="no_permission"\} 1$')
        assert readings(exposition) == 0
        status, reason = exporter.get("/-/healthy")
        assert status == 503
        assert "only a new container has them again" in reason
        nvml.fail_init(0)
        exporter.wait_for(READING)
        assert exporter.get("/-/healthy")[0] == 200


def test_without_permission_from_the_start_the_process_is_left_alone(nvml: FakeNvml, tmp_path: Path) -> None:
    """A new container would be no better, and restarting for ever would hide the reason."""
    nvml.fail_init(NO_PERMISSION)
    with ExporterProcess(nvml, tmp_path) as exporter:
        exporter.wait_for(r'^gpufleet_nvml_state\{state="no_permission"\} 1$')
        assert exporter.get("/-/healthy")[0] == 200
        assert exporter.get("/-/ready")[0] == 503


def test_quiesce_releases_every_device_and_resume_takes_them_again(nvml: FakeNvml, tmp_path: Path) -> None:
    """After it no descriptor of the driver's is open, and metrics answer."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        assert nvml.open_files(exporter.process.pid)
        done = exporter.gpufleet("quiesce")
        assert (done.returncode, done.stdout) == (
            0,
            "quiesced: the exporter holds no GPU; it resumes by itself after 15m\n",
        )
        assert not nvml.open_files(exporter.process.pid)
        exposition = exporter.wait_for(r"^gpufleet_quiesced 1$")
        assert readings(exposition) == 0
        assert exporter.get("/-/ready") == (503, "quiesced: no GPU is held\n")
        assert exporter.gpufleet("resume").returncode == 0
        assert readings(exporter.wait_for(READING)) == 2


def test_signals_quiesce_and_resume_as_the_commands_do(nvml: FakeNvml, tmp_path: Path) -> None:
    """For a container in which nothing can be started; SIGHUP does no harm."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        exporter.process.send_signal(signal.SIGHUP)
        exporter.process.send_signal(signal.SIGUSR1)
        exporter.wait_for(r"^gpufleet_quiesced 1$")
        until(lambda: not nvml.open_files(exporter.process.pid), "every device is released")
        exporter.process.send_signal(signal.SIGUSR2)
        exporter.wait_for(READING)


def test_a_process_that_was_stopped_for_a_while_goes_on(nvml: FakeNvml, tmp_path: Path) -> None:
    """SIGSTOP, a debugger, a frozen container: it polls again when it is let go on, and still obeys."""
    with ExporterProcess(nvml, tmp_path) as exporter:
        exporter.wait_for(READING)
        exporter.process.send_signal(signal.SIGSTOP)
        # Longer than any limit with which the process waits for a signal.
        over = time.monotonic() + 2.5
        until(lambda: time.monotonic() > over, "it was stopped for long enough")
        exporter.process.send_signal(signal.SIGCONT)
        (polls,) = re.findall(r"^gpufleet_polls_total (.*)$", exporter.metrics(), re.MULTILINE)
        exporter.wait_for(rf"^gpufleet_polls_total (?!{polls}$)")
        assert readings(exporter.wait_for(READING)) == 2
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0


def test_a_quiesced_exporter_resumes_by_itself(nvml: FakeNvml, tmp_path: Path) -> None:
    """Somebody forgot: the node must not stay dark."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms", "--quiesce.max=1s") as exporter:
        exporter.wait_for(READING)
        assert exporter.gpufleet("quiesce").returncode == 0
        exporter.wait_for(r"^gpufleet_quiesced 0$")
        exporter.wait_for(READING)


def test_with_a_call_out_quiesce_exits_1_and_names_it_and_the_process_still_ends_promptly(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    """A script must not reset a GPU that is held; and a supervisor must be able to stop the exporter."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        nvml.hang("nvmlDeviceGetFieldValues", 1)
        exporter.wait_for(r'^gpu_state\{gpu="1",uuid="[^"]+",state="hung"\} 1$')
        done = exporter.gpufleet("quiesce")
        assert done.returncode == 1
        assert f"in the way: nvmlDeviceGetFieldValues on GPU 1 ({nvml.uuid(1)})" in done.stderr
        assert readings(exporter.metrics()) == 1
        exporter.process.send_signal(signal.SIGTERM)
        # At most 2 s for responses and 3 s for the driver; the call itself would take until it is released.
        assert exporter.process.wait(20) == 0
        assert exporter.said("a driver call is out: ending without waiting for it")


def test_a_replaced_driver_is_taken_up_by_a_new_image_of_the_same_process(nvml: FakeNvml, tmp_path: Path) -> None:
    """The package is upgraded, then the module reloaded; the supervisor sees one process throughout."""
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exporter.wait_for(READING)
        nvml.upgrade_library()
        exporter.wait_for(READING)  # the old library is still mapped, and the old module loaded
        nvml.load_upgraded_module()
        exporter.wait_for_start(2)
        assert readings(exporter.wait_for(READING)) == 2
        assert {line["pid"] for line in exporter.said("gpufleet starts")} == {exporter.process.pid}
        assert len(exporter.said("the driver was replaced: starting anew")) == 1
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0


def test_a_wrong_pair_at_start_is_said_and_mended_by_the_right_library(nvml: FakeNvml, tmp_path: Path) -> None:
    """The endpoint is up meanwhile; it does not start over and over."""
    nvml.upgrade_library()
    with ExporterProcess(nvml, tmp_path, "--poll.interval=200ms") as exporter:
        exposition = exporter.wait_for(r'^gpufleet_nvml_state\{state="mismatch"\} 1$')
        assert "\ngpufleet_nvml_up 0\n" in exposition
        assert exporter.get("/-/healthy")[0] == 200
        assert "different versions" in exporter.get("/-/ready")[1]
        assert len(exporter.said("gpufleet starts")) == 1
        nvml.control.kernel_build = nvml.control.library_build
        nvml.set_driver_version("600.10.01")
        exporter.wait_for(READING)


def test_numbers_of_gpus_survive_a_restart(nvml: FakeNvml, tmp_path: Path) -> None:
    """GPU 0 is gone and the driver counts anew; the other stays number 1."""
    with ExporterProcess(nvml, tmp_path) as exporter:
        exporter.wait_for(READING)
    nvml.remove_gpu(0)
    with ExporterProcess(nvml, tmp_path) as exporter:
        exposition = exporter.wait_for(READING)
        assert f'gpu_up{{gpu="1",uuid="{nvml.uuid(1)}"}} 1' in exposition


@pytest.mark.parametrize(
    ("gone", "state"), [("lost", "lost"), ("removed", "gone")], ids=["fell off the bus", "not listed"]
)
def test_a_gpu_that_is_missing_at_the_next_start_keeps_its_name(
    nvml: FakeNvml, tmp_path: Path, gone: str, state: str
) -> None:
    """A fault does not disappear because the exporter was restarted: the GPU is shown as down, and expected."""
    with ExporterProcess(nvml, tmp_path) as exporter:
        exporter.wait_for(READING)
    uuid = nvml.uuid(0)
    if gone == "lost":
        nvml.lose(0)
    else:
        nvml.remove_gpu(0)
    with ExporterProcess(nvml, tmp_path) as exporter:
        exposition = exporter.wait_for(rf'^gpu_state\{{gpu="0",uuid="{uuid}",state="{state}"\}} 1')
        assert f'gpu_up{{gpu="0",uuid="{uuid}"}} 0' in exposition
        assert re.search(rf'^gpu_info\{{gpu="0",uuid="{uuid}",[^\n]*name="NVIDIA H100', exposition, re.MULTILINE)
        assert re.search(r"^gpu_count_expected 2$", exposition, re.MULTILINE)
        assert readings(exposition) == 1


def test_a_taken_address_is_a_reason_to_end_with_status_1(nvml: FakeNvml, tmp_path: Path) -> None:
    """An exporter that nobody can scrape must not look alive."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = ExporterProcess(nvml, tmp_path)
        done = subprocess.run(
            [*process.arguments, f"--web.listen-address=127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in done.stderr


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--poll.interval=5", "--poll.interval: '5' is no duration"),
        ("--path.procfs=/nowhere", "--path.procfs: '/nowhere' is no directory"),
        ("--web.config.file=/nowhere.yml", "/nowhere.yml: cannot be read"),
        ("--config.file=/nowhere.yml", "/nowhere.yml: can't be read"),
    ],
)
def test_a_refused_configuration_ends_with_status_2_before_anything_is_done(
    flag: str, said: str, nvml: FakeNvml, tmp_path: Path
) -> None:
    """The message names the flag, the value and the remedy."""
    arguments = [
        each
        for each in ExporterProcess(nvml, tmp_path).arguments
        if not each.startswith(flag.split("=", maxsplit=1)[0])
    ]
    done = subprocess.run([*arguments, flag], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "control.sock").exists()
    assert not nvml.counts()


def test_systemd_is_told_when_it_answers_that_it_lives_and_that_it_stops(nvml: FakeNvml, tmp_path: Path) -> None:
    """Type=notify with a watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
        with ExporterProcess(nvml, tmp_path, environ=environ) as exporter:
            assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            exporter.process.send_signal(signal.SIGINT)
            assert exporter.process.wait(10) == 0
            told = set()
            while b"STOPPING=1" not in told:
                told.add(manager.recv(100))
        assert told <= {b"WATCHDOG=1", b"STOPPING=1"}


def test_a_second_exporter_leaves_the_control_socket_to_the_first(nvml: FakeNvml, tmp_path: Path) -> None:
    """It serves all the same, and says that only signals reach it."""
    with ExporterProcess(nvml, tmp_path) as first:
        first.wait_for(READING)
        apart = tmp_path / "second"
        apart.mkdir()
        with ExporterProcess(nvml, apart, control=first.control) as second:
            second.wait_for(READING)
            assert "another exporter listens there" in str(second.log())
        assert first.gpufleet("quiesce").returncode == 0
        first.wait_for(r"^gpufleet_quiesced 1$")


def test_the_doctor_agrees_with_the_exporter_that_runs_beside_it(nvml: FakeNvml, tmp_path: Path) -> None:
    """It asks the driver itself, and the exporter who it is."""
    (tmp_path / "kern.log").touch()
    with ExporterProcess(nvml, tmp_path) as exporter:
        exporter.wait_for(READING)
        done = exporter.gpufleet(
            "doctor",
            f"--nvml.library={nvml.library}",
            f"--path.procfs={nvml.procfs}",
            f"--state.dir={tmp_path / 'state'}",
            f"--kmsg.path={tmp_path / 'kern.log'}",
            f"--web.listen-address={exporter.address}",
        )
        assert done.returncode == 0, done.stdout
        assert f"pid {exporter.process.pid}, driver ok" in done.stdout
        assert "in use, and an exporter runs here" in done.stdout
        assert done.stdout.endswith("Nothing is missing.\n")
