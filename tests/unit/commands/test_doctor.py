"""What the doctor finds and says, on nodes that are trees of files and a scripted driver."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.collect.control import ControlSocket
from gpufleet.commands import diagnosis_gpus, diagnosis_node, doctor
from gpufleet.commands.diagnosis import Check, Diagnosis, GpuReport, GroupReport, Overdue, Status, within
from gpufleet.commands.diagnosis_gpus import driver_report, group_reports
from gpufleet.commands.diagnosis_text import text
from gpufleet.commands.driver import DriverLibrary
from gpufleet.commands.reexec import Installed
from gpufleet.metrics.catalog import READINGS
from gpufleet.model.readings import Key
from gpufleet.option_table import OPTIONS
from gpufleet.settings import Settings, read_settings
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import DRIVER_NOT_LOADED, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH
from gpufleet.web.addresses import ListenAddress, listen

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"


class Scripted(DriverLibrary):
    """A library that is a scripted driver."""

    def __init__(self, driver: ScriptedDriver) -> None:
        super().__init__("scripted", Path("/nowhere"))
        self.driver = driver

    def open(self) -> ScriptedDriver:
        return self.driver


def node_with(*profiles: str) -> ScriptedDriver:
    """A driver with one GPU of each profile."""
    return ScriptedDriver([uniform(profile, 1, seed=number)[0] for number, profile in enumerate(profiles)])


def put(path: Path, content: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def pci_gpu(sysfs: Path, address: str, driver: str | None) -> None:
    """An H100 on the bus."""
    directory = sysfs / "bus/pci/devices" / address
    for name, content in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
        put(directory / name, content)
    if driver is not None:
        (directory / "driver").symlink_to(f"../../drivers/{driver}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose every path is in the test's directory."""
    flags = {
        "state.dir": [str(tmp_path / "state")],
        "control.socket": [str(tmp_path / "control.sock")],
        "path.procfs": [str(tmp_path / "proc")],
        "path.sysfs": [str(tmp_path / "sys")],
        "web.listen-address": ["127.0.0.1:0"],
    }
    return read_settings(flags, environ={}, host_name="node-1")


# --- through the driver -----------------------------------------------------------------------------------------------
def test_a_gpu_that_reports_everything_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    """Profiling on a Hopper, none on a T4, and the reason beside it."""
    found = driver_report(Scripted(node_with("h100-80gb-hbm3", "t4")), tmp_path)
    assert [check.status for check in found.checks] == [Status.OK] * 3
    hopper, turing = found.gpus
    assert (hopper.state, turing.state) == ("ok", "ok")
    reported = {name for group in hopper.groups for name in group.reported}
    assert {"gpu_sm_active_ratio", "gpu_busy_seconds_total", "gpu_xid_errors_total", "gpu_power_watts"} <= reported
    absent = {name: why for group in turing.groups for name, why in group.absent}
    assert absent["gpu_sm_active_ratio"] == "reported by Hopper and newer"
    assert absent["gpu_sm_active_seconds_total"] == "reported by Hopper and newer"
    assert not found.is_stuck


def test_a_gpu_that_hangs_is_a_finding_and_the_others_are_reported_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is named; activity of the others is read all the same."""
    monkeypatch.setattr(diagnosis_gpus, "_GPU_SECONDS", 1.0)
    driver = node_with("h100-80gb-hbm3", "h100-80gb-hbm3")
    hanging = driver.hang(0, "nvmlDeviceGetFieldValues")
    found = driver_report(Scripted(driver), tmp_path)
    driver.unhang(hanging)
    assert found.is_stuck
    assert (found.gpus[0].state, found.gpus[0].reason) == ("hung", "nvmlDeviceGetFieldValues does not return")
    assert found.gpus[1].state == "ok"
    assert "gpu_sm_active_ratio" in {name for group in found.gpus[1].groups for name in group.reported}


def test_a_hang_while_activity_is_sampled_is_blamed_on_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activity is sampled for one GPU after the other, in one thread."""
    monkeypatch.setattr(diagnosis_gpus, "_GPU_SECONDS", 1.0)
    driver = node_with("h100-80gb-hbm3", "h100-80gb-hbm3")
    hanging = driver.hang(1, "nvmlGpmSampleGet")
    found = driver_report(Scripted(driver), tmp_path)
    driver.unhang(hanging)
    assert [gpu.state for gpu in found.gpus] == ["ok", "hung"]
    assert found.gpus[1].reason == "nvmlGpmSampleGet does not return"
    assert found.is_stuck


def test_a_lost_gpu_says_what_the_driver_says(tmp_path: Path) -> None:
    """NVML's own word, for a search engine."""
    driver = node_with("h100-80gb-hbm3", "h100-80gb-hbm3")
    driver.set_down(1, GPU_IS_LOST)
    found = driver_report(Scripted(driver), tmp_path)
    assert [gpu.state for gpu in found.gpus] == ["ok", "gpu_is_lost"]


@pytest.mark.parametrize(
    ("code", "said"), [(LIB_RM_VERSION_MISMATCH, "different versions"), (DRIVER_NOT_LOADED, "loaded?")]
)
def test_a_driver_that_does_not_open_is_missing_with_its_reason(code: int, said: str, tmp_path: Path) -> None:
    """The same words as in the exporter's log and metrics."""
    driver = node_with("t4")
    driver.set_return("nvmlInitWithFlags", code)
    found = driver_report(Scripted(driver), tmp_path)
    assert found.checks[-1].subject == "NVML"
    assert found.checks[-1].status is Status.MISSING
    assert said in found.checks[-1].detail + str(found.checks[-1].remedy)
    assert not found.gpus


def test_an_init_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole driver is blocked: nothing else can be asked."""
    monkeypatch.setattr(diagnosis_gpus, "_OPEN_SECONDS", 0.2)
    driver = node_with("t4")
    hanging = driver.hang(None, "nvmlInitWithFlags")
    found = driver_report(Scripted(driver), tmp_path)
    driver.unhang(hanging)
    assert found.is_stuck
    assert found.checks[-1].detail == "nvmlInit does not return"


def test_library_and_kernel_module_are_compared_without_loading_either(tmp_path: Path) -> None:
    """The release is in the file's name and in procfs."""
    put(tmp_path / "driver/nvidia/version", OPEN)
    same = diagnosis_gpus.version_check("/usr/lib/libnvidia-ml.so.580.95.05", tmp_path)
    other = diagnosis_gpus.version_check("/usr/lib/libnvidia-ml.so.590.10", tmp_path)
    assert same == Check("versions", Status.OK, "library and kernel module are both 580.95.05")
    assert other is not None
    assert (other.status, other.detail) == (
        Status.MISSING,
        "the library is of release 590.10, the kernel module of 580.95.05",
    )
    assert diagnosis_gpus.version_check("/opt/libnvidia-ml.so", tmp_path) is None


def test_every_family_of_a_gpu_is_either_reported_or_explained() -> None:
    """Nothing is left out of the account."""
    served = {family.name for family in READINGS.values() if family.served and "mig_uuid" not in family.labels}
    groups = group_reports({"power_watts"}, {Key("fan_speed_ratio", ("0",)): "not_supported"}, has_slices=False)
    named = [name for group in groups for name in (*group.reported, *dict(group.absent))]
    assert sorted(named) == sorted(served)
    power = next(group for group in groups if group.title == "Power")
    assert power.reported == ("gpu_power_watts",)
    assert dict(power.absent)["gpu_fan_speed_ratio"].startswith("not on this GPU, driver or mode; reported by ")


# --- the node ---------------------------------------------------------------------------------------------------------
def test_the_kernel_driver_is_found_or_missing_with_a_remedy(tmp_path: Path) -> None:
    """Its version needs neither library nor permission."""
    missing = diagnosis_node.kernel_driver(tmp_path)
    assert missing.status is Status.MISSING
    assert missing.remedy is not None
    assert "modprobe nvidia" in missing.remedy
    put(tmp_path / "driver/nvidia/version", OPEN)
    assert diagnosis_node.kernel_driver(tmp_path).detail == "580.95.05, open kernel module"


def test_gpus_on_the_bus_are_told_by_who_has_them(tmp_path: Path) -> None:
    """None, all the driver's, one passed through to a guest, one that nobody took."""
    assert diagnosis_node.pci_bus(tmp_path, 0).status is Status.MISSING
    assert diagnosis_node.pci_bus(tmp_path, 8).status is Status.NOTE
    pci_gpu(tmp_path, "0000:1b:00.0", "nvidia")
    assert diagnosis_node.pci_bus(tmp_path, 1) == Check(
        "PCI bus", Status.OK, "1 GPU of NVIDIA's, all taken by its driver"
    )
    pci_gpu(tmp_path, "0000:43:00.0", "vfio-pci")
    passed = diagnosis_node.pci_bus(tmp_path, 1)
    assert (passed.status, passed.detail) == (Status.NOTE, "2 GPUs; not the NVIDIA driver's: 0000:43:00.0 (vfio-pci)")
    pci_gpu(tmp_path, "0000:52:00.0", None)
    orphan = diagnosis_node.pci_bus(tmp_path, 1)
    assert (orphan.status, orphan.detail) == (Status.MISSING, "3 GPUs; no kernel driver has 0000:52:00.0")


def test_device_files_are_there_missing_or_seen_by_the_driver_alone(tmp_path: Path) -> None:
    """A container without devices, WSL 2, and the ordinary case."""
    dev, procfs = tmp_path / "dev", tmp_path / "proc"
    dev.mkdir()
    assert diagnosis_node.device_files(dev, procfs, 0).remedy == "they come with the kernel driver"
    put(procfs / "driver/nvidia/version", OPEN)
    remedy = diagnosis_node.device_files(dev, procfs, 0).remedy
    assert remedy is not None
    assert "--gpus all" in remedy
    assert diagnosis_node.device_files(dev, procfs, 2).status is Status.NOTE
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (dev / name).symlink_to("/dev/null")
    assert diagnosis_node.device_files(dev, procfs, 1) == Check("device files", Status.OK, "nvidia0, nvidiactl")
    (dev / "dxg").touch()
    assert diagnosis_node.device_files(dev, procfs, 1).detail == "/dev/dxg (WSL 2 has no others)"


def test_the_kernel_log_is_followed_or_missing_with_a_remedy(tmp_path: Path) -> None:
    """Without it some faults are never seen, and nobody would notice."""
    os.mkfifo(tmp_path / "kmsg")
    assert diagnosis_node.kernel_log(tmp_path / "kmsg").status is Status.OK

    missing = diagnosis_node.kernel_log(tmp_path / "none")
    assert missing.status is Status.MISSING
    assert missing.detail.startswith(f"{tmp_path}/none does not exist: mount the host's /dev/kmsg")
    assert "CAP_SYSLOG" in (missing.remedy or "")


def test_the_state_directory_is_writable_will_be_made_or_is_missing(tmp_path: Path) -> None:
    """The doctor makes nothing itself."""
    assert diagnosis_node.state_directory(tmp_path) == Check("state directory", Status.OK, str(tmp_path))
    new = tmp_path / "a" / "b"
    assert diagnosis_node.state_directory(new).detail == f"{new} (will be made)"
    assert not new.parent.exists()
    put(tmp_path / "file", "")
    assert diagnosis_node.state_directory(tmp_path / "file" / "state").status is Status.MISSING


def test_an_address_is_free_ours_or_taken() -> None:
    """The port of the exporter that runs here is no conflict."""
    with listen(ListenAddress("127.0.0.1", 0)) as taken:
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])
        found = diagnosis_node.listen_address(address, None)
        assert (found.status, found.remedy) == (Status.MISSING, "stop the program that has it or choose another port")
        assert diagnosis_node.listen_address(address, {"ok": True}).status is Status.OK
    assert diagnosis_node.listen_address(address, None).detail == "free"


def test_the_exporter_that_runs_here_is_asked_who_it_is(settings: Settings) -> None:
    """Whoever calls the doctor wants to know what the exporter itself sees."""
    assert diagnosis_node.running_exporter(settings) is None
    assert settings.control_socket is not None
    says = {"ok": True, "version": "0.1.0", "pid": 7, "nvml_state": "hung", "quiesced": False}
    control = ControlSocket(settings.control_socket, {"status": lambda: says})
    control.start()
    found = diagnosis_node.running_exporter(settings)
    control.stop()
    assert diagnosis_node.exporter_check(found) == Check("exporter", Status.OK, "version 0.1.0, pid 7, driver hung")


def test_a_web_configuration_is_checked_as_the_exporter_would(tmp_path: Path) -> None:
    """With the same sentence."""
    file = tmp_path / "web.yml"
    put(file, "")
    assert diagnosis_node.web_configuration(file).detail == f"{file}: guards nothing"
    put(file, "tls_server_confg: {}\n")
    found = diagnosis_node.web_configuration(file)
    assert found.status is Status.MISSING
    assert "tls_server_confg" in found.detail


def test_a_check_that_hangs_or_fails_costs_only_itself(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system under the state directory, a flaw of our own."""
    never = threading.Event()

    def hang(_: Path) -> Check:
        never.wait(60)
        raise AssertionError

    def fail(_: Path) -> Check:
        raise ValueError("flaw")

    monkeypatch.setattr(diagnosis_node, "_SECONDS", 0.2)
    monkeypatch.setattr(diagnosis_node, "state_directory", hang)
    monkeypatch.setattr(diagnosis_node, "procfs", fail)
    found = {check.subject: check for check in diagnosis_node.node_checks(settings, 0)}
    never.set()
    assert found["state directory"].detail == "no answer in 0.2 seconds"
    assert found["procfs"].detail == "could not be looked at: ValueError('flaw')"
    assert found["address 127.0.0.1:0"].status is Status.OK


def test_a_call_that_does_not_return_is_overdue_and_one_that_raises_raises() -> None:
    """The two things that a thread of its own must not hide."""
    never = threading.Event()
    with pytest.raises(Overdue):
        within(0.05, lambda: never.wait(60), "waits")
    never.set()
    with pytest.raises(ZeroDivisionError):
        within(20, lambda: 1 // 0, "fails")
    assert within(20, lambda: 7, "works") == 7


# --- for people and programs ------------------------------------------------------------------------------------------
GROUP = GroupReport("Power", ("gpu_power_watts",), (("gpu_fan_speed_ratio", "reported by boards with fans"),))
GPU = GpuReport(0, "ok", "GPU-a", "NVIDIA H100", "0000:1b:00.0", groups=(GROUP,))
WHOLE = Diagnosis("0.1.0", "node-1", (Check("library", Status.OK, "/lib/libnvidia-ml.so.580"),), (GPU,))


def test_a_complete_diagnosis_reads_in_a_minute() -> None:
    """GPUs that report the same are told once."""
    second = replace(GPU, index=1, uuid="GPU-b", pci_bus_id="0000:43:00.0")
    assert text(replace(WHOLE, gpus=(GPU, second))) == (
        "gpufleet 0.1.0 on node node-1\n\n"
        "  ok       library /lib/libnvidia-ml.so.580\n\n"
        "GPU 0  NVIDIA H100  GPU-a  0000:1b:00.0\n"
        "GPU 1  NVIDIA H100  GPU-b  0000:43:00.0\n"
        "  Power: 1 of 2\n"
        "    gpu_power_watts\n"
        "    - gpu_fan_speed_ratio: reported by boards with fans\n\n"
        "Nothing is missing.\n"
    )


def test_what_is_missing_stands_out_with_its_remedy() -> None:
    """The last line counts, so that a long account can't hide it."""
    broken = Check("kernel driver", Status.MISSING, "not loaded", "modprobe nvidia")
    down = GpuReport(1, "hung", reason="nvmlDeviceGetUUID does not return")
    said = text(replace(WHOLE, checks=(*WHOLE.checks, broken), gpus=(GPU, down)))
    assert "  MISSING  kernel driver not loaded\n                         → modprobe nvidia\n" in said
    assert "GPU 1\n  hung: nvmlDeviceGetUUID does not return\n" in said
    assert said.endswith("1 thing is missing; the remedy stands at the arrow; 1 GPU does not answer.\n")


def test_a_note_is_no_reason_to_fail() -> None:
    """Something is less here, and nothing has to be done."""
    noted = replace(WHOLE, checks=(*WHOLE.checks, Check("udev", Status.NOTE, "not here")))
    assert noted.is_complete
    assert not replace(noted, gpus=(replace(GPU, state="hung"),)).is_complete


def test_json_says_the_same_for_programs() -> None:
    """Everything in the text is in it, and the verdict as a word."""
    said = json.loads(doctor.as_json(WHOLE))
    assert said["complete"] is True
    assert said["checks"] == [
        {"subject": "library", "status": "ok", "detail": "/lib/libnvidia-ml.so.580", "remedy": None}
    ]
    assert said["gpus"][0]["groups"][0]["absent"] == [["gpu_fan_speed_ratio", "reported by boards with fans"]]


@pytest.fixture
def bare_node(tmp_path: Path) -> Iterator[list[str]]:
    """Flags of a doctor on a node that has nothing."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys").mkdir()
    yield [
        "--node.name=bare",
        "--nvml.library=/nowhere/libnvidia-ml.so.1",
        f"--path.procfs={tmp_path}/proc",
        f"--path.sysfs={tmp_path}/sys",
        f"--state.dir={tmp_path}/state",
        f"--control.socket={tmp_path}/control.sock",
        "--web.listen-address=127.0.0.1:0",
        f"--kmsg.path={tmp_path}/kmsg",
    ]
    assert not (tmp_path / "state").exists(), "the doctor changes nothing"


def test_a_node_without_anything_is_told_so_with_status_1(
    bare_node: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It works with no driver: that is when it is called."""
    assert doctor.main(bare_node) == 1
    said = capsys.readouterr().out
    assert said.startswith("gpufleet 0.1.0 on node bare\n")
    assert said.count("MISSING") == 6


def test_a_node_without_anything_is_told_so_to_programs(
    bare_node: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same, as JSON."""
    assert doctor.main([*bare_node, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["complete"] is False
    assert {check["subject"] for check in said["checks"] if check["status"] == "missing"} == {
        "library",
        "kernel driver",
        "PCI bus",
        "device files",
        "procfs",
        "kernel log",
    }


def test_the_doctor_takes_every_flag_of_the_exporter(bare_node: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks why something is missing pastes the exporter's command line."""
    given = [*bare_node, "--poll.interval=500ms", "--kubernetes.api-server=none", "--metrics.level=core"]

    assert doctor.main(given) == 1
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        doctor.main(["--help"])
    said = capsys.readouterr().out
    assert [option.name for option in OPTIONS if f"--{option.name}" not in said] == []


def test_nothing_is_installed_as_far_as_a_scripted_library_goes() -> None:
    """The scripted library has no file that could be replaced under the process."""
    assert Scripted(node_with("t4")).loaded == Installed(None, None)
