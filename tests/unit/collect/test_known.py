"""The list of GPUs that outlives the process."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpufleet.collect.known import KnownGpus, parse, render
from gpufleet.collect.state_file import StateError
from gpufleet.model.gpu import GpuIdentity

BOOT = "11111111-2222-3333-4444-555555555555"
ONE = GpuIdentity("GPU-1", "NVIDIA H100 80GB HBM3", "0000:1b:00.0", serial="165", architecture="hopper", minor=3)
TWO = GpuIdentity("GPU-2", "NVIDIA H100 80GB HBM3", "0000:43:00.0")


def test_a_gpu_is_recalled_by_the_next_process(tmp_path: Path) -> None:
    """Who was seen in this boot is known after a restart, with everything that the driver said of it."""
    KnownGpus(tmp_path, BOOT).remember([ONE, TWO])
    assert KnownGpus(tmp_path, BOOT).recall() == (ONE, TWO)


def test_another_boot_recalls_nobody(tmp_path: Path) -> None:
    """GPUs may have been replaced while the machine was off."""
    KnownGpus(tmp_path, BOOT).remember([ONE])
    assert KnownGpus(tmp_path, BOOT[:-1] + "6").recall() == ()


def test_without_a_directory_or_a_boot_nothing_is_kept(tmp_path: Path) -> None:
    """A list of an unknown boot could be another machine's."""
    known = KnownGpus(tmp_path, None)
    known.remember([ONE])
    assert known.recall() == (ONE,)
    assert list(tmp_path.iterdir()) == []


def test_the_newest_word_on_a_gpu_wins(tmp_path: Path) -> None:
    """A new VBIOS is remembered in place of the old one, and nobody is forgotten."""
    known = KnownGpus(tmp_path, BOOT)
    known.remember([ONE, TWO])
    newer = GpuIdentity("GPU-2", TWO.name, TWO.pci_bus_id, vbios_version="96.00")
    known.remember([newer])
    assert KnownGpus(tmp_path, BOOT).recall() == (ONE, newer)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no list of GPUs"),
        (b'{"boot_id": "%s", "gpus": [1]}' % BOOT.encode(), "no GPU"),
        (b'{"boot_id": "%s", "gpus": [{"uuid": 1}]}' % BOOT.encode(), "no usable uuid"),
        (b'{"boot_id": "%s", "gpus": [{"uuid": "a", "extra": 1}]}' % BOOT.encode(), "no GPU"),
        (b'{"boot_id": "%s", "gpus": [{"uuid": "a"}]}' % BOOT.encode(), "lacks"),
        (b'{"boot_id": "%s", "gpus": [{"uuid": "%s"}]}' % (BOOT.encode(), b"x" * 200), "no usable uuid"),
    ],
)
def test_a_damaged_list_is_refused(content: bytes, why: str) -> None:
    """What this program did not write is not believed."""
    with pytest.raises(StateError, match=why):
        parse(content, BOOT)


def test_a_damaged_file_is_said_once_and_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The exporter starts all the same, and the next write makes the file whole."""
    (tmp_path / "gpus.json").write_bytes(b"\0garbage")
    known = KnownGpus(tmp_path, BOOT)
    with caplog.at_level(logging.WARNING):
        assert known.recall() == ()
        known.remember([ONE])
    assert [record.getMessage() for record in caplog.records] == ["the kept list of GPUs can't be used"]
    assert KnownGpus(tmp_path, BOOT).recall() == (ONE,)


def test_a_directory_that_cannot_be_written_costs_the_memory_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list is kept in memory, and the log says what to do."""
    (tmp_path / "file").write_text("")
    known = KnownGpus(tmp_path / "file", BOOT)
    with caplog.at_level(logging.WARNING):
        known.remember([ONE])
    assert known.recall() == (ONE,)
    assert "--state.dir" in caplog.text


def test_what_is_written_is_the_same_for_the_same_gpus() -> None:
    """The file does not change when nothing has changed."""
    assert render([ONE, TWO], BOOT) == render([TWO, ONE], BOOT)
