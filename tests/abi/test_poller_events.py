"""What the driver tells by itself, through the poller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpufleet.model.readings import Key
from gpufleet.model.snapshot import Snapshot
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import SEVEN_SLICES
from tests.support.poller_rig import Rig, all_report, rig_on, values

GPUS = 4


@pytest.fixture
def node(fake_nvml: FakeNvml) -> Iterator[Rig]:
    """A poller on a node of four GPUs, a few polls old."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        yield rig


def counts(snapshot: Snapshot, gpu: int) -> dict[str, float]:
    """Xid errors of a GPU by code."""
    found = values(snapshot.gpus[gpu].standing)
    return {key.members[0]: count for key, count in found.items() if key.name == "xid_errors"}


def heard(fake: FakeNvml, rig: Rig, gpu: int, total: int) -> Snapshot:
    """The first poll that shows so many Xids of a GPU: events are heard in real time."""
    fake.wait_until(lambda: sum(counts(rig.poll(), gpu).values()) == total)
    return rig.latest


def test_xids_are_counted_by_gpu_and_code(fake_nvml: FakeNvml, node: Rig) -> None:
    """A code appears with its first event, and counts up."""
    assert counts(node.latest, 1) == {}
    for xid in (31, 31, 79):
        fake_nvml.inject_xid(1, xid)
    fake_nvml.inject_xid(2, 999)
    heard(fake_nvml, node, 1, 3)
    heard(fake_nvml, node, 2, 1)
    assert counts(node.latest, 1) == {"31": 2, "79": 1}
    assert counts(node.latest, 2) == {"999": 1}
    assert counts(node.latest, 0) == {}
    assert values(node.latest.gpus[1].standing)[Key("xid_errors", ("31", "application"))] == 2


def test_xids_of_a_gpu_that_is_lost_stay_on_show(fake_nvml: FakeNvml, node: Rig) -> None:
    """And those that still come are counted: that is when they matter."""
    fake_nvml.inject_xid(3, 48)
    heard(fake_nvml, node, 3, 1)
    fake_nvml.lose(3)
    node.poll()
    assert (node.latest.gpus[3].state, counts(node.latest, 3)) == ("lost", {"48": 1})
    fake_nvml.inject_xid(3, 79)
    heard(fake_nvml, node, 3, 2)
    assert (node.latest.gpus[3].state, counts(node.latest, 3)) == ("lost", {"48": 1, "79": 1})


def test_counts_go_on_over_a_restart_of_the_driver(fake_nvml: FakeNvml, node: Rig) -> None:
    """They are the process's, not the session's."""
    fake_nvml.inject_xid(0, 63)
    heard(fake_nvml, node, 0, 1)
    fake_nvml.restart_driver()
    node.poll(2)
    assert all_report(node.latest, GPUS)
    fake_nvml.inject_xid(0, 63)
    heard(fake_nvml, node, 0, 2)
    assert counts(node.latest, 0) == {"63": 2}


def test_an_event_with_another_handle_is_told_by_its_uuid(fake_nvml: FakeNvml, node: Rig) -> None:
    """The header does not promise the handle that was registered."""
    fake_nvml.inject_xid(2, 94, alias=True)
    heard(fake_nvml, node, 2, 1)
    assert counts(node.latest, 2) == {"94": 1}


def test_an_xid_of_a_slice_is_counted_for_its_gpu(fake_nvml: FakeNvml) -> None:
    """The event has the parent's handle and the slice's ids."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)
    with rig_on(fake_nvml) as rig:
        rig.poll()
        fake_nvml.inject_xid(0, 43, gi=9, ci=0)
        heard(fake_nvml, rig, 0, 1)
        assert counts(rig.latest, 0) == {"43": 1}


def test_a_part_that_lacks_some_event_types_still_gives_xids(fake_nvml: FakeNvml) -> None:
    """Each type is registered by itself: a refused one loses no other."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].events_supported = 0x8 | 0x2
    with rig_on(fake_nvml) as rig:
        rig.poll()
        fake_nvml.inject_xid(0, 48)
        heard(fake_nvml, rig, 0, 1)


def test_a_platform_without_events_says_so(fake_nvml: FakeNvml) -> None:
    """WSL2 has none: the source is down with a reason, all else is there."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_return("nvmlEventSetCreate", None, 3)
    with rig_on(fake_nvml) as rig:
        rig.poll()
        assert all_report(rig.latest, 1)
        source = next(one for one in rig.latest.sources if one.source == "nvml_events")
        assert (source.up, source.reason) == (False, "the driver has no events here")


@pytest.mark.parametrize("code", [15, 999])
def test_a_wait_that_fails_is_told_and_not_repeated_at_once(fake_nvml: FakeNvml, node: Rig, code: int) -> None:
    """With a lost GPU the driver's wait returns at once, every time; the source says why, and recovers."""
    fake_nvml.reset_counts()
    fake_nvml.set_return("nvmlEventSetWait_v2", None, code)
    fake_nvml.wait_until(
        lambda: node.poller._lifecycle.events is not None and node.poller._lifecycle.events.error is not None
    )
    node.poll()
    source = next(one for one in node.latest.sources if one.source == "nvml_events")
    assert not source.up
    assert f"({code})" in (source.reason or "")
    assert fake_nvml.counts().get(("nvmlEventSetWait_v2", None), 0) <= 3

    fake_nvml.set_return("nvmlEventSetWait_v2", None, 0)
    fake_nvml.inject_xid(1, 31)
    heard(fake_nvml, node, 1, 1)
    assert next(one for one in node.latest.sources if one.source == "nvml_events").up


def test_a_gpu_whose_registration_fails_at_first_is_heard_later(fake_nvml: FakeNvml) -> None:
    """It is tried with each poll until it succeeds or is refused for good."""
    fake_nvml.set_gpus(2)
    fake_nvml.set_return("nvmlDeviceRegisterEvents", 1, 999)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        assert all_report(rig.latest, 2)
        fake_nvml.set_return("nvmlDeviceRegisterEvents", 1, 0)
        rig.poll()
        fake_nvml.inject_xid(1, 48)
        heard(fake_nvml, rig, 1, 1)
        fake_nvml.reset_counts()
        rig.poll(5)
        assert ("nvmlDeviceRegisterEvents", 1) not in fake_nvml.counts()
