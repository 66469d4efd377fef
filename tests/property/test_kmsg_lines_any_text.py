"""Whatever stands in the kernel's log, reading it neither raises nor believes what a tenant wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from gpufleet.faults.catalogue import class_of, entry_of
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.sources.kmsg_lines import (
    Lines,
    believable,
    driver_text,
    harvest_identity,
    held_back,
    parse_driver_text,
    parse_record,
    parse_saved_line,
    saved_time,
)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "kmsg-lines.jsonl"
REAL = [json.loads(line)["line"] for line in FIXTURE.read_text().splitlines()]
PIECES = [
    *("NVRM: ", "Xid (", "PCI:", "0000:01:00", "0009:00", "):", " 79", ", ", "pid=", "name=", "'", "<unknown>", "Ch "),
    *("RST: Yes, D-RST: No", " caused by previous Xid 45", "GPU recovery action changed from 0x0 (None) to 0x2 (x)"),
    *("nvidia-nvswitch0: ", "SXid (", "Fatal, ", "Link -1 ", "Severity ", "Data {", "nvidia ", "nvidia_dev_xid: "),
    *("GPU ", "The NVIDIA GPU ", " has fallen off the bus", "RmInitAdapter failed!", "NETIR Fatal XC0 i0 Link 1 (0x1"),
    *("\n", "\\x0a", "\x00", ";", "4,1,2,-;", "[ 12.5] ", "2025-01-21T04:41:44Z ", "Jan 21 04:41:44 "),
    *("\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "\ud800"),
]
cut = st.tuples(st.sampled_from(REAL), st.integers(0, 400), st.text(max_size=8), st.integers(0, 400)).map(
    lambda each: each[0][: each[1]] + each[2] + each[0][each[3] :]
)
text = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=24).map("".join), st.sampled_from(REAL), cut)
driver = st.none() | st.sampled_from(["535.129.03", "550.163.01", "555.42.02", "570.195.03", "575.51.02", "610.11"])
comm = st.text(st.characters(exclude_characters="\x00"), max_size=15)
"""A process's name: any bytes but NUL, at most fifteen."""


def is_sound(event: FaultEvent) -> bool:
    """Every fact of an event is of a kind that a label or a state file can hold."""
    return (
        math.isfinite(event.at)
        and (event.code is None) == (event.kind not in {FaultKind.XID, FaultKind.SXID})
        and (event.pci_bus_id is None or event.pci_bus_id == event.pci_bus_id.lower())
        and len(event.text) <= 300
        and "\n" not in event.text
        and len(event.process or "") <= 100
    )


@given(text, driver)
def test_any_line_is_read_without_an_error(line: str, version: str | None) -> None:
    """Each function takes any text, and what it gives has a meaning in the catalogue."""
    events = [
        parse_saved_line(line),
        parse_saved_line(line, year=2025, boot=1e9, last=5.0),
        parse_driver_text(line, at=1.0, source="kmsg", sequence=1),
        Lines().saved(line),
    ]
    harvest_identity(line)
    held_back(line)
    driver_text(line)
    saved_time(line, year=2025)

    for event in events:
        if event is not None:
            assert is_sound(event), event
            assert class_of(event).value
            assert entry_of(event, version).remedy


@given(st.binary() | text.map(lambda line: line.encode("utf-8", "replace")))
def test_any_record_is_read_without_an_error(raw: bytes) -> None:
    """Bytes that are no record are none; the rest have numbers and a text."""
    for record in (parse_record(raw), parse_record(b"4,1,2,-;" + raw)):
        if record is not None:
            assert 0 <= record.level <= 7
            assert believable(record) in {True, False}
            event = Lines().record(record, at=1.0)
            assert event is None or is_sound(event)


@given(st.lists(text, max_size=12))
def test_any_sequence_of_lines_is_put_together_without_an_error(lines: list[str]) -> None:
    """No line gives more than one event, and an event is never a further line of another."""
    whole = Lines()
    for line in lines:
        event = whole.saved(line)
        assert event is None or not event.continues


@given(comm, st.sampled_from(["Ch 00000008", "channel 0x8", "Contained: SM (0x1).", "NVLink: x", "anything", ""]))
def test_no_process_name_decides_anything(name: str, details: str) -> None:
    """Address, code and pid are read before the name, and what decides is read behind it."""
    for code in (31, 45, 74, 94, 149, 154):
        event = parse_driver_text(
            f"NVRM: Xid (PCI:0000:01:00): {code}, pid=4242, name={name}, {details}", at=0.0, source="kmsg"
        )

        assert event is not None
        assert (event.code, event.pci_bus_id, event.pid) == (code, "0000:01:00.0", 4242)
        assert (event.caused_by, event.needs_reset, event.recovery_action) == (None, None, None)
        assert (event.unit, event.registers) == (None, ())


@given(comm.filter(lambda name: name.strip().strip("'") == name))
def test_a_process_name_comes_back_as_it_was(name: str) -> None:
    """Commas, brackets and the driver's own words in a name do not cut it."""
    assume(name not in {"", "<unknown>", "N/A", "<n/a>", "unknown"})
    event = parse_driver_text(
        f"NVRM: Xid (PCI:0000:01:00): 43, pid=4242, name={name}, Ch 00000008", at=0.0, source="kmsg"
    )

    assert event is not None
    assert event.process == name


@given(comm)
def test_no_kernel_message_about_a_process_is_a_fault(name: str) -> None:
    """Messages of the kernel that begin with a process's name cannot be made into one of the driver's."""
    for message in (
        f"{name}[4242]: segfault at 0 ip 0000000000000000 sp 0000000000000000 error 4 in python3.10[400000+1000]",
        f"{name} (4242): drop_caches: 3",
        f"{name}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null)",
        f"{name}/4242: potentially unexpected fatal signal 11.",
    ):
        assert parse_driver_text(message, at=0.0, source="kmsg") is None
