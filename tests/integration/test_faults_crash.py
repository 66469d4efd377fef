"""Faults outlive the process, the log's ring, and where they have to, the boot."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.exporter_process import ExporterProcess
from tests.integration.faulty_node import (
    FaultyNode,
    Shown,
    known,
    see,
    wait_for_count,
    wait_for_replay,
    wait_for_roots,
)
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.kmsg_records import RecordFile
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

ROW_REMAP_FAILURE = 145
"""NVML_FI_DEV_REMAPPED_FAILURE."""


@pytest.fixture
def node(fake_nvml: FakeNvml, tmp_path: Path) -> FaultyNode:
    """Eight H100 and an empty log, which every process reads from its beginning."""
    fake_nvml.set_gpus(8)
    return FaultyNode(fake_nvml, tmp_path, RecordFile(tmp_path / "kmsg"))


def kill(exporter: ExporterProcess) -> None:
    """SIGKILL."""
    exporter.process.kill()
    exporter.process.wait(30)


class Teller(threading.Thread):
    """Writes faults all the time, by the log and half of them by the driver too."""

    def __init__(self, node: FaultyNode, seed: int) -> None:
        super().__init__(daemon=True)
        self.told: Counter[tuple[str, str]] = Counter()
        self.end = threading.Event()
        self._node = node
        self._chance = random.Random(seed)

    def run(self) -> None:
        chance = self._chance
        while not self.end.wait(chance.expovariate(1 / 0.02)):
            gpu, code = chance.randrange(8), chance.choice((31, 31, 45, 45, 45, 13, 43, 95, 119, 64, 48))
            self._node.xid(code, gpu)
            self.told[str(gpu), str(code)] += 1
            if chance.random() < 0.5:
                self._node.fake.inject_xid(gpu, code)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_that_is_killed_at_any_point_loses_nothing(seed: int, node: FaultyNode) -> None:
    """What was shown keeps its name and its labels, counts never go down, and each fault has counted once."""
    chance = random.Random(seed)
    names: dict[str, dict[str, str]] = {}
    counts: dict[tuple[str, str], float] = {}

    def look(exporter: ExporterProcess) -> None:
        seen = see(exporter)
        for name, labels in seen.incidents.items():
            assert names.setdefault(name, dict(labels)) == labels
        if any(key in seen.xids for key in counts):
            assert {key: seen.xids.get(key, 0) for key in counts if seen.xids.get(key, 0) < counts[key]} == {}
        counts.update(seen.xids)

    teller = Teller(node, seed)
    teller.start()
    for _ in range(8):
        with node.start() as exporter:
            killed_at = time.monotonic() + chance.uniform(0.0, 2.5)
            while time.monotonic() < killed_at:
                look(exporter)
            kill(exporter)
    teller.end.set()
    teller.join()
    assert names
    with node.start() as exporter:
        wait_for_replay(exporter)
        until(lambda: see(exporter).xids == teller.told, "each fault has counted once")
        look(exporter)
        faults = known(exporter)
        assert names.keys() <= {incident["id"] for incident in faults["active"] + faults["closed"]}
        # A driver's event that had lost its twin would count after five seconds.
        node.fake.inject_xid(0, 69)
        wait_for_count(exporter, 0, 69, 1)
        assert see(exporter).xids == {**teller.told, ("0", "69"): 1}


def test_what_is_shown_has_been_written(node: FaultyNode) -> None:
    """Killed as soon as anybody can see it, and the log has forgotten it: the next process has it under its name."""
    shown: dict[str, str] = {}
    for gpu, code in enumerate((79, 64, 95, 119, 62)):
        with node.start() as exporter:
            wait_for_replay(exporter)
            node.xid(code, gpu)
            while (str(gpu), str(code)) not in (seen := see(exporter)).roots():
                assert exporter.process.poll() is None
            kill(exporter)
        assert shown.items() <= dict(of_gpus(seen)).items()
        shown = dict(of_gpus(seen))
        node.log.scroll()
    with node.start() as exporter:
        seen = wait_for_replay(exporter)
        assert dict(of_gpus(seen)) == shown
        assert seen.xids == {("0", "79"): 1, ("1", "64"): 1, ("2", "95"): 1, ("3", "119"): 1, ("4", "62"): 1}


def of_gpus(seen: Shown) -> list[tuple[str, str]]:
    """Incident by number of the GPU."""
    return [(labels["gpu"], name) for name, labels in seen.incidents.items()]


def test_what_happened_while_nobody_looked_is_told_by_the_log(node: FaultyNode) -> None:
    """Before the first process ever, and between two: both are there after the replay, with their GPUs."""
    node.xid(119, 1)
    with node.start() as exporter:
        first = wait_for_replay(exporter)
        assert first.roots() == [("1", "119")]
        kill(exporter)
    node.xid(79, 2)
    node.xid(45, 1)
    with node.start() as exporter:
        second = wait_for_replay(exporter)
        assert second.roots() == [("1", "119"), ("2", "79")]
        assert second.xids == {("1", "119"): 1, ("1", "45"): 1, ("2", "79"): 1}
        assert second.of("119") == first.of("119")


def test_the_state_is_lost_and_the_log_is_not(node: FaultyNode) -> None:
    """The same incident under the same name: it is named after its place in the log."""
    node.xid(119, 1)
    with node.start() as exporter:
        first = wait_for_replay(exporter)
        kill(exporter)
    (node.directory / "state" / "faults.json").write_bytes(b"\0\0\0")
    with node.start() as exporter:
        second = wait_for_replay(exporter)
        (said,) = exporter.said("the kept faults can't be used: beginning anew")
        assert str(said["file"]).endswith("faults.json")
    assert second.incidents == first.incidents
    assert second.xids == first.xids


def test_a_reboot_closes_what_it_cures_and_nothing_else(node: FaultyNode) -> None:
    """A board that has to be replaced is the same incident in the next boot; counts begin anew."""
    with node.start() as exporter:
        wait_for_replay(exporter)
        node.xid(79, 0)
        node.xid(64, 1)
        node.xid(95, 2)
        node.fake.set_field(3, ROW_REMAP_FAILURE, 1)
        before = wait_for_roots(exporter, ("0", "79"), ("1", "64"), ("2", "95"), ("3", "row_remap_failure"))
        kill(exporter)
    node.reboot()
    with node.start() as exporter:
        wait_for_replay(exporter)
        after = wait_for_roots(exporter, ("1", "64"), ("3", "row_remap_failure"))
        assert after.xids == {}
        closed = {incident["fault"]: incident["closed_because"] for incident in known(exporter)["closed"]}
        assert closed["79"] == "the node was rebooted"
        assert "reboot" in closed["95"]
        kill(exporter)
    for fault in ("64", "row_remap_failure"):
        assert after.of(fault) == before.of(fault)
    # What is kept in the board itself has its name from there.
    (node.directory / "state" / "faults.json").unlink()
    node.reboot()
    with node.start() as exporter:
        wait_for_replay(exporter)
        last = wait_for_roots(exporter, ("3", "row_remap_failure"))
        assert last.of("row_remap_failure") == before.of("row_remap_failure")


def test_an_exporter_that_is_stopped_and_started(node: FaultyNode) -> None:
    """As an upgrade does it: nothing changes, and what it shows in between is never less."""
    with node.start() as exporter:
        wait_for_replay(exporter)
        node.xid(119, 1)
        for _ in range(20):
            node.xid(45, 4)
        before = wait_for_count(exporter, 4, 45, 20)
        exporter.process.terminate()
        assert exporter.process.wait(15) == 0
    with node.start() as exporter:
        # Before anything is polled: nobody must take a start for their end.
        assert see(exporter).incidents == before.incidents
        after = wait_for_replay(exporter)
    assert after == before
