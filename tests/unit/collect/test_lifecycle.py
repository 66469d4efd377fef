"""The library's life, under a poll thread that is played by the test."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

import pytest

from gpufleet.collect.lanes import Job
from gpufleet.collect.lifecycle import OPEN_DEADLINE_SECONDS, RETRY_SECONDS, SURVEY_SECONDS, Lifecycle, Opened, Phase
from gpufleet.collect.options import World
from gpufleet.model.state import NvmlState
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import NOT_SUPPORTED
from tests.support.poller_rig import EPOCH, HandClock
from tests.waiting import until


class Played:
    """A lifecycle, its driver, and the messages that it posts."""

    def __init__(self) -> None:
        """A driver that has no events: waits for them take real time."""
        self.clock = HandClock()
        self.driver = ScriptedDriver(uniform("t4", 2), clock=self.clock, started_at=EPOCH)
        self.driver.set_return("nvmlEventSetCreate", NOT_SUPPORTED)
        self.kernel: frozenset[str] = frozenset()
        self.loaded: bool | None = True
        self.out = False
        self.posted: deque[Job] = deque()
        self.opened: list[Opened] = []
        world = World(
            lambda: self.driver,
            kernel_gpus=lambda: self.kernel,
            driver_loaded=lambda: self.loaded,
            monotonic=self.clock,
        )
        self.life = Lifecycle(world, self.posted.append, lambda _: None, lambda: self.out)

    def handle(self) -> None:
        """Wait for a message, and take in all that there are."""
        until(lambda: bool(self.posted), "a message comes", every=0.001)
        while self.posted:
            self.posted.popleft()()

    def open(self) -> None:
        """Open a session, or fail to."""
        assert self.life.due(self.clock.now)
        self.life.open(self.clock.now, self.opened.append)
        assert not self.life.due(self.clock.now)
        self.handle()

    def survey(self) -> None:
        """Look for GPUs that came or went."""
        self.clock.now += SURVEY_SECONDS
        self.life.tick(self.clock.now)
        self.handle()

    def close(self) -> None:
        """Give everything back."""
        until(lambda: self.life.events_ended, "nobody waits for events", every=0.001)
        closed: list[bool] = []
        self.life.close([], lambda: closed.append(True))
        until(lambda: bool(self.posted) or closed, "it is closed", every=0.001)
        while not closed:
            self.handle()

    def phase(self) -> Phase:
        """Where it is."""
        return self.life.phase


@pytest.fixture
def played() -> Played:
    """Nothing is open yet."""
    return Played()


def test_a_session_is_opened_whole(played: Played) -> None:
    """Devices, events and what the kernel knows; the state says that the driver answers."""
    played.driver.set_return("nvmlEventSetCreate", None)
    played.kernel = frozenset({"0000:1b:00.0"})
    assert (played.life.state, played.life.reason) == (NvmlState.NO_DRIVER, "the driver has not been asked yet")

    played.open()

    assert played.phase() is Phase.OPEN
    (opened,) = played.opened
    assert (opened.count, opened.kernel_gpus, opened.event_set is not None) == (2, played.kernel, True)
    assert (str(played.life.state), played.life.reason) == ("ok", None)
    assert (played.life.versions.driver, played.life.simulated) == ("580.95.05", True)
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_attempts_keep_their_distance(played: Played) -> None:
    """Counted from the beginning of one, so that polls a second apart make one each."""
    played.driver.unload()
    played.loaded = None
    played.open()
    assert played.life.state is NvmlState.NO_DRIVER
    assert not played.life.due(RETRY_SECONDS - 0.01)
    assert played.life.due(RETRY_SECONDS)


def test_an_unload_is_not_undone_by_opening(played: Played) -> None:
    """nvmlInit may have the module loaded again, against an administrator who is just unloading it."""
    played.open()
    played.life.end(NvmlState.NO_DRIVER, "gone")
    played.close()
    sessions = played.driver._sessions
    played.loaded = False
    played.open()
    assert (played.life.reason, played.driver._sessions) == ("the kernel module nvidia was unloaded", sessions)

    played.loaded = True
    played.clock.now += RETRY_SECONDS
    played.open()
    assert played.phase() is Phase.OPEN
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_a_driver_that_was_never_there_may_be_loaded_by_opening(played: Played) -> None:
    """Without a display nobody else loads it."""
    played.loaded = False
    played.open()
    assert played.phase() is Phase.OPEN
    played.life.end(NvmlState.OK, "done")
    played.close()


@pytest.mark.parametrize("out", [False, True])
def test_a_gpu_that_came_begins_a_new_session_unless_a_call_is_out(played: Played, out: bool) -> None:
    """NVML lists the GPUs as of nvmlInit. With a call out nothing can be closed, so the polls are not stopped."""
    played.open()
    played.survey()
    assert played.phase() is Phase.OPEN
    played.out, played.kernel = out, frozenset({"0000:1b:00.0"})
    played.survey()
    assert played.phase() is (Phase.OPEN if out else Phase.ENDING)
    if out:
        played.out = False
        played.survey()
        assert played.phase() is Phase.ENDING
    assert played.life.reason == "GPUs came or went: the driver is opened anew"
    played.close()
    assert played.life.due(played.clock.now)


def test_a_survey_that_fails_ends_the_session(played: Played) -> None:
    """The library went while no GPU was asked."""
    played.open()
    played.driver.unload()
    played.survey()
    assert (played.phase(), played.life.state) == (Phase.ENDING, NvmlState.NO_DRIVER)
    played.close()


def test_a_survey_that_our_surroundings_fail_changes_nothing(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    """A mistake of ours is no reason to let go of the driver."""
    played.open()

    def fail() -> frozenset[str]:
        raise OSError("no such file")

    played.life._world = replace(played.life._world, kernel_gpus=fail)
    played.survey()
    assert played.phase() is Phase.OPEN
    assert "GPUs that came or went could not be looked for" in caplog.text
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_the_kernel_s_word_brings_the_look_forward(played: Played) -> None:
    """Within a poll instead of within ten seconds."""
    played.open()
    looks = []
    for hurry in (False, True):
        if hurry:
            played.life.survey_now()
        played.life.tick(played.clock.now + 1)
        looks.append(played.life.surveying)
    assert looks == [False, True]
    played.handle()
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_a_library_that_hangs_is_named_after_a_while(played: Played) -> None:
    """Without persistence mode opening takes seconds: that is not yet a hang."""
    hang = played.driver.hang(function="nvmlInitWithFlags")
    played.life.open(0.0, played.opened.append)
    played.life.tick(OPEN_DEADLINE_SECONDS)
    assert played.life.overdue(OPEN_DEADLINE_SECONDS) is None
    played.life.tick(OPEN_DEADLINE_SECONDS + 0.1)
    assert str(played.life.state) == "hung"
    assert played.life.overdue(OPEN_DEADLINE_SECONDS + 0.1) == "nvmlInit"
    assert "nvmlInit" in (played.life.reason or "")

    played.driver.unhang(hang)
    played.handle()
    assert str(played.life.state) == "ok"
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_letting_go_while_it_is_opened_closes_what_was_opened(played: Played) -> None:
    """Its GPUs are never opened, and nothing is called a failure."""
    hang = played.driver.hang(function="nvmlInitWithFlags")
    played.life.open(0.0, played.opened.append)
    played.life.let_go()
    played.driver.unhang(hang)
    played.handle()
    assert (played.phase(), played.opened) == (Phase.ENDING, [])
    assert played.life.state is NvmlState.OK
    played.close()
    assert played.driver._session.references == 0


def test_staying_goes_on_with_the_same_session_and_its_events(played: Played) -> None:
    """Also when the thread that waits for them had ended by then."""
    played.driver.set_return("nvmlEventSetCreate", None)
    played.open()
    played.life.let_go()
    until(lambda: played.life.events_ended, "the event thread ends", every=0.001)
    played.life.stay()
    assert (played.phase(), played.life.reason) == (Phase.OPEN, None)
    played.life.tick(played.clock.now)
    assert played.life.events is not None
    assert not played.life.events_ended
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_a_platform_without_events_is_opened_all_the_same(played: Played) -> None:
    """WSL2."""
    played.open()
    assert played.opened[0].event_set is None
    assert played.life.events is None
    assert played.life.events_ended
    played.life.end(NvmlState.OK, "done")
    played.close()


def test_a_session_that_ends_for_good_reason_is_no_failure(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is called up for a GPU that was added."""
    caplog.set_level(logging.INFO)
    played.open()
    played.life.end(NvmlState.OK, "GPUs came or went: the driver is opened anew")
    assert [record.levelname for record in caplog.records if "can't be used" in record.getMessage()] == []
    assert "the driver is closed" in caplog.text
    played.close()
