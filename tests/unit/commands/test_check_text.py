"""A verdict in words: the first line alone must do."""

from __future__ import annotations

import json

import pytest

from gpufleet.commands.check_text import LONGEST_FIRST_LINE, as_object, first_line, text
from gpufleet.commands.check_verdict import Finding, Fitness, Row, Verdict

OK = Row("GPU 0", (), 0, "GPU-0", "0000:00:00.0")
CRASHED = Row("GPU 10", (Finding(Fitness.HEALTHY, "Xid 31, the program's own fault; restart the job"),), 10, "GPU-10")
PENDING = Row("GPU 2", (Finding(Fitness.DEGRADED, "row remapping pending"),), 2, "GPU-2")
LOST = Row(
    "GPU 3",
    (
        Finding(Fitness.DEGRADED, "PCIe link has 8 of 16 lanes"),
        Finding(Fitness.UNFIT, "Xid 79, hardware; reboot the node"),
    ),
    3,
    "GPU-3",
)
NODE = Row("node", ())


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Verdict(NODE, (OK,)), "healthy: 1 GPU"),
        (Verdict(NODE, (OK, CRASHED)), "healthy: 2 GPUs"),
        (Verdict(Row("node", (Finding(Fitness.HEALTHY, "no GPU here"),)), ()), "healthy: no GPU here"),
        (Verdict(NODE, (OK, PENDING)), "degraded: GPU 2: row remapping pending"),
        (Verdict(NODE, (PENDING, LOST)), "unfit: GPU 3: Xid 79, hardware; reboot the node"),
        (Verdict(NODE, (LOST, LOST, PENDING)), "unfit: GPU 3: Xid 79, hardware; reboot the node (+1)"),
        (Verdict(Row("node", (Finding(Fitness.UNFIT, "driver: hung"),)), (OK,)), "unfit: driver: hung"),
    ],
)
def test_the_first_line_has_the_worst_and_counts_its_like(verdict: Verdict, line: str) -> None:
    """What a node condition shows."""
    assert first_line(verdict) == line


def test_the_first_line_is_never_longer_than_is_shown() -> None:
    """Cut where it may be cut: status and count stay."""
    long = Row("GPU 4", (Finding(Fitness.UNFIT, "x" * 500), Finding(Fitness.UNFIT, "y")))
    line = first_line(Verdict(NODE, (long,)))
    assert len(line) == LONGEST_FIRST_LINE
    assert line.startswith("unfit: GPU 4: xxx")
    assert line.endswith("x... (+1)")


def test_each_gpu_has_its_line_with_the_worst_first() -> None:
    """Whoever reads on sees everything, and how it was found out."""
    node = Row("node", (Finding(Fitness.DEGRADED, "the exporter's last poll was 40 seconds ago"),))
    assert text(Verdict(node, (OK, LOST, CRASHED)), ["no exporter answers"]) == (
        "unfit: GPU 3: Xid 79, hardware; reboot the node\n"
        "GPU 0   healthy   GPU-0 0000:00:00.0\n"
        "GPU 3   unfit     Xid 79, hardware; reboot the node; PCIe link has 8 of 16 lanes\n"
        "GPU 10  healthy   Xid 31, the program's own fault; restart the job\n"
        "node    degraded  the exporter's last poll was 40 seconds ago\n"
        "note: no exporter answers\n"
    )


def test_text_from_outside_keeps_to_its_line() -> None:
    """A path may have any name."""
    evil = Row("node", (Finding(Fitness.DEGRADED, "kept incidents: /a\nhealthy: 8 GPUs\x1b[2J"),))
    printed = text(Verdict(evil, ()), ["a\nb"])
    assert printed.count("\n") == 3
    assert "\x1b" not in printed


def test_json_says_the_same() -> None:
    """For programs: every finding with its own status."""
    told = json.loads(json.dumps(as_object(Verdict(NODE, (OK, LOST)), "exporter", [])))
    assert (told["status"], told["exit"], told["source"]) == ("unfit", 2, "exporter")
    assert told["summary"] == "unfit: GPU 3: Xid 79, hardware; reboot the node"
    assert told["gpus"][0] == {"gpu": 0, "uuid": "GPU-0", "pci": "0000:00:00.0", "status": "healthy", "findings": []}
    assert [finding["status"] for finding in told["gpus"][1]["findings"]] == ["degraded", "unfit"]
    assert told["node"] == {"status": "healthy", "findings": []}
