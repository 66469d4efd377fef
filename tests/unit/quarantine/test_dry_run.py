"""The dry run writes nothing and says everything."""

from __future__ import annotations

from typing import NoReturn

import pytest

from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.incident import Holder, Scope
from gpufleet.quarantine.policy import Platform
from gpufleet.quarantine.record import Outcome, Record, Step
from gpufleet.quarantine.view import Node, View
from tests.support.quarantine_records import incident, record

VIEW = View(1.0, {"gpu-1": Node("gpu-1", "")})
HOLDERS = (Holder("vision", "41", "train", "research", "train-0"), Holder("vision", "42"))


class Real:
    """An actuator that must not be asked to write."""

    def view(self) -> View:
        return VIEW

    def mark(self, _: Record) -> NoReturn:
        raise AssertionError

    move = refund = mark

    def release(self, _: Record, *, last: bool) -> NoReturn:
        raise AssertionError(last)


def planned(steps: tuple[Step, ...]) -> list[tuple[str, str]]:
    """Actions and targets of steps that are all planned."""
    assert {step.outcome for step in steps} <= {Outcome.PLANNED}
    return [(step.action, step.target) for step in steps]


def dry_run(platform: Platform = Platform.KUBERNETES) -> DryRun:
    """A dry run in front of one that fails at any write."""
    return DryRun(Real(), platform, lambda node: [f"ml/{node}-a", "research/train-0"])


def test_it_shows_the_nodes_as_they_are() -> None:
    """What is planned depends on them."""
    assert dry_run().view() is VIEW


def test_on_kubernetes_it_names_node_and_pods() -> None:
    """Each write that there would be."""
    told = record(incident(holders=HOLDERS))

    assert planned(dry_run().mark(told)) == [
        ("cordon", "node/gpu-1"),
        ("condition", "node/gpu-1"),
        ("event", "node/gpu-1"),
        ("event", "pod/research/train-0"),
    ]
    assert planned(dry_run().move(told)) == [("evict", "pod/research/train-0")]
    assert planned(dry_run().refund(told)) == [("refund", "pod/research/train-0")]
    assert planned(dry_run().release(told, last=True)) == [("uncordon", "node/gpu-1")]


def test_a_fault_of_the_node_takes_every_pod_with_a_gpu() -> None:
    """Each once."""
    told = record(incident(holders=HOLDERS), scope=Scope.NODE)

    assert planned(dry_run().move(told)) == [("evict", "pod/ml/gpu-1-a"), ("evict", "pod/research/train-0")]


def test_on_slurm_it_names_node_and_jobs() -> None:
    """Drain, and a requeue of the jobs that held the GPU."""
    told = record(incident(holders=HOLDERS))

    assert planned(dry_run(Platform.SLURM).mark(told)) == [("drain", "node/gpu-1")]
    assert planned(dry_run(Platform.SLURM).move(told)) == [("requeue", "slurm-job/41"), ("requeue", "slurm-job/42")]
    assert dry_run(Platform.SLURM).refund(told) == ()
    assert planned(dry_run(Platform.SLURM).release(told, last=True)) == [("resume", "node/gpu-1")]


@pytest.mark.parametrize("was_cordoned", [False, True])
def test_a_release_says_what_stays(was_cordoned: bool) -> None:
    """A node that somebody else had taken out stays out."""
    (step,) = dry_run().release(record(was_cordoned=was_cordoned), last=True)

    assert ("stays out" in step.detail) is was_cordoned


def test_nothing_is_planned_where_nothing_would_be() -> None:
    """An incident without refund costs nobody's money; one of several leaves the node out."""
    assert dry_run().refund(record(incident(refund=False))) == ()
    assert dry_run().release(record(), last=False) == ()
