"""``gpufleet quiesce`` and ``resume``: what is printed, and the exit status that a script acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpufleet.collect.control import ControlSocket
from gpufleet.commands.quiesce import quiesce, resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Answers = Callable[[Mapping[str, object]], list[str]]


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    """An exporter that answers every command the same way; returns the flags that find it."""
    servers = []

    def start(reply: Mapping[str, object]) -> list[str]:
        path = tmp_path / "control.sock"
        server = ControlSocket(path, {"quiesce": lambda: reply, "resume": lambda: reply})
        server.start()
        servers.append(server)
        return [f"--control.socket={path}"]

    yield start
    for server in servers:
        server.stop()


def test_quiesce_says_that_the_gpus_are_released(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0 is the go-ahead for a reset; the time limit is said."""
    assert quiesce(answers({"ok": True, "resumes_after_seconds": 900.0})) == 0
    assert capsys.readouterr().out == "quiesced: the exporter holds no GPU; it resumes by itself after 15m\n"


def test_quiesce_with_a_call_out_exits_1_and_names_gpu_and_call(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script must not reset a GPU that is held."""
    assert quiesce(answers({"ok": False, "blocked_by": "nvmlDeviceGetFieldValues on GPU 3 (GPU-x)"})) == 1
    assert capsys.readouterr().err == (
        "gpufleet quiesce: not released; in the way: nvmlDeviceGetFieldValues on GPU 3 (GPU-x); the kernel log may say "
        "why (dmesg | grep NVRM)\n"
    )


def test_resume_says_that_the_gpus_are_taken_up(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """The counterpart needs no look at the metrics."""
    assert resume(answers({"ok": True})) == 0
    assert capsys.readouterr().out == "resumed: the exporter takes the GPUs up again\n"


def test_an_error_of_the_exporter_exits_2_with_its_words(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither released nor known to be held."""
    assert quiesce(answers({"ok": False, "error": "the command failed"})) == 2
    assert capsys.readouterr().err == "gpufleet quiesce: the command failed\n"


def test_an_answer_of_another_program_is_not_a_release(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """Only an explicit yes is one."""
    assert quiesce(answers({"ok": "true"})) == 2
    assert "another program listens there" in capsys.readouterr().err


def test_no_exporter_exits_2_and_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy names the flags that decide where the socket is."""
    path = tmp_path / "control.sock"
    assert resume([f"--control.socket={path}"]) == 2
    assert capsys.readouterr().err == (
        f"gpufleet resume: {path}: is not there\n"
        "gpufleet resume: no exporter was reached; is one running here, and with the same --control.socket or "
        "--state.dir?\n"
    )


def test_the_exporters_configuration_file_finds_its_socket(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file for all commands: options that concern the exporter alone are accepted in it."""
    answers({"ok": True})
    file = tmp_path / "gpufleet.yml"
    file.write_text("control: {socket: control.sock}\npoll: {interval: 5s}\n")
    assert resume([f"--config.file={file}"]) == 0
    assert capsys.readouterr().out
