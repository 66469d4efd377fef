"""The look through the driver when no exporter answers, on scripted drivers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpufleet.collect.known import KnownGpus
from gpufleet.collect.numbers import Numbers
from gpufleet.commands.check_driver import Look, look
from gpufleet.commands.check_verdict import Fitness, judge
from gpufleet.commands.driver import DriverLibrary
from gpufleet.faults.ledger import Ledger
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.settings import Settings, read_settings
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import GPU_IS_LOST

BOOT = "01234567-89ab-cdef-0123-456789abcdef"


class Scripted(DriverLibrary):
    """A library that is a scripted driver."""

    def __init__(self, driver: ScriptedDriver) -> None:
        super().__init__("scripted", Path("/nowhere"))
        self.driver = driver

    def open(self) -> ScriptedDriver:
        return self.driver


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose every path is in the test's directory, in a boot of its own."""
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text(BOOT + "\n")
    (tmp_path / "state").mkdir()
    flags = {"state.dir": [str(tmp_path / "state")], "path.procfs": [str(tmp_path / "proc")]}
    return read_settings(flags, environ={}, host_name="node-1")


@pytest.fixture
def driver() -> ScriptedDriver:
    """Four H100s."""
    return ScriptedDriver(uniform("h100-80gb-hbm3", 4, seed=1))


def looked(settings: Settings, driver: ScriptedDriver, seconds: float = 20.0) -> Look:
    """Look, and let go of what was scripted to hang."""
    return look(settings, Scripted(driver), seconds)


def keep(settings: Settings, *events: FaultEvent, boot: str = BOOT) -> None:
    """Leave incidents as an exporter does."""
    now = time.time()
    ledger = Ledger(node="node-1", boot_id=boot, random_id=lambda: "a" * 16, has_log=False)
    for event in events:
        ledger.feed(event, now)
    ledger.tick(now)
    (settings.state_dir / "faults.json").write_text(json.dumps(ledger.dump()))


def states(found: Look) -> list[tuple[int, GpuState]]:
    """Number and state of each GPU."""
    return [(gpu.number, gpu.state) for gpu in found.facts.gpus]


def test_healthy_gpus_are_found_healthy_and_nothing_is_written(settings: Settings, driver: ScriptedDriver) -> None:
    """The state is the exporter's; that no incidents were kept is said."""
    found = looked(settings, driver)
    assert states(found) == [(number, GpuState.OK) for number in range(4)]
    assert judge(found.facts).fitness is Fitness.HEALTHY
    assert found.facts.gpus[0].pcie_width == 16
    assert not found.is_stuck
    assert list(settings.state_dir.iterdir()) == []
    assert found.notes == (
        f"no exporter has kept incidents in {settings.state_dir}; what the kernel's log says is not known",
    )


def test_a_gpu_that_hangs_is_named_with_its_call_and_the_others_are_read(
    settings: Settings, driver: ScriptedDriver
) -> None:
    """The limit holds whatever hangs."""
    hanging = driver.hang(2, "nvmlDeviceGetFieldValues")
    began = time.monotonic()
    found = looked(settings, driver, 1.0)
    took = time.monotonic() - began
    driver.unhang(hanging)
    assert found.is_stuck
    assert took < 10
    assert states(found)[2] == (2, GpuState.HUNG)
    assert found.facts.gpus[2].reason == "nvmlDeviceGetFieldValues has not returned"
    assert [state for _, state in states(found)].count(GpuState.OK) == 3
    assert judge(found.facts).fitness is Fitness.UNFIT


def test_a_driver_that_is_not_there_is_said(settings: Settings, driver: ScriptedDriver) -> None:
    """With its state, so that a node without GPUs can be excused."""
    driver.unload()
    found = looked(settings, driver)
    assert found.facts.nvml_state is NvmlState.NO_DRIVER
    assert judge(found.facts, missing_ok=True).fitness is Fitness.HEALTHY


def test_a_lost_gpu_keeps_the_name_and_number_that_it_had(settings: Settings, driver: ScriptedDriver) -> None:
    """The driver does not tell its name any more; the exporter wrote it down."""
    first = looked(settings, driver)
    Numbers(settings.state_dir, BOOT).assign([(gpu.uuid, 7 - gpu.number) for gpu in first.facts.gpus])
    KnownGpus(settings.state_dir, BOOT).remember(
        GpuIdentity(gpu.uuid, gpu.name, gpu.pci_bus_id) for gpu in first.facts.gpus
    )
    driver.set_down(1, GPU_IS_LOST)
    found = looked(settings, driver)
    lost = next(gpu for gpu in found.facts.gpus if gpu.uuid == first.facts.gpus[1].uuid)
    assert [number for number, _ in states(found)] == [4, 5, 6, 7]
    assert (lost.number, lost.pci_bus_id) == (6, first.facts.gpus[1].pci_bus_id)
    assert lost.state in {GpuState.LOST, GpuState.GONE}
    assert judge(found.facts, [lost.uuid]).fitness is Fitness.UNFIT
    assert judge(found.facts, ["4"]).fitness is Fitness.HEALTHY


def test_a_lost_gpu_that_nobody_knows_has_a_line(settings: Settings, driver: ScriptedDriver) -> None:
    """It is counted, and that is all that is known."""
    driver.set_down(1, GPU_IS_LOST)
    found = looked(settings, driver)
    assert len(found.facts.gpus) == 4
    assert judge(found.facts).fitness is Fitness.UNFIT


def test_incidents_that_an_exporter_kept_are_used(settings: Settings, driver: ScriptedDriver) -> None:
    """The kernel's log says nothing to a process that comes later; the state does."""
    first = looked(settings, driver).facts.gpus[3]
    keep(settings, FaultEvent(FaultKind.XID, time.time(), "kmsg", first.pci_bus_id, 79))
    found = looked(settings, driver)
    assert [incident.fault for incident in found.facts.active] == ["79"]
    assert judge(found.facts, ["3"]).fitness is Fitness.UNFIT
    assert judge(found.facts, ["0"]).fitness is Fitness.HEALTHY
    assert found.notes == (f"incidents are those that were kept in {settings.state_dir / 'faults.json'}",)


def test_a_reboot_since_then_is_taken_into_account(settings: Settings, driver: ScriptedDriver) -> None:
    """The boot id proves it, as for the exporter."""
    first = looked(settings, driver).facts.gpus[3]
    keep(settings, FaultEvent(FaultKind.XID, time.time(), "kmsg", first.pci_bus_id, 79), boot="another")
    assert judge(looked(settings, driver).facts).fitness is Fitness.HEALTHY


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"version": 1}', b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_incidents_that_can_not_be_read_are_a_flaw_and_no_end(
    settings: Settings, driver: ScriptedDriver, content: bytes
) -> None:
    """Nobody can say then that all is well."""
    (settings.state_dir / "faults.json").write_bytes(content)
    found = looked(settings, driver)
    assert len(found.facts.flaws) == 1
    assert found.facts.flaws[0].startswith("kept incidents can't be used: ")
    assert judge(found.facts).fitness is Fitness.DEGRADED
