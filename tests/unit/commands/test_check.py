"""``gpufleet check``: whom it asks, what it prints, and when it gives up."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpufleet.collect.control import ControlSocket
from gpufleet.commands.check import main
from gpufleet.commands.faults_control import FaultCommands
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import NvmlState
from tests.support.fault_rig import FaultRig, uuid


class Served:
    """An exporter's answers about a node that a test makes ill."""

    def __init__(self, path: Path) -> None:
        self.rig = FaultRig(gpus=2)
        self.path = path
        self.age = 0.2
        commands = FaultCommands(
            latest=self.snapshot,
            faults=self.rig.ledger.view,
            clear=lambda _: False,
            interval=1.0,
            monotonic=lambda: self.rig.now + self.age,
        )
        self.socket = ControlSocket(path, commands.plain, commands.with_arguments)
        self.socket.start()

    def snapshot(self) -> Snapshot:
        """The GPUs as they are now."""
        gpus = tuple(gpu.snapshot(self.rig.now) for gpu in self.rig.gpus)
        return Snapshot(1, self.rig.now, self.rig.now, NodeIdentity("node-1"), NvmlState.OK, gpus, len(gpus))

    def check(self, *arguments: str) -> int:
        """Run the command against it."""
        return main([f"--control.socket={self.path}", "--nvml.library=/nowhere/libnvidia-ml.so.1", *arguments])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An exporter of two healthy GPUs; the driver can't be reached past it."""
    served = Served(tmp_path / "control.sock")
    yield served
    served.socket.stop()


def test_a_healthy_node_is_status_0_and_the_driver_is_not_touched(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exporter holds the GPUs already; one more session would wake or block them."""
    assert served.check() == 0
    assert capsys.readouterr().out == (
        f"healthy: 2 GPUs\nGPU 0  healthy  {uuid(0)} 0000:10:00.0\nGPU 1  healthy  {uuid(1)} 0000:11:00.0\n"
    )


def test_a_fault_of_one_gpu_is_status_2_unless_another_was_asked_for(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prolog asks for the GPUs of its job."""
    served.rig.xid(79, "GPU has fallen off the bus.", gpu=1)
    assert served.check() == 2
    assert capsys.readouterr().out.splitlines()[0] == "unfit: GPU 1: Xid 79, hardware; reboot the node"
    assert [served.check(f"--gpu={names}") for names in ("0", "1", "0,1", uuid(1), f"{uuid(0)}, 9")] == [0, 2, 2, 2, 2]


def test_a_reset_that_is_due_is_status_1(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The node goes on working, and somebody knows."""
    served.rig.gpus[1].pending = 1
    assert served.check() == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "degraded: GPU 1: row remapping pending: reset the GPU when it is idle"
    )


def test_json_is_one_object(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """With who looked, and the exit status in it."""
    served.age = 60.0
    assert served.check("--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["exit"], told["source"], told["notes"]) == (1, "exporter", [])
    assert told["node"]["findings"][0]["words"] == "the exporter's last poll was 60 seconds ago"


def test_without_an_exporter_it_looks_itself_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict then rests on less."""
    flags = [
        f"--control.socket={tmp_path / 'none.sock'}",
        f"--state.dir={tmp_path / 'state'}",
        f"--path.procfs={tmp_path}",
        "--nvml.library=/nowhere/libnvidia-ml.so.1",
    ]
    assert main(flags) == 2
    first, _, *notes = capsys.readouterr().out.splitlines()
    assert first.startswith("unfit: driver: no library: /nowhere/libnvidia-ml.so.1 can't be loaded")
    assert notes == [
        f"note: looked through the driver, since no exporter answers ({tmp_path}/none.sock: is not there)",
        f"note: no exporter has kept incidents in {tmp_path}/state; what the kernel's log says is not known",
    ]
    assert main([*flags, "--missing-ok"]) == 0
    assert capsys.readouterr().out.startswith("healthy: no GPU here, as is allowed: no library: ")


def test_an_exporter_that_does_not_answer_is_waited_for_no_longer_than_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped process must not hang the scheduler's check."""
    path = tmp_path / "control.sock"
    with closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind(str(path))
        silent.listen()
        began = time.monotonic()
        status = main(
            [
                f"--control.socket={path}",
                f"--state.dir={tmp_path}",
                "--nvml.library=/nowhere/libnvidia-ml.so.1",
                "--timeout=500ms",
            ]
        )
        took = time.monotonic() - began
    assert status == 2
    assert took < 10
    assert f"{path}: no answer within 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "refusal"),
    [
        ("--timeout=5", "--timeout: '5' is no duration; write it as 5s or 1m30s"),
        ("--timeout=1h", "--timeout: 1h is out of range; from 100ms to 5m"),
        ("--gpu=", "--gpu: is empty; name a GPU, or leave it out for all"),
        ("--gpus=1", "--gpus is no flag of gpufleet check; did you mean --gpu?"),
    ],
)
def test_a_flag_that_can_not_be_meant_is_refused(flag: str, refusal: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty variable of a prolog must not check nothing and pass, and a typing error must not say unfit."""
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 3
    assert capsys.readouterr().err == f"gpufleet check: {refusal}\n"


def test_a_configuration_that_is_refused_takes_no_node_out_of_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have been rolled out to a whole cluster."""
    file = tmp_path / "gpufleet.yml"
    file.write_text("poll: {intervall: 5s}\n")
    with pytest.raises(SystemExit) as ended:
        main([f"--config.file={file}"])
    assert ended.value.code == 3
    assert "did you mean poll.interval?" in capsys.readouterr().err


def test_the_recipes_for_schedulers_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """What each of them makes of an exit status differs, so it is written down where one looks first."""
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for word in ("HealthCheckProgram", "Prolog", "Epilog", "node-problem-detector", "[ $? -ne 2 ]"):
        assert word in said
