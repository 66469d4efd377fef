"""The poll thread: its pace, what it publishes, and what it outlives."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import PollerOptions, World
from gpufleet.collect.poller import GRACE_SECONDS, SECOND_SAMPLE_SECONDS, Poller
from gpufleet.model.readings import Key
from gpufleet.model.snapshot import Snapshot, SourceHealth
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from tests.support.poller_rig import OPTIONS, ScriptedRig, all_report, keys, rig_on_script, states, values

SM = Key("sm_active_ratio")


def hopper(count: int = 4, options: PollerOptions = OPTIONS) -> ScriptedRig:
    """GPUs that all measure activity."""
    return rig_on_script(uniform("h100-80gb-hbm3", count), options)


# --- pace -------------------------------------------------------------------------------------------------------------
def test_there_is_a_snapshot_before_the_first_poll() -> None:
    """A scrape that comes first is answered, and told that nothing is known yet."""
    driver = ScriptedDriver(uniform("t4", 1))
    poller = Poller(PollerOptions(node="node-1"), World(lambda: driver), Numbers(None, None))

    first = poller.latest

    assert (first.sequence, first.gpus, first.nvml_state, first.poll.polls) == (0, (), "no_driver", 0)
    assert first.reason == "the driver has not been asked yet"


def test_all_gpus_are_there_without_any_time_gone_by() -> None:
    """Opening, numbering and the first poll follow each other at once."""
    with hopper(8) as rig:
        assert rig.clock.now == 0.0
        assert all_report(rig.latest, 8)
        assert [gpu.number for gpu in rig.latest.gpus] == list(range(8))


def test_activity_is_there_200_ms_after_the_start() -> None:
    """It needs two samples; the second is not waited for a whole interval."""
    with hopper() as rig:
        assert all(SM not in keys(gpu) for gpu in rig.latest.gpus)
        rig.advance(SECOND_SAMPLE_SECONDS - 0.01)
        rig.rest()
        assert all(SM not in keys(gpu) for gpu in rig.latest.gpus)
        rig.advance(0.01)
        rig.rest()
        assert all(SM in keys(gpu) for gpu in rig.latest.gpus)


def test_parts_without_activity_are_polled_at_their_interval_from_the_start() -> None:
    """There is no second sample to hurry for."""
    with rig_on_script(uniform("t4", 2)) as rig:
        polls = rig.latest.poll.polls
        rig.advance(0.5)
        rig.rest()
        assert rig.latest.poll.polls == polls
        rig.advance(0.5)
        rig.rest()
        assert rig.latest.poll.polls == polls + 1


@pytest.mark.parametrize("interval", [0.1, 1.0, 60.0])
def test_polls_keep_their_pace(interval: float) -> None:
    """One each interval, however the clock's steps fall."""
    with hopper(2, replace(OPTIONS, interval=interval, deadline=min(interval, 1.0))) as rig:
        rig.poll(2)
        polls, begun = rig.latest.poll.polls, rig.clock.now
        while rig.clock.now < begun + 10 * interval - 1e-9:
            rig.advance(interval / 4)
            rig.rest()
        assert rig.latest.poll.polls - polls in (9, 10, 11)


def test_activity_does_not_flicker_at_100_ms() -> None:
    """Samples may not be closer than that, and polls are sometimes a hair early."""
    with hopper(2, replace(OPTIONS, interval=0.1, deadline=0.1)) as rig:
        rig.advance(SECOND_SAMPLE_SECONDS)
        rig.rest()
        for step in range(40):
            rig.advance(0.0995 if step % 2 else 0.1005)
            rig.rest()
            assert all(SM in keys(gpu) for gpu in rig.latest.gpus)


# --- publishing -------------------------------------------------------------------------------------------------------
def test_what_is_read_is_shown_before_the_deadline_of_a_gpu_that_hangs() -> None:
    """After a moment of grace; the one that is waited for shows what it said an interval ago."""
    with hopper() as rig:
        rig.poll(2)
        hang = rig.driver_is.hang(2, "nvmlDeviceGetTemperatureV")
        begun = len(rig.history)
        before = rig.latest.gpus[2].polled_at
        rig.poll()

        assert [publication.whole for publication in rig.history[begun : begun + 2]] == [False, True]
        early, late = (publication.snapshot for publication in rig.history[begun : begun + 2])
        assert early.at - rig.clock.wall() <= 0
        assert (early.gpus[2].state, early.gpus[2].polled_at) == ("ok", before)
        assert all(gpu.polled_at != before for gpu in early.gpus if gpu.number != 2)
        assert early.poll.duration_seconds == pytest.approx(GRACE_SECONDS, abs=0.02)
        assert late.gpus[2].state == "hung"
        assert early.poll.polls == late.poll.polls - 1
        rig.driver_is.unhang(hang)


def test_snapshots_are_numbered_and_never_change() -> None:
    """Each is a new one; who holds an old one holds what was true then."""
    with hopper() as rig:
        first = rig.latest
        parts = [values(gpu.parts) for gpu in first.gpus]
        rig.poll(3)
        numbers = [publication.snapshot.sequence for publication in rig.history]
        assert numbers == sorted(set(numbers))
        assert rig.latest is not first
        assert [values(gpu.parts) for gpu in first.gpus] == parts


def test_a_subscriber_that_fails_costs_nobody_else_anything(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is called, and polls go on."""
    driver = ScriptedDriver(uniform("t4", 1))
    poller = Poller(replace(OPTIONS, interval=0.1), World(lambda: driver), Numbers(None, None))
    heard: list[Snapshot] = []
    enough = threading.Event()

    def fail(_: Snapshot) -> None:
        raise RuntimeError("no")

    def hear(snapshot: Snapshot) -> None:
        heard.append(snapshot)
        if len(heard) >= 3:
            enough.set()

    poller.subscribe(fail)
    poller.subscribe(hear)
    poller.start()

    assert enough.wait(30)
    assert poller.stop()
    assert "a subscriber failed" in caplog.text


def test_the_node_is_named_once_a_session() -> None:
    """Who it is, and that it is simulated where it is."""
    with hopper(1) as rig:
        node = rig.latest.node
        assert (node.node, node.boot_id, node.simulated) == ("node-1", "boot", True)
        assert (node.driver_version, node.cuda_version) == ("580.95.05", "13.0")
        assert rig.poll(2).node is node


def test_the_kernel_knows_of_gpus_that_the_driver_does_not_list() -> None:
    """They are expected, and not visible."""
    addresses = frozenset(f"0000:{bus:02x}:00.0" for bus in range(9))
    with rig_on_script(uniform("t4", 8), world=lambda world: replace(world, kernel_gpus=lambda: addresses)) as rig:
        assert (rig.latest.gpus_expected, rig.latest.gpus_visible) == (9, 8)


def test_sources_that_others_look_after_are_passed_on() -> None:
    """Beside those of the driver."""
    other = SourceHealth("udev", up=False, reason="no socket")
    with rig_on_script(uniform("t4", 1), world=lambda world: replace(world, other_sources=lambda: (other,))) as rig:
        assert [source.source for source in rig.poll().sources] == ["nvml", "nvml_events", "udev"]
        assert rig.latest.sources[-1] is other


def test_a_driver_without_gpus_is_a_state_of_its_own() -> None:
    """All is well, and there is nothing to read."""
    with rig_on_script([]) as rig:
        rig.poll(2)
        assert (rig.latest.nvml_state, rig.latest.gpus, rig.latest.gpus_expected) == ("no_gpu", (), None)
        assert rig.latest.reason == "the driver is loaded and lists no GPU"
        assert rig.latest.sources[0].up


# --- what it outlives -------------------------------------------------------------------------------------------------
def test_an_error_of_ours_in_a_worker_costs_one_poll_of_one_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with its traceback; the GPU is neither lost for ever nor taken to hang."""
    with hopper() as rig:
        rig.poll(2)
        device = rig.poller._roster._ordered[1].device
        assert device is not None
        plan, device.plan = device.plan, None  # type: ignore[assignment]
        rig.poll()
        assert states(rig.latest) == ["ok", "lost", "ok", "ok"]
        device.plan = plan
        rig.poll()
        assert all_report(rig.latest, 4)
    assert "a GPU could not be read" in caplog.text
    assert "AttributeError" in caplog.text


def test_an_error_of_ours_in_the_gpm_thread_costs_one_poll_of_one_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on with the others."""
    with hopper() as rig:
        rig.poll(2)
        device = rig.poller._roster._ordered[1].device
        assert device is not None
        assert device.gpm is not None
        device.gpm._samples = None  # type: ignore[assignment]
        rig.poll()
        assert states(rig.latest) == ["ok", "lost", "ok", "ok"]
        device.gpm._samples = []
        rig.poll(3)
        assert all(SM in keys(gpu) for gpu in rig.latest.gpus)
    assert "activity could not be sampled" in caplog.text


def test_a_message_that_fails_does_not_end_the_poll_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Everything else depends on it."""
    with hopper() as rig:
        rig.poller._inbox.put(lambda: 1 // 0)  # type: ignore[arg-type]
        rig.poll()
        assert all_report(rig.latest, 4)
    assert "a message could not be handled" in caplog.text


@pytest.mark.parametrize("broken", ["kernel_gpus", "driver_loaded", "can_open_devices", "open_driver"])
def test_surroundings_that_fail_are_no_hang(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """The driver is taken to be away, with the reason, until they are well again."""
    well = threading.Event()

    def fail_at_first(*_: object) -> None:
        if not well.is_set():
            raise OSError("no such file")

    def world(surroundings: World) -> World:
        original = getattr(surroundings, broken)

        def call() -> object:
            fail_at_first()
            return original()

        return replace(surroundings, **{broken: call})  # type: ignore[arg-type]

    rig = rig_on_script(uniform("t4", 2), world=world)
    if broken == "open_driver":
        driver = rig.driver_is

        def open_driver() -> ScriptedDriver:
            fail_at_first()
            return driver

        rig = replace(rig, driver=open_driver)
    if broken == "can_open_devices":
        rig.driver_is.set_return("nvmlInitWithFlags", 999)
    with rig:
        rig.poll(7)
        assert rig.latest.nvml_state == "no_driver"
        assert "no such file" in (rig.latest.reason or "")
        well.set()
        rig.driver_is.set_return("nvmlInitWithFlags", None)
        rig.poll()
        assert all_report(rig.latest, 2)
    assert "the driver could not be opened" in caplog.text


def test_a_stop_ends_its_threads() -> None:
    """Workers, the GPM thread, the library's lane, the event thread and the poll thread."""
    before = set(threading.enumerate())
    with hopper() as rig:
        rig.poll(2)
        own = set(threading.enumerate()) - before
        assert {"poll", "gpm", "nvml", "nvml-events", "gpu"} <= {thread.name for thread in own}
        assert rig.stop()
        for thread in own:
            thread.join(10)
            assert not thread.is_alive(), thread.name


def test_one_line_is_logged_for_a_failure_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """And one when it is over."""
    caplog.set_level(logging.INFO)
    with hopper() as rig:
        rig.poll()
        rig.driver_is.set_down(1, 16)
        rig.poll(40)
        rig.driver_is.set_down(1, 0)
        rig.poll(31)
        assert all_report(rig.latest, 4)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("a GPU does not answer") == 1
    assert said.count("the GPU answers again") == 1
