"""A saved log folded into incidents: order, boots, dates, nodes, and what belongs to no incident."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from gpufleet.commands import faults_log
from gpufleet.commands.faults_log import Log, Told, node_of
from gpufleet.model.fault import Action, Blame

WRITTEN = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
DATE = "2026-02-03T04:05:{:02d}+00:00 gpu-a-01 kernel: "
LOST = "NVRM: Xid (PCI:0000:4b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
REMAP_FAILED = "NVRM: Xid (PCI:0000:5b:00): 64, Row Remapper: Failed to remap"
DOUBLE_BIT = "NVRM: Xid (PCI:0000:6b:00): 95, Uncontained: SM (0x1). RST: Yes, D-RST: No"
PAGE_FAULT = "NVRM: Xid (PCI:0000:4b:00): 31, pid=7, name=train, Ch 00000008, intr 00000000. MMU Fault"
BOOT = "Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP"


def fold(*lines: str, driver: str | None = None) -> Told:
    """What one node's lines come down to."""
    log = Log("dmesg", "", driver, itertools.count(1))
    for line in lines:
        log.line(line, WRITTEN)
    return log.told()


def since_boot(seconds: float, text: str) -> str:
    """A line of dmesg."""
    return f"[{seconds:12.6f}] {text}"


def test_the_gpu_is_named_when_the_log_names_it() -> None:
    """The driver prints the UUID once, before the first Xid of a GPU."""
    told = fold(
        since_boot(10, "NVRM: GPU at PCI:0000:4b:00: GPU-7b1a3c52-1111-2222-3333-444455556666"), since_boot(10, LOST)
    )
    (incident,) = told.incidents
    assert (incident.uuid, incident.pci_bus_id) == ("GPU-7b1a3c52-1111-2222-3333-444455556666", "0000:4b:00.0")
    assert (incident.fault, incident.blame, incident.action) == ("79", Blame.HARDWARE, Action.REBOOT_NODE)
    assert incident.victims[0].process == "python3"


def test_files_that_come_newest_first_are_told_in_the_order_of_their_dates() -> None:
    """``kern.log*`` names the newest first: a page fault after the loss must not become its cause."""
    lines = [DATE.format(second) + text for second, text in ((1, DOUBLE_BIT), (2, LOST), (50, PAGE_FAULT))]
    forwards, backwards = fold(*lines), fold(*reversed(lines))
    assert [incident.fault for incident in forwards.incidents] == ["95", "79"]
    assert [(each.fault, each.counts) for each in backwards.incidents] == [
        (each.fault, each.counts) for each in forwards.incidents
    ]
    assert dict(forwards.incidents[1].counts) == {"79": 1, "31": 1}


def test_a_reboot_ends_what_a_reboot_cures_and_no_more() -> None:
    """A board that has to be replaced is broken in the next boot, too; what comes after the boot is a new fault."""
    for boot in (f"[    0.000000] {BOOT}", "-- Boot 0123456789abcdef0123456789abcdef --", since_boot(1, "NVRM: x")):
        told = fold(
            since_boot(5000, LOST),
            since_boot(5000, REMAP_FAILED),
            since_boot(5001, DOUBLE_BIT),
            boot,
            since_boot(4900, LOST),
        )
        over = {incident.fault: incident.closed_because for incident in told.incidents if incident.closed_because}
        still = sorted(incident.fault for incident in told.incidents if incident.closed_because is None)
        assert over == {"79": "the node was rebooted", "95": "the node was rebooted"}
        assert still == ["64", "79"]


def test_a_boot_is_seen_in_dated_lines_whatever_their_order() -> None:
    """Time since boot that begins anew, between dates that go on."""
    lines = [
        DATE.format(1) + since_boot(90_000, LOST),
        DATE.format(2) + since_boot(90_001, LOST),
        DATE.format(40) + since_boot(12, LOST.replace("79", "62")),
    ]
    for order in (lines, lines[::-1]):
        assert [(each.fault, each.closed_because) for each in fold(*order).incidents] == [
            ("79", "the node was rebooted"),
            ("62", None),
        ]


def test_dates_without_a_year_are_of_the_last_such_day() -> None:
    """A log that was written last on the first of March has no line of this year's April."""
    (march, april) = (fold(f"{day} 04:05:06 gpu-a-01 kernel: {LOST}").incidents[0] for day in ("Mar  1", "Apr  2"))
    assert march.began_at == datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC).timestamp()
    assert april.began_at == datetime(2025, 4, 2, 4, 5, 6, tzinfo=UTC).timestamp()


def test_a_storm_that_makes_no_incident_is_counted() -> None:
    """Thousands of removed channels are nobody's fault, and still something that was seen."""
    told = fold(*(since_boot(number, "NVRM: Xid (PCI:0000:4b:00): 45, pid=1, name=a, Ch 1") for number in range(500)))
    assert told.incidents == ()
    assert told.alone == (("45", 500),)
    assert told.lines == 500


def test_what_belongs_to_an_incident_is_not_told_alone() -> None:
    """Echoes on peers and the driver's verdict count there."""
    told = fold(
        since_boot(10, LOST),
        since_boot(10.1, "NVRM: Xid (PCI:0000:5b:00): 74, NVLink: fatal error detected on link 8"),
        since_boot(10.2, "NVRM: Xid (PCI:0000:4b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (x)"),
        since_boot(10.3, "NVRM: Xid (PCI:0000:4b:00): 45, pid=1, name=a, Ch 1"),
    )
    (incident,) = told.incidents
    assert dict(incident.counts) == {"79": 1, "recovery_action": 1, "45": 1, "echo:74": 1}
    assert told.alone == ()


def test_three_lines_of_one_switch_error_are_three_lines_and_one_event() -> None:
    """Each line is recognised; the error happened once."""
    log = Log("dmesg", "", None, itertools.count(1))
    prefix = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, "
    said = ("Fatal, Link 44 LTSSM Fault Up", "Severity 1 Engine instance 44 Sub-engine instance 00", "Data {0x2c}")
    events = [log.line(since_boot(1 + number / 1000, prefix + text), WRITTEN) for number, text in enumerate(said)]
    told = log.told()
    assert [event and event.code for event in events] == [20034, 20034, 20034]
    assert (told.lines, sum(incident.events for incident in told.incidents)) == (3, 1)


def test_numbers_mean_what_they_meant_to_the_driver_that_wrote_them() -> None:
    """The log's own word on the driver is taken, unless the person knows better."""
    old = since_boot(1, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023")
    opened = since_boot(
        1, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)"
    )
    line = since_boot(2, "NVRM: Xid (PCI:0000:4b:00): 149, NETIR Fatal XC0 i0 Link 1 (0x00000004)")
    # Before 560 nobody used that number.
    assert {each.blame for each in fold(old, line).incidents} == {Blame.UNKNOWN}
    assert fold(opened, line).incidents[0].blame is fold(line).incidents[0].blame is Blame.HARDWARE
    assert fold(old, line, driver="570.86.15").incidents == fold(opened, line).incidents


def test_what_the_driver_did_not_print_is_said() -> None:
    """Behind a few timeouts there were hundreds."""
    notice = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30)"
    assert fold(since_boot(3, notice), since_boot(4, notice)).held_back == ("0000:9b:00.0",)


def test_lines_without_any_time_are_folded_in_their_order() -> None:
    """A colleague pastes them so into a ticket."""
    (incident,) = fold(LOST, PAGE_FAULT).incidents
    assert (incident.fault, incident.began_at, incident.events) == ("79", 0.0, 2)


def test_more_lines_than_are_put_in_order_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on memory, not on what is told."""
    monkeypatch.setattr(faults_log, "_REORDERED", 50)
    storm = [since_boot(number, "NVRM: Xid (PCI:0000:5b:00): 45, pid=1, name=a, Ch 1") for number in range(500)]
    told = fold(*storm[:250], since_boot(249, LOST), *storm[250:])
    assert told.lines == 501
    counted = sum(incident.events for incident in told.incidents) + sum(count for _, count in told.alone)
    assert ([incident.fault for incident in told.incidents], counted) == (["79"], 501)


def test_the_node_is_named_by_syslog_and_the_journal() -> None:
    """Their prefixes hold it where the kernel's own lines hold none."""
    assert node_of("May 21 23:35:29 gpu-a-01 kernel: [ 1160.9] NVRM: x") == "gpu-a-01"
    assert node_of("2026-02-03T04:05:06+00:00 gpu-a-01.example.org kernel[1]: NVRM: x") == "gpu-a-01.example.org"
    assert node_of("[ 1160.9] NVRM: x kernel: y") is None
    assert node_of("NVRM: x") is None
