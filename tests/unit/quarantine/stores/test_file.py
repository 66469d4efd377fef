"""The ledger in a file: durable, compared and swapped, and never written over by mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.quarantine.book import Book, Seen, Tripped
from gpufleet.quarantine.record import Stage
from gpufleet.quarantine.stores import ConflictError, FullError, StoreError
from gpufleet.quarantine.stores.file import FileStore
from tests.support.quarantine_records import incident, record, refused

NOW = 1_700_000_010.0
DAY = 86_400.0


def store(tmp_path: Path, now: float = NOW, **more: int) -> FileStore:
    """A store in a directory that is not there yet."""
    return FileStore(tmp_path / "new" / "ledger.json", lambda: now, **more)


def book(*names: str) -> Book:
    """Quarantined nodes."""
    records = [record(incident(name, name)) for name in names]
    return Book(
        {each.key: each for each in records}, (1.0,), (Seen(1.0, "n", "p", "79"),), Tripped(1.0, "same_fault", "x")
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """By another process, too; an empty one is there from the start, and nobody else may read it."""
    first = store(tmp_path).load()
    assert first.book == Book()
    store(tmp_path).save(book("a"), first.version)

    assert store(tmp_path).load().book == book("a")
    assert (tmp_path / "new" / "ledger.json").stat().st_mode & 0o077 == 0


def test_who_has_not_read_the_last_version_writes_nothing(tmp_path: Path) -> None:
    """Two services on one machine, or a command beside the service."""
    one, other = store(tmp_path), store(tmp_path)
    began = one.load().version
    held = other.save(book("a"), began)
    with pytest.raises(ConflictError):
        one.save(book("b"), began)

    one.save(book("a", "b"), held.version)

    assert len(other.load().book.records) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99}', b"x" * 100, b'{"version":1,"records":[{}]}'])
def test_a_file_that_is_not_understood_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    """It is named, with what to do."""
    file = tmp_path / "ledger.json"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{file}: .*move it away"):
        FileStore(file, lambda: NOW).load()

    assert file.read_bytes() == content


def test_a_ledger_that_would_be_too_big_is_not_written(tmp_path: Path) -> None:
    """And one that is, is none of ours."""
    small = store(tmp_path, most_bytes=1000)
    with pytest.raises(FullError, match="1000 are the most"):
        small.save(book("a", "b", "c"), small.load().version)
    (tmp_path / "new").mkdir(exist_ok=True)
    (tmp_path / "new" / "ledger.json").write_bytes(b" " * 2000)
    with pytest.raises(StoreError, match="more than 1000 bytes"):
        small.load()


def test_a_write_that_was_cut_off_leaves_the_last_one(tmp_path: Path) -> None:
    """What lies beside it is written over the next time."""
    held = store(tmp_path).save(book("a"), store(tmp_path).load().version)
    (tmp_path / "new" / ".ledger.json.new").write_bytes(b'{"version":1,"rec')

    assert store(tmp_path).load() == held
    store(tmp_path).save(book("b"), held.version)
    assert store(tmp_path).load().book == book("b")


def test_what_was_closed_a_month_ago_is_forgotten(tmp_path: Path) -> None:
    """Nothing that is open, and nothing that is still told of."""
    old = refused(incident("old", "old"))
    heard = replace(refused(incident("heard", "heard")), heard_at=NOW + 29 * DAY)
    released = record(incident("back", "back"), Stage.RELEASED)
    records = [old, heard, released, record(incident("open", "open"))]
    later = store(tmp_path, NOW + 31 * DAY)
    later.save(Book({each.key: each for each in records}), later.load().version)

    assert sorted(key.node for key in later.load().book.records) == ["heard", "open"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a directory should be."""
    (tmp_path / "new").write_text("")
    with pytest.raises(StoreError, match=r"ledger\.json"):
        store(tmp_path).load()
    with pytest.raises(StoreError, match=r"ledger\.json"):
        store(tmp_path).save(book("a"), "none")
