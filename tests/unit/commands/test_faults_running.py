"""``gpufleet faults list`` and ``clear`` against an exporter's control socket with a ledger behind it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet import __version__
from gpufleet.collect.control import ControlSocket
from gpufleet.commands.faults import main
from gpufleet.commands.faults_control import FaultCommands
from gpufleet.model.incident import FaultsView
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import NvmlState
from tests.support.fault_rig import FaultRig, uuid

SNAPSHOT = Snapshot(1, 0.0, 0.0, NodeIdentity("node-1"), NvmlState.OK)


class Served:
    """An exporter's answers about a ledger that a test feeds."""

    def __init__(self, path: Path) -> None:
        self.rig = FaultRig()
        self.flag = f"--control.socket={path}"
        commands = FaultCommands(
            latest=lambda: SNAPSHOT,
            faults=lambda: self.view or self.rig.ledger.view(),
            clear=lambda incident: self.rig.ledger.clear(incident, self.rig.now),
            interval=1.0,
        )
        self.view: FaultsView | None = None
        self.socket = ControlSocket(path, commands.plain, commands.with_arguments)
        self.socket.start()

    def faults(self, *arguments: str) -> int:
        """Run a command against it."""
        return main([*arguments, self.flag])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An exporter of eight healthy GPUs."""
    served = Served(tmp_path / "control.sock")
    yield served
    served.socket.stop()


def test_a_node_without_incidents_says_so(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Silence could be a command that failed."""
    assert served.faults("list") == 0
    assert capsys.readouterr().out == "No incident open.\n"


def test_open_incidents_are_explained_and_an_isolating_one_is_the_status(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exporter knows number, UUID and node."""
    served.rig.xid(79, "GPU has fallen off the bus.", gpu=3)
    served.rig.xid(31, "pid=7, name=train, Ch 8, MMU Fault", gpu=5)
    assert served.faults("list") == 1
    out = capsys.readouterr().out
    assert out.startswith("GPU 3 at 0000:13:00.0 of node-1: Xid 79, hardware; reboot the node, no work until then\n")
    assert f"  Board: {uuid(3)}\n" in out
    assert "\n\nNot certain yet: GPU 5 at 0000:15:00.0 of node-1: Xid 31, the program's own fault" in out
    assert out.endswith(
        "\n\n1 incident open; must not get work: GPU 3 at 0000:13:00.0 of node-1 (Xid 79, hardware; reboot the node).\n"
    )


def test_what_keeps_no_gpu_from_work_is_status_0(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """As for a saved log."""
    served.rig.xid(31, "pid=7, name=train, Ch 8, MMU Fault", gpu=5, after=0)
    served.rig.wait(40)
    assert served.faults("list") == 0
    assert capsys.readouterr().out.endswith("\n\n1 incident open.\n")


def test_json_has_every_incident_with_its_times(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The same objects as for a saved log."""
    served.rig.xid(79, gpu=3)
    assert served.faults("list", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"active", "settling"}
    (incident,) = told["active"]
    assert (incident["fault"], incident["gpu"], incident["clock"]) == ("79", 3, "unix")
    assert incident["incident"] == served.rig.ledger.view().active[0].id


def test_a_cleared_incident_is_over_and_its_name_is_logged(
    served: Served, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Who decided that a node goes back to work can be read later."""
    caplog.set_level(logging.INFO)
    served.rig.xid(79, gpu=3)
    name = served.rig.ledger.view().active[0].id
    assert served.faults("clear", name) == 0
    assert capsys.readouterr().out == f"cleared {name}\n"
    assert served.rig.ledger.view().active == ()
    said = [vars(record).get("incident") for record in caplog.records if "cleared by a person" in record.getMessage()]
    assert said == [name]
    assert served.faults("list", "--closed") == 0
    assert "closed" in (out := capsys.readouterr().out)
    assert ": cleared by a person\n" in out
    served.faults("list")
    assert capsys.readouterr().out == "No incident open; 1 over, see --closed.\n"


def test_clearing_what_is_not_open_is_said_and_the_others_are_cleared(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in a script must not look like success."""
    served.rig.xid(79, gpu=3)
    name = served.rig.ledger.view().active[0].id
    assert served.faults("clear", "0123456789abcdef", name) == 1
    told = capsys.readouterr()
    assert told.out == f"cleared {name}\n"
    assert told.err == (
        "gpufleet faults clear: no incident 0123456789abcdef is open; gpufleet faults list tells which are\n"
    )


def test_all_clears_what_is_shown_and_what_is_not_yet(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """After a repair everything begins anew."""
    served.rig.xid(79, gpu=3)
    served.rig.xid(31, "pid=7, name=train, Ch 8, MMU Fault", gpu=5)
    assert served.faults("clear", "--all") == 0
    assert capsys.readouterr().out.count("cleared ") == 2
    assert (served.rig.ledger.view().active, served.rig.ledger.view().settling) == ((), ())
    assert served.faults("clear", "--all") == 0
    assert capsys.readouterr().out == "no incident is open\n"


@pytest.mark.parametrize("arguments", [[], ["--all", "0123456789abcdef"]])
def test_clear_needs_a_name_or_all(served: Served, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is cleared by accident."""
    with pytest.raises(SystemExit) as ended:
        served.faults("clear", *arguments)
    assert ended.value.code == 2
    assert "name an incident or say --all, one of both" in capsys.readouterr().err


def test_a_log_that_is_still_being_read_is_mentioned(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Right after its start the exporter does not know everything."""
    served.view = replace(served.rig.ledger.view(), xid_errors=None)
    served.faults("list")
    assert "The kernel's log is still being read: there may be more.\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["list"], ["clear", "--all"], ["clear", "0123456789abcdef"]])
def test_without_an_exporter_the_remedy_is_named(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2: nobody was asked."""
    socket = tmp_path / "none.sock"
    with pytest.raises(SystemExit) as ended:
        main([*command, f"--control.socket={socket}"])
    assert ended.value.code == 2
    program = f"gpufleet faults {command[0]}"
    assert capsys.readouterr().err == (
        f"{program}: {socket}: is not there\n"
        f"{program}: no exporter was reached; is one running here, and with the same --control.socket or --state.dir?\n"
    )


@pytest.mark.parametrize(
    "reply",
    [
        {"ok": False, "error": 'send one line such as {"command": "quiesce"}'},
        {"ok": True, "faults": {"active": [], "novelty": 1}},
        {"ok": True},
    ],
)
def test_an_exporter_of_another_version_is_told_from_none(
    tmp_path: Path, reply: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """After an upgrade of the package the old process still runs."""
    path = tmp_path / "control.sock"
    socket = ControlSocket(path, {"faults": lambda: reply})
    socket.start()
    try:
        with pytest.raises(SystemExit) as ended:
            main(["list", f"--control.socket={path}"])
    finally:
        socket.stop()
    assert ended.value.code == 2
    assert f"is it of another version than this {__version__}? Restart it after an upgrade\n" in capsys.readouterr().err


@pytest.mark.parametrize("incident", [None, 7, "", "x" * 65])
def test_a_request_without_a_name_is_refused(incident: object) -> None:
    """The socket is open to root only, and still nothing of it is taken on trust."""
    commands = FaultCommands(latest=lambda: SNAPSHOT, faults=FaultsView, clear=lambda _: True, interval=1.0)
    assert commands.with_arguments["clear"]({"command": "clear", "incident": incident})["ok"] is False
