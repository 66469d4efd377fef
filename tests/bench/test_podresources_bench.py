"""What one question to the kubelet costs on a full node: 250 pods, of which 56 have a slice of 8 GPUs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpufleet.sources.podresources.client import PodResources
from gpufleet.sources.podresources.wire import decode_list
from tests.support.kubelet import Kubelet, busy_node, serialised

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SLICES = 56
ENOUGH_SECONDS = 0.015
"""CPU; half of what a whole refresh may take, the other half being the resolver's."""
MOST_KIB = 4096
CPU_TIME = pytest.mark.benchmark(timer=time.thread_time)
"""Neither the server's threads nor what else runs on the machine counts."""
IMPORTING = """
import logging, dataclasses, enum, errno, socket, time, urllib.parse  # what the exporter has in any case
from pathlib import Path
def resident():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])
import gpufleet.model.claims
before = resident()
from gpufleet.sources.podresources.client import PodResources
imported = resident()
resources = PodResources(Path({socket!r}))
for _ in range(100):
    resources.list()
early = resident()
for _ in range(900):
    resources.list()
print(imported - before, early - before, resident() - before)
"""


@CPU_TIME
def test_a_question(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Connecting, asking, reading and decoding."""
    with Kubelet(tmp_path) as kubelet:
        kubelet.list_pods(busy_node(250, gpus=8, slices=7))
        resources = PodResources(kubelet.socket)

        found = benchmark(resources.list)

    assert len(found) == SLICES
    if benchmark.stats is None:  # --benchmark-disable
        return
    print(f"\na question: {benchmark.stats.stats.median * 1e3:.1f} ms of CPU")
    assert benchmark.stats.stats.median < ENOUGH_SECONDS


@CPU_TIME
def test_the_decoding(benchmark: BenchmarkFixture) -> None:
    """The part of it that grows with the pods."""
    reply = serialised(busy_node(250, gpus=8, slices=7))

    found = benchmark(decode_list, reply)

    assert len(found) == SLICES
    if benchmark.stats is None:  # --benchmark-disable
        return
    print(f"\ndecoding {len(reply)} bytes: {benchmark.stats.stats.median * 1e3:.1f} ms of CPU")


def test_memory(tmp_path: Path) -> None:
    """What a process grows by with h2, with a hundred questions, and with nine hundred more."""
    with Kubelet(tmp_path) as kubelet:
        kubelet.list_pods(busy_node(250, gpus=8, slices=7))
        code = IMPORTING.format(socket=str(kubelet.socket))
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    imported, early, late = (int(each) for each in done.stdout.split())
    print(f"\nimported: {imported} KiB, after 100 questions: {early} KiB, after 1,000: {late} KiB")
    assert late < MOST_KIB
    assert late - early < 256
