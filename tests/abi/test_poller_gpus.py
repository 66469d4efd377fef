"""GPUs that are lost, refused, taken out and put in, polled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.collect.numbers import Numbers
from tests.support.fake_nvml import FakeNvml
from tests.support.poller_rig import (
    Rig,
    all_report,
    keys,
    rig_on,
    states,
)

GPUS = 8


@pytest.fixture
def node(fake_nvml: FakeNvml) -> Iterator[Rig]:
    """A poller on a node of eight GPUs, a few polls old."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        yield rig


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
