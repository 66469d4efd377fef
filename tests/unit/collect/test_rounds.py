"""One round after another, when calls take long or fail."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpufleet.model.readings import Key
from gpufleet.simulate.scripts import uniform
from tests.support.poller_rig import OPTIONS, ScriptedRig, all_report, keys, rig_on_script, states

GPUS = 6
SM = Key("sm_active_ratio")


def hoppers() -> ScriptedRig:
    """GPUs that measure activity."""
    return rig_on_script(uniform("h100-80gb-hbm3", GPUS))


def test_one_thread_a_gpu_is_enough_for_any_hang() -> None:
    """The stuck thread stays with its GPU; the worker that the GPU had reads the others from then on."""
    with hoppers() as rig:
        rig.poll(2)
        workers = {thread for thread in threading.enumerate() if thread.name in {"gpu", "reader"}}
        hangs = [rig.driver_is.hang(gpu, "nvmlDeviceGetMemoryInfo_v2") for gpu in (0, 1, 4)]
        rig.poll(3)
        assert states(rig.latest) == ["hung", "hung", "ok", "ok", "hung", "ok"]
        assert {thread for thread in threading.enumerate() if thread.name in {"gpu", "reader"}} == workers
        for hang in hangs:
            rig.driver_is.unhang(hang)
        rig.poll(2)
        assert all_report(rig.latest, GPUS)
        rig.poll(10)
        assert {thread for thread in threading.enumerate() if thread.name in {"gpu", "reader"}} == workers


@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "nvmlGpmSampleGet"])
def test_two_that_hang_in_the_same_round_cost_two(function: str) -> None:
    """The GPM thread comes to the second one when it has given up the first: each has its own time, and no other GPU is
    blamed for a time that it did not have.
    """
    with hoppers() as rig:
        rig.poll(2)
        hangs = [rig.driver_is.hang(gpu, function) for gpu in (1, 2)]
        rig.poll(4)
        assert states(rig.latest) == ["ok", "hung", "hung", "ok", "ok", "ok"]
        assert all(SM in keys(gpu) for gpu in rig.latest.gpus if gpu.number not in (1, 2))
        for hang in hangs:
            rig.driver_is.unhang(hang)
        rig.poll(3)
        assert all(SM in keys(gpu) for gpu in rig.latest.gpus)


def test_three_hung_samplers_hold_no_round_past_its_deadline() -> None:
    """Whoever the GPM thread came to late is waited for by nobody, and still not called hung before its time."""
    with hoppers() as rig:
        rig.poll(2)
        hangs = [rig.driver_is.hang(gpu, "nvmlGpmSampleGet") for gpu in (0, 1, 2)]
        begun = len(rig.history)
        rig.poll()
        durations = [one.snapshot.poll.duration_seconds for one in rig.history[begun:]]
        assert max(durations) <= OPTIONS.deadline + 0.11
        rig.poll(3)
        assert states(rig.latest) == ["hung"] * 3 + ["ok"] * 3
        for hang in hangs:
            rig.driver_is.unhang(hang)
        rig.poll(3)
        assert all(SM in keys(gpu) for gpu in rig.latest.gpus)


def test_a_gpu_that_returns_late_is_asked_again_with_the_next_poll() -> None:
    """What it then brings is of a moment that has passed: it is not shown."""
    with hoppers() as rig:
        rig.poll(2)
        before = rig.latest.gpus[3].polled_at
        hang = rig.driver_is.hang(3, "nvmlDeviceGetTemperatureV")
        rig.poll(2)
        rig.driver_is.unhang(hang)
        rig.rest()
        watched = rig.poller._roster._ordered[3]
        assert (watched.state, watched.reason) == (
            "hung",
            "nvmlDeviceGetTemperatureV returned late; the next poll tells more",
        )
        assert watched.polled_at == before
        rig.poll()
        assert rig.latest.gpus[3].state == "ok"


def test_a_deadline_longer_than_the_interval_costs_nobody_a_poll() -> None:
    """The rounds are then as long as the deadline while a GPU hangs, and the others are read in each."""
    with rig_on_script(uniform("t4", 3), replace(OPTIONS, interval=1.0, deadline=3.0)) as rig:
        rig.poll(2)
        hang = rig.driver_is.hang(1, "nvmlDeviceGetTemperature")
        other = rig.driver_is.hang(1, "nvmlDeviceGetTemperatureV")
        rig.poll(2)
        assert states(rig.latest) == ["ok", "hung", "ok"]
        at = rig.latest.at
        assert all(at - (gpu.polled_at or 0) <= 1.1 for gpu in rig.latest.gpus if gpu.state == "ok")
        rig.driver_is.unhang(hang)
        rig.driver_is.unhang(other)


def test_a_handle_that_went_stale_is_replaced_at_once() -> None:
    """INVALID_ARGUMENT says nothing of the GPU itself: it is looked for by UUID, and there with the next poll."""
    with hoppers() as rig:
        rig.poll(2)
        begun = len(rig.history)
        gpu, objects = rig.driver_is.devices[4], rig.driver_is._session.objects
        objects[gpu.handle + 0x100] = objects.pop(gpu.handle)
        gpu.handle += 0x100
        rig.poll()
        assert any(states(publication.snapshot)[4] == "lost" for publication in rig.history[begun:])
        assert all_report(rig.latest, GPUS)


def test_unknown_errors_of_one_gpu_are_its_own() -> None:
    """The driver is opened anew only when none answers: the other GPUs would pay for it."""
    with hoppers() as rig:
        rig.poll(2)
        sessions = rig.driver_is._sessions
        rig.driver_is.set_return("nvmlDeviceGetFieldValues", 999, gpu=0)
        rig.poll(20)
        assert states(rig.latest) == ["lost", *["ok"] * 5]
        assert dict(rig.latest.poll.nvml_errors) == {"unknown": 20}
        rig.driver_is.set_return("nvmlDeviceGetFieldValues", None, gpu=0)
        rig.poll()
        assert all_report(rig.latest, GPUS)
        assert rig.driver_is._sessions == sessions
