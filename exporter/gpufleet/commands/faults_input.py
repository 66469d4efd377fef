"""Saved logs as lines: files, compressed ones too, standard input, and the kernel's own log as it is now.

Only lines that may have to do with an NVIDIA driver or a boot are given; everything else is passed over as bytes, so
that a log of gigabytes costs no more than reading it. A file is never held in memory as a whole.
"""

from __future__ import annotations

import io
import json
import re
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from gpufleet.sources.errors import SourceError
from gpufleet.sources.kmsg import Follower

STANDARD_INPUT = "-"
LONGEST_LINE = 65_536
"""What is longer is read in pieces: a binary file has no line ends."""
_OF_INTEREST = re.compile(rb"NVRM: |nvidia|Linux version |^-- (?:Boot|Reboot)")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,32}[A-Za-z]")
"""``dmesg --color=always`` puts them between the driver's prefix and its text."""
_MAGIC_BYTES = 8
_OTHER_READERS = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; try: zstd -dc {} | gpufleet faults"),
    (b"LPKSHHRH", "is a binary journal; try: journalctl -k --file={} | gpufleet faults"),
)


class UnreadableError(Exception):
    """A log that can't be read, or not to its end; the message says why, with the remedy where there is one."""


class Line(NamedTuple):
    """One line of interest."""

    text: str
    written: float
    """Unix time at which the log was written last: dates without a year are of the year before it."""


class Source:
    """One log that was named on the command line."""

    def __init__(self, name: str) -> None:
        self.name = "standard input" if name == STANDARD_INPUT else name
        self.lines_read = 0
        """Lines of any kind, so far."""
        self.is_live = name == STANDARD_INPUT
        """Whether somebody may be writing it just now."""
        self._path = name

    def __iter__(self) -> Iterator[Line]:
        """The lines of interest. Raises UnreadableError, also after some of them."""
        try:
            yield from self._lines()
        except (OSError, EOFError, zlib.error, _lzma_error()) as error:
            # gzip's and lzma's own errors say more than an errno.
            reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
            raise UnreadableError(f"{self.name}: {reason.rstrip('.').lower()}") from error
        except SourceError as error:
            raise UnreadableError(error.reason) from error

    def _lines(self) -> Iterator[Line]:
        if self._path == STANDARD_INPUT:
            yield from self._read(sys.stdin.buffer, time.time())
            return
        path = Path(self._path)
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            yield from self._records(path)
            return
        with path.open("rb") as file:
            yield from self._read(file, status.st_mtime)

    def _records(self, path: Path) -> Iterator[Line]:
        """What is in the kernel's log now: it has no end that one could read up to."""
        follower = Follower(path)
        try:
            while not follower.caught_up:
                for record in follower.read():
                    self.lines_read += 1
                    yield from _of_interest(record.partition(b"\n")[0], time.time())
        finally:
            follower.close()

    def _read(self, file: BinaryIO, written: float) -> Iterator[Line]:
        content = self._decompressed(cast("io.BufferedReader", file))
        for raw in iter(lambda: content.readline(LONGEST_LINE), b""):
            self.lines_read += 1
            yield from _of_interest(raw, written)

    def _decompressed(self, file: io.BufferedReader) -> io.BufferedIOBase:
        start = file.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        for magic, advice in _OTHER_READERS:
            if start.startswith(magic):
                raise UnreadableError(f"{self.name}: {advice.format(self._path)}")
        if start.startswith(b"\x1f\x8b"):
            import gzip  # logs that are rotated are compressed, others need none of these

            return gzip.open(file, "rb")
        if start.startswith(b"\xfd7zXZ\0"):
            import lzma

            return lzma.open(file, "rb")
        if start.startswith(b"BZh"):
            import bz2

            return bz2.open(file, "rb")
        return file


def _of_interest(raw: bytes, written: float) -> Iterator[Line]:
    if _OF_INTEREST.search(raw) is None:
        return
    if b"\x1b[" in raw:
        raw = _COLOUR.sub(b"", raw)
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    yield Line(_out_of_journal(text) if text.startswith("{") else text, written)


def _out_of_journal(text: str) -> str:
    """A line of ``journalctl -o json`` as ``journalctl -o short-unix`` would have written it."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return text
    message, at = entry.get("MESSAGE"), entry.get("__REALTIME_TIMESTAMP")
    if not isinstance(message, str) or not isinstance(at, str) or not re.fullmatch(r"[0-9]{7,16}", at):
        return text
    host = entry.get("_HOSTNAME")
    return f"{at[:-6]}.{at[-6:]} {host if isinstance(host, str) else 'host'} kernel: {message}".replace("\n", " ")


def _lzma_error() -> type[Exception]:
    module = sys.modules.get("lzma")
    return cast("type[Exception]", module.LZMAError) if module is not None else EOFError
