"""sd_notify: datagrams to the service manager, and silence where there is none."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from gpufleet.commands.systemd import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, as a file and in the abstract namespace, with its NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@gpufleet-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        receiver.settimeout(20)
        yield receiver, name


def test_what_happens_is_told_to_the_manager(manager: tuple[socket.socket, str]) -> None:
    """Type=notify units become active when the endpoint answers."""
    receiver, name = manager
    supervisor = Supervisor({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"}, 7)
    supervisor.ready()
    supervisor.alive()
    supervisor.status("8 GPUs")
    supervisor.stopping()
    assert [receiver.recv(100) for _ in range(4)] == [b"READY=1", b"WATCHDOG=1", b"STATUS=8 GPUs", b"STOPPING=1"]


def test_without_a_manager_nothing_is_said() -> None:
    """Started by hand, or in a container."""
    supervisor = Supervisor({"WATCHDOG_USEC": "1000"}, 7)
    supervisor.ready()
    supervisor.alive()
    assert supervisor.watchdog_seconds is None


def test_a_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    """systemd is re-executed now and then; its socket is away for a moment."""
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "none")}, 7).ready()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_this_processes_or_none(environ: dict[str, str], seconds: float | None) -> None:
    """A child inherits the variables and must not speak for its parent."""
    assert Supervisor({"NOTIFY_SOCKET": "@x", **environ}, 7).watchdog_seconds == seconds
