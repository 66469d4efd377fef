"""What is read out of the kernel's log: real lines, every historic form, forgeries and near misses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.faults.catalogue import class_of
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.sources.kmsg_lines import (
    HeldBack,
    KmsgRecord,
    Lines,
    believable,
    harvest_identity,
    held_back,
    parse_driver_text,
    parse_record,
    parse_saved_line,
    saved_time,
)
from gpufleet.sources.kmsg_lines.saved import driver_text

FIXTURE = Path(__file__).parents[2] / "fixtures" / "kmsg-lines.jsonl"
AT_PROBE = (
    "NVRM: The NVIDIA GPU 0000:5d:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
CASES: list[dict[str, Any]] = [json.loads(line) for line in FIXTURE.read_text().splitlines()]


def live(text: str) -> FaultEvent | None:
    """Read a message of the live log."""
    return parse_driver_text(text, at=100.0, source="kmsg", sequence=7)


def xid(text: str) -> FaultEvent:
    """Read a live message that must be an event."""
    event = live(text)
    assert event is not None, text
    return event


def record(text: str, *, facility: int = 0, flags: str = "-") -> KmsgRecord:
    """Make a record as /dev/kmsg would give it."""
    found = parse_record(f"{facility << 3 | 4},7,99,{flags};{text}\n".encode())
    assert found is not None
    return found


def told(event: FaultEvent | None) -> dict[str, object]:
    """The facts of an event by the fixture's names."""
    if event is None:
        return dict.fromkeys(("pci", "code", "pid", "process", "mig_gi", "class")) | {"kind": "none"}
    return {
        "kind": event.kind.value,
        "pci": event.pci_bus_id,
        "code": event.code,
        "pid": event.pid,
        "process": event.process,
        "mig_gi": event.gpu_instance,
        "class": class_of(event).value,
        "mig_ci": event.compute_instance,
        "previous_xid": event.caused_by,
        "recovery_from": event.recovery_action_before,
        "recovery_to": event.recovery_action,
        "rst": event.needs_reset,
        "d_rst": event.needs_drain,
        "fatal": event.fatal,
        "link": event.link,
    }


@pytest.mark.parametrize("case", CASES, ids=[f"{number:03}" for number in range(len(CASES))])
def test_real_lines_are_read_as_they_are_meant(case: dict[str, Any]) -> None:
    """Each of 154 lines from reports gives exactly its kind, address, code, process, instance and class."""
    expected = case["expect"]
    event = parse_saved_line(case["line"])
    found = told(event)

    assert {name: found[name] for name in expected if name != "part"} == {
        name: value for name, value in expected.items() if name != "part"
    }
    if event is not None and "part" in expected:
        assert event.continues == (expected["part"] != "main")


def test_the_fixture_holds_every_line() -> None:
    """The figure that the project states is the figure that is tested."""
    assert len(CASES) == 154


@pytest.mark.parametrize(
    ("where", "address"),
    [
        ("PCI:0000:01:00", "0000:01:00.0"),
        ("0000:01:00", "0000:01:00.0"),
        ("0009:00", "0000:09:00.0"),
        ("PCI:000D:00:00", "000d:00:00.0"),
        ("PCI:10000:01:00", "10000:01:00.0"),
        ("PCI:00000000:01:00", "0000:01:00.0"),
        ("PCI:0000:B3:00.1", "0000:b3:00.1"),
    ],
)
def test_addresses_of_every_age_are_normalised(where: str, address: str) -> None:
    """Whatever the driver left out or widened, the address is domain, bus, device and function in lower case."""
    assert xid(f"NVRM: Xid ({where}): 79, GPU has fallen off the bus.").pci_bus_id == address


@pytest.mark.parametrize(
    ("said", "pid", "process"),
    [
        ("pid=1234, name=python3, Ch 00000008", 1234, "python3"),
        ("pid='1234', name=python3, Ch 00000008", 1234, "python3"),
        ("pid='<unknown>', name=<unknown>, Ch 00000008", None, None),
        ("pid=<unknown>, name=<unknown>, Ch 00000008", None, None),
        ("pid='N/A', name='N/A', Ch 00000008", None, None),
        ("pid=1234, Ch 00000008", 1234, None),
        ("pid=1234,", 1234, None),
        ("Ch 00000008", None, None),
        ("pid=1, name=nvc:[driver], Ch 00000008", 1, "nvc:[driver]"),
        ("pid=1, name=my, job: x, Ch 00000008", 1, "my, job: x"),
        ("pid=1, name=a, Ch 2, channel 0x00000008", 1, "a, Ch 2"),
        ("pid=1, name=a=b;(c), Ch 00000008", 1, "a=b;(c)"),
        ("pid=1, name=Stray-Win64-Shi, a text of another driver", 1, "Stray-Win64-Shi"),
        ("pid=1, name=my, job: x, a text of another driver", 1, "my, job: x"),
        ("pid=1, name=python3, ", 1, "python3"),
        ("pid=1, name=python3", 1, "python3"),
        ("pid=1, name=a-name-of-a-guest-that-is-longer, something", 1, "a-name-of-a-guest-that-is-longer"),
    ],
)
def test_process_names_may_hold_anything(said: str, pid: int | None, process: str | None) -> None:
    """The name ends where the driver's text begins, not at the first comma or colon."""
    event = xid(f"NVRM: Xid (PCI:0000:01:00): 31, {said}")

    assert (event.pid, event.process) == (pid, process)


def test_a_mig_instance_is_read_with_its_compute_instance() -> None:
    """Both numbers are decimal and stand inside the brackets."""
    event = xid("NVRM: Xid (PCI:0000:ca:00 GPU-I:11 GPU-CI:01): 13, Graphics Exception: ESR 0x1=0x2")

    assert (event.pci_bus_id, event.gpu_instance, event.compute_instance) == ("0000:ca:00.0", 11, 1)


@pytest.mark.parametrize(
    ("said", "reset", "drain"),
    [
        ("pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", True, False),
        ("Contained: DRAM (0x1,0x0). physAddr: 0x00001000 RST: No, D-RST: Yes", False, True),
        ("pid=1, name=python3, Contained: SM (0x1). RST: No, D-RST: No", False, False),
        ("Contained: SM (0x1).", None, None),
    ],
)
def test_reset_flags_are_the_drivers(said: str, reset: bool | None, drain: bool | None) -> None:
    """The text's own word on a reset is kept apart from the code; no word is not a no."""
    event = xid(f"NVRM: Xid (PCI:0000:01:00): 94, {said}")

    assert (event.needs_reset, event.needs_drain) == (reset, drain)


@pytest.mark.parametrize(
    "name",
    [
        "x, RST: Yes, D-RST: Yes",
        "x caused by previous Xid 79",
        "x, caused by previous Xid 79",
        "x, Contained RST: Yes, D-RST: Yes",
        "x, Ch 1 caused by previous Xid 79",
        "x, Ch 1 caused by previous Xid 79\n",
        "x\n caused by previous Xid 79\nNVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
        "x, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ],
)
@pytest.mark.parametrize("details", ["Ch 00000008", "channel 0x00000008", "Contained: SM (0x1).", "another text", ""])
@pytest.mark.parametrize("code", [45, 94, 154])
def test_a_name_decides_nothing(name: str, details: str, code: int) -> None:
    """What looks like a flag, a cause or a verdict inside ``name=`` is not taken for one, however long the name."""
    event = xid(f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name={name}, {details}")

    assert event.code == code
    assert event.pci_bus_id == "0000:01:00.0"
    assert (event.caused_by, event.needs_reset, event.needs_drain, event.recovery_action) == (None, None, None, None)


def test_the_cause_is_read_behind_a_name_that_claims_another() -> None:
    """The driver's own words stand at the end."""
    event = xid("NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=a, Ch 1, Ch 00000008 caused by previous Xid 149")

    assert event.process == "a, Ch 1"
    assert event.caused_by == 149


def test_a_cause_without_further_text_is_read() -> None:
    """An empty message of the driver's leaves two blanks before the cause."""
    assert xid("NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=a,  caused by previous Xid 94").caused_by == 94
    assert xid("NVRM: Xid (PCI:0000:01:00): 45,  caused by previous Xid 94").caused_by == 94


@pytest.mark.parametrize("words", ["GPU Reset Required", "PF FLR", "a word of a later driver", ""])
def test_the_recovery_action_is_read_by_its_number(words: str) -> None:
    """Drivers have changed the words of Xid 154, never the numbers."""
    event = xid(f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x4 (x) to 0x1 ({words})")

    assert (event.recovery_action_before, event.recovery_action) == (4, 1)


def test_the_recovery_action_is_read_of_no_other_xid() -> None:
    """Another code with the same text has no verdict."""
    event = xid("NVRM: Xid (PCI:0000:01:00): 13, GPU recovery action changed from 0x0 (None) to 0x2 (x)")

    assert event.recovery_action is None


def test_an_nvlink_5_event_gives_unit_word_link_and_registers() -> None:
    """Everything that decoding needs is taken from the line."""
    event = xid("NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0 0x00000001)")

    assert (event.unit, event.fatal, event.link) == ("NETIR_LINK_EVT", True, 14)
    assert event.registers == (0x0215C5C6, 0, 1)


def test_link_minus_one_is_no_link() -> None:
    """The driver writes -1 where an event belongs to no link."""
    assert xid("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0)").link is None


def test_an_nvlink_4_event_gives_link_and_registers() -> None:
    """The seven words of an Xid 74 follow its link."""
    event = xid(
        "NVRM: Xid (PCI:0000:48:00): 74, pid=1, name=V, NVLink: fatal error detected on link 8(0x0, 0x0, 0x10000)"
    )

    assert (event.link, event.registers, event.fatal) == (8, (0, 0, 0x10000), True)


def test_the_place_of_an_exception_is_read() -> None:
    """The same GPC and TPC again and again is what tells a broken GPU from a broken program."""
    assert xid("NVRM: Xid (PCI:0000:1b:00): 13, Graphics SM Warp Exception on (GPC 10, TPC 2, SM 0): x").unit == (
        "GPC 10, TPC 2"
    )


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid 74: GPU error",
        "NVRM: Xid (43, pid: 5678): ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid (PCI:0000:01:00) 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:01:00): x79, GPU",
        "NVRM: Xid (PCI:0000:01:00): 79abc",
        "NVRM: Xid (PCI:0000:01:00): -1, GPU",
        "NVRM: Xid (PCI:0000:01:00): 1234567, GPU",
        "NVRM: Xid (PCI:0000:ffff:00): 79, GPU",
        "NVRM: GPU 0000:01:00.0: GPU is fine",
        "NVRM: GPU Board Serial Number: 1000000000001",
        "NVRM: GPU 0000:00:03.0: rm_init_adapter failed, device minor number 0",
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]",
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
        "nvidia-nvswitch2: open (major=510)",
        "nvidia: probe of 0000:5d:00.0 failed with error -1",
        "nvidia 0000:01:00.0: irq 52 for MSI/MSI-X",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "r8169 0000:05:00.0 eth0: RTL8168h/8111h, d8:bb:c1:ab:dd:5e, XID 541, IRQ 53",
        "azx_single_wait_for_response: 56 callbacks suppressed",
        "",
        "N",
        "NVRM: ",
    ],
)
def test_near_misses_are_no_faults(text: str) -> None:
    """A line that only looks like one tells of nothing, live or saved."""
    assert live(text) is None
    assert parse_saved_line(text) is None


@pytest.mark.parametrize(
    "text",
    [
        " NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "[12.3] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "oom-kill:task_memcg=/NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "Tasks in /a\nNVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0:0)[4242]: segfault at 0 ip 0000 sp 0000 error 4",
        "NVRM: Xid (4242): drop_caches: 3",
        "nvidia_dev_xid: Xid (PCI:0000:3b:00.0): 79, GPU has fallen off the bus.",
    ],
)
def test_live_text_is_believed_from_its_start_only(text: str) -> None:
    """A process or cgroup name can get a driver's line into a message, not to where the message begins."""
    assert live(text) is None


def test_who_wrote_a_record_decides_whether_it_is_believed() -> None:
    """User space cannot write with the kernel's facility, and names of cgroups come as pieces of a line."""
    text = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."

    assert believable(record(text))
    assert not believable(record(text, facility=1))
    assert not believable(record(text, facility=3))
    assert not believable(record(text, flags="c"))
    assert not believable(record(text, flags="+"))
    assert believable(record(text, facility=1), accept_userspace=True)


def test_a_record_is_taken_apart() -> None:
    """Priority, number and time come from the header, whatever else stands in it."""
    found = parse_record(
        b"30,20212,99182736999,-,caller=T1946;hello; world\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    )

    assert found == KmsgRecord(
        facility=3, level=6, sequence=20212, microseconds=99182736999, text="hello; world", fragment=False
    )


def test_escapes_of_a_record_are_undone() -> None:
    """Line ends, backslashes and every byte of a letter that is not ASCII come back."""
    found = parse_record(rb"4,1,2,-;a\x0ab\x5cx41 \xc3\xa4 \x9")

    assert found is not None
    assert found.text == "a\nb\\x41 ä \\x9"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" SUBSYSTEM=pci\n",
        b"no header",
        b"4,1;text",
        b"4,1,x,-;text",
        b"4,1_0,2,-;text",
        b"-4,1,2,-;text",
        b"4," + b"9" * 30 + b",2,-;text",
        b"4,1,2," + b"x" * 1000 + b";text",
        b";",
    ],
)
def test_what_is_no_record_is_none(raw: bytes) -> None:
    """Dictionary lines and damaged headers are passed over."""
    assert parse_record(raw) is None


@pytest.mark.parametrize(
    ("prefix", "boot"),
    [("4,20211,99182736455,-;", 99182.736455), ("<4>[ 1126.635824] ", 1126.635824), ("[12.5] [ T1946] ", 12.5)],
)
def test_saved_lines_tell_the_time_since_boot(prefix: str, boot: float) -> None:
    """dmesg, pstore and copies of /dev/kmsg count from boot; the caller may know when that was."""
    line = prefix + "NVRM: Xid (PCI:0000:3b:00): 110, SEC fault"
    since, at = parse_saved_line(line), parse_saved_line(line, boot=1e9)

    assert since is not None
    assert at is not None
    assert since.at == pytest.approx(boot)
    assert at.at == pytest.approx(1e9 + boot)


@pytest.mark.parametrize(
    ("prefix", "unix"),
    [
        ("kern  :warn  : 2025-01-21T04:41:44,283390+00:00 ", 1737434504.28339),
        ("2025-01-21T05:41:44.5+0100 host kernel: ", 1737434504.5),
        ("10.0.0.1: kern: warning: [2025-01-21T04:41:44.283390Z]: ", 1737434504.28339),
        ("[Tue Jan 21 04:41:44 2025] ", 1737434504.0),
        ("Jan 21 04:41:44 host kernel: [ 12.5] ", 1737434504.0),
        ("1737434504.283390 host kernel: ", 1737434504.28339),
    ],
)
def test_saved_lines_tell_the_date(prefix: str, unix: float) -> None:
    """Each logger's date is understood, a missing zone as UTC, a missing year as the caller says."""
    event = parse_saved_line(prefix + "NVRM: Xid (PCI:0000:3b:00): 110, SEC fault", year=2025)

    assert event is not None
    assert event.at == pytest.approx(unix)


@pytest.mark.parametrize(
    "prefix", ["2025-02-30T04:41:44Z ", "[Tue Okt 21 04:41:44 2025] ", "Okt 06 17:59:27 h ", "99 "]
)
def test_a_date_that_is_none_leaves_the_time_of_the_line_before(prefix: str) -> None:
    """A month in another language or an impossible day tells nothing, and costs nothing else."""
    event = parse_saved_line(prefix + "NVRM: Xid (PCI:0000:3b:00): 110, SEC fault", year=2025, last=42.0)

    assert event is not None
    assert event.at == 42.0


def test_saved_lines_are_found_behind_any_prefix_and_after_near_misses() -> None:
    """The first text of the driver's that is a fault counts."""
    event = parse_saved_line("a: nvidia 0000: NVRM: Xid 1: NVRM: Xid (x): NVRM: Xid (PCI:0000:3b:00): 62, 0096(1c54)")

    assert event is not None
    assert (event.code, event.source, event.sequence) == (62, "file", None)


def test_a_prefix_that_tells_no_time_tells_none() -> None:
    """Absent is absent."""
    assert saved_time("host kernel: ") == (None, None)


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", FaultKind.GPU_LOST, "0000:01:00.0"),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", FaultKind.GPU_LOST, "0000:18:00.0"),
        (AT_PROBE, FaultKind.GPU_LOST, "0000:5d:00.0"),
        (AT_PROBE.replace("\nNVRM:", ""), FaultKind.GPU_LOST, "0000:5d:00.0"),
        (
            "nvidia 0000:65:00.0: Unable to change power state from D3cold to D0, device inaccessible",
            FaultKind.GPU_LOST,
            "0000:65:00.0",
        ),
        ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", FaultKind.RM_INIT_FAILED, "0000:09:00.0"),
        ("NVRM: RmInitAdapter failed! (0x26:0xffff:1097)", FaultKind.RM_INIT_FAILED, None),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            FaultKind.NVLINK,
            None,
        ),
        ("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!", FaultKind.NVLINK, None),
    ],
)
def test_faults_without_a_number_are_read(text: str, kind: FaultKind, address: str | None) -> None:
    """A GPU that is lost or does not start need not have an Xid; the address may be missing as well."""
    event = xid(text)

    assert (event.kind, event.pci_bus_id, event.code) == (kind, address, None)
    assert (event.at, event.source, event.sequence) == (100.0, "kmsg", 7)


def test_an_sxid_gives_switch_word_and_link() -> None:
    """The address is the switch's; notices without a link have none."""
    fatal = xid("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)")
    notice = xid("nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 26006, SOE HALTED")

    assert (fatal.kind, fatal.pci_bus_id, fatal.code) == (FaultKind.SXID, "0000:c3:00.0", 24007)
    assert (fatal.fatal, fatal.link, fatal.continues) == (True, 28, False)
    assert (notice.fatal, notice.link, notice.text) == (None, None, "SOE HALTED")


SXID = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, "
SEVERITY = "Severity 0 Engine instance 44 Sub-engine instance 00"
DATA = "Data {0x0000002c, 0x0000002c, 0x00000000}"


def test_three_lines_of_an_sxid_are_one_event() -> None:
    """Severity and data belong to the line before them."""
    lines = Lines()
    said = ["Non-fatal, Link 44 Minion Link DLREQ interrupt", SEVERITY, DATA]
    events = [lines.record(record(SXID + text), at=100.0 + step / 500) for step, text in enumerate(said)]

    assert [event is not None for event in events] == [True, False, False]


def test_the_same_sxid_again_is_another_event() -> None:
    """Only the further lines are folded, not the next event."""
    lines = Lines()
    said = ["Non-fatal, Link 44 x", SEVERITY, DATA] * 3

    assert sum(lines.record(record(SXID + text), at=100.0) is not None for text in said) == 3


def test_an_sxid_whose_first_line_was_lost_still_counts_once() -> None:
    """After an overrun of the log the further lines stand for the event."""
    lines = Lines()
    events = [lines.record(record(SXID + text), at=100.0) for text in (SEVERITY, DATA)]

    assert events[0] is not None
    assert not events[0].continues
    assert events[1] is None


def test_further_lines_of_another_event_are_not_folded() -> None:
    """Another switch, another number, or a moment later: not the same event."""
    lines = Lines()
    lines.record(record(SXID + "Non-fatal, Link 44 x"), at=100.0)

    assert lines.record(record(SXID.replace("04:00", "05:00") + DATA), at=100.0) is not None
    assert lines.record(record(SXID.replace("22013", "22012") + DATA), at=100.0) is not None
    assert lines.record(record(SXID + DATA), at=110.0) is not None


def test_three_lines_at_probe_are_one_lost_gpu() -> None:
    """dmesg and syslog write the driver's message line by line, journald indents what follows."""
    said = [
        "[14387.209961] NVRM: The NVIDIA GPU 0000:5D:00.0",
        "               NVRM: (PCI ID: 10de:2330) installed in this system has",
        "[14387.209961] usb 1-1: new device",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "[14387.210134] nvidia: probe of 0000:5d:00.0 failed with error -1",
    ]
    lines = Lines()
    events = [event for line in said if (event := lines.saved(line)) is not None]

    assert [(event.kind, event.pci_bus_id) for event in events] == [(FaultKind.GPU_LOST, "0000:5d:00.0")]


def test_a_last_line_without_a_first_is_nothing() -> None:
    """Which GPU fell off the bus is not guessed, neither at once nor long after."""
    lines = Lines()
    last = "NVRM: fallen off the bus and is not responding to commands."

    assert lines.saved(last) is None
    lines.saved("NVRM: The NVIDIA GPU 0000:5d:00.0")
    for _ in range(10):
        lines.saved("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    assert lines.saved(last) is None


def test_an_address_that_is_none_is_no_lost_gpu() -> None:
    """The first line must name a GPU."""
    lines = Lines()

    assert lines.saved("NVRM: The NVIDIA GPU invalid-bdf.0") is None
    assert lines.saved("NVRM: fallen off the bus and is not responding to commands.") is None


def test_saved_lines_without_a_time_have_that_of_the_line_before() -> None:
    """The order of a file is the best that is known."""
    lines = Lines()
    first = lines.saved("[10.5] NVRM: Xid (PCI:0000:3b:00): 48, DBE")
    second = lines.saved("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row")

    assert first is not None
    assert second is not None
    assert (first.at, second.at) == (10.5, 10.5)


def test_the_identity_of_a_gpu_is_harvested() -> None:
    """The driver says once which UUID an address has, with and without PCI: before it."""
    uuid = "GPU-0a1b2c3d-1111-2222-3333-444444444444"

    assert harvest_identity(f"NVRM: GPU at PCI:0000:01:00: {uuid.upper().replace('GPU', 'GPU')}") == (
        "0000:01:00.0",
        uuid,
    )
    assert harvest_identity(f"NVRM: GPU at 0000:03:00: {uuid}") == ("0000:03:00.0", uuid)
    assert harvest_identity(f"x NVRM: GPU at 0000:03:00: {uuid}") is None
    assert harvest_identity("NVRM: GPU at PCI:0000:01:00: GPU-0a1b2c3d") is None
    assert harvest_identity(driver_text(f"[1.5] NVRM: GPU at 0000:03:00: {uuid}") or "") == ("0000:03:00.0", uuid)


def test_what_was_not_printed_is_told() -> None:
    """A limit on printing is no fault, and says how much is missing."""
    gsp = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU likely"

    assert held_back(gsp) == HeldBack("gsp", None, 30, "0000:9b:00.0")
    assert held_back("azx_single_wait_for_response: 56 callbacks suppressed") == HeldBack(
        "azx_single_wait_for_response", 56, None, None
    )
    assert held_back("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.") is None
    assert live(gsp) is None


@pytest.mark.parametrize(
    "piece",
    [
        "NVRM: ",
        "NVRM: Xid (",
        "NVRM: Xid (PCI:0000:01:00",
        "NVRM: GPU ",
        "NVRM: The NVIDIA GPU 0000:01:00.0 ",
        "nvidia-nvswitch0: SXid (PCI:",
        "nvidia 0000:01:00.0: Unable to change power state from ",
        "nvidia_dev_xid: Xid (",
        "[1.",
        "[ ",
        "a",
        ",",
        "\\x41",
        "NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=x, Ch ",
    ],
)
def test_a_hostile_megabyte_is_taken(piece: str) -> None:
    """Nothing is searched again and again: each form, repeated without end, is read (tests/bench measures it)."""
    line = piece * ((1 << 20) // len(piece))

    assert saved_time(line).unix is None
    assert held_back(line) is None
    assert harvest_identity(line) is None
    assert xid("NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=" + line).code == 31
    assert (parse_saved_line(line) is None) == (Lines().saved(line) is None)
    assert parse_record(b"4,1,2,-;" + line.encode()) is not None
