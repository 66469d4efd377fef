"""Faults of a running exporter: told by the kernel's log, by the driver, by both, and by those who want to deceive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.sources.nvml.calls import GPU_IS_LOST
from tests.integration.exporter_process import ExporterProcess
from tests.integration.faulty_node import (
    FaultyNode,
    known,
    see,
    wait_for_count,
    wait_for_replay,
    wait_for_roots,
)
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_layout import SYSTEM
from tests.support.kmsg_records import KERNEL, USER, RecordFile, sxid, xid
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

SWITCH = "0000:c1:00.0"
SOURCES = ("kmsg", "nvml", "nvml_events")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""Runs a program as the user nobody."""


@pytest.fixture
def node(fake_nvml: FakeNvml, tmp_path: Path) -> FaultyNode:
    """Eight H100 and an empty log, which tells when it grows."""
    fake_nvml.set_gpus(8)
    os.mkfifo(tmp_path / "kmsg")
    return FaultyNode(fake_nvml, tmp_path, RecordFile(tmp_path / "kmsg"))


@pytest.fixture
def exporter(node: FaultyNode) -> Iterator[ExporterProcess]:
    """The exporter, once it shows everything."""
    with node.start() as running:
        wait_for_replay(running)
        yield running


# --- each fault counts once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["kernel", "driver"])
def test_one_fault_that_two_tell_counts_once(first: str, node: FaultyNode, exporter: ExporterProcess) -> None:
    """Whoever is first; more than five seconds later it still is one."""
    tell: list[Callable[[], object]] = [lambda: node.xid(79, 3), lambda: node.fake.inject_xid(3, 79)]
    if first == "driver":
        tell.reverse()
    tell[0]()
    time.sleep(0.3)  # the order is the point; nothing shows when the first has been taken in and waits for its twin
    tell[1]()
    wait_for_roots(exporter, ("3", "79"))
    # One that only the driver tells counts five seconds after it was told: by then any twin has counted.
    node.fake.inject_xid(5, 31)
    seen = wait_for_count(exporter, 5, 31, 1)
    assert seen.xids == {("3", "79"): 1, ("5", "31"): 1}
    labels = seen.of("79")
    assert (labels["class"], labels["action"], labels["isolate"], labels["refund"]) == (
        ("hardware", "reboot_node", "true", "true")
    )
    assert (labels["uuid"], labels["pci_bus_id"], labels["node"]) == (node.fake.uuid(3), node.address(3), "node-1")


def test_what_only_the_kernel_tells_counts(node: FaultyNode, exporter: ExporterProcess) -> None:
    """The driver's library has no event for a GPU's system processor that does not answer."""
    node.xid(119, 6)
    wait_for_roots(exporter, ("6", "119"))
    assert wait_for_count(exporter, 6, 119, 1).xids == {("6", "119"): 1}


def test_what_only_the_driver_tells_waits_for_the_kernels_word(node: FaultyNode, exporter: ExporterProcess) -> None:
    """Five seconds: then it counts, and opens what it has to open."""
    node.fake.inject_xid(2, 79)
    told = time.monotonic()
    wait_for_roots(exporter, ("2", "79"))
    waited = time.monotonic() - told
    assert wait_for_count(exporter, 2, 79, 1).xids == {("2", "79"): 1}
    assert 4.9 <= waited < 15


def test_an_error_of_a_switch_counts_by_its_address(node: FaultyNode, exporter: ExporterProcess) -> None:
    """Its three lines are one; it names no GPU."""
    node.log.say(sxid(20034, SWITCH, "Fatal, Link 30 LTSSM Fault Up"))
    node.log.say(sxid(20034, SWITCH, "Severity 1 Engine instance 30 Sub-engine instance 00"))
    node.log.say(sxid(20034, SWITCH, "Data {0x00000020, 0x00000020, 0x00000000, 0x00000020}"))
    node.log.say(sxid(12028, SWITCH, "Non-fatal, Link 11 egress non-posted PRIV error"))
    until(lambda: len(see(exporter).switches) == 2, "both are counted")
    exposition = exporter.metrics()
    assert f'nvswitch_errors_total{{pci_bus_id="{SWITCH}",sxid="20034",class="' in exposition
    assert see(exporter).switches == {(SWITCH, "20034"): 1, (SWITCH, "12028"): 1}


# --- a log that can't be read -----------------------------------------------------------------------------------------


def test_without_a_log_the_drivers_word_counts_at_once(node: FaultyNode, tmp_path: Path) -> None:
    """The exporter is well, and says what to grant."""
    node.log.path = tmp_path / "nothing"
    with node.start() as exporter:
        seen = wait_for_replay_without_log(exporter)
        assert {source: up for source, up in seen.items() if source in SOURCES} == {
            "kmsg": 0,
            "nvml": 1,
            "nvml_events": 1,
        }
        (said,) = exporter.said("the kernel's log can't be followed")
        assert "does not exist: mount the host's /dev/kmsg there or name it with --kmsg.path" in str(said["err"])
        node.fake.inject_xid(2, 79)
        told = time.monotonic()
        wait_for_roots(exporter, ("2", "79"))
        assert time.monotonic() - told < 4.5
        assert see(exporter).xids == {("2", "79"): 1}
        assert exporter.get("/-/healthy") == exporter.get("/-/ready") == (200, "ok\n")


def wait_for_replay_without_log(exporter: ExporterProcess) -> dict[str, float]:
    """Wait until every GPU has been polled; what is said of the sources that every machine has."""
    exporter.wait_for(r'^gpu_power_watts\{gpu="7"')
    return {source: up for source, up in see(exporter).sources.items() if source != "udev"}


def test_a_log_that_may_not_be_read(node: FaultyNode, tmp_path: Path) -> None:
    """Another user's, mode 0000: the process says which capability it lacks, and everything else works."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    secret = tmp_path / "secret"
    secret.write_bytes(b"")
    secret.chmod(0)
    node.log.path = secret
    unprivileged = node.start()
    give_away(tmp_path, node.fake.directory)
    unprivileged.arguments = [*NOBODY, *unprivileged.arguments]
    with unprivileged as exporter:
        assert wait_for_replay_without_log(exporter)["kmsg"] == 0
        (said,) = exporter.said("the kernel's log can't be followed")
        for word in ("CAP_SYSLOG", "kernel.dmesg_restrict", "79, 119 and 120", "Permission denied"):
            assert word in str(said["err"])
        node.fake.inject_xid(2, 79)
        wait_for_roots(exporter, ("2", "79"))


def give_away(*directories: Path) -> None:
    """To the user nobody, who also has to get there."""
    for directory in directories:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        for parent in directory.parents:
            if parent.stat().st_uid == os.geteuid() and len(parent.parts) > 2:
                parent.chmod(parent.stat().st_mode | 0o711)


def test_a_directory_in_its_place_is_no_log(node: FaultyNode, tmp_path: Path) -> None:
    """Docker makes one when the host lacks the file that is to be mounted."""
    node.log.path = tmp_path / "directory"
    node.log.path.mkdir()
    with node.start() as exporter:
        assert wait_for_replay_without_log(exporter)["kmsg"] == 0
        (said,) = exporter.said("the kernel's log can't be followed")
        assert "Is a directory" in str(said["err"])


# --- who wants to deceive ---------------------------------------------------------------------------------------------


def forgeries(node: FaultyNode) -> list[tuple[str, int, str]]:
    """Text, facility and flags of records that a tenant can get into the log."""
    fault = xid(79, node.address(1))
    return [
        # Whoever may write to /dev/kmsg.
        (fault, USER, "-"),
        (fault, 3, "-"),
        # A process names itself, in 15 bytes, and the kernel begins a line with that.
        (f"{fault[:15]}[4242]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14", KERNEL, "-"),
        (f'audit: type=1701 comm="{fault}"', KERNEL, "-"),
        (f"traps: {fault}[77] general protection fault", KERNEL, "-"),
        # The OOM killer's report names the cgroup: in one line, and in pieces of its own.
        (f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/{fault},task=python3", KERNEL, "-"),
        ("Memory cgroup stats for ", KERNEL, "-"),
        (fault, KERNEL, "c"),
        (fault, KERNEL, "+"),
        # The driver tells of a process that has a fault for a name.
        (xid(31, node.address(1), f"pid=7, name={fault}, Ch 00000008"), KERNEL, "-"),
        (xid(31, node.address(1), "pid=7, name=RST: Yes, D-RST: Yes, Uncontained, Ch 00000008"), KERNEL, "-"),
        # Near misses.
        (f" {fault}", KERNEL, "-"),
        (fault.replace("NVRM: ", "NVRM:"), KERNEL, "-"),
        (fault.replace("Xid (", "Xid["), KERNEL, "-"),
        (f"x\n{fault}", KERNEL, "-"),
        (f"\\x0a{fault}", KERNEL, "-"),
    ]


def test_no_forged_record_opens_anything(node: FaultyNode, exporter: ExporterProcess) -> None:
    """The two page faults are the driver's own word, and nobody's hardware."""
    for text, facility, flags in forgeries(node):
        node.log.say(text.replace("\n", "\\x0a"), facility=facility, flags=flags)
    node.xid(45, 0)
    wait_for_count(exporter, 0, 45, 1)
    assert see(exporter).xids == {("0", "45"): 1, ("1", "31"): 2}
    faults = known(exporter)
    (incident,) = (each for each in faults["active"] + faults["settling"] if each["fault"] != "unclear")
    facts = [incident[name] for name in ("gpu", "fault", "isolate", "refund", "blame", "action")]
    assert facts == [1, "31", False, False, "application", "restart_application"]


def test_userspace_is_believed_on_demand_only(node: FaultyNode) -> None:
    """For whoever tries out what follows from a fault: echo '…' > /dev/kmsg."""
    with node.start("--kmsg.accept-userspace") as exporter:
        wait_for_replay(exporter)
        node.log.say(xid(79, node.address(1)), facility=USER)
        wait_for_roots(exporter, ("1", "79"))
        assert see(exporter).xids == {("1", "79"): 1}


def test_a_storm_of_a_tenant_isolates_nothing_and_refunds_nothing(node: FaultyNode, exporter: ExporterProcess) -> None:
    """Page faults by the thousand, on several GPUs, and whatever else a program can cause at will."""
    for number in range(1500):
        node.xid(31, number % 2, f"pid={number}, name=python3, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS")
        if number % 100 == 0:
            for code in (13, 43, 45, 8, 109, 32, 69):
                node.xid(code, number % 2, f"pid={number}, name=python3, something")
    wait_for_count(exporter, 0, 31, 750)
    seen = wait_for_count(exporter, 1, 31, 750)
    until(lambda: see(exporter).incidents, "something of it is shown", seconds=45, every=0.1)
    seen = see(exporter)
    assert {labels["isolate"] for labels in seen.incidents.values()} == {"false"}
    assert {labels["refund"] for labels in seen.incidents.values()} == {"false"}
    assert {labels["class"] for labels in seen.incidents.values()} == {"application"}


def test_an_application_fault_that_needs_a_reboot_isolates_and_refunds_nothing(
    node: FaultyNode, exporter: ExporterProcess
) -> None:
    """The driver's recovery action says what the GPU needs; whose fault it is stays what it was."""
    node.xid(31, 4, "pid=77, name=python3, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS")
    node.xid(154, 4, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    seen = wait_for_roots(exporter, ("4", "31"))
    labels = seen.of("31")
    assert (labels["class"], labels["action"], labels["isolate"], labels["refund"]) == (
        ("application", "reboot_node", "true", "false")
    )


# --- a GPU that is lost without a line --------------------------------------------------------------------------------


def test_a_gpu_that_is_lost_without_a_line_is_polled_at_once(node: FaultyNode) -> None:
    """Whoever waits for events is told of it, however long the interval of the polls is."""
    node.flags = ("--poll.interval=60s", "--poll.deadline=1s")
    with node.start() as exporter:
        wait_for_replay(exporter)  # that other poll is the one for the second sample of activity
        node.fake.lose(3)
        node.fake.set_return("nvmlEventSetWait_v2", SYSTEM, GPU_IS_LOST)
        until(lambda: known(exporter)["active"], "an incident is open", seconds=10)
        assert [each["fault"] for each in known(exporter)["active"]] == ["gpu_lost"]


# --- a driver that hangs ----------------------------------------------------------------------------------------------


def test_a_driver_that_hangs_delays_no_incident(node: FaultyNode, exporter: ExporterProcess) -> None:
    """Every call on every GPU is stuck, which is what such a fault does; the incident is there within a second."""
    node.fake.hang(None, None)
    for gpu in range(8):
        node.fake.wait_until_stuck(gpu)
    until(lambda: 'gpu_state{gpu="7"' in (text := exporter.metrics()) and 'state="hung"} 1' in text, "GPUs hang")
    node.xid(119, 5)
    told = time.monotonic()
    wait_for_roots(exporter, ("5", "119"))
    assert time.monotonic() - told < 3.0
    assert see(exporter).xids == {("5", "119"): 1}
    node.fake.release()


def test_a_driver_that_hangs_at_the_start_delays_the_replay_for_seconds(node: FaultyNode) -> None:
    """It hangs for what the log tells; who is who is learnt from the log then."""
    node.log = RecordFile(node.directory / "kmsg.txt")
    node.log.say(f"NVRM: GPU at PCI:{node.address(3)}: {node.fake.uuid(3)}")
    node.xid(79, 3)
    node.fake.hang("nvmlInitWithFlags")
    with node.start() as exporter:
        node.fake.wait_until_stuck(None)
        seen = wait_for_roots(exporter, ("", "79"))
        assert seen.of("79")["uuid"] == node.fake.uuid(3)
        node.fake.release()
