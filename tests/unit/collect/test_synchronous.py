"""A node that is polled by whoever asks."""

from __future__ import annotations

import threading

import pytest

from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.model.readings import Key
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.mig import partition
from gpufleet.simulate.profiles import load_profile
from gpufleet.simulate.scripts import sliced, uniform
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock, all_report, keys, states, values

BUSY = Key("busy_seconds")
SM_SECONDS = Key("sm_active_seconds")


class Node:
    """A scripted node under a clock that is moved by hand."""

    def __init__(self, scripts: list[GpuScript]) -> None:
        self.clock = HandClock()
        self.driver = ScriptedDriver(scripts, clock=self.clock, started_at=EPOCH)
        self.node = SynchronousNode(self.driver, OPTIONS, self.clock, self.clock.wall)

    def poll(self, after: float = 1.0, times: int = 1) -> Snapshot:
        """Poll some times, each so many seconds after the one before."""
        for _ in range(times - 1):
            self.clock.now += after
            self.node.poll()
        self.clock.now += after
        return self.node.poll()


def hoppers(count: int = 4) -> Node:
    """GPUs with activity."""
    return Node(uniform("h100-80gb-hbm3", count))


def test_the_first_poll_shows_every_gpu_and_starts_no_thread() -> None:
    """Two thousand nodes have to fit into one process."""
    before = set(threading.enumerate())
    node = hoppers(8)

    snapshot = node.poll()

    assert all_report(snapshot, 8)
    assert (snapshot.nvml_state, snapshot.gpus_expected, snapshot.gpus_visible) == ("ok", 8, 8)
    assert (snapshot.sequence, snapshot.at, snapshot.node.simulated) == (1, EPOCH + 1.0, True)
    assert set(threading.enumerate()) <= before


def test_it_shows_what_the_poller_shows() -> None:
    """Activity from the second poll on, and all sums."""
    node = hoppers(1)
    assert Key("sm_active_ratio") not in keys(node.poll().gpus[0])

    names = {key.name for key in keys(node.poll().gpus[0])}

    assert {"sm_active_ratio", "sm_active_seconds", "busy_seconds", "nvlink_errors", "bar1_used_bytes"} <= names


def test_sums_are_over_the_time_between_two_polls() -> None:
    """A poll that comes late sums up more; one that comes very late sums up nothing and is counted."""
    node = hoppers(1)
    node.poll()
    first = values(node.poll(after=4.0).gpus[0].parts)
    assert first[BUSY] == pytest.approx(4.0 * first[Key("utilization_ratio")])
    assert first[SM_SECONDS] == pytest.approx(4.0 * first[Key("sm_active_ratio")])

    late = node.poll(after=3600.0)

    assert values(late.gpus[0].parts)[BUSY] == first[BUSY]
    assert late.poll.gaps == 1


@pytest.mark.parametrize(("code", "state"), [(15, "lost"), (16, "reset_required"), (4, "no_permission"), (10, "lost")])
def test_a_gpu_that_is_down_costs_itself_only(code: int, state: str) -> None:
    """It says why, each failed poll is counted, and it is back with the poll that succeeds."""
    node = hoppers()
    node.poll(times=2)
    node.driver.set_down(2, code)

    snapshot = node.poll(times=3)
    assert states(snapshot) == ["ok", "ok", state, "ok"]
    assert snapshot.gpus[2].parts == ()
    assert sum(count for _, count in snapshot.poll.nvml_errors) == 3
    assert (snapshot.gpus_visible, snapshot.gpus_expected) == (3, 4)

    node.driver.set_down(2, 0)
    assert all_report(node.poll(), 4)


def test_a_gpu_that_is_lost_at_the_start_is_there_when_it_is_back() -> None:
    """It has no name before, and is counted all the same."""
    node = hoppers()
    node.driver.lose(1)
    snapshot = node.poll(times=3)
    assert [gpu.number for gpu in snapshot.gpus] == [0, 2, 3]
    assert (snapshot.gpus_visible, snapshot.gpus_expected) == (3, 4)

    node.driver.recover(1)

    snapshot = node.poll()
    assert all_report(snapshot, 4)
    assert [gpu.number for gpu in snapshot.gpus] == [0, 1, 2, 3]


def test_a_driver_that_goes_and_comes() -> None:
    """No reading in between, names and numbers stay, and sums go on where they were."""
    node = hoppers()
    before = node.poll(times=5)
    node.driver.unload()
    away = node.poll(times=3)
    assert (away.nvml_state, states(away)) == ("no_driver", ["gone"] * 4)
    assert [gpu.identity for gpu in away.gpus] == [gpu.identity for gpu in before.gpus]
    assert not any(gpu.parts for gpu in away.gpus)

    node.driver.load()

    after = node.poll()
    assert all_report(after, 4)
    assert [(gpu.number, gpu.identity) for gpu in after.gpus] == [(gpu.number, gpu.identity) for gpu in before.gpus]
    for old, new in zip(before.gpus, after.gpus, strict=True):
        assert values(new.parts)[BUSY] >= values(old.parts)[BUSY]


def test_it_says_whether_the_driver_and_its_events_answer() -> None:
    """As sources, like those of a node that polls by itself."""
    node = hoppers(1)
    assert [(each.source, each.up) for each in node.poll().sources] == [("nvml", True), ("nvml_events", True)]
    node.driver.unload()
    node.poll()
    (nvml,) = node.poll().sources
    assert (nvml.source, nvml.up) == ("nvml", False)
    assert nvml.reason


def test_without_a_driver_it_says_so() -> None:
    """And asks again at each poll."""
    node = hoppers(1)
    node.driver.unload()
    assert (node.poll().nvml_state, node.poll().gpus) == ("no_driver", ())
    node.driver.load()
    assert all_report(node.poll(), 1)


def test_a_count_that_fails_leaves_no_session_open() -> None:
    """Sessions are counted by the driver: one that is forgotten keeps its devices for ever."""
    node = hoppers(1)
    node.driver.set_return("nvmlDeviceGetCount_v2", 999)
    assert node.poll(times=3).nvml_state == "no_driver"
    assert node.driver._session.references == 0
    node.driver.set_return("nvmlDeviceGetCount_v2", None)
    assert all_report(node.poll(), 1)
    assert node.driver._session.references == 1


def test_a_node_without_gpus() -> None:
    """Well, and empty."""
    snapshot = Node([]).poll()
    assert (snapshot.nvml_state, snapshot.gpus, snapshot.gpus_expected) == ("no_gpu", (), None)


def test_xids_are_counted() -> None:
    """As the poller counts them."""
    node = hoppers(2)
    node.poll()
    for xid in (31, 31, 79):
        node.driver.inject_xid(1, xid)
    node.poll(times=2)
    snapshot = node.poll()
    found = values(snapshot.gpus[1].standing).items()
    assert {key.members[0]: count for key, count in found if key.name == "xid_errors"} == {"31": 2, "79": 1}


def test_slices_and_a_new_cut() -> None:
    """The new slices are there with the poll after the one that heard of it."""
    node = Node(sliced("h100-80gb-hbm3", ["1g.10gb"] * 7))
    before = node.poll(times=2).gpus[0]
    assert len(before.slices) == 7
    profile = load_profile("h100-80gb-hbm3")
    script = node.driver.devices[0].gpu.script
    halves = partition(profile, ["3g.40gb", "3g.40gb"], [script.timeline] * 2, script.seed, generation=1)

    node.driver.repartition(0, halves)

    after = node.poll(times=2).gpus[0]
    assert [one.identity.profile for one in after.slices] == ["3g.40gb", "3g.40gb"]
    assert not {one.identity.mig_uuid for one in after.slices} & {one.identity.mig_uuid for one in before.slices}


def test_many_who_ask_take_turns() -> None:
    """Two scrapes of one node at once are two polls, one after the other."""
    node = hoppers(2)
    taken: list[int] = []
    begin = threading.Barrier(8)

    def ask() -> None:
        begin.wait()
        taken.append(node.node.poll().sequence)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(taken) == list(range(1, 9))
