"""Letting go of the driver, as the poll thread decides it."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.collect.options import QuiesceOutcome
from gpufleet.collect.quiesce import PATIENCE_SECONDS
from gpufleet.simulate.scripts import uniform
from tests.support.nvml_client import Aside
from tests.support.poller_rig import OPTIONS, ScriptedRig, all_report, rig_on_script, states
from tests.waiting import until


def node() -> ScriptedRig:
    """Three GPUs."""
    return rig_on_script(uniform("t4", 3), replace(OPTIONS, quiesce_max=100.0))


def test_everything_is_given_back() -> None:
    """The driver counts its users: none is left."""
    with node() as rig:
        rig.poll()
        assert rig.driver_is._session.references == 1
        assert rig.quiesce() == QuiesceOutcome(ok=True)
        assert rig.driver_is._session.references == 0
        assert rig.latest.quiesced
        assert rig.latest.reason == "quiesced: every handle of the driver is released"
        assert rig.latest.nvml_state == "ok"


def test_two_who_ask_both_get_the_answer() -> None:
    """Also when the second comes while the first waits."""
    with node() as rig:
        rig.poll()
        hang = rig.driver_is.hang(1, "nvmlDeviceGetFieldValues")
        rig.advance(1.0)
        until(hang.entered.is_set, "the call is out", every=0.001)
        first = Aside(rig.poller.quiesce)
        until(lambda: len(rig.poller._quiesce._waiting) == 1, "the first waits", every=0.001)
        second = Aside(rig.poller.quiesce)
        until(lambda: len(rig.poller._quiesce._waiting) == 2, "the second waits", every=0.001)
        rig.driver_is.unhang(hang)
        rig.held.hurry(on=True)
        assert (first.done().ok, second.done().ok) == (True, True)
        rig.poller.resume()
        rig.poll()
        assert all_report(rig.latest, 3)


def test_asking_again_begins_the_time_anew() -> None:
    """Whoever needs longer asks again; the last one's time counts."""
    with node() as rig:
        rig.poll()
        assert rig.quiesce().ok
        rig.poll(90)
        assert rig.quiesce().ok
        assert rig.poll(90).quiesced
        assert not rig.poll(12).quiesced
        assert all_report(rig.latest, 3)


def test_a_resume_that_nobody_needs_changes_nothing() -> None:
    """And one that comes while a release is under way does not undo it."""
    with node() as rig:
        rig.poll()
        rig.poller.resume()
        rig.poll()
        assert all_report(rig.latest, 3)
        assert rig.driver_is._sessions == 1


def test_a_refusal_leaves_everything_as_it_was() -> None:
    """The session, the events, and the pace."""
    with node() as rig:
        rig.poll(2)
        hang = rig.driver_is.hang(2, "nvmlDeviceGetFieldValues")
        rig.poll()
        outcome = rig.quiesce()
        assert not outcome.ok
        assert (outcome.blocked_by or "").startswith("nvmlDeviceGetFieldValues on GPU 2 (GPU-")
        assert states(rig.poll()) == ["ok", "ok", "hung"]
        assert rig.driver_is._sessions == 1
        rig.driver_is.unhang(hang)
        rig.poll(2)
        assert all_report(rig.latest, 3)
        assert rig.quiesce().ok


def test_patience_has_an_end() -> None:
    """A call under way is waited for so long, then named; events are received again afterwards."""
    with node() as rig:
        rig.poll()
        hang = rig.driver_is.hang(0, "nvmlDeviceGetFieldValues")
        rig.advance(1.0)
        until(hang.entered.is_set, "the call is out", every=0.001)
        asked = Aside(rig.poller.quiesce)
        until(lambda: rig.poller._quiesce.active, "it was asked", every=0.001)
        rig.advance(PATIENCE_SECONDS - 0.1)
        assert asked.out
        rig.advance(0.2)
        assert not asked.done().ok
        rig.driver_is.unhang(hang)
        rig.poll(3)
        assert all_report(rig.latest, 3)
        rig.driver_is.inject_xid(1, 31)
        until(lambda: rig.poll().gpus[1].standing, "the Xid is counted", every=0.001)


def test_a_stop_is_a_release_for_ever() -> None:
    """Nothing is taken up again, however long the process takes to end."""
    with node() as rig:
        rig.poll()
        assert rig.stop()
        rig.clock.now += 10_000
        assert rig.driver_is._session.references == 0
        assert rig.poller.quiesce(timeout=0.01).blocked_by == "the poll thread did not answer in 0.01 s"
