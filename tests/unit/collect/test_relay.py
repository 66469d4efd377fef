"""The baton that goes from worker to worker."""

from __future__ import annotations

import threading

from gpufleet.collect.lanes import Lane
from gpufleet.collect.relay import Entry, Relay
from gpufleet.collect.watched import Watched
from gpufleet.model.gpu import GpuIdentity


def entries(count: int) -> list[Entry]:
    """GPUs of one round."""
    return [
        (Watched(number, GpuIdentity(f"GPU-{number}", "", ""), Lane("test"), 1.0), number) for number in range(count)
    ]


def test_each_is_started_once_in_order() -> None:
    """By whoever has the baton; the last one is told that it is the last."""
    started: list[int] = []
    relay = Relay(entries(3), lambda entry: started.append(entry[1]), 10.0)

    assert [relay.go_on(11.0), relay.go_on(12.0), relay.go_on(13.0), relay.go_on(14.0)] == [True, True, True, False]

    assert started == [0, 1, 2]
    assert relay.last_start == 13.0
    assert len(relay) == 0


def test_many_hands_start_nobody_twice() -> None:
    """The poll thread starts the next one beside a worker that takes long, while that one may just be done."""
    started: list[int] = []
    relay = Relay(entries(500), lambda entry: started.append(entry[1]), 0.0)
    begin = threading.Barrier(4)

    def run() -> None:
        begin.wait()
        while relay.go_on(1.0):
            pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(started) == list(range(500))
