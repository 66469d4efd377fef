"""From a line of the kernel's log, through the exporter, to an alert in a real Alertmanager."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.alertmanager_server import AlertmanagerServer
from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

GPUS = 8
KERNEL, USER = 2, 10
"""Priorities: critical, of the kernel's facility and of that of programs."""
AT_ONCE = {
    79: "pid=12, name=python3, GPU has fallen off the bus.",
    64: "pid=12, name=python3, Row Remapper: Error remapping a row",
    95: "pid=12, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No",
    119: "pid=12, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    62: "2d9d(4a2c) 00000000 00000000",
    143: "GPU Initialization Error",
}


class KernelLog:
    """A FIFO in the place of /dev/kmsg."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._sequence = 1000

    def say(self, text: str, priority: int = KERNEL) -> None:
        """Put a record in."""
        self._sequence += 1
        self.path.write_text(f"{priority},{self._sequence},{round(time.monotonic() * 1e6)},-;{text}\n")


@pytest.fixture
def kmsg(tmp_path: Path) -> KernelLog:
    """An empty log."""
    return KernelLog(tmp_path / "kmsg")


@pytest.fixture
def exporter(
    fake_nvml: FakeNvml, alertmanager: AlertmanagerServer, kmsg: KernelLog, tmp_path: Path
) -> Iterator[ExporterProcess]:
    """An exporter with eight GPUs that tells Alertmanager itself."""
    fake_nvml.set_gpus(GPUS, H100)
    flags = (
        f"--kmsg.path={kmsg.path}",
        f"--alertmanager.url={alertmanager.url}",
        "--alertmanager.label=cluster=east-1",
    )
    with ExporterProcess(fake_nvml, tmp_path, *flags) as running:
        running.wait_for(r"^gpu_power_watts\{")
        running.wait_for(r"^gpufleet_alertmanager_up\{[^}]*\} 1")
        yield running


def address(fake: FakeNvml, exporter: ExporterProcess, gpu: int) -> str:
    """Bus and device of a GPU, as the driver prints them."""
    exposition = exporter.metrics()
    info = next(line for line in exposition.splitlines() if line.startswith("gpu_info{") and fake.uuid(gpu) in line)
    return info.partition('pci_bus_id="')[2].partition('"')[0].removesuffix(".0")


def faults(alertmanager: AlertmanagerServer) -> dict[str, str]:
    """Number of the GPU by fault, of the alerts that are open."""
    return {alert["labels"]["fault"]: alert["labels"].get("gpu", "") for alert in alertmanager.alerts()}


def wait_for_alert(alertmanager: AlertmanagerServer, fault: str, gpu: int) -> None:
    """Wait until that fault of that GPU is an open alert."""
    until(lambda: faults(alertmanager).get(fault) == str(gpu), f"the alert of {fault} of GPU {gpu}")


def test_what_is_shown_at_once_is_an_alert_at_once(
    fake_nvml: FakeNvml, exporter: ExporterProcess, alertmanager: AlertmanagerServer, kmsg: KernelLog
) -> None:
    """One alert for each line, of the GPU that the line names; and one for a GPU that is lost without a line."""
    for gpu, (code, text) in enumerate(AT_ONCE.items()):
        kmsg.say(f"NVRM: Xid (PCI:{address(fake_nvml, exporter, gpu)}): {code}, {text}")
        wait_for_alert(alertmanager, str(code), gpu)
    fake_nvml.lose(GPUS - 1)
    wait_for_alert(alertmanager, "gpu_lost", GPUS - 1)
    assert len(alertmanager.alerts()) == len(AT_ONCE) + 1
    assert {alert["labels"]["cluster"] for alert in alertmanager.alerts()} == {"east-1"}


def test_what_a_tenant_can_write_is_no_fault(
    fake_nvml: FakeNvml, exporter: ExporterProcess, alertmanager: AlertmanagerServer, kmsg: KernelLog
) -> None:
    """A program's own record, a process's name, a cgroup's name, and a storm of page faults."""
    xid = f"NVRM: Xid (PCI:{address(fake_nvml, exporter, 0)}): 79, pid=1, name=x, GPU has fallen off the bus."
    kmsg.say(xid, USER)
    kmsg.say(f"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/{xid}")
    other = address(fake_nvml, exporter, 1)
    kmsg.say(f"NVRM: Xid (PCI:{other}): 31, pid=7, name={xid}, Ch 00000008, intr 10000000")
    for _ in range(200):
        kmsg.say(f"NVRM: Xid (PCI:{other}): 31, pid=7, name=python3, Ch 00000008, intr 10000000")
    exposition = exporter.wait_for(r'^gpu_xid_errors_total\{gpu="1",[^}]*xid="31",class="application"\} 201$')
    assert 'xid="79"' not in exposition
    assert 'isolate="true"' not in exposition
    assert 'refund="true"' not in exposition
    assert alertmanager.alerts() == []


def test_one_fault_told_twice_is_counted_once_and_outlives_a_kill(
    fake_nvml: FakeNvml, exporter: ExporterProcess, kmsg: KernelLog, tmp_path: Path
) -> None:
    """By the kernel's log and by the driver's event; the next process has it under the same name."""
    kmsg.say(f"NVRM: Xid (PCI:{address(fake_nvml, exporter, 2)}): 79, {AT_ONCE[79]}")
    fake_nvml.inject_xid(2, 79)
    incident = r'^gpu_fault_active\{[^}]*gpu="2",[^}]*fault="79"'
    before = exporter.wait_for(incident)
    count = next(
        line for line in before.splitlines() if line.startswith("gpu_xid_errors_total{") and 'xid="79"' in line
    )
    assert count.endswith(" 1")
    exporter.process.kill()
    exporter.process.wait(30)

    with ExporterProcess(fake_nvml, tmp_path, f"--kmsg.path={kmsg.path}") as next_one:
        after = next_one.wait_for(incident)
        next_one.wait_for(r'^gpu_xid_errors_total\{gpu="2",[^}]*xid="79",class="hardware"\} 1$')
    series = [line for line in before.splitlines() if line.startswith("gpu_fault_active{")]
    assert [line for line in after.splitlines() if line.startswith("gpu_fault_active{")] == series
