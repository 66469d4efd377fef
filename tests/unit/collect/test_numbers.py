"""The number of a GPU: given once in a boot, kept across restarts of the process."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.collect.numbers import Numbers, assign, parse_state, render_state
from gpufleet.collect.state_file import StateError, read_state, replace_state

if TYPE_CHECKING:
    from pathlib import Path

BOOT = "8c3e3f0e-7c1d-4f5e-9b52-0d6c3e2f1a00"
OTHER_BOOT = "1b0c7f9a-2d54-4e0e-8a15-3f6d2c9b7e11"


def test_at_first_start_a_gpu_has_the_drivers_index() -> None:
    """The number is then the one that nvidia-smi shows."""
    assert assign({}, [("b", 1), ("a", 0), ("c", 2)]) == {"a": 0, "b": 1, "c": 2}


def test_a_gpu_without_an_index_takes_the_first_free_number() -> None:
    """An index that is missing, out of range or another's is no number."""
    assert assign({}, [("a", None), ("b", 0), ("c", 0), ("d", -1), ("e", 2)]) == {
        "b": 0,
        "e": 2,
        "a": 1,
        "c": 3,
        "d": 4,
    }


def test_numbers_stay_when_the_drivers_indices_close_up() -> None:
    """GPU 0 is lost and the driver renumbers; every series would change its GPU if the number followed."""
    first = assign({}, [("a", 0), ("b", 1), ("c", 2)])
    assert assign(first, [("b", 0), ("c", 1)]) == {"a": 0, "b": 1, "c": 2}


def test_a_newcomer_takes_the_first_free_number_not_that_of_the_departed() -> None:
    """A replaced GPU must not continue the series of the one that it replaces."""
    first = assign({}, [("a", 0), ("b", 1)])
    assert assign(first, [("b", 0), ("new", 1)]) == {"a": 0, "b": 1, "new": 2}


def test_a_gpu_that_returns_has_its_number_again() -> None:
    """A reset takes a GPU away and brings it back."""
    first = assign({}, [("a", 0), ("b", 1)])
    assert assign(assign(first, [("b", 0)]), [("b", 0), ("a", 1)]) == first


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(-1, 9)), max_size=8), max_size=6)
)
def test_numbers_are_unique_and_never_change(enumerations: list[list[tuple[str, int | None]]]) -> None:
    """Whatever the driver enumerates and in whatever order."""
    numbers: dict[str, int] = {}
    for present in enumerations:
        after = assign(numbers, present)
        assert after.items() >= numbers.items()
        assert {uuid for uuid, _ in present} <= after.keys()
        assert len(set(after.values())) == len(after)
        assert min(after.values(), default=0) >= 0
        numbers = after


def test_numbers_survive_a_restart_in_the_same_boot(tmp_path: Path) -> None:
    """A dashboard's GPU 1 is GPU 1 after an update of the exporter, though GPU 0 is gone."""
    Numbers(tmp_path, BOOT).assign([("a", 0), ("b", 1)])
    assert Numbers(tmp_path, BOOT).assign([("b", 0)]) == {"a": 0, "b": 1}


def test_a_new_boot_numbers_anew(tmp_path: Path) -> None:
    """After a boot the driver's index is the truth again."""
    Numbers(tmp_path, BOOT).assign([("a", 0), ("b", 1)])
    assert Numbers(tmp_path, OTHER_BOOT).assign([("b", 0)]) == {"b": 0}


def test_without_a_boot_id_nothing_is_kept(tmp_path: Path) -> None:
    """Numbers of an unknown boot could be another machine's."""
    assert Numbers(tmp_path, None).assign([("a", 0)]) == {"a": 0}
    assert not list(tmp_path.iterdir())


def test_the_directory_is_made_when_it_is_missing(tmp_path: Path) -> None:
    """A first start needs no preparation."""
    Numbers(tmp_path / "var" / "gpufleet", BOOT).assign([("a", 0)])
    assert [path.name for path in (tmp_path / "var" / "gpufleet").iterdir()] == ["gpu-numbers.json"]


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    """An enumeration each minute does not wear the disk."""
    numbers = Numbers(tmp_path, BOOT)
    numbers.assign([("a", 0)])
    (tmp_path / "gpu-numbers.json").unlink()
    numbers.assign([("a", 0)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"{}",
        json.dumps({"boot_id": BOOT, "numbers": [1]}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": "0"}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": True}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": -1}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": 1e400}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": 70_000}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a": 1, "b": 1}}).encode(),
        json.dumps({"boot_id": BOOT, "numbers": {"a" * 97: 1}}).encode(),
        b" " * ((1 << 20) + 1),
    ],
)
def test_damaged_state_is_said_once_and_started_anew(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn or foreign file costs the numbers, not the exporter."""
    (tmp_path / "gpu-numbers.json").write_bytes(content)
    numbers = Numbers(tmp_path, BOOT)
    assert numbers.assign([("a", 0), ("b", 1)]) == {"a": 0, "b": 1}
    numbers.assign([("a", 0), ("b", 1)])
    assert [record.getMessage() for record in caplog.records] == ["kept GPU numbers can't be used: numbering anew"]
    assert Numbers(tmp_path, BOOT).assign([("b", 0)]) == {"a": 0, "b": 1}


def test_a_directory_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read-only root filesystem is an ordinary container; the numbers then live as long as the process."""
    caplog.set_level(logging.INFO)
    blocked = tmp_path / "state"
    blocked.write_text("a file where the directory should be")
    numbers = Numbers(blocked, BOOT)
    numbers.assign([("a", 0)])
    numbers.assign([("a", 0)])
    assert numbers.assign([("b", 0)]) == {"a": 0, "b": 1}
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len({record.getMessage() for record in said}) == len(said)
    assert "make --state.dir writable" in said[-1].getMessage()
    blocked.unlink()
    numbers.assign([("b", 0)])
    assert Numbers(blocked, BOOT).assign([]) == {"a": 0, "b": 1}
    assert caplog.records[-1].getMessage() == "GPU numbers are kept again"


def test_kept_state_is_read_back_as_it_was() -> None:
    """What is rendered is what is parsed."""
    assert parse_state(render_state({"a": 0, "b": 7}, BOOT), BOOT) == {"a": 0, "b": 7}


def test_a_failed_replacement_keeps_the_old_file_and_leaves_no_litter(tmp_path: Path) -> None:
    """The name is taken by a directory, so that the rename fails after the new file was written."""
    target = tmp_path / "state"
    target.mkdir()
    with pytest.raises(StateError, match="is a directory"):
        replace_state(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_an_unreadable_file_is_an_error_and_a_missing_one_is_not(tmp_path: Path) -> None:
    """No state yet is the first start; state that is there but can't be read is worth a line."""
    assert read_state(tmp_path / "none") is None
    with pytest.raises(StateError, match="is a directory"):
        read_state(tmp_path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """A reader that has the old file open keeps the old content: the new one is another file."""
    file = tmp_path / "state"
    replace_state(file, b"old")
    with file.open("rb") as old:
        replace_state(file, b"new")
        assert os.fstat(old.fileno()).st_nlink == 0
        assert old.read() == b"old"
    assert file.read_bytes() == b"new"
