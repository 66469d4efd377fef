"""Saved logs as lines: whatever they are packed in, whatever else is in them."""

from __future__ import annotations

import bz2
import collections
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.commands.faults_input import LONGEST_LINE, Source, UnreadableError

XID = b"[ 1160.900048] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n"
OTHER = b"[ 1160.900049] systemd[1]: Started Session 7 of user root.\n"


def texts(path: Path) -> list[str]:
    """The lines of interest of a file."""
    return [line.text for line in Source(str(path))]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_log_is_read_as_it_is(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """What a file is called does not matter: its first bytes tell."""
    file = tmp_path / "kern.log.2"
    file.write_bytes(pack(OTHER * 1000 + XID + OTHER))
    source = Source(str(file))
    assert [line.text for line in source] == [XID.decode().rstrip()]
    assert source.lines_read == 1002


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_log_that_is_cut_off_gives_what_it_has_and_says_so(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A disk that was full when the log was rotated leaves such a file."""
    file = tmp_path / "kern.log.gz"
    packed = pack(b"".join(XID.replace(b"1160", b"%04d" % number) for number in range(9999)))
    file.write_bytes(packed[: len(packed) - 20])
    source = Source(str(file))
    with pytest.raises(UnreadableError, match=r"kern\.log\.gz: "):
        collections.deque(source, maxlen=1)
    assert source.lines_read > 1000


@pytest.mark.parametrize("junk", [b"\x1f\x8bjunk", b"\xfd7zXZ\0junk", b"BZhjunkjunk"])
def test_a_log_that_only_looks_compressed_is_refused(tmp_path: Path, junk: bytes) -> None:
    """The library's words are passed on under the file's name."""
    file = tmp_path / "kern.log"
    file.write_bytes(junk * 20)
    with pytest.raises(UnreadableError, match=r"kern\.log: \w+"):
        texts(file)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (b"\x28\xb5\x2f\xfd rest", "is compressed with zstd; try: zstd -dc {} | gpufleet faults"),
        (b"LPKSHHRH rest", "is a binary journal; try: journalctl -k --file={} | gpufleet faults"),
    ],
)
def test_what_another_program_has_to_read_is_refused_with_its_name(tmp_path: Path, content: bytes, advice: str) -> None:
    """Silence would look like a healthy node."""
    file = tmp_path / "log"
    file.write_bytes(content)
    with pytest.raises(UnreadableError) as refused:
        texts(file)
    assert str(refused.value) == f"{file}: {advice.format(file)}"


def test_what_is_not_there_or_no_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """The words are the operating system's."""
    with pytest.raises(UnreadableError, match=r"nothing: no such file or directory$"):
        texts(tmp_path / "nothing")
    with pytest.raises(UnreadableError, match=r": is a directory$"):
        texts(tmp_path)


def test_a_device_is_read_up_to_what_it_has_now() -> None:
    """The kernel's own log has no end: reading it must end all the same."""
    assert texts(Path("/dev/null")) == []


def test_colours_of_dmesg_are_taken_out(tmp_path: Path) -> None:
    """They stand between the driver's prefix and its text."""
    file = tmp_path / "dmesg"
    file.write_bytes(b"\x1b[32m[ 1160.900048] \x1b[0m\x1b[33mNVRM: \x1b[0mXid (PCI:0000:4b:00): 79, x\r\n")
    assert texts(file) == ["[ 1160.900048] NVRM: Xid (PCI:0000:4b:00): 79, x"]


def test_the_journal_as_json_reads_as_its_short_form(tmp_path: Path) -> None:
    """Time and node are in fields of their own there."""
    file = tmp_path / "journal"
    file.write_text(
        '{"__REALTIME_TIMESTAMP": "1790000000123456", "_HOSTNAME": "n7", "MESSAGE": "NVRM: Xid (PCI:0000:4b:00): 79"}\n'
        '{"__REALTIME_TIMESTAMP": "1790000000123456", "MESSAGE": [78, 86, 82, 77, 58], "X": "NVRM: "}\n'
        '{"NVRM: \n'
    )
    first, *others = texts(file)
    assert first == "1790000000.123456 n7 kernel: NVRM: Xid (PCI:0000:4b:00): 79"
    assert [other[0] for other in others] == ["{", "{"]


def test_garbage_without_line_ends_is_read_in_pieces(tmp_path: Path) -> None:
    """A core dump that was named by mistake must not be held in memory."""
    file = tmp_path / "garbage"
    file.write_bytes(bytes(range(256)).replace(b"\n", b"") * 4096 + b"NVRM: " + b"\xff" * 100)
    lines = texts(file)
    assert lines
    assert all(len(line) <= LONGEST_LINE for line in lines)
