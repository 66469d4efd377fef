"""The ledger in one local file: written beside it, brought to the disk, and put in its place.

A lock on a second file keeps two processes of one machine apart; the version is the content's digest. A file that is
not understood is never written over.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.quarantine.stores import ConflictError, FullError, Held, StoreError
from gpufleet.quarantine.stores.coding import CodingError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.record import Record

_MOST_BYTES = 16 << 20
_KEEP_SECONDS = 30 * 86_400.0
_NONE = "none"


class FileStore:
    """A Store in ``file``; its directory is made when it is missing. ``clock`` gives Unix time."""

    def __init__(self, file: Path, clock: Callable[[], float], *, most_bytes: int = _MOST_BYTES) -> None:
        self._file = file
        self._clock = clock
        self._most_bytes = most_bytes

    def load(self) -> Held:
        """As Store."""
        content = self._read()
        if content is None:
            from gpufleet.quarantine.book import Book

            return Held(Book(), _NONE)
        try:
            return Held(decode(content), _digest(content))
        except CodingError as error:
            raise StoreError(
                f"{self._file}: is no ledger of this version ({error}): move it away to begin with an empty one, which "
                "forgets what was released, or name another file in the policy (ledger: file)"
            ) from error

    def save(self, book: Book, version: str) -> Held:
        """As Store."""
        kept = self._pruned(book)
        content = encode(kept)
        if len(content) > self._most_bytes:
            raise FullError(
                f"{self._file}: the ledger would have {len(content)} bytes; {self._most_bytes} are the most"
            )
        with self._locked():
            present = self._read()
            if (_NONE if present is None else _digest(present)) != version:
                raise ConflictError
            self._write(content)
        return Held(kept, _digest(content))

    def _pruned(self, book: Book) -> Book:
        """Without what was closed, and not heard of, for thirty days."""
        before = self._clock() - _KEEP_SECONDS
        kept = {key: record for key, record in book.records.items() if not record.is_closed or _last(record) > before}
        return book if len(kept) == len(book.records) else replace(book, records=kept)

    def _read(self) -> bytes | None:
        try:
            with self._file.open("rb") as file:
                content = file.read(self._most_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._file}: can't be read: {error.strerror}") from error
        if len(content) > self._most_bytes:
            raise StoreError(f"{self._file}: has more than {self._most_bytes} bytes: this is no ledger of ours")
        return content

    def _write(self, content: bytes) -> None:
        beside = self._file.with_name(f".{self._file.name}.new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._file)
            directory = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise StoreError(f"{self._file}: can't be written: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._file.with_name(f".{self._file.name}.lock")
        try:
            self._file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{lock}: can't be opened: {error.strerror}") from error
        try:
            # Whoever holds it writes some kilobytes; waiting for him is shorter than trying again.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _last(record: Record) -> float:
    return max(record.heard_at, record.changed_at, record.decided_at)
