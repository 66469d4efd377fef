"""Letting go of the driver on request, and taking it up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.nvml_client import Aside
from tests.support.poller_rig import (
    OPTIONS,
    Rig,
    all_report,
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
    # The wait for events takes real time to notice that it should end; until then it is in the way as well.
    fake_nvml.wait_until(lambda: node.poller._lifecycle.events_ended)
    node.advance(0.9)
    node.advance(1.2)

    assert waiting.done().blocked_by == f"nvmlDeviceGetMemoryInfo_v2 on GPU 4 ({fake_nvml.uuid(4)})"
    node.poll(2)
    assert states(node.latest) == ["ok"] * 4 + ["hung"] + ["ok"] * 3
    fake_nvml.release()
    node.poll(2)
    assert all_report(node.latest, GPUS)


def test_a_quiesce_that_ends_is_seen_at_once_whatever_the_interval(fake_nvml: FakeNvml) -> None:
    """Given up, or over by itself: the node is not shown as quiesced until the next poll would come."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml, replace(OPTIONS, interval=60.0, quiesce_max=30.0)) as rig:
        rig.poll(2)
        fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2", 4)
        rig.advance(60.0)
        fake_nvml.wait_until_stuck(4)
        waiting = Aside(rig.quiesce)
        fake_nvml.wait_until(lambda: rig.poller._quiesce.active)
        rig.advance(0.9)
        rig.advance(1.2)
        assert not waiting.done().ok
        fake_nvml.wait_until(lambda: not rig.latest.quiesced)
        assert states(rig.latest) == ["ok"] * 4 + ["hung"] + ["ok"] * 3

        fake_nvml.release()
        rig.poll()
        assert rig.quiesce().ok
        rig.advance(31.0)
        rig.rest(lambda: not rig.latest.quiesced)
        rig.rest(lambda: all(gpu.parts for gpu in rig.latest.gpus))


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
