"""The control socket: private, bounded, and answered one command after the other."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from gpufleet.collect import control
from gpufleet.collect.control import ControlError, ControlSocket, ask, parse_request, socket_paths
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's socket is."""
    return tmp_path / "run" / "control.sock"


@pytest.fixture
def served(path: Path) -> Iterator[list[str]]:
    """A socket that carries out quiesce, resume and a command that fails; the list tells which were carried out."""
    done: list[str] = []

    def quiesce() -> dict[str, object]:
        done.append("quiesce")
        return {"ok": True, "resumes_after_seconds": 900}

    def fail() -> dict[str, object]:
        raise RuntimeError("no luck")

    server = ControlSocket(path, {"quiesce": quiesce, "fail": fail})
    server.start()
    yield done
    server.stop()


def talk(path: Path, sent: bytes, *, end: bool = True) -> bytes:
    """What the exporter answers to raw bytes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(sent)
        if end:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        return answer


def test_a_command_is_carried_out_and_answered(path: Path, served: list[str]) -> None:
    """The client gets what the exporter's own function returned."""
    assert ask(path, "quiesce", seconds=20) == {"ok": True, "resumes_after_seconds": 900}
    assert served == ["quiesce"]


def test_who_gave_a_command_is_logged(path: Path, served: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """After an outage one can see that somebody, and who, quiesced the exporter."""
    caplog.set_level(logging.INFO)
    ask(path, "quiesce", seconds=20)
    record = next(record for record in caplog.records if record.getMessage() == "command received")
    assert vars(record)["by_pid"] == os.getpid()
    assert vars(record)["by_uid"] == os.getuid()
    assert served


@pytest.mark.usefixtures("served")
def test_the_socket_is_open_to_its_owner_only(path: Path) -> None:
    """Whoever can connect can take the GPUs' metrics away."""
    status = path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600


@pytest.mark.parametrize(
    "sent",
    [
        b"\n",
        b"quiesce\n",
        b"[]\n",
        b"null\n",
        b'{"command": 7}\n',
        b'{"command": "reboot"}\n',
        b"\xff\xfe\n",
        b"[" * 4000 + b"\n",
        b"x" * (control.MAX_LINE + 10),
    ],
)
def test_what_is_no_command_is_answered_with_one_that_is(path: Path, served: list[str], sent: bytes) -> None:
    """Nothing that a client sends ends the thread or carries anything out."""
    try:
        answer = talk(path, sent)
    except ConnectionResetError:  # what lay unread when the socket was closed
        assert len(sent) > control.MAX_LINE
    else:
        assert json.loads(answer) == {"ok": False, "error": 'send one line such as {"command": "quiesce"}'}
    assert not served
    assert ask(path, "quiesce", seconds=20)["ok"]


def test_a_silent_client_does_not_keep_the_next_one_out(path: Path, served: list[str]) -> None:
    """One that connects and says nothing is left after two seconds, also if it then sends a byte at a time."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        silent.sendall(b"{")
        assert ask(path, "quiesce", seconds=20)["ok"]
    assert served == ["quiesce"]


def test_a_client_that_leaves_at_once_does_no_harm(path: Path, served: list[str]) -> None:
    """An interrupted `gpufleet quiesce` leaves a connection that is closed already."""
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert ask(path, "quiesce", seconds=20)["ok"]
    assert served == ["quiesce"]


@pytest.mark.usefixtures("served")
def test_a_command_that_fails_is_answered_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The person at the command line sees that it failed, the log has the traceback, the thread goes on."""
    assert ask(path, "fail", seconds=20) == {
        "ok": False,
        "error": "the command failed: RuntimeError('no luck'); the exporter's log says more",
    }
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [True]
    assert ask(path, "quiesce", seconds=20)["ok"]


def test_the_socket_of_an_ended_exporter_is_replaced(path: Path) -> None:
    """After a crash the file is still there; it must not need a person."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = ControlSocket(path, {"status": lambda: {"ok": True}})
    server.start()
    assert ask(path, "status", seconds=20) == {"ok": True}
    server.stop()


@pytest.mark.usefixtures("served")
def test_the_socket_of_a_living_exporter_is_left_alone(path: Path) -> None:
    """A second exporter on the node says so and does not cut the first one off."""
    with pytest.raises(
        ControlError, match=r"another exporter listens there; give this one its own with --control\.socket"
    ):
        ControlSocket(path, {})
    assert ask(path, "quiesce", seconds=20)["ok"]


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    """A mistyped path must not cost a file."""
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ControlError, match="is there and is no socket"):
        ControlSocket(path, {})
    assert path.read_text() == "precious"


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    """The kernel's limit is 107 bytes; its own message does not name it."""
    with pytest.raises(ControlError, match="is longer than the 107 bytes"):
        ControlSocket(tmp_path / ("x" * 120), {})


def test_a_directory_that_cannot_be_made_is_an_error_with_its_reason(tmp_path: Path) -> None:
    """The exporter then takes the next place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match="file exists"):
        ControlSocket(tmp_path / "file" / "control.sock", {})


def test_stop_removes_the_socket_and_ends_the_thread(path: Path) -> None:
    """A new exporter finds the place free; stopping twice is stopping."""
    server = ControlSocket(path, {})
    server.start()
    server.stop()
    server.stop()
    assert not path.exists()
    until(lambda: not [t for t in threading.enumerate() if t.name == "control"], "the control thread has ended")


def test_stop_leaves_the_socket_of_a_successor(path: Path) -> None:
    """A slow end must not take the new exporter's socket away."""
    old = ControlSocket(path, {})
    old.start()
    path.unlink()
    new = ControlSocket(path, {"status": lambda: {"ok": True}})
    new.start()
    old.stop()
    assert ask(path, "status", seconds=20) == {"ok": True}
    new.stop()


def test_asking_where_nobody_is_says_why(path: Path) -> None:
    """No file, a dead socket and a foreign program are different mistakes."""
    with pytest.raises(ControlError, match="is not there"):
        ask(path, "status", seconds=1)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(ControlError, match="nobody listens; the exporter that made it has ended"):
        ask(path, "status", seconds=1)


@pytest.mark.parametrize("answer", [b"", b"hello\n", b"[1]\n", b"y" * 5000])
def test_an_answer_that_is_none_is_said_to_be_foreign(tmp_path: Path, answer: bytes) -> None:
    """Another program's socket must not be taken for a released GPU."""
    where = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(where))
        foreign.listen()

        def reply() -> None:
            client, _ = foreign.accept()
            with client:
                client.recv(100)
                client.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ControlError, match="the answer is not an exporter's"):
            ask(where, "status", seconds=20)
        thread.join()


def test_an_exporter_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """A stopped process accepts by its backlog and never answers."""
    where = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(where))
        stopped.listen()
        with pytest.raises(ControlError, match=r"no answer within 0\.05 seconds"):
            ask(where, "status", seconds=0.05)


def test_the_chosen_path_is_the_only_one_and_the_usual_ones_are_two(tmp_path: Path) -> None:
    """Exporter and command look in the same places in the same order."""
    assert socket_paths(tmp_path / "mine", tmp_path) == (tmp_path / "mine",)
    assert [str(path) for path in socket_paths(None, tmp_path)] == [
        "/run/gpufleet/control.sock",
        f"{tmp_path}/control.sock",
    ]


def test_a_command_is_a_text_in_an_object() -> None:
    """What stands beside it is the command's own affair."""
    assert parse_request(b'{"command": "quiesce", "gpu": 3}') == {"command": "quiesce", "gpu": 3}
    assert parse_request(b'{"command": null}') is None
    assert parse_request(b'["command"]') is None


def test_arguments_reach_the_command_that_takes_them(path: Path) -> None:
    """A command that takes none is sent nothing beside its name."""
    seen: list[object] = []

    def clear(request: Mapping[str, object]) -> dict[str, object]:
        seen.append(request)
        return {"ok": True}

    server = ControlSocket(path, {"status": lambda: {"ok": False}}, {"clear": clear})
    server.start()
    try:
        assert ask(path, "clear", seconds=20, incident="a1")["ok"] is True
        assert ask(path, "status", seconds=20, incident="a1")["ok"] is False
    finally:
        server.stop()
    assert seen == [{"command": "clear", "incident": "a1"}]


def test_a_long_answer_comes_whole(path: Path) -> None:
    """A node with many incidents has more to say than a line of the client's may be long."""
    text = "x" * (control.MAX_ANSWER // 2)
    server = ControlSocket(path, {"faults": lambda: {"ok": True, "text": text}})
    server.start()
    try:
        assert ask(path, "faults", seconds=20) == {"ok": True, "text": text}
    finally:
        server.stop()


def test_commands_that_change_nothing_are_not_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A health check every minute would bury everything else."""
    caplog.set_level(logging.INFO)
    server = ControlSocket(path, {"check": lambda: {"ok": True}, "resume": lambda: {"ok": True}})
    server.start()
    try:
        ask(path, "check", seconds=20)
        ask(path, "resume", seconds=20)
    finally:
        server.stop()
    commands = [vars(record)["command"] for record in caplog.records if record.getMessage() == "command received"]
    assert commands == ["resume"]
