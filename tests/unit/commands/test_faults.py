"""``gpufleet faults FILE``: what a person reads, what a program reads, and the exit status."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from gpufleet.commands.faults import main

LOST = "NVRM: Xid (PCI:0000:4b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
PAGE_FAULT = "NVRM: Xid (PCI:0000:4b:00): 31, pid=7, name=train, Ch 00000008, intr 00000000. MMU Fault"
LOG = f"""\
[    2.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build
[ 1160.900048] NVRM: GPU at PCI:0000:4b:00: GPU-7b1a3c52-1111-2222-3333-444455556666
[ 1160.900048] {LOST}
[ 1160.950048] NVRM: Xid (PCI:0000:5b:00): 74, NVLink: fatal error detected on link 8
[ 1161.900048] NVRM: Xid (PCI:0000:4b:00): 45, pid=1234, name=python3, Ch 00000008
"""


def written(tmp_path: Path, content: str, name: str = "dmesg.txt") -> str:
    """A saved log."""
    file = tmp_path / name
    file.write_text(content)
    return str(file)


def test_a_lost_gpu_is_explained_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What happened, to which GPU, whose fault it is, what to do, who was hit, how often and when."""
    assert main([written(tmp_path, LOG)]) == 1
    out = capsys.readouterr().out
    assert out == (
        "GPU at 0000:4b:00.0: Xid 79, hardware; reboot the node, no work until then\n"
        "  What happened: The GPU no longer answers on PCIe: link, power or board failed. Every job on it is lost.\n"
        "  Board: GPU-7b1a3c52-1111-2222-3333-444455556666\n"
        "  Whose fault: this GPU\n"
        f"{line_of(out, '  What to do: ')}\n"
        "  The GPU gets no work until then. Runs that it ended get their retry back.\n"
        "  Hit: process 1234 (python3), GPU 0000:5b:00.0\n"
        "  Events: Xid 79, Xid 45, Xid 74 on peers\n"
        "  First line: GPU has fallen off the bus.\n"
        "  When: 1160.900 s after boot to 1161.900 s after boot; 3 events\n"
        "  Incident: 1\n"
        "\n"
        "1 incident from 3 of 5 lines; must not get work: GPU at 0000:4b:00.0 (Xid 79, hardware; reboot the node).\n"
    )
    assert line_of(out, "  What to do: ").startswith("  What to do: reboot the node. Drain the node")


def test_what_to_do_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A remedy that begins with the action does not follow it."""
    log = "[1160.9] NVRM: Xid (PCI:0000:4b:00): 31, pid=7, name=python3, Ch 00000008, intr 00000000. MMU Fault\n"

    assert main([written(tmp_path, log)]) == 0
    assert line_of(capsys.readouterr().out, "  What to do: ").startswith("  What to do: restart the job. Look for the")


def line_of(out: str, start: str) -> str:
    """The line that starts so."""
    return next(line for line in out.splitlines() if line.startswith(start))


def test_a_programs_own_fault_keeps_no_gpu_from_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0: a script that asks for broken GPUs goes on."""
    assert main([written(tmp_path, f"2026-02-03T04:05:06+00:00 gpu-a-01 kernel: {PAGE_FAULT}\n")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GPU at 0000:4b:00.0 of gpu-a-01: Xid 31, the program's own fault; restart the job\n")
    assert "  When: 2026-02-03 04:05:06Z; 1 event\n" in out
    assert out.endswith("1 incident from 1 of 1 line: no GPU has to be kept from work.\n")


def test_what_a_reboot_has_cured_needs_nobody_any_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log's end counts."""
    assert main([written(tmp_path, f"[ 90.0] {LOST}\n[    0.000000] Linux version 6.8.0 (x)\n")]) == 0
    out = capsys.readouterr().out
    assert "; 1 event; over: the node was rebooted\n" in out
    assert out.endswith(": no GPU has to be kept from work.\n")


def test_a_log_without_faults_and_a_log_without_a_driver_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second may be the wrong file."""
    assert (
        main([written(tmp_path, "[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15\n[ 2.0] x\n")]) == 0
    )
    assert capsys.readouterr().out == "No incident in 2 lines: nothing to do.\n"
    assert main([written(tmp_path, "[ 1.0] x\n")]) == 0
    assert capsys.readouterr().out == (
        "Nothing of an NVIDIA driver in 1 line: is it the kernel's log, and of a node with GPUs?\n"
    )


def test_each_node_of_a_common_log_has_its_own_incidents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same address on two nodes is two GPUs; the same node in two files is one."""
    stamp = "2026-02-03T04:05:{} {} kernel: {}\n"
    first = written(tmp_path, stamp.format("06", "n1", LOST) + stamp.format("07", "n2", LOST), "one")
    second = written(tmp_path, stamp.format("08", "n1", LOST), "two")
    assert main([first, second]) == 1
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("GPU")] == [
        "GPU at 0000:4b:00.0 of n1: Xid 79, hardware; reboot the node, no work until then",
        "GPU at 0000:4b:00.0 of n2: Xid 79, hardware; reboot the node, no work until then",
    ]
    assert "n1:\n" in out
    assert "n2:\n" in out


def test_files_that_name_no_node_are_of_different_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One dmesg a node is what support bundles hold."""
    files = [written(tmp_path, f"[ 5.0] {LOST}\n", name) for name in ("one", "two")]
    assert main([*files, "--json", "--incidents"]) == 1
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["kind"] for each in objects] == ["xid", "xid", "incident", "incident"]
    assert [each["incident"] for each in objects[2:]] == ["1", "2"]


def test_json_is_one_object_a_line_with_these_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Absent is null, and the class is that of the code."""
    mig = "NVRM: Xid (PCI:0000:4b:00 GPU-I:05): 43, pid=9, name=a, Ch 1"
    assert main(["--json", written(tmp_path, f"[ 5.0] {LOST}\n[ 6.0] x\n[ 7.0] {mig}\n")]) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "kind": "xid",
            "pci": "0000:4b:00.0",
            "code": 79,
            "pid": 1234,
            "process": "python3",
            "mig_gi": None,
            "class": "hardware",
        },
        {
            "kind": "xid",
            "pci": "0000:4b:00.0",
            "code": 43,
            "pid": 9,
            "process": "a",
            "mig_gi": 5,
            "class": "application",
        },
    ]


def test_incidents_as_json_say_which_clock_their_times_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seconds since boot must not be taken for 1970."""
    clocks = []
    for stamp in ("[ 5.5] ", "2026-02-03T04:05:06Z n1 kernel: ", ""):
        main(["--json", "--incidents", written(tmp_path, f"{stamp}{LOST}\n")])
        incident = json.loads(capsys.readouterr().out.splitlines()[-1])
        clocks.append((incident["clock"], incident["first_at"]))
    assert clocks == [("since_boot", 5.5), ("unix", 1770091506.0), (None, 0.0)]


def test_the_drivers_version_changes_what_a_number_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """149 meant nothing before 560; without a version numbers mean what they mean today."""
    file = written(
        tmp_path,
        "[ 5.0] NVRM: Xid (PCI:0000:4b:00): 149, x\n"
        "[ 6.0] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 1 x\n",
    )
    classes = []
    for flags in ([], ["--driver-version=535.129.03"]):
        main(["--json", *flags, file])
        classes.append([json.loads(line)["class"] for line in capsys.readouterr().out.splitlines()])
    assert classes == [["hardware", "hardware"], ["unknown", "hardware"]]


def test_a_version_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error must not become today's meaning."""
    with pytest.raises(SystemExit) as ended:
        main(["--driver-version=R570", written(tmp_path, LOG)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "gpufleet faults: --driver-version: 'R570' is no version of a driver; write it as nvidia-smi does: 550.163.01\n"
    )


def test_what_can_be_read_is_told_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 wins: nobody knows what the missing file holds."""
    assert main([str(tmp_path / "nothing"), written(tmp_path, LOG)]) == 2
    told = capsys.readouterr()
    assert told.err == f"gpufleet faults: {tmp_path}/nothing: no such file or directory\n"
    assert "must not get work: GPU at 0000:4b:00.0" in told.out


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_is_the_default(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``dmesg | gpufleet faults``."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LOG.encode()))))
    assert main(arguments) == 1
    assert "GPU at 0000:4b:00.0" in capsys.readouterr().out


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever types the bare command wants to know how it is used."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "pipe a log into it (dmesg | gpufleet faults)" in capsys.readouterr().err


def test_what_a_process_calls_itself_reaches_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in a name stay text, and on the line of the name."""
    evil = LOST.replace("python3", "\x1b]0;x\x07\x9b31m")
    main([written(tmp_path, f"[ 5.0] {evil}\n")])
    out = capsys.readouterr().out
    assert not {character for character in out if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
