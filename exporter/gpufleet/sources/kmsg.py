"""The kernel's log, followed record by record.

``/dev/kmsg`` gives one record a read, from the oldest that the kernel still has: opening it is a replay of the log
since boot, as far as the ring buffer reaches. A FIFO or a regular file with the same lines works too, for tests and for
hosts whose log is relayed. What a record means is decided in ``kmsg_lines``; this module knows bytes only.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gpufleet.sources.errors import SourceError

SOURCE = "kmsg"

_RECORD_BYTES = 16_384
"""The kernel answers EINVAL to a buffer that is too small: a record is at most 8 KiB (CONSOLE_EXT_LOG_MAX)."""
_MOST_AT_ONCE = 4_096
"""Records handed over in one call, so that a flood does not keep its reader from everything else."""
_LONGEST_LINE = 65_536
"""Of a FIFO or file: a longer one is cut, so that a missing line end can't take all memory."""
_FILE_PAUSE_SECONDS = 0.2
"""poll(2) calls a regular file readable always; this is how often its end is looked at again."""


class Follower:
    """An open log. Not thread-safe."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the log at its oldest record. Raises SourceError with what has to be granted."""
        self.caught_up = False
        """Whether everything that was in the log when it was opened has been handed over."""
        self.overruns = 0
        """Times that the kernel overwrote records before they were read."""
        self._path = path
        self._clock = clock
        self._rest = b""
        self._descriptor = self._open(path)
        mode = os.fstat(self._descriptor).st_mode
        self._is_records = stat.S_ISCHR(mode)
        self._is_file = stat.S_ISREG(mode)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def _open(self, path: Path) -> int:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        try:
            # A FIFO is opened for both ways: with no writer left, a reader alone would see its end for ever.
            is_fifo = stat.S_ISFIFO(path.stat().st_mode)
            return os.open(path, flags | (os.O_RDWR if is_fifo else os.O_RDONLY))
        except OSError as error:
            raise SourceError(SOURCE, _remedy(path, error)) from error

    @property
    def descriptor(self) -> int:
        """For poll(2); a regular file is always readable there."""
        return self._descriptor

    @property
    def waits_by_poll(self) -> bool:
        """Whether poll(2) tells of new records; a regular file has to be looked at now and then."""
        return not self._is_file

    def wait(self, seconds: float) -> None:
        """Return when there may be something to read, or after ``seconds``."""
        if self._is_file:
            time.sleep(min(seconds, _FILE_PAUSE_SECONDS))
        else:
            self._poll.poll(max(0, round(seconds * 1000)))

    def read(self) -> list[bytes]:
        """Records that are there now, each without its line end, at most ``_MOST_AT_ONCE``; empty when there is none.

        Raises SourceError when the log can't be read any more.
        """
        records: list[bytes] = []
        while len(records) < _MOST_AT_ONCE:
            try:
                chunk = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                self.caught_up = True
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The ring went round: the next read goes on with the oldest record that is left.
                    self.overruns += 1
                    continue
                raise SourceError(SOURCE, _remedy(self._path, error)) from error
            if not chunk:
                self.caught_up = True
                break
            records += [chunk.rstrip(b"\n")] if self._is_records else self._lines(chunk)
        return records

    def _lines(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self._rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest[:_LONGEST_LINE])
            rest = b""
        self._rest = rest
        return [line for line in lines if line]

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


def wall_time(microseconds: int, monotonic: float, wall: float) -> float:
    """Unix time of a record stamped ``microseconds`` after boot, given the same moment on both clocks.

    The kernel's log clock does not count time in suspend, like CLOCK_MONOTONIC; it may be off by milliseconds from it.
    """
    return wall - (monotonic - microseconds / 1_000_000)


def _remedy(path: Path, error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return (
            f"{path} may not be read ({error.strerror}): with kernel.dmesg_restrict it needs CAP_SYSLOG, in a "
            "container also the device (privileged, or a device rule for c 1:11); without it only faults that the "
            "driver reports by itself are seen, not 79, 119 and 120"
        )
    if error.errno == errno.ENOENT:
        return f"{path} does not exist: mount the host's /dev/kmsg there or name it with --kmsg.path"
    return f"{path} can't be read: {error.strerror or error}"
