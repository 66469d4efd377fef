"""Faults on a node that is polled by whoever asks: no log, no threads, and the same incidents."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.collect.synchronous import MOST_EVENTS, SynchronousNode
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.health import RECOVERY_NODE_REBOOT, Condition, ScheduledXid, Troubles, Window
from gpufleet.simulate.scripts import uniform
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock

PROFILE = "h100-80gb-hbm3"


class Node:
    """A scripted node under a clock that is moved by hand."""

    def __init__(self, scripts: list[GpuScript]) -> None:
        self.clock = HandClock()
        self.driver = ScriptedDriver(scripts, clock=self.clock, started_at=EPOCH)
        self.node = SynchronousNode(self.driver, OPTIONS, self.clock, self.clock.wall)
        self.poll()

    def poll(self, after: float = 1.0, times: int = 1) -> Snapshot:
        """Poll some times, each so many seconds after the one before."""
        for _ in range(times - 1):
            self.clock.now += after
            self.node.poll()
        self.clock.now += after
        return self.node.poll()


def troubled(troubles: Troubles, count: int = 2) -> Node:
    """Two GPUs; the second has troubles."""
    scripts = uniform(PROFILE, count)
    scripts[1] = replace(scripts[1], troubles=troubles)
    return Node(scripts)


def told(snapshot: Snapshot) -> list[tuple[int | None, str, str, bool]]:
    """What is shown: GPU, root, action and whether it isolates."""
    return [(each.gpu, each.fault, each.action.value, each.isolate) for each in snapshot.faults.active]


def counts(snapshot: Snapshot) -> dict[int | None, int]:
    """Events by code."""
    return {row.code: row.count for row in snapshot.faults.xid_errors or ()}


def test_an_xid_is_shown_by_the_poll_that_hears_of_it() -> None:
    """There is no log whose word would have to be waited for."""
    node = troubled(Troubles())
    node.driver.inject_xid(1, 79)
    snapshot = node.poll()
    assert told(snapshot) == [(1, "79", "reboot_node", True)]
    assert counts(snapshot) == {79: 1}
    assert snapshot.faults.active[0].uuid == snapshot.gpus[1].identity.uuid


def test_a_scripted_xid_happens_once_each_time_it_is_due() -> None:
    """However far apart the polls are."""
    node = troubled(Troubles(xids=(ScheduledXid(31, at=5_000, period=60_000),)))
    assert counts(node.poll(after=3.0)) == {}
    assert counts(node.poll(after=3.0)) == {31: 1}
    assert counts(node.poll(after=1.0, times=10)) == {31: 1}
    assert counts(node.poll(after=60.0, times=3)) == {31: 4}


def test_a_gpu_that_is_lost_without_a_word() -> None:
    """Its state opens the incident, which outlives its end: nothing proves a cure."""
    node = troubled(Troubles())
    node.driver.lose(1)
    assert told(node.poll(times=2)) == [(1, "gpu_lost", "reboot_node", True)]


def test_the_others_are_heard_while_one_is_lost() -> None:
    """Each wait answers that it is lost, after the events that there are."""
    node = troubled(Troubles(), count=3)
    node.driver.lose(1)
    node.poll(times=2)
    node.driver.inject_xid(2, 31)
    assert counts(node.poll(times=2)) == {31: 1}


def test_a_flood_is_taken_in_over_several_polls() -> None:
    """One poll takes so many and no more."""
    node = troubled(Troubles())
    for _ in range(MOST_EVENTS + 10):
        node.driver.inject_xid(1, 45)
    assert counts(node.poll()) == {45: MOST_EVENTS}
    snapshot = node.poll()
    assert counts(snapshot) == {45: MOST_EVENTS + 10}
    assert told(snapshot) == []


def test_a_row_that_can_not_be_replaced_is_a_standing_incident() -> None:
    """It has the same name on every node that ever has this board."""
    trouble = Troubles(conditions=(Condition("remap_failure", Window(3_000)),))
    snapshots = [troubled(trouble).poll(times=120) for _ in range(2)]
    assert told(snapshots[0]) == [(1, "row_remap_failure", "replace", True)]
    assert len({snapshot.faults.active[0].id for snapshot in snapshots}) == 1


def test_an_application_fault_that_ends_in_a_reboot_isolates_and_refunds_nothing() -> None:
    """The driver's recovery action decides about the GPU, the code about the blame."""
    window = Window(10_000, 200_000)
    trouble = Troubles(
        xids=(ScheduledXid(31, at=9_000),),
        conditions=(Condition("recovery_action", window, RECOVERY_NODE_REBOOT),),
    )
    node = troubled(trouble)
    (incident,) = node.poll(times=120).faults.active
    assert (incident.isolate, incident.refund, incident.action.value) == (True, False, "reboot_node")
    assert incident.blame.value == "application"


def test_thousands_of_nodes_have_incidents_of_their_own() -> None:
    """No two give one the same name."""
    names = set()
    for _ in range(50):
        node = troubled(Troubles())
        node.driver.inject_xid(1, 79)
        names |= {incident.id for incident in node.poll().faults.active}
    assert len(names) == 50
