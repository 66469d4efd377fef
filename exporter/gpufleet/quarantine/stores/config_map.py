"""The ledger in ConfigMaps: what is open in one, what is closed in sixteen more, written by compare-and-swap.

The main one is the truth: a write of it is the whole commit, and a record in it hides one of the same key in the
history. A closed record goes to the history only after the main one has held it, and leaves the main one only after
the history has it. So a crash in between leaves it in both, and at no time in neither; what was never committed is
never in the history. The main one also names the digest of each part of the history, which spares reading them.

The content is gzip and may be looked at: ``kubectl get configmap NAME -o jsonpath={.binaryData.book} | base64 -d |
gunzip``.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpufleet.quarantine.actuators.kubernetes.api import Api, Json
from gpufleet.quarantine.actuators.kubernetes.places import config_map
from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError, NotFoundError
from gpufleet.quarantine.actuators.kubernetes.refusals import ConflictError as ApiConflictError
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import Key
from gpufleet.quarantine.record import Record
from gpufleet.quarantine.stores import ConflictError, FullError, Held, StoreError
from gpufleet.quarantine.stores.coding import CodingError, decode, encode

NAME = "gpufleet-quarantine"
PARTS = 16
"""Of the history. A record's part follows from its key, so the number must stay as it is."""
_KEEP_SECONDS = 30 * 86_400.0
# The API server refuses ConfigMaps of more than 1 MiB (the sum of all values).
_MOST_BYTES = 1_000_000
# Closed records move in batches: each move writes as many ConfigMaps as there are parts that it touches.
_MOVE_AT = 32
_LOADS = 5
_CONTENT = "book"


def part_names(name: str = NAME) -> tuple[str, ...]:
    """The ConfigMaps of the history."""
    return tuple(f"{name}-history-{number:02}" for number in range(PARTS))


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A ConfigMap as it was read or written."""

    metadata: Json = field(default_factory=dict)
    """Empty where there is none."""
    digest: str = ""
    """Of the content; empty without one."""
    book: Book = field(default_factory=Book)
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return str(self.metadata.get("resourceVersion", ""))


class ConfigMapStore:
    """A Store in ``namespace``; ``clock`` gives Unix time. For one thread; several processes may share the ledger."""

    def __init__(self, api: Api, namespace: str, clock: Callable[[], float], name: str = NAME) -> None:
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._name = name
        self._main = _Sheet()
        self._part_names = part_names(name)
        self._parts: dict[str, _Sheet] = {}

    def load(self) -> Held:
        """As Store."""
        for _ in range(_LOADS):
            main = self._read(self._name)
            if self._read_history(main) or self._read(self._name).version == main.version:
                self._main = main
                return Held(self._whole(main), main.version)
        raise StoreError(f"{self._where(self._name)}: others write it faster than it can be read; ask again")

    def save(self, book: Book, version: str) -> Held:
        """As Store. Records leave by age only: one that is missing from ``book`` may still be in the history."""
        if version != self._main.version:
            raise ConflictError(f"{self._where(self._name)} is not at version {version} any more")
        kept = self._not_in_history(book.records)
        moving = {
            key: record
            for key, record in kept.items()
            if record.is_closed and self._main.book.records.get(key) == record
        }
        if len(moving) >= _MOVE_AT:
            for key in self._moved(moving):
                del kept[key]
        digests = {name: sheet.digest for name, sheet in self._parts.items() if sheet.digest}
        self._main = self._write(self._name, self._main, replace(book, records=kept), digests)
        return Held(self._whole(self._main), self._main.version)

    def _read_history(self, main: _Sheet) -> bool:
        """Bring the parts up to date; False if one is not as ``main`` has it: it may be newer than ``main``.

        One that ``main`` does not name has nothing that is not in ``main`` itself.
        """
        as_known = True
        for name in self._part_names:
            expected = main.data.get(name, "")
            if self._parts.get(name, _Sheet()).digest != expected:
                self._parts[name] = self._read(name)
                as_known = as_known and self._parts[name].digest == expected
        return as_known

    def _whole(self, main: _Sheet) -> Book:
        """The main ConfigMap's book with the history behind it."""
        records = {
            key: record
            for sheet in self._parts.values()
            for key, record in sheet.book.records.items()
            if not self._is_old(record)
        }
        return replace(main.book, records={**records, **main.book.records})

    def _not_in_history(self, records: Mapping[Key, Record]) -> dict[Key, Record]:
        kept = {}
        for key, record in records.items():
            part = self._parts.get(self._part_of(key), _Sheet())
            if not record.is_closed or (part.book.records.get(key) != record and not self._is_old(record)):
                kept[key] = record
        return kept

    def _moved(self, moving: Mapping[Key, Record]) -> list[Key]:
        """Write records that the main ConfigMap holds into the history; the keys of those that are there now."""
        moved: list[Key] = []
        lost: ConflictError | None = None
        by_part: dict[str, dict[Key, Record]] = {}
        for key, record in moving.items():
            by_part.setdefault(self._part_of(key), {})[key] = record
        for name, records in sorted(by_part.items()):
            try:
                sheet = self._part(name)
                young = {key: record for key, record in sheet.book.records.items() if not self._is_old(record)}
                self._parts[name] = self._write(name, sheet, Book({**young, **records}), {})
            except ConflictError as error:
                # Somebody has moved the same ones: with what is there now, the next load finds out. All parts are
                # looked at before that, so that a move which was left half done costs one more load, not one for each.
                self._parts[name] = self._read(name)
                lost = error
            except FullError:
                continue  # They stay in the main one, which says so when that is full too.
            else:
                moved += records
        if lost is not None:
            raise lost
        return moved

    def _part(self, name: str) -> _Sheet:
        """A part as it was last seen. One that was never looked at, and is not empty, is newer than what was loaded."""
        if name not in self._parts:
            self._parts[name] = self._read(name)
            if self._parts[name].digest:
                raise ConflictError(f"{self._where(name)} has been written meanwhile")
        return self._parts[name]

    def _is_old(self, record: Record) -> bool:
        return max(record.decided_at, record.changed_at) < self._clock() - _KEEP_SECONDS

    def _part_of(self, key: Key) -> str:
        return self._part_names[zlib.crc32(str(key).encode()) % PARTS]

    def _read(self, name: str) -> _Sheet:
        try:
            found = self._api.get(config_map(self._namespace, name))
        except NotFoundError:
            return _Sheet()
        except ApiError as error:
            raise StoreError(f"{self._where(name)} cannot be read: {error}") from error
        return self._sheet(name, found)

    def _sheet(self, name: str, found: Json) -> _Sheet:
        content = (found.get("binaryData") or {}).get(_CONTENT, "")
        if not content:
            return _Sheet(found["metadata"])
        try:
            book = decode(gzip.decompress(base64.b64decode(content, validate=True)))
        except (CodingError, binascii.Error, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise StoreError(f"{self._where(name)}: {error}") from error
        return _Sheet(found["metadata"], _digest(content), book, found.get("data") or {})

    def _write(self, name: str, sheet: _Sheet, book: Book, data: Mapping[str, str]) -> _Sheet:
        """Write over ``sheet``. Raises ConflictError, FullError, StoreError."""
        # Without the time that gzip would note, the same book is the same content.
        packed = gzip.compress(encode(book), 6, mtime=0)
        size = len(packed) + sum(len(value) for value in data.values())
        if size > _MOST_BYTES:
            raise FullError(
                f"{self._where(name)}: {len(book.records)} records make {size} bytes, and {_MOST_BYTES} is the most; "
                f"release nodes, or narrow the policy's alerts"
            )
        content = base64.b64encode(packed).decode("ascii")
        metadata: dict[str, Any] = {**(sheet.metadata or {"name": name, "namespace": self._namespace})}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": dict(data),
            "binaryData": {_CONTENT: content},
        }
        try:
            if sheet.metadata:
                found = self._api.replace(config_map(self._namespace, name), body)
            else:
                found = self._api.create(config_map(self._namespace), body)
        except (ApiConflictError, NotFoundError) as error:
            raise ConflictError(f"{self._where(name)}: {error}") from error
        except ApiError as error:
            raise StoreError(f"{self._where(name)} cannot be written: {error}") from error
        return _Sheet(found["metadata"], _digest(content), book, data)

    def _where(self, name: str) -> str:
        return f"ConfigMap {self._namespace}/{name}"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:16]
