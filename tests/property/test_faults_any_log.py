"""Whatever a saved log holds, explaining it ends without an exception and loses no event."""

from __future__ import annotations

import gzip
import itertools
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.commands.faults_input import Source, UnreadableError
from gpufleet.commands.faults_log import Log, node_of
from gpufleet.commands.faults_report import incident_object, report

FIXTURE = Path(__file__).parents[1] / "fixtures" / "kmsg-lines.jsonl"
REAL = [json.loads(line)["line"] for line in FIXTURE.read_text().splitlines()]
BETWEEN = [
    "[    0.000000] Linux version 6.8.0",
    "-- Boot 0123456789abcdef0123456789abcdef --",
    "Feb 29 01:02:03 n1 kernel: Linux version 6.8.0",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu",
    "[ 9.0] NVRM: GPU at PCI:0000:01:00: GPU-7b1a3c52-1111-2222-3333-444455556666",
    "9999-12-31T23:59:59Z n1 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
    "0001-01-01T00:00:00+14:00 n1 kernel: NVRM: Xid (PCI:0000:01:00): 95, Uncontained",
    "[999999999999.999999999] NVRM: Xid (PCI:0000:01:00): 64, Row Remapper",
]
lines = st.lists(st.one_of(st.sampled_from(REAL), st.sampled_from(BETWEEN), st.text()), max_size=40)
written = st.sampled_from([-1e30, 0.0, 1e30, 951_827_000.0, 1_790_000_000.0])


@given(lines, written, st.sampled_from([None, "535.129.03", "580.65.06"]))
def test_any_lines_in_any_order_are_told(log_lines: list[str], when: float, driver: str | None) -> None:
    """Every event is in an incident or alone, and everything can be printed."""
    log = Log("log", "n1", driver, itertools.count(1))
    events = [log.line(line, when) for line in log_lines]
    told = log.told()
    assert told.lines == sum(event is not None for event in events)
    text = report([told], len(log_lines), has_driver=True)
    assert text.count("\n  Incident: ") == len(told.incidents)
    for incident in told.incidents:
        assert json.loads(json.dumps(incident_object(incident), allow_nan=False))["incident"] == incident.id


@given(st.binary(max_size=4096), st.booleans())
def test_any_bytes_are_lines_or_unreadable(content: bytes, is_packed: bool) -> None:
    """A file that was named by mistake is no reason for a traceback."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.compress(content)[: len(content)] if is_packed else content)
        file.flush()
        log = Log("log", "", None, itertools.count(1))
        try:
            for text, when in Source(file.name):
                node_of(text)
                log.line(text, when)
        except UnreadableError:
            assert content or is_packed
        log.told()
