"""The kernel's log, followed record by record.

``/dev/kmsg`` gives one record a read, from the oldest that the kernel still has: opening it is a replay of the log
since boot, as far as the ring buffer reaches. A FIFO or a regular file with the same lines works too, for tests and for
hosts whose log is relayed. What a record means is decided in ``kmsg_lines``; this module knows bytes only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gpufleet.sources.errors import SourceError

SOURCE = "kmsg"

_RECORD_BYTES = 16_384
"""The kernel answers EINVAL to a buffer that is too small: a record is at most 8 KiB (CONSOLE_EXT_LOG_MAX)."""
_MOST_AT_ONCE = 4_096
"""Records handed over in one call, so that a flood does not keep its reader from everything else."""
_LONGEST_LINE = 65_536
"""Of a FIFO or file: a longer one is cut, so that a missing line end can't take all memory."""
_MEMORY_DEVICES, _KMSG = 1, 11
"""Numbers of the device (Documentation/admin-guide/devices.txt), whatever its name."""


class Follower:
    """An open log. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open the log at its oldest record. Raises SourceError with what has to be granted."""
        self.caught_up = False
        """Whether everything that was in the log when it was opened has been handed over."""
        self.at_end = False
        """Whether the last read left nothing behind."""
        self.overruns = 0
        """Times that the kernel overwrote records before they were read."""
        self._path = path
        self._rest = b""
        self._cutting = False
        """The end of a line that was cut is still to come."""
        self._descriptor = self._open(path)
        status = os.fstat(self._descriptor)
        device = os.major(status.st_rdev), os.minor(status.st_rdev)
        self._is_records = stat.S_ISCHR(status.st_mode) and device == (_MEMORY_DEVICES, _KMSG)
        # /dev/null, which some mount over the log to hide it, is always readable too, and at its end.
        self._tells = self._is_records or stat.S_ISFIFO(status.st_mode)

    def _open(self, path: Path) -> int:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            # A FIFO is opened for both ways: with no writer left, a reader alone would see its end for ever.
            return os.open(path, flags | (os.O_RDWR if stat.S_ISFIFO(mode) else os.O_RDONLY))
        except OSError as error:
            raise SourceError(SOURCE, _remedy(path, error)) from error

    @property
    def descriptor(self) -> int:
        """For poll(2); a regular file is always readable there."""
        return self._descriptor

    @property
    def waits_by_poll(self) -> bool:
        """Whether poll(2) tells of new records; a regular file has to be looked at now and then."""
        return self._tells

    def read(self) -> list[bytes]:
        """Some thousands of the records that are there, each without its line end; empty when there is none.

        Raises SourceError when the log can't be read any more.
        """
        records: list[bytes] = []
        self.at_end = False
        for _ in range(_MOST_AT_ONCE):
            try:
                chunk = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                chunk = b""
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The ring went round: the next read goes on with the oldest record that is left.
                    self.overruns += 1
                    continue
                if records:
                    break  # what was read counts; the error comes again
                raise SourceError(SOURCE, _remedy(self._path, error)) from error
            if not chunk:
                self.at_end = self.caught_up = True
                break
            records += [chunk.rstrip(b"\n")] if self._is_records else self._lines(chunk)
            if len(records) >= _MOST_AT_ONCE:
                break
        return records

    def _lines(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self._rest + chunk).split(b"\n")
        if self._cutting and lines:
            # What ends here is no record of its own.
            del lines[0]
            self._cutting = False
        if self._cutting:
            rest = b""
        elif len(rest) > _LONGEST_LINE:
            lines.append(rest[:_LONGEST_LINE])
            rest, self._cutting = b"", True
        self._rest = rest
        return [line for line in lines if line]

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


class RecordClock:
    """Tells when records were written, on the scale of CLOCK_MONOTONIC.

    The kernel stamps them by a clock of its own, which nothing slews: after weeks up it is off by seconds, and hours
    have been seen (kubernetes/node-problem-detector#479). Whoever reads the log as it comes can tell, since a record
    that was not there a moment ago can't be older than that, and none is of the future.
    """

    def __init__(self) -> None:
        self._offset = 0.0

    def time(self, microseconds: int, *, since: float, now: float) -> float:
        """When a record with that stamp was written, in seconds: after ``since``, when it was not there yet."""
        at = microseconds / 1_000_000 + self._offset
        bounded = min(max(at, since), now)
        # Moved and not only bounded, so that records that are read together keep their distance.
        self._offset += bounded - at
        return bounded


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
