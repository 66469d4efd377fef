"""Files that are read within bounds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpufleet.config_file import ConfigFileError, read_config
from gpufleet.cost.price_book import PriceBookError, read_price_book
from gpufleet.owners.config import OwnersConfigError, read_owners_config
from gpufleet.small_file import read_small_file


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A pipe with a name, to which nobody writes."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    """A file that is as long as it may be comes whole."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)

    assert read_small_file(file, 100_000) == b"x" * 100_000


def test_of_a_file_that_is_too_long_comes_one_byte_too_many() -> None:
    """The caller can tell, and a file without an end is not read to it."""
    assert read_small_file(Path("/dev/zero"), 10) == bytes(11)


def test_a_pipe_without_a_writer_is_refused_at_once(fifo: Path) -> None:
    """Opening it as an ordinary file would wait for ever."""
    with pytest.raises(OSError, match="Is a pipe that nobody writes to"):
        read_small_file(fifo, 10)


def test_what_a_command_writes_into_a_pipe_is_waited_for() -> None:
    """A shell's <(command) is a pipe whose content comes late and in pieces."""
    reading, writing = os.pipe()

    def end() -> None:
        os.write(writing, b"tail")
        os.close(writing)

    timer = threading.Timer(0.05, end)
    os.write(writing, b"head ")
    timer.start()
    try:
        assert read_small_file(Path(f"/proc/self/fd/{reading}"), 100) == b"head tail"
    finally:
        timer.join()
        os.close(reading)


def test_a_pipe_that_does_not_end_is_given_up() -> None:
    """A writer that says nothing holds nobody up."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(TimeoutError, match="not come to its end"):
            read_small_file(Path(f"/proc/self/fd/{reading}"), 100, pipe_seconds=0.01)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_in_place_of_a_configuration_is_refused_with_its_name(fifo: Path) -> None:
    """The message names the file, whoever was to read it."""
    with pytest.raises(ConfigFileError, match=f"{fifo}: can't be read: Is a pipe"):
        read_config(fifo)
    with pytest.raises(PriceBookError, match=f"{fifo}: can't be read: Is a pipe"):
        read_price_book(fifo)
    with pytest.raises(OwnersConfigError, match=f"{fifo}: can't be read: Is a pipe"):
        read_owners_config(fifo)
