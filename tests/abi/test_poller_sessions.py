"""The poller and the library as a whole: opened, hung, restarted, replaced, let go of and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.collect.lifecycle import Phase
from gpufleet.model.snapshot import Snapshot, SourceHealth
from gpufleet.sources.nvml.session import open_library
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import H100, T4
from tests.support.poller_rig import (
    OPTIONS,
    HeldInFake,
    Rig,
    all_report,
    hold_this_one,
    keys,
    let_go,
    rig_on,
    states,
    world_of,
)

GPUS = 8


@pytest.fixture
def node(fake_nvml: FakeNvml) -> Iterator[Rig]:
    """A poller on a node of eight GPUs, a few polls old."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        yield rig


def source(snapshot: Snapshot, name: str) -> SourceHealth:
    """Health of one source."""
    return next(one for one in snapshot.sources if one.source == name)


# --- hangs of the library itself --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function",
    [
        "nvmlInitWithFlags",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetCount_v2",
        "nvmlEventSetCreate",
    ],
)
def test_a_library_that_hangs_while_it_is_opened_is_a_state(fake_nvml: FakeNvml, function: str) -> None:
    """Snapshots go on, the state says hung and how to read it, and the GPUs are there when the call returns."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.hang(function)
    with rig_on(fake_nvml) as rig:
        rig.poll(7)
        assert rig.latest.nvml_state == "hung"
        assert "has not returned" in (rig.latest.reason or "")
        assert not source(rig.latest, "nvml").up
        before = rig.latest.sequence
        rig.poll(2)
        assert rig.latest.sequence >= before + 2

        fake_nvml.release()
        fake_nvml.wait_until(lambda: rig.poller._lifecycle.phase is Phase.OPEN)
        rig.poll()
        assert (rig.latest.nvml_state, rig.latest.reason) == ("ok", None)
        assert all_report(rig.latest, GPUS)
    assert fake_nvml.counts()["nvmlInitWithFlags", None] == 1


def test_a_stop_does_not_wait_for_a_library_that_hangs(fake_nvml: FakeNvml) -> None:
    """The call is known to hang: no time is spent on it, and the process has to be ended."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.hang("nvmlInitWithFlags")
    with rig_on(fake_nvml) as rig:
        rig.poll(7)
        before = rig.clock.now

        assert rig.quiesce().blocked_by == "nvmlInit"
        assert rig.stop() is False

        assert rig.clock.now == before


def test_a_shutdown_that_hangs_is_named_and_holds_no_scrape(fake_nvml: FakeNvml, node: Rig) -> None:
    """The handles are gone by then: every GPU says so, and the driver is taken up again when the call returns."""
    fake_nvml.hang("nvmlShutdown")
    fake_nvml.restart_driver()
    node.poll(8)
    assert node.latest.nvml_state == "hung"
    assert states(node.latest) == ["gone"] * GPUS
    assert node.quiesce().blocked_by == "nvmlShutdown"

    fake_nvml.release()
    node.poll(2)
    assert all_report(node.latest, GPUS)


def test_a_look_for_gpus_that_hangs_costs_no_gpu(fake_nvml: FakeNvml, node: Rig) -> None:
    """The library is called hung, the GPUs are read on, and a quiesce refuses instead of losing them."""
    fake_nvml.hang("nvmlDeviceGetCount_v2")
    node.poll(20)
    assert node.latest.nvml_state == "hung"
    assert all_report(node.latest, GPUS)

    assert node.quiesce().blocked_by == "nvmlDeviceGetCount"
    node.poll()
    assert all_report(node.latest, GPUS)

    fake_nvml.release()
    node.poll()
    assert node.latest.nvml_state == "ok"


def test_a_wait_for_events_that_hangs_costs_the_events_only(fake_nvml: FakeNvml, node: Rig) -> None:
    """GPUs are read on; the source says that events are not received, for what is not heard can't be counted."""
    node.hear()
    node.poll()
    assert source(node.latest, "nvml_events").up
    fake_nvml.hang("nvmlEventSetWait_v2")
    node.held.hurry(on=True)
    fake_nvml.wait_until_stuck(None)
    node.held.hurry(on=False)
    node.poll(5)
    assert all_report(node.latest, GPUS)
    assert source(node.latest, "nvml_events") == SourceHealth(
        "nvml_events", up=False, reason="nvmlEventSetWait_v2 has not returned"
    )
    assert node.quiesce().blocked_by == "nvmlEventSetWait_v2"
    node.poll()
    assert all_report(node.latest, GPUS)

    fake_nvml.release()
    fake_nvml.wait_until(lambda: fake_nvml.stuck(None) == 0)
    node.hear()
    node.poll()
    assert source(node.latest, "nvml_events").up
    fake_nvml.inject_xid(2, 31)
    fake_nvml.wait_until(lambda: bool(node.poller._world.faults.view.xid_errors))


def test_an_event_set_that_hangs_when_it_is_freed_holds_the_close_only(fake_nvml: FakeNvml, node: Rig) -> None:
    """The driver is not shut down under a call that is out."""
    fake_nvml.hang("nvmlEventSetFree")
    fake_nvml.restart_driver()
    node.poll(8)
    assert node.latest.nvml_state == "hung"
    assert fake_nvml.control.initialized == 1

    fake_nvml.release()
    node.poll(2)
    assert all_report(node.latest, GPUS)


@pytest.mark.parametrize("victim", [0, 4])
def test_a_sample_that_hangs_in_its_allocation_costs_one_gpu(fake_nvml: FakeNvml, victim: int) -> None:
    """Samples belong to no GPU in the driver, but they are made for one: that one is out, the next sampler goes on."""
    fake_nvml.set_gpus(GPUS, [H100 if gpu >= victim else T4 for gpu in range(GPUS)])
    with rig_on(fake_nvml) as rig:
        assert rig.quiesce().ok
        fake_nvml.hang("nvmlGpmSampleAlloc")
        rig.poller.resume()
        hold_this_one(fake_nvml, "nvmlGpmSampleAlloc")
        rig.poll(3)
        assert [number for number, state in enumerate(states(rig.latest)) if state != "ok"] == [victim]
        assert rig.latest.gpus[victim].reason == "nvmlGpmSampleAlloc has not returned"

        let_go(fake_nvml, "nvmlGpmSampleAlloc")
        rig.poll(3)
        assert all_report(rig.latest, GPUS)
        assert "sm_active_ratio" in {key.name for key in keys(rig.latest.gpus[victim])}


def test_a_sample_that_hangs_when_it_is_freed_costs_one_gpu(fake_nvml: FakeNvml) -> None:
    """The samples of slices that are no more are freed by the sampler, one GPU after the other."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_mig(5, ())
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        fake_nvml.hang("nvmlGpmSampleFree")
        fake_nvml.set_mig(5, None)
        device = rig.poller._roster.gpus[fake_nvml.uuid(5)].device
        fake_nvml.wait_until(lambda: device is not None and device._mig_changed)
        rig.poll()
        assert [number for number, state in enumerate(states(rig.latest)) if state != "ok"] == [5]
        assert rig.latest.gpus[5].reason == "nvmlGpmSampleFree has not returned"

        fake_nvml.release()
        fake_nvml.wait_until(lambda: fake_nvml.stuck(None) == 0)
        rig.poll(3)
        assert all_report(rig.latest, GPUS)


# --- the driver's own lock --------------------------------------------------------------------------------------------
def test_a_lock_of_the_whole_driver_is_told_of_every_gpu(fake_nvml: FakeNvml, node: Rig) -> None:
    """Nothing is shown as if it were known, the library is called hung, and a stop does not wait."""
    fake_nvml.hold_all()
    node.poll()
    assert states(node.latest) == ["driver_blocked"] * GPUS
    assert (node.latest.nvml_state, node.latest.gpus_visible) == ("hung", 0)
    assert "no other GPU answers either" in (node.latest.reason or "")
    assert not any(gpu.parts for gpu in node.latest.gpus)
    blocked_by = node.quiesce().blocked_by or ""
    assert all(f"GPU {number} ({fake_nvml.uuid(number)})" in blocked_by for number in range(GPUS))
    assert [fake_nvml.stuck(gpu) for gpu in range(GPUS)] == [1] * GPUS

    fake_nvml.release_all()
    node.poll(2)
    assert all_report(node.latest, GPUS)
    assert node.latest.nvml_state == "ok"


def test_the_gpu_that_hung_first_is_told_from_those_that_it_blocks(fake_nvml: FakeNvml, node: Rig) -> None:
    """A hang whose lock catches the others a poll later: the first one is the one to look at."""
    fake_nvml.hang("nvmlDeviceGetTemperatureV", 6)
    assert node.poll().gpus[6].state == "hung"
    fake_nvml.hold_all()
    node.poll()
    assert states(node.latest) == ["driver_blocked"] * 6 + ["hung", "driver_blocked"]
    assert node.latest.nvml_state == "hung"

    fake_nvml.release_all()
    fake_nvml.wait_until(lambda: sum(gpu.out for gpu in node.poller._roster) == 1)
    node.poll()
    assert states(node.latest) == ["ok"] * 6 + ["hung", "ok"]


def test_a_stop_with_calls_out_says_so_at_once(fake_nvml: FakeNvml) -> None:
    """Nothing is shut down under a call: the process has to be ended."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        fake_nvml.hang("nvmlDeviceGetFieldValues", 1)
        rig.poll()
        before = rig.clock.now

        assert rig.stop() is False

        assert rig.clock.now == before
        assert fake_nvml.control.initialized == 1
        fake_nvml.release()


# --- the driver goes and comes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [1, 9, 15, 999])
def test_a_restarted_driver_is_taken_up_within_one_interval(fake_nvml: FakeNvml, node: Rig, code: int) -> None:
    """Whatever the driver says to the handles of before, and with the same numbers and all readings as before."""
    node.poll(3)
    identities = [(gpu.number, gpu.identity) for gpu in node.latest.gpus]
    whole = [keys(gpu) for gpu in node.latest.gpus]
    fake_nvml.restart_driver(code)

    node.poll()
    assert all_report(node.latest, GPUS)
    assert node.latest.nvml_state == "ok"
    node.poll(2)
    assert [(gpu.number, gpu.identity) for gpu in node.latest.gpus] == identities
    assert [keys(gpu) for gpu in node.latest.gpus] == whole
    assert fake_nvml.counts()["nvmlShutdown", None] == 1


def test_an_unloaded_driver_is_told_at_once_and_taken_up_when_it_is_back(fake_nvml: FakeNvml, node: Rig) -> None:
    """In between no reading is shown, every GPU keeps its name, and no device file is held."""
    names = [gpu.identity for gpu in node.latest.gpus]
    fake_nvml.unload_driver()
    for _ in range(3):
        node.poll()
        assert node.latest.nvml_state == "no_driver"
        assert states(node.latest) == ["gone"] * GPUS
        assert not any(gpu.parts for gpu in node.latest.gpus)
        assert [gpu.identity for gpu in node.latest.gpus] == names
        assert (node.latest.gpus_visible, node.latest.gpus_expected) == (0, GPUS)
        assert fake_nvml.open_files() == []
    assert fake_nvml.counts()["nvmlInitWithFlags", None] == 1, "nvmlInit loads a module that is being unloaded"

    fake_nvml.load_driver()
    node.poll()
    assert all_report(node.latest, GPUS)
    assert node.latest.nvml_state == "ok"


def test_nothing_is_shown_of_a_driver_that_went_while_a_call_is_out(fake_nvml: FakeNvml, node: Rig) -> None:
    """The session can't be closed then; what was read before is not served on."""
    fake_nvml.hang("nvmlDeviceGetClockInfo", 2)
    node.poll()
    fake_nvml.unload_driver()
    node.poll(4)
    assert states(node.latest) == ["gone", "gone", "hung", *["gone"] * 5]
    assert not any(gpu.parts for gpu in node.latest.gpus)
    assert fake_nvml.control.initialized == 1

    fake_nvml.release()
    fake_nvml.load_driver()
    node.poll(2)
    assert all_report(node.latest, GPUS)


def test_every_poll_of_a_second_tries_to_open_a_driver_that_is_not_there(fake_nvml: FakeNvml) -> None:
    """A driver that comes is not missed for two intervals."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.unload_driver()
    with rig_on(fake_nvml) as rig:
        rig.poll(10)
        assert rig.latest.nvml_state == "no_driver"
        assert fake_nvml.counts()["nvmlInitWithFlags", None] == 11

        fake_nvml.load_driver()
        rig.poll()
        assert all_report(rig.latest, GPUS)


def test_quick_polls_do_not_hammer_a_driver_that_is_not_there(fake_nvml: FakeNvml) -> None:
    """Each attempt may start a program that loads the module."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.unload_driver()
    with rig_on(fake_nvml, replace(OPTIONS, interval=0.1, deadline=0.1)) as rig:
        rig.poll(20)
        assert fake_nvml.counts()["nvmlInitWithFlags", None] <= 2 / 0.5 + 1


def test_without_a_library_the_poller_runs_and_says_how_to_get_one(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """It is looked for again and again, and used when it is there."""
    fake_nvml.set_gpus(GPUS)
    place = tmp_path / "libnvidia-ml.so.1"
    with Rig(lambda: open_library(str(place)), held=HeldInFake(fake_nvml)) as rig:
        rig.poll()
        assert rig.latest.nvml_state == "no_library"
        assert str(place) in (rig.latest.reason or "")
        assert "--nvml.library" in (rig.latest.reason or "")
        assert rig.latest.gpus == ()

        place.symlink_to(fake_nvml.library)
        rig.poll()
        assert all_report(rig.latest, GPUS)


def test_a_library_that_does_not_match_the_kernel_module_is_named(fake_nvml: FakeNvml) -> None:
    """No GPU, a state and a remedy; when the two match again, the GPUs are there."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.fail_init(18)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        assert rig.latest.nvml_state == "mismatch"
        assert "reload the module or reboot" in (rig.latest.reason or "")
        assert not source(rig.latest, "nvml").up

        fake_nvml.fail_init(0)
        rig.poll()
        assert all_report(rig.latest, GPUS)


@pytest.mark.parametrize(
    ("code", "can_open", "state"), [(4, True, "no_permission"), (999, False, "no_permission"), (999, True, "no_driver")]
)
def test_permission_lost_in_a_container_is_named(fake_nvml: FakeNvml, code: int, can_open: bool, state: str) -> None:
    """UNKNOWN from nvmlInit is explained by whether the device node may be opened."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.fail_init(code)
    with rig_on(fake_nvml, world=replace(world_of(fake_nvml), can_open_devices=lambda: can_open)) as rig:
        rig.poll()
        assert rig.latest.nvml_state == state
        fake_nvml.fail_init(0)
        rig.poll()
        assert all_report(rig.latest, GPUS)


def test_workers_are_handed_on_from_session_to_session(fake_nvml: FakeNvml, node: Rig) -> None:
    """One thread a GPU, however often the driver is restarted; a spare one where a worker was not back in time."""
    lanes = {gpu.lane for gpu in node.poller._roster}
    for _ in range(6):
        fake_nvml.restart_driver()
        node.poll(2)
        assert all_report(node.latest, GPUS)
        lanes |= {gpu.lane for gpu in node.poller._roster}

    assert len(lanes) <= GPUS + GPUS // 2


def test_slow_machines_skip_polls_instead_of_catching_up(node: Rig) -> None:
    """After an hour of sleep there is one poll, and what passed in between is left out and counted."""
    polls, gaps = node.latest.poll.polls, node.latest.poll.gaps
    node.advance(3600.0)
    node.rest()
    assert all_report(node.latest, GPUS)
    assert node.latest.poll.polls == polls + 1
    assert node.latest.poll.gaps == gaps + GPUS


def test_options_reach_the_devices(fake_nvml: FakeNvml) -> None:
    """Links one by one."""
    fake_nvml.set_gpus(1)
    with rig_on(fake_nvml, replace(OPTIONS, each_link=True)) as rig:
        rig.poll()
        assert ("crc", "17") in {key.members for key in keys(rig.latest.gpus[0]) if key.name == "nvlink_errors"}
