"""What working out holders costs on the fullest of nodes: 250 pods on 8 GPUs of 7 slices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import devices_of
from gpufleet.owners.resolve import Identities, Resolution, resolve
from tests.support.owners_evidence import cluster, given, gpu, gpu_uuid, mig_uuid, pod, pod_uid, process

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from gpufleet.owners.evidence import Evidence

GPUS = [gpu(number, *["1g.10gb"] * 7) for number in range(8)]
PODS = 250
CPU_TIME = pytest.mark.benchmark(timer=time.process_time)
"""What else runs on the machine does not count."""
CONFIG = OwnersConfig(labels=("app.kubernetes.io/*", "team"))
BUDGET_SECONDS = 0.010


def node_full_of_pods() -> Evidence:
    """Each slice is shared by four or five pods, each pod has a process there."""
    pods = [
        pod(
            f"train-workers-0-{number}-x1y2z",
            number,
            labels={f"example.com/label-{extra}": "x" for extra in range(10)}
            | {
                "team": "a",
                "app.kubernetes.io/name": "train",
                "jobset.sigs.k8s.io/jobset-name": f"train-{number}",
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "batch.kubernetes.io/job-completion-index": str(number),
                "kueue.x-k8s.io/queue-name": "research",
            },
            annotations={f"example.com/note-{extra}": "y" * 50 for extra in range(10)},
        )
        for number in range(PODS)
    ]
    slices = [(number % 8, number // 8 % 7) for number in range(PODS)]
    rows = [
        given(each.name, f"{mig_uuid(*place)}::{number}", resource="nvidia.com/mig-1g.10gb.shared")
        for number, (each, place) in enumerate(zip(pods, slices, strict=True))
    ]
    processes = {
        gpu_uuid(number): tuple(
            process(1000 + index, uid=pod_uid(index), gi=7 + place[1], ci=0)
            for index, place in enumerate(slices)
            if place[0] == number
        )
        for number in range(8)
    }
    return cluster(*rows, pods=pods, processes=processes)


def check(benchmark: BenchmarkFixture, found: Resolution) -> None:
    """The answer is the right one, within the budget."""
    assert len(found.holdings) == PODS
    assert sum(each.share for each in found.holdings) == pytest.approx(8.0)
    assert benchmark.stats is not None
    median = benchmark.stats.stats.median
    benchmark.extra_info["milliseconds"] = median * 1e3
    assert median < BUDGET_SECONDS


@CPU_TIME
def test_a_refresh(benchmark: BenchmarkFixture) -> None:
    """While pods stay what they were, which is nearly always."""
    evidence, names = node_full_of_pods(), Identities()
    resolve(devices_of(GPUS), evidence, CONFIG, names)

    check(benchmark, benchmark(lambda: resolve(devices_of(GPUS), evidence, CONFIG, names)))


@CPU_TIME
def test_the_first_refresh(benchmark: BenchmarkFixture) -> None:
    """When every pod is new."""
    evidence = node_full_of_pods()
    found = benchmark(lambda: resolve(devices_of(GPUS), evidence, CONFIG, Identities()))

    assert len(found.holdings) == PODS
    assert benchmark.stats is not None
    assert benchmark.stats.stats.median < 3 * BUDGET_SECONDS
