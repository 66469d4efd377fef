"""Read files that a person or a program names, whatever stands at that path: within bounds, and never for ever."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

PIPE_SECONDS = 5.0
"""A pipe, as a shell's ``<(command)`` makes, has come to its end by then."""
_PIECE = 1 << 16


def read_small_file(path: Path, most: int, *, pipe_seconds: float = PIPE_SECONDS) -> bytes:
    """Content of the file, one byte more than ``most`` of it where it is longer, so that the caller can refuse it.

    Raises:
        OSError: it can't be read, is a pipe that nobody writes to, or one that has not ended in time.
    """
    # Without O_NONBLOCK, open() of a FIFO waits for who writes to it, for ever: signals are blocked while a service
    # starts, so that nothing but SIGKILL would end it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        content = _read(descriptor, most + 1, time.monotonic() + pipe_seconds)
        if not content and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENXIO, "Is a pipe that nobody writes to")
        return content
    finally:
        os.close(descriptor)


def _read(descriptor: int, most: int, until: float) -> bytes:
    pieces = bytearray()
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while len(pieces) < most:
        try:
            piece = os.read(descriptor, min(_PIECE, most - len(pieces)))
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                raise TimeoutError(errno.ETIMEDOUT, "Is a pipe that has not come to its end in time") from None
            continue
        if not piece:
            break
        pieces += piece
    return bytes(pieces)
