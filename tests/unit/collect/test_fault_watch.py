"""The faults thread, turn by turn under a clock that is moved by hand."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from gpufleet.collect.fault_file import WRITE_SECONDS
from gpufleet.collect.fault_watch import FaultOptions, FaultWatch
from gpufleet.faults.ledger import Ledger
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import FaultsView
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import GpuState, NvmlState
from tests.support.fault_rig import START, Gpu, address, uuid
from tests.support.kmsg_records import RecordFile, sxid, xid
from tests.waiting import until

BOOTED = 5_000.0
"""Seconds that the machine is up at START."""


@dataclass
class Process:
    """One exporter's faults, without its threads: killed by being dropped."""

    directory: Path
    kmsg: Path | None
    boot: str = "boot-1"
    now: float = 0.0
    options: FaultOptions = field(init=False)
    shown: list[FaultsView] = field(default_factory=list)
    watch: FaultWatch = field(init=False)
    gpus: list[Gpu] = field(default_factory=lambda: [Gpu(number) for number in range(4)])
    first_poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        self.options = FaultOptions(self.kmsg, False, self.directory, first_poll_seconds=self.first_poll_seconds)
        self.watch = FaultWatch(
            ledger(self.boot, has_log=self.kmsg is not None),
            self.options,
            wall=self.wall,
            monotonic=self.monotonic,
            show=self._show,
        )
        self.watch.load()

    def _show(self, view: FaultsView) -> None:
        self.shown.append(view)

    def wall(self) -> float:
        return START + self.now

    def monotonic(self) -> float:
        return BOOTED + self.now

    def turn(self, after: float = 0.0) -> float | None:
        """Time passes, and the thread wakes; when it wants to wake again at the latest, in seconds from now."""
        self.now += after
        deadline = self.watch._turn()
        return None if deadline is None else deadline - self.wall()

    def poll(self, after: float = 0.0, *, gpus: int | None = None) -> None:
        """A poll is published."""
        self.now += after
        there = self.gpus if gpus is None else self.gpus[:gpus]
        self.watch.observe(
            Snapshot(
                sequence=1,
                at=self.wall(),
                monotonic=self.monotonic(),
                node=NodeIdentity("node-1", self.boot, "580.65.06"),
                nvml_state=NvmlState.OK if there else NvmlState.NO_DRIVER,
                gpus=tuple(gpu.snapshot(self.wall()) for gpu in there),
                gpus_expected=len(there) or None,
            )
        )

    def run(self, seconds: float) -> None:
        """Polls each second, with turns when they are due."""
        end = self.now + seconds
        while self.now < end:
            self.poll()
            wait = self.turn()
            step = min(1.0, end - self.now)
            if wait is not None and wait < step:
                self.turn(after=max(wait, 0.001))
                step = max(0.0, step - max(wait, 0.001))
            self.now += step

    def nvml(self, code: int, gpu: int = 0) -> None:
        """The driver's own event."""
        self.watch.feed(FaultEvent(FaultKind.XID, self.wall(), "nvml", address(gpu), code))

    def active(self) -> dict[str, str]:
        """What is shown: root by incident."""
        return {incident.id: incident.fault for incident in self.watch.view.active}

    def counts(self) -> dict[tuple[str, int | None], int] | None:
        """What is counted, by UUID or address, and code; None: nothing is shown."""
        rows = self.watch.view.xid_errors
        return None if rows is None else {(row.uuid or row.pci_bus_id or "", row.code): row.count for row in rows}

    def state(self) -> dict[str, object]:
        """What is on disk."""
        kept: dict[str, object] = json.loads((self.directory / "faults.json").read_bytes())
        return kept


def ledger(boot: str = "boot-1", *, has_log: bool = True) -> Ledger:
    """One that gives names nobody else gives."""
    return Ledger(node="node-1", boot_id=boot, random_id=lambda: os.urandom(8).hex(), has_log=has_log)


@pytest.fixture
def log(tmp_path: Path) -> RecordFile:
    """An empty log."""
    return RecordFile(tmp_path / "kmsg")


@pytest.fixture
def process(tmp_path: Path, log: RecordFile) -> Process:
    """An exporter that has replayed its log and was polled."""
    process = Process(tmp_path / "state", log.path)
    process.poll()
    process.turn()
    return process


def restarted(process: Process, **changes: object) -> Process:
    """The process was killed, and another one is started in its place."""
    after = replace(process, shown=[], **changes)  # type: ignore[arg-type]
    after.gpus = process.gpus
    return after


# --- written before it is shown ---------------------------------------------------------------------------------------


def test_what_is_shown_is_on_disk(process: Process, log: RecordFile) -> None:
    """At the moment of the showing: a process that is killed then knows the incident by the same name."""
    on_disk: list[FaultsView] = []

    def look(view: FaultsView) -> None:
        again = ledger()
        again.load(process.state(), process.wall())
        again.replay_ended(process.wall())
        on_disk.append(again.view())
        process.shown.append(view)

    process.watch._show = look
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.2)
    assert [incident.fault for incident in process.shown[-1].active] == ["79"]
    assert on_disk[-1].active == process.shown[-1].active
    assert on_disk[-1].xid_errors == process.shown[-1].xid_errors


@pytest.mark.parametrize("seed", range(3))
def test_whenever_it_is_killed_what_was_shown_holds(seed: int, tmp_path: Path) -> None:
    """Incidents keep their names, none is lost, counts never go down, and in the end each fault has counted once."""
    chance = random.Random(seed)
    log = RecordFile(tmp_path / "kmsg")
    process = Process(tmp_path / "state", log.path, first_poll_seconds=0.0)
    process.poll()
    process.turn()
    told: dict[tuple[str, int], int] = {}
    names: dict[str, str] = {}
    over: set[str] = set()
    before: dict[tuple[str, int | None], int] = {}
    for _ in range(400):
        match chance.randrange(8):
            case 0 | 1:
                code, gpu = chance.choice([31, 43, 45, 79, 119, 64, 48, 13]), chance.randrange(4)
                log.say(xid(code, address(gpu)), at=process.monotonic())
                told[uuid(gpu), code] = told.get((uuid(gpu), code), 0) + 1
                if chance.random() < 0.5:
                    process.nvml(code, gpu)
            case 2:
                process.poll(after=0.3)
            case 3:
                process.turn(after=chance.random())
            case 4:
                process.run(chance.choice([1, 7, 40]))
            case 5 if chance.random() < 0.5:
                process = restarted(process)
            case _:
                process.turn()
        seen = process.counts()
        if seen is not None:
            assert all(seen.get(key, 0) >= number for key, number in before.items()), (before, seen)
            before = seen
        for name, fault in process.active().items():
            assert names.setdefault(name, fault) == fault
        over |= {incident.id for incident in process.watch.view.closed}
        assert names.keys() <= process.watch._ledger._docket.open.keys() | over
    process.run(12)
    assert process.counts() == told


def test_counts_alone_are_written_and_shown_once_a_second(process: Process, log: RecordFile) -> None:
    """In a storm of one code the disk isn't asked for each line, and yet nothing is shown that it doesn't have."""
    log.say(xid(45, address(0)), at=process.monotonic())
    process.turn()
    writes = 0
    for _ in range(40):
        log.say(xid(45, address(0)), at=process.monotonic())
        wait = process.turn(after=0.05)
        is_written = process.watch._file._written == (process.watch._ledger.revision, process.watch._ledger.events)
        assert is_written or (wait is not None and wait <= WRITE_SECONDS)
        writes += is_written
        kept = ledger()
        kept.load(process.state(), process.wall())
        kept.replay_ended(process.wall())
        assert process.watch.view.xid_errors == kept.view().xid_errors
    assert 1 <= writes <= 3
    process.turn(after=WRITE_SECONDS)
    assert process.counts() == {(uuid(0), 45): 41}


def test_a_replay_shows_what_was_kept_and_nothing_else(process: Process, log: RecordFile) -> None:
    """Open incidents are there at once, before anything was polled; counts come with the end of the replay."""
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.2)
    shown = process.active()
    log.say(xid(119, address(2)), at=process.monotonic())
    after = restarted(process)
    assert after.active() == shown
    assert after.counts() is None
    after.turn(after=0.1)
    assert after.active() == shown
    after.poll()
    after.turn()
    assert list(after.active().values()) == ["79", "119"]
    assert after.counts() == {(uuid(1), 79): 1, (uuid(2), 119): 1}


def test_a_directory_that_can_not_be_written_costs_the_memory_only(
    tmp_path: Path, log: RecordFile, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, incidents are shown all the same, and what is known is written as soon as it can be."""
    (tmp_path / "state").touch()
    process = Process(tmp_path / "state", log.path)
    process.poll()
    process.turn()
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.1)
    assert list(process.active().values()) == ["79"]
    log.say(xid(45, address(1)), at=process.monotonic())
    process.turn(after=0.1)
    assert process.counts() == {(uuid(1), 79): 1, (uuid(1), 45): 1}
    process.run(5)
    failures = [each for each in caplog.records if "faults can't be kept" in each.getMessage()]
    assert len(failures) == 1
    assert vars(failures[0])["err"]
    (tmp_path / "state").unlink()
    process.run(2)
    assert len([each for each in caplog.records if each.getMessage() == "faults are kept again"]) == 0
    assert restarted(process).active() == process.active()


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"[]", b"null", b'{"version": 7}', b"\xff\xfe", b"9" * 9999])
def test_a_damaged_state_is_said_and_begun_anew(
    content: bytes, tmp_path: Path, log: RecordFile, caplog: pytest.LogCaptureFixture
) -> None:
    """The log still has what it has, under the same names."""
    (tmp_path / "state").mkdir()
    log.say(xid(79, address(1)), at=BOOTED - 60)
    name = Process(tmp_path / "other", log.path, first_poll_seconds=0.0)
    name.turn()
    (tmp_path / "state" / "faults.json").write_bytes(content)
    process = Process(tmp_path / "state", log.path)
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING].count(
        "the kept faults can't be used: beginning anew"
    ) == 1
    process.poll()
    process.turn()
    assert process.active() == name.active() != {}
    assert restarted(process).active() == process.active()


def test_a_missing_state_is_said(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    """Counts begin with what the log still has: whoever wonders finds why."""
    caplog.set_level(logging.INFO)
    (process.directory / "faults.json").unlink(missing_ok=True)
    restarted(process)
    assert "no faults are kept: beginning anew" in caplog.messages


def test_without_a_directory_nothing_is_kept(log: RecordFile, tmp_path: Path) -> None:
    """And everything is shown."""
    watch = FaultWatch(
        ledger(), FaultOptions(log.path, first_poll_seconds=0.0), wall=lambda: START, monotonic=lambda: 9.0
    )
    log.say(xid(79, address(1)), at=8.0)
    watch.load()
    watch._turn()
    assert [incident.fault for incident in watch.view.active] == ["79"]
    assert list(tmp_path.iterdir()) == [log.path]


# --- the first poll ---------------------------------------------------------------------------------------------------


def test_an_incident_of_the_replay_has_its_gpu(tmp_path: Path, log: RecordFile) -> None:
    """Labels are frozen when it is shown, and the log knows no UUID: the replay waits for the first poll."""
    log.say(xid(79, address(2)), at=BOOTED - 60)
    process = Process(tmp_path / "state", log.path)
    process.turn(after=0.5)
    process.poll(gpus=0)
    process.turn(after=0.5)
    assert (process.active(), process.counts()) == ({}, None)
    process.poll()
    process.turn()
    (incident,) = process.watch.view.active
    assert (incident.gpu, incident.uuid) == (2, uuid(2))


def test_a_gpu_that_is_only_remembered_has_its_number_too(tmp_path: Path, log: RecordFile) -> None:
    """It fell off the bus while nobody looked; what is enumerated now holds against what is remembered."""
    log.say(xid(79, address(2)), at=BOOTED - 60)
    process = Process(tmp_path / "state", log.path)
    process.gpus[2].state = GpuState.GONE
    process.poll()
    process.turn()
    (incident,) = process.watch.view.active
    assert (incident.gpu, incident.uuid) == (2, uuid(2))


def test_a_driver_that_hangs_holds_the_replay_up_for_seconds_only(tmp_path: Path, log: RecordFile) -> None:
    """The incident may be the reason that it hangs."""
    log.say(xid(79, address(2)), at=BOOTED - 60)
    process = Process(tmp_path / "state", log.path)
    process.turn(after=4.9)
    assert process.active() == {}
    process.turn(after=0.2)
    assert list(process.active().values()) == ["79"]


def test_a_poll_during_the_replay_comes_after_it(tmp_path: Path, log: RecordFile) -> None:
    """The log names the root of a GPU that is lost by now, and gives the incident its name."""
    log.say(xid(79, address(2)), at=BOOTED - 60)
    alone = Process(tmp_path / "other", log.path, first_poll_seconds=0.0)
    alone.turn()
    process = Process(tmp_path / "state", log.path)
    process.gpus[2].state = GpuState.LOST
    process.poll()
    process.turn()
    process.run(3)
    assert process.active() == alone.active() != {}


# --- the kernel's log -------------------------------------------------------------------------------------------------


def test_a_switch_is_counted_by_its_address(process: Process, log: RecordFile) -> None:
    """The three lines of one SXid count once."""
    log.say(sxid(20034, "0000:c1:00.0", "Fatal, Link 30 LTSSM Fault Up"), at=process.monotonic())
    for more in ("Severity 1 Engine instance 30 Sub-engine instance 00", "Data {0x00000020, 0x00000020}"):
        log.say(sxid(20034, "0000:c1:00.0", more), at=process.monotonic())
    process.turn(after=0.2)
    rows = process.watch.view.switch_errors
    assert rows is not None
    assert [(row.pci_bus_id, row.code, row.count) for row in rows] == [("0000:c1:00.0", 20034, 1)]


def test_a_log_that_is_not_there_is_said_and_opened_later(
    tmp_path: Path, log: RecordFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the driver's own events count at once; afterwards the log doesn't count them again."""
    caplog.set_level(logging.INFO)
    log.path.rename(tmp_path / "away")
    process = Process(tmp_path / "state", log.path)
    process.poll()
    process.turn()
    assert (process.watch.health.up, process.watch.health.source) == (False, "kmsg")
    assert "does not exist" in str(process.watch.health.reason)
    process.nvml(79, gpu=1)
    process.turn(after=0.1)
    assert list(process.active().values()) == ["79"]
    assert process.counts() == {(uuid(1), 79): 1}
    process.run(40)
    (tmp_path / "away").rename(log.path)
    log.say(xid(79, address(1)), at=BOOTED + 0.1)
    log.say(xid(119, address(2)), at=BOOTED + 30)
    process.run(10)
    assert not process.watch.health.up
    process.run(12)
    assert (process.watch.health.up, process.watch.health.reason) == (True, None)
    assert process.counts() == {(uuid(1), 79): 1, (uuid(2), 119): 1}
    assert list(process.active().values()) == ["79", "119"]
    said = [each.getMessage() for each in caplog.records if "log" in each.getMessage()]
    assert said == ["the kernel's log can't be followed", "the kernel's log is followed"]


def test_a_log_that_fails_is_opened_again(process: Process, log: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its beginning: what was taken in already does nothing."""
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.1)
    shown = process.active()
    with monkeypatch.context() as broken:

        def fail(*_: object) -> bytes:
            raise OSError(5, "Input/output error")

        broken.setattr("gpufleet.sources.kmsg.os.read", fail)
        process.turn(after=0.1)
    assert process.watch.health.reason == f"{log.path} can't be read: Input/output error"
    log.say(xid(119, address(2)), at=process.monotonic())
    process.run(61)
    assert process.watch.health.up
    assert process.counts() == {(uuid(1), 79): 1, (uuid(2), 119): 1}
    assert process.active().items() >= shown.items()


def test_a_scripted_node_has_no_log(tmp_path: Path) -> None:
    """Its driver's events count at once, and counts are there from the start."""
    process = Process(tmp_path / "state", None)
    process.poll()
    process.turn()
    assert process.counts() == {}
    process.nvml(79)
    process.turn()
    assert process.counts() == {(uuid(0), 79): 1}


def test_an_overrun_is_said_once_a_minute(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    """The flood that causes it causes many."""
    kernel_log = process.watch._log
    assert kernel_log is not None
    follower = kernel_log._follower
    assert follower is not None
    for _ in range(70):
        follower.overruns += 2
        process.turn(after=1.0)
    said = [vars(each)["times"] for each in caplog.records if "went round" in each.getMessage()]
    assert said == [2, 120]


def test_a_log_clock_that_drifted_opens_no_second_incident(process: Process, log: RecordFile) -> None:
    """An hour behind: the driver's own event of the same fault has its twin all the same, and the time is right."""
    log.say(xid(79, address(1)), at=process.monotonic() - 3600)
    process.nvml(79, gpu=1)
    process.turn(after=0.5)
    process.run(12)
    assert process.counts() == {(uuid(1), 79): 1}
    (incident,) = process.watch.view.active
    assert START <= incident.opened_at <= START + 0.5


def test_a_flood_without_end_does_not_hold_the_counts_back(
    process: Process, log: RecordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is newer than the opening ends the replay."""
    monkeypatch.setattr("gpufleet.sources.kmsg._MOST_AT_ONCE", 1)
    monkeypatch.setattr("gpufleet.sources.kmsg._RECORD_BYTES", 64)
    after = restarted(process)
    after.poll()
    for _ in range(50):
        log.say("eth0: too many of these", at=after.monotonic())
    after.now += 0.1
    log.say(xid(45, address(1)), at=after.monotonic())
    for _ in range(20):
        after.turn()
        assert after.counts() is None
        log.say("eth0: too many of these", at=after.monotonic())
    for _ in range(100):
        log.say("eth0: too many of these", at=after.monotonic())
        after.turn(after=0.01)
        if after.counts() is not None:
            break
    assert after.counts() is not None


# --- other threads ----------------------------------------------------------------------------------------------------


def test_a_cleared_incident_is_cleared_on_disk(process: Process, log: RecordFile) -> None:
    """By the time that the person hears of it: a process that is killed then does not bring it back."""
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.1)
    (name,) = process.active()
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(process.watch.clear(name)))
    asking.start()
    until(lambda: process.watch._jobs, "the question has arrived")
    assert answers == []
    process.turn()
    asking.join(10)
    assert answers == [True]
    assert process.active() == restarted(process).active() == {}


def test_an_incident_that_is_not_there_can_not_be_cleared(process: Process) -> None:
    """And the answer does not wait for anything."""
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(process.watch.clear("0123456789abcdef")))
    asking.start()
    until(lambda: process.watch._jobs, "the question has arrived")
    process.turn()
    asking.join(10)
    assert answers == [False]


def test_a_gpu_that_the_kernel_removes_is_lost(process: Process) -> None:
    """Without a word of the driver."""
    process.watch.device("remove", address(3))
    process.turn()
    assert list(process.active().values()) == ["gpu_lost"]


def test_a_mistake_in_one_turn_costs_no_fault(
    process: Process, log: RecordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came with the fault that nobody could fold is folded in the next turn."""
    feed = process.watch._ledger.feed
    calls = count()

    def stumble(event: FaultEvent, now: float) -> None:
        if next(calls) == 0:
            raise ZeroDivisionError
        feed(event, now)

    monkeypatch.setattr(process.watch._ledger, "feed", stumble)
    for code in (31, 79, 119):
        log.say(xid(code, address(1)), at=process.monotonic())
    with pytest.raises(ZeroDivisionError):
        process.turn(after=0.1)
    process.turn()
    process.turn(after=1)
    assert process.counts() == {(uuid(1), 79): 1, (uuid(1), 119): 1}


def test_each_incident_is_logged_when_it_is_shown_and_when_it_is_over(
    process: Process, log: RecordFile, caplog: pytest.LogCaptureFixture
) -> None:
    """With what a person looks for first."""
    caplog.set_level(logging.INFO)
    log.say(xid(79, address(1)), at=process.monotonic())
    process.turn(after=0.1)
    (name,) = process.active()
    process.watch._ledger.clear(name, process.wall())
    process.turn()
    shown, over = (vars(each) for each in caplog.records if each.name == "gpufleet.collect.fault_watch")
    assert (shown["msg"], shown["levelname"], over["msg"]) == ("a fault is shown", "WARNING", "a fault is over")
    for line in (shown, over):
        facts = [line[key] for key in ("incident", "fault", "class", "action", "isolate", "gpu", "uuid", "pci_bus_id")]
        assert facts == [name, "79", "hardware", "reboot_node", True, 1, uuid(1), address(1)]
    assert over["because"] == "cleared by a person"
