"""Small files that must outlive a restart: read within bounds, replaced whole."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from gpufleet.small_file import read_small_file

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20


class StateError(Exception):
    """Kept state that can't be used; the message says why."""


def read_state(file: Path) -> bytes | None:
    """Content of ``file``; None when there is none yet.

    Raises:
        StateError: it can't be read or is larger than MAX_BYTES.
    """
    try:
        content = read_small_file(file, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(_reason(error)) from error
    if len(content) > MAX_BYTES:
        raise StateError(f"it is larger than {MAX_BYTES} bytes")
    return content


def replace_state(file: Path, content: bytes, *, sync: bool = True) -> None:
    """Put ``content`` in place of ``file``, whole or not at all, also when the power fails; makes its directory.

    Without ``sync`` the file outlives this process, but not yet the machine: call ``sync_state`` soon.

    Raises:
        StateError: it could not be written; the old content stays.
    """
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as handle:
            handle.write(content)
            handle.flush()
            if sync:
                os.fsync(handle.fileno())
        new.replace(file)
        if sync:
            _sync(file.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise StateError(_reason(error)) from error


def sync_state(file: Path) -> None:
    """Wait until the disk has what was written without ``sync``.

    Raises:
        StateError: it could not be told whether it has.
    """
    try:
        _sync(file)
        _sync(file.parent)
    except OSError as error:
        raise StateError(_reason(error)) from error


def _sync(path: Path) -> None:
    # For a directory: without this the rename itself may be lost with the power, and on some filesystems the file too.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
