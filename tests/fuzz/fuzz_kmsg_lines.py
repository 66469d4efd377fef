"""Fuzz the reading of kernel lines for as long as one likes: ``python tests/fuzz/fuzz_kmsg_lines.py [SECONDS]``.

With atheris the fuzzer is led by the code that it reaches; without, hypothesis draws the examples. Ends with an error
at the first exception, and prints how many inputs there were.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "kmsg-lines.jsonl"
DRIVERS = (None, "535.129.03", "550.163.01", "555.42.02", "570.195.03", "575.51.02", "610.11")


def one_input(raw: bytes) -> None:
    """Read bytes as everything that they could be."""
    from gpufleet.faults.catalogue import class_of, entry_of
    from gpufleet.sources import kmsg_lines

    line = raw.decode("utf-8", "replace")
    whole = kmsg_lines.Lines()
    events = [
        kmsg_lines.parse_saved_line(line, year=2025),
        kmsg_lines.parse_driver_text(line, at=0.0, source="kmsg"),
        kmsg_lines.parse_driver_text("NVRM: Xid (" + line, at=0.0, source="kmsg"),
        kmsg_lines.parse_driver_text("NVRM: Xid (PCI:0000:01:00): 149, " + line, at=0.0, source="kmsg"),
        kmsg_lines.parse_driver_text("NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=" + line, at=0.0, source="kmsg"),
        kmsg_lines.parse_driver_text("nvidia-nvswitch0: SXid (PCI:0000:01:00.0): " + line, at=0.0, source="kmsg"),
        *(whole.saved(each) for each in line.split("\n")),
    ]
    for candidate in (raw, b"4,1,2,-;" + raw):
        record = kmsg_lines.parse_record(candidate)
        if record is not None:
            kmsg_lines.believable(record)
            events.append(kmsg_lines.Lines().record(record, at=0.0))
    kmsg_lines.harvest_identity(line)
    kmsg_lines.held_back(line)
    kmsg_lines.saved_time(line, year=2025)
    for event in events:
        if event is not None:
            class_of(event)
            entry_of(event, DRIVERS[len(raw) % len(DRIVERS)])


def seeds() -> list[bytes]:
    """Real lines to begin with."""
    return [json.loads(line)["line"].encode() for line in FIXTURE.read_text().splitlines()]


def by_coverage(seconds: int) -> None:
    """Let atheris look for inputs that reach new code."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["gpufleet"]):
        importlib.import_module("gpufleet.sources.kmsg_lines")
        importlib.import_module("gpufleet.faults.catalogue")
    with tempfile.TemporaryDirectory() as corpus:
        for number, line in enumerate(seeds()):
            (Path(corpus) / f"{number:03}").write_bytes(line)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", corpus], one_input)
        atheris.Fuzz()


def by_chance(seconds: int) -> None:
    """Let hypothesis draw inputs, real lines cut and joined among them."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    real = st.sampled_from(seeds())
    place = st.integers(0, 300)
    joined = st.tuples(real, place, st.binary(max_size=12), real, place)
    cut = joined.map(lambda each: each[0][: each[1]] + each[2] + each[3][each[4] :])
    count = 0

    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary() | st.text().map(str.encode) | real | cut)
    def one_more(raw: bytes) -> None:
        nonlocal count
        count += 1
        one_input(raw)

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one_more()
    print(f"{count} inputs in {seconds} s without an exception (hypothesis)")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "exporter"))
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    (by_coverage if importlib.util.find_spec("atheris") else by_chance)(limit)
