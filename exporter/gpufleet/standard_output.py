"""What a command prints, written out before its exit status is told: a reader who has gone changes no status."""

from __future__ import annotations

import errno
import os
import sys

_ENDED_BY_READER = 141
"""Status of a command that was still printing when its reader went: as a shell tells of one that SIGPIPE ended."""
_FAILED = 1
_NOT_WRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)
"""What a write of standard output meets; a command translates such errors of everything else itself."""


def tell(text: str, status: int, program: str) -> int:
    """Print it as it is; returns the status to end with, as ``written_out`` does."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        return _unwritten(error, status, program)
    return status


def written_out(status: int, program: str) -> int:
    """Write out what was printed, and return the status to end with: another one than 0 where that could not be done.

    A verdict stays what it is: a full disk must not make a GPU that is unfit into one that has to be looked at.
    """
    try:
        # Without an open standard output Python has none, and prints nothing.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _unwritten(error, status, program)
    return status


def interrupted(error: OSError, program: str) -> int:
    """The status of a command that was stopped by it while it printed; raises it when it is not of that kind."""
    if error.errno not in _NOT_WRITTEN:
        raise error
    return _unwritten(error, _ENDED_BY_READER if error.errno == errno.EPIPE else _FAILED, program)


def print_no_more() -> None:
    """Let whatever is still unwritten go, which the interpreter would otherwise try to write at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _unwritten(error: OSError, status: int, program: str) -> int:
    print_no_more()
    if error.errno == errno.EPIPE:
        return status
    print(f"{program}: standard output can't be written: {error.strerror}", file=sys.stderr)
    return status or _FAILED
