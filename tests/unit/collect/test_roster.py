"""The GPUs of this boot: who has which number, and who is in which state while it is opened."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from gpufleet.collect.known import KnownGpus
from gpufleet.collect.lanes import Job
from gpufleet.collect.numbers import Numbers
from gpufleet.collect.roster import RETRY_SECONDS, Roster, state_of
from gpufleet.model.state import GpuState
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import GPU_IS_LOST, NO_PERMISSION, RESET_REQUIRED, UNINITIALIZED, UNKNOWN, NvmlError
from gpufleet.sources.nvml.device import DeviceOptions
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session
from tests.support.poller_rig import HandClock
from tests.waiting import until

GPUS = 4
OPTIONS = DeviceOptions(Pace(1.0))


class Node:
    """A roster, its driver, and the messages that openings post."""

    def __init__(self, directory: Path | None = None) -> None:
        self.clock = HandClock()
        self.driver = ScriptedDriver(uniform("t4", GPUS), clock=self.clock)
        self.posted: deque[Job] = deque()
        self.roster = Roster(
            Numbers(directory, "boot"), KnownGpus(directory, "boot"), self.posted.append, self.clock, interval=1.0
        )
        self.session = Session(self.driver)

    def open(self, count: int = GPUS) -> None:
        """Open all of a session."""
        self.roster.open_all(self.session, count, OPTIONS)
        self.come_in(count)

    def come_in(self, count: int) -> None:
        """Take in so many openings, and settle as the poll thread does."""
        until(lambda: len(self.posted) >= count, "the openings return", every=0.001)
        while self.posted:
            self.posted.popleft()()
        waiting = any(not opening.out for opening in self.roster.openings)
        self.roster.settle(even_if_waiting=not waiting)
        self.roster.absent()

    def session_anew(self) -> None:
        """Leave, and begin the next session."""
        for device in self.roster.leave("restarted", driver_is_well=True):
            device.close()
        self.session.close()
        self.session = Session(self.driver)

    def uuid(self, gpu: int) -> str:
        """A GPU's UUID."""
        return self.driver.devices[gpu].gpu.script.uuid

    def numbers(self) -> dict[str, int]:
        """Number of each UUID."""
        return {gpu.identity.uuid: gpu.number for gpu in self.roster}

    def states(self) -> list[str]:
        """By number."""
        return [str(gpu.state) for gpu in self.roster]


def test_numbers_follow_the_driver_s_order_whoever_is_opened_first() -> None:
    """nvidia-smi's numbers, on a fresh boot."""
    node = Node()
    node.roster.open_all(node.session, GPUS, OPTIONS)
    until(lambda: len(node.posted) == GPUS, "the openings return", every=0.001)
    for message in reversed(node.posted):
        message()
    assert node.numbers() == {}
    assert node.roster.settle(even_if_waiting=False)
    assert node.numbers() == {node.uuid(gpu): gpu for gpu in range(GPUS)}
    assert [gpu.number for gpu in node.roster] == list(range(GPUS))


def test_who_is_still_being_opened_is_waited_for() -> None:
    """Numbers are given at once; who hangs is not waited for any longer, and takes the number that is left."""
    node = Node()
    hang = node.driver.hang(1)
    node.roster.open_all(node.session, GPUS, OPTIONS)
    until(lambda: len(node.posted) == GPUS - 1, "the others return", every=0.001)
    while node.posted:
        node.posted.popleft()()
    assert not node.roster.settle(even_if_waiting=False)

    node.roster.overdue(5.0, 1.0)
    assert node.roster.anything_out()
    assert node.roster.calls_out() == ["nvmlDeviceGetUUID on the GPU with index 1"]
    assert node.roster.settle(even_if_waiting=True)
    assert sorted(node.numbers().values()) == [0, 2, 3]

    node.driver.unhang(hang)
    node.come_in(1)
    assert node.numbers()[node.uuid(1)] == 1
    assert not node.roster.anything_out()


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (GPU_IS_LOST, GpuState.LOST),
        (RESET_REQUIRED, GpuState.RESET_REQUIRED),
        (NO_PERMISSION, GpuState.NO_PERMISSION),
        (UNKNOWN, GpuState.LOST),
        (4711, GpuState.LOST),
    ],
)
def test_each_error_is_a_state(code: int, state: GpuState) -> None:
    """What is not special means that the GPU does not answer."""
    assert state_of(NvmlError("f", code)) is state


def test_a_lost_gpu_is_opened_again_by_uuid_after_a_while() -> None:
    """Not before: each attempt may cost the driver seconds. What it had allocated is given back with the session."""
    node = Node()
    node.open()
    gpu = node.roster.gpus[node.uuid(2)]
    device = gpu.device
    node.driver.lose(2)
    node.roster.lost(gpu, NvmlError("nvmlDeviceGetFieldValues", GPU_IS_LOST))
    assert (gpu.state, gpu.device, gpu.registered_with) == (GpuState.LOST, None, None)

    node.roster.open_again(node.session, OPTIONS, RETRY_SECONDS - 1)
    assert node.roster.openings == []
    node.roster.open_again(node.session, OPTIONS, RETRY_SECONDS)
    node.roster.open_again(node.session, OPTIONS, RETRY_SECONDS)
    assert len(node.roster.openings) == 1
    node.come_in(1)
    assert gpu.state is GpuState.LOST

    node.driver.recover(2)
    node.clock.now = 2 * RETRY_SECONDS
    node.roster.open_again(node.session, OPTIONS, 2 * RETRY_SECONDS)
    node.come_in(1)
    assert (str(gpu.state), gpu.device is not None, gpu.number) == ("ok", True, 2)
    assert device in node.roster.leave("end", driver_is_well=True)


def test_a_gpu_that_was_refused_at_the_start_is_tried_by_its_index() -> None:
    """It has no name yet."""
    node = Node()
    node.driver.set_return("nvmlDeviceGetUUID", NO_PERMISSION, gpu=1)
    node.open()
    assert len(node.numbers()) == GPUS - 1

    node.driver.set_return("nvmlDeviceGetUUID", None, gpu=1)
    node.roster.open_again(node.session, OPTIONS, RETRY_SECONDS)
    node.come_in(1)
    assert node.numbers()[node.uuid(1)] == 1
    assert node.states() == ["ok"] * GPUS


def test_a_library_that_goes_while_a_gpu_is_opened_is_told() -> None:
    """Not as a fault of the GPU."""
    node = Node()
    node.driver.set_return("nvmlDeviceGetUUID", UNINITIALIZED, gpu=1)
    node.open()
    assert node.roster.failure is not None
    assert node.roster.failure.code == UNINITIALIZED
    node.session_anew()
    assert node.roster.failure is None


def test_the_driver_s_index_closes_up_and_numbers_do_not() -> None:
    """Who is not listed any more keeps its number and is gone."""
    node = Node()
    node.open()
    numbers = node.numbers()
    node.driver.remove(1)
    node.session_anew()
    node.open(GPUS - 1)
    assert node.numbers() == numbers
    assert node.states() == ["ok", "gone", "ok", "ok"]

    node.driver.add(1)
    node.session_anew()
    node.open()
    assert node.numbers() == numbers
    assert node.states() == ["ok"] * GPUS


def test_a_refusal_is_told_of_the_gpu_that_had_the_index() -> None:
    """The driver gives no name with it."""
    node = Node()
    node.open()
    node.session_anew()
    node.driver.set_down(3, RESET_REQUIRED)
    node.open()
    assert node.states() == ["ok", "ok", "ok", "reset_required"]
    assert "reset_required" in (node.roster.gpus[node.uuid(3)].reason or "")


def test_a_session_that_ends_leaves_who_was_lost_lost(tmp_path: Path) -> None:
    """Unless the driver itself is not well: then nothing is known of anybody."""
    node = Node(tmp_path)
    node.open()
    node.roster.lost(node.roster.gpus[node.uuid(0)], NvmlError("f", GPU_IS_LOST))
    node.roster.leave("quiesced", driver_is_well=True)
    assert node.states() == ["lost", "gone", "gone", "gone"]
    assert {gpu.reason for gpu in list(node.roster)[1:]} == {"quiesced"}
    node.roster.leave("unloaded", driver_is_well=False)
    assert node.states() == ["gone"] * GPUS


def test_without_a_poll_nothing_is_shown() -> None:
    """And who has a reason of its own keeps it."""
    node = Node()
    node.open()
    node.roster.lost(node.roster.gpus[node.uuid(0)], NvmlError("f", GPU_IS_LOST))
    node.roster.unread("the driver went")
    assert node.states() == ["lost", "gone", "gone", "gone"]


def test_a_gpu_that_is_lost_when_the_process_starts_is_known_from_before(tmp_path: Path) -> None:
    """A fault must not disappear because somebody restarted the exporter."""
    Node(tmp_path).open()
    node = Node(tmp_path)
    node.driver.lose(2)
    node.open()
    lost = node.roster.gpus[node.uuid(2)]
    assert node.states() == ["ok", "ok", "lost", "ok"]
    assert (lost.number, lost.identity.serial) == (2, node.driver.devices[2].gpu.script.serial)

    for attempt in (1, 2):
        if attempt == 2:
            node.driver.recover(2)
        node.clock.now = attempt * RETRY_SECONDS
        node.roster.open_again(node.session, OPTIONS, node.clock.now)
        assert len(node.roster.openings) == 1
        node.come_in(1)
    assert node.states() == ["ok"] * GPUS


def test_threads_are_kept_from_session_to_session() -> None:
    """A GPU gives its own up with its device."""
    node = Node()
    node.open()
    lanes = {id(gpu.lane) for gpu in node.roster}
    for _ in range(3):
        node.session_anew()
        node.open()
    assert {id(gpu.lane) for gpu in node.roster} == lanes
