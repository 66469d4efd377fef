"""The poller and the library as a whole: opened, hung, restarted, replaced, let go of and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.collect.numbers import Numbers
from gpufleet.model.snapshot import Snapshot, SourceHealth
from gpufleet.sources.nvml.session import open_library
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import H100, T4
from tests.support.nvml_client import Aside
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
    fake_nvml.wait_until(lambda: node.poller._roster.gpus[fake_nvml.uuid(2)].standing != ())


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


# --- GPUs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("code", "state"), [(15, "lost"), (16, "reset_required"), (4, "no_permission"), (11, "lost")])
def test_a_gpu_that_is_down_says_why_and_comes_back(fake_nvml: FakeNvml, node: Rig, code: int, state: str) -> None:
    """The rest is complete in each snapshot; it is tried again every 30 s, by UUID."""
    whole = [keys(gpu) for gpu in node.latest.gpus]
    begun = len(node.history)
    fake_nvml.lose(5, code)
    node.poll()
    down = node.latest.gpus[5]
    assert (down.state, down.parts, down.polled_at is not None) == (state, (), True)
    assert down.identity.uuid == fake_nvml.uuid(5)
    assert down.utilization_basis == "sm"
    assert "returned" in (down.reason or "")
    assert (node.latest.gpus_visible, node.latest.gpus_expected, node.latest.nvml_state) == (GPUS - 1, GPUS, "ok")
    fake_nvml.reset_counts()
    node.poll(29)
    assert fake_nvml.calls_of(5) == 0
    node.poll(60)
    assert 1 <= fake_nvml.counts()["nvmlDeviceGetHandleByUUID", 5] <= 3
    for publication in node.history[begun:]:
        for number in set(range(GPUS)) - {5}:
            assert publication.snapshot.gpus[number].state == "ok"
            assert keys(publication.snapshot.gpus[number]) == whole[number]

    fake_nvml.lose(5, 0)
    node.poll(33)
    assert all_report(node.latest, GPUS)
    assert keys(node.latest.gpus[5]) == whole[5]
    errors = dict(node.latest.poll.nvml_errors)
    assert sum(errors.values()) >= 1


def test_when_every_gpu_is_lost_the_driver_is_opened_anew(fake_nvml: FakeNvml, node: Rig) -> None:
    """At first at once, then ever more rarely; each goes on to say that it is lost."""
    for gpu in range(GPUS):
        fake_nvml.lose(gpu)
    node.poll(4)
    assert states(node.latest) == ["lost"] * GPUS
    fake_nvml.reset_counts()
    node.poll(120)
    assert states(node.latest) == ["lost"] * GPUS
    assert 3 <= fake_nvml.counts()["nvmlInitWithFlags", None] <= 10

    for gpu in range(GPUS):
        fake_nvml.lose(gpu, 0)
    node.poll(32)
    assert all_report(node.latest, GPUS)


def test_a_gpu_that_could_not_be_opened_at_the_start_is_tried_again(fake_nvml: FakeNvml) -> None:
    """It has no name yet, so it is counted, and looked for by its index."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_return("nvmlDeviceGetHandleByIndex_v2", 2, 4)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        assert [gpu.number for gpu in rig.latest.gpus] == [0, 1, 3, 4, 5, 6, 7]
        assert (rig.latest.gpus_visible, rig.latest.gpus_expected) == (GPUS - 1, GPUS)

        fake_nvml.set_return("nvmlDeviceGetHandleByIndex_v2", 2, 0)
        rig.poll(32)
        assert all_report(rig.latest, GPUS)
        assert rig.latest.gpus[2].identity.uuid == fake_nvml.uuid(2)


def test_a_gpu_that_answers_one_poll_with_an_error_loses_that_poll(fake_nvml: FakeNvml, node: Rig) -> None:
    """A passing error is shown as one, counted, and over with the next poll: nothing is opened anew."""
    fake_nvml.set_return("nvmlDeviceGetFieldValues", 1, 10)
    node.poll()
    assert states(node.latest) == ["ok", "lost", *["ok"] * 6]
    fake_nvml.set_return("nvmlDeviceGetFieldValues", 1, 0)
    fake_nvml.reset_counts()
    node.poll()
    assert all_report(node.latest, GPUS)
    assert dict(node.latest.poll.nvml_errors) == {"timeout": 1}
    assert ("nvmlDeviceGetHandleByUUID", 1) not in fake_nvml.counts()


def test_gpus_that_come_and_go_are_found_and_keep_their_numbers(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """The driver's index closes up behind a GPU that was taken out; the numbers do not, nor after a restart."""
    fake_nvml.set_gpus(4)
    with rig_on(fake_nvml, numbering=Numbers(tmp_path, "boot")) as rig:
        rig.poll(2)
        numbers = {gpu.identity.uuid: gpu.number for gpu in rig.latest.gpus}
        fake_nvml.remove_gpu(1)
        rig.poller.devices_changed()
        rig.poll(2)
        assert states(rig.latest) == ["ok", "lost", "ok", "ok"]
        assert {gpu.identity.uuid: gpu.number for gpu in rig.latest.gpus} == numbers

        fake_nvml.set_order([3, 0, 2])
        fake_nvml.restart_driver()
        rig.poll(2)
        assert {gpu.identity.uuid: gpu.number for gpu in rig.latest.gpus} == numbers

        # No word from the kernel this time: the survey finds it.
        fake_nvml.gpus[1].present = 1
        fake_nvml.set_order([2, 1, 3, 0])
        rig.poll(12)
        assert all_report(rig.latest, 4)
        assert {gpu.identity.uuid: gpu.number for gpu in rig.latest.gpus} == numbers
    with rig_on(fake_nvml, numbering=Numbers(tmp_path, "boot")) as rig:
        rig.poll()
        assert {gpu.identity.uuid: gpu.number for gpu in rig.latest.gpus} == numbers


# --- letting go -------------------------------------------------------------------------------------------------------
def test_a_quiesce_closes_every_device_file(fake_nvml: FakeNvml, node: Rig) -> None:
    """Every GPU stays in the list, gone for now; a resume has all back within one poll."""
    assert len(fake_nvml.open_files()) == GPUS + 1
    outcome = node.quiesce()
    assert outcome.ok
    assert fake_nvml.open_files() == []
    assert states(node.latest) == ["gone"] * GPUS
    assert not any(gpu.parts for gpu in node.latest.gpus)
    assert node.poll(5).quiesced
    assert fake_nvml.open_files() == []
    assert node.quiesce().ok

    node.poller.resume()
    assert not node.poll().quiesced
    assert all_report(node.latest, GPUS)


def test_a_quiesce_with_a_call_out_names_gpu_and_call_and_releases_nothing(fake_nvml: FakeNvml, node: Rig) -> None:
    """The others are polled on without a gap."""
    fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2", 4)
    node.poll()
    begun = len(node.history)

    outcome = node.quiesce()

    assert not outcome.ok
    assert outcome.blocked_by == f"nvmlDeviceGetMemoryInfo_v2 on GPU 4 ({fake_nvml.uuid(4)})"
    node.poll(2)
    for publication in node.history[begun:]:
        assert states(publication.snapshot) == ["ok"] * 4 + ["hung"] + ["ok"] * 3
        assert not publication.snapshot.quiesced


def test_a_quiesce_that_meets_a_call_under_way_waits_for_it_a_little(fake_nvml: FakeNvml, node: Rig) -> None:
    """A call that is out but not overdue yet may return in time."""
    fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2", 4)
    node.advance(1.0)
    fake_nvml.wait_until_stuck(4)
    waiting = Aside(node.quiesce)
    fake_nvml.wait_until(lambda: node.poller._quiesce.active)
    assert waiting.out

    fake_nvml.release()

    assert waiting.done().ok
    assert fake_nvml.open_files() == []


def test_a_quiesce_gives_up_on_a_call_under_way_that_stays_out(fake_nvml: FakeNvml, node: Rig) -> None:
    """After two seconds it says which call, and polls go on."""
    fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2", 4)
    node.advance(1.0)
    fake_nvml.wait_until_stuck(4)
    waiting = Aside(node.quiesce)
    fake_nvml.wait_until(lambda: node.poller._quiesce.active)
    node.advance(0.9)
    node.advance(1.2)

    assert waiting.done().blocked_by == f"nvmlDeviceGetMemoryInfo_v2 on GPU 4 ({fake_nvml.uuid(4)})"
    node.poll(2)
    assert states(node.latest) == ["ok"] * 4 + ["hung"] + ["ok"] * 3
    fake_nvml.release()
    node.poll(2)
    assert all_report(node.latest, GPUS)


def test_a_quiesce_ends_by_itself(fake_nvml: FakeNvml) -> None:
    """Whoever forgets to resume has the metrics back after the longest time that is allowed."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml, replace(OPTIONS, quiesce_max=60.0)) as rig:
        rig.poll()
        assert rig.quiesce().ok
        assert rig.poll(58).quiesced
        assert not rig.poll(3).quiesced
        assert all_report(rig.latest, GPUS)


def test_a_stop_after_a_quiesce_is_clean(fake_nvml: FakeNvml, node: Rig) -> None:
    """There is nothing left to release."""
    assert node.quiesce().ok
    assert node.stop() is True
    assert fake_nvml.counts()["nvmlShutdown", None] == 1


def test_a_quiesce_without_a_driver_succeeds_and_holds(fake_nvml: FakeNvml) -> None:
    """There is nothing to release, and nothing is opened until the resume."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.unload_driver()
    with rig_on(fake_nvml) as rig:
        rig.poll()
        assert rig.quiesce().ok
        fake_nvml.load_driver()
        rig.poll(3)
        assert rig.latest.gpus == ()
        rig.poller.resume()
        rig.poll()
        assert all_report(rig.latest, GPUS)


def test_descriptors_that_stay_open_are_named(fake_nvml: FakeNvml) -> None:
    """Another library in this process may hold a device: then it is not released, whatever this poller did."""
    fake_nvml.set_gpus(1)
    world = replace(world_of(fake_nvml), open_device_files=lambda: ("/dev/nvidia0",))
    with rig_on(fake_nvml, world=world) as rig:
        rig.poll()
        outcome = rig.quiesce()
        assert (outcome.ok, outcome.blocked_by) == (False, "open descriptors: /dev/nvidia0")
        assert rig.stop()


def test_workers_are_handed_on_from_session_to_session(fake_nvml: FakeNvml, node: Rig) -> None:
    """One thread a GPU, however often the driver is restarted."""
    lanes = {id(gpu.lane) for gpu in node.poller._roster}
    for _ in range(3):
        fake_nvml.restart_driver()
        node.poll(2)
        assert all_report(node.latest, GPUS)

    assert {id(gpu.lane) for gpu in node.poller._roster} == lanes


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
