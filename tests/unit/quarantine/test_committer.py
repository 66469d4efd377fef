"""The door to the ledger: an answer means that it is written, and many changes are one write."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.alerts import Delivery
from gpufleet.quarantine.committer import Committer, NotRecordedError
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.policy import Mode, Policy
from gpufleet.quarantine.stores import FullError, StoreError
from gpufleet.quarantine.view import View
from tests.support.quarantined import NOW, MemoryStore, incident, view


class Eyes:
    """Sees the nodes, or not; counts the looks."""

    def __init__(self) -> None:
        self.blind = False
        self.looks = 0

    def __call__(self) -> View:
        self.looks += 1
        if self.blind:
            raise UnobservableError("the API server does not answer")
        return view()


def opened(store: MemoryStore, eyes: Eyes | None = None) -> Committer:
    """A committer that serves on the caller's thread, and on a clock that stands still."""
    return Committer(store, eyes or Eyes(), Policy(mode=Mode.ACT), clock=lambda: NOW, monotonic=time.monotonic)


def deliver(*numbers: int) -> Any:  # noqa: ANN401 - a change of the committer
    """The delivery of some incidents."""
    delivery = Delivery(tuple(incident(number, f"n{number}") for number in numbers))
    return lambda session: session.deliver(delivery)


def test_an_answer_means_that_the_ledger_has_it() -> None:
    """And the next replica reads it."""
    store = MemoryStore()

    ((key, decision),) = opened(store).apply(deliver(1))

    assert decision.reason == "isolate"
    assert store.book.records[key].decision == decision


def test_what_changes_nothing_is_not_written() -> None:
    """Alertmanager repeats every half hour."""
    store = MemoryStore()
    committer = opened(store)
    committer.apply(deliver(1))
    committer.apply(deliver(1))

    assert store.saves == 1


@pytest.mark.parametrize("error", [StoreError("the API server says 503"), FullError("1 MiB is full")])
def test_a_ledger_that_cannot_be_written_is_told_and_nothing_is_kept(error: StoreError) -> None:
    """Whoever asked must ask again."""
    store = MemoryStore()
    committer = opened(store)
    store.failing = error
    with pytest.raises(NotRecordedError, match=str(error)):
        committer.apply(deliver(1))
    store.failing = None

    committer.apply(deliver(2))

    assert [key.node for key in store.book.records] == ["n2"]


def test_nobody_decides_on_nodes_that_cannot_be_seen() -> None:
    """Cannot observe, do not act."""
    store, eyes = MemoryStore(), Eyes()
    eyes.blind = True
    with pytest.raises(NotRecordedError, match="cannot be seen: the API server does not answer"):
        opened(store, eyes).apply(deliver(1))

    assert store.saves == 0


def test_a_replica_that_wrote_in_between_is_read_and_decided_on_again() -> None:
    """At most five times; then whoever asked comes again."""
    store = MemoryStore()
    committer = opened(store)
    committer.apply(deliver(1))
    # The other replica has taken the last place of the rate.
    opened(store).apply(deliver(2))

    ((_, decision),) = committer.apply(deliver(3))

    assert decision.reason == "breaker"
    assert len(store.book.records) == 3
    store.conflicts = 5
    with pytest.raises(NotRecordedError, match="5 times"):
        committer.apply(deliver(4))


def test_a_change_that_fails_costs_itself_and_not_the_thread() -> None:
    """The next one is served."""
    store = MemoryStore()
    committer = opened(store)
    committer.start()

    def broken(_: Session) -> None:
        raise KeyError("flaw")

    with pytest.raises(NotRecordedError, match="flaw"):
        committer.apply(broken)
    assert len(committer.apply(deliver(1))) == 1
    committer.stop()


def test_many_at_once_are_one_write_and_each_has_its_own_answer() -> None:
    """The first goes at once; what comes within its second goes together."""
    store = MemoryStore()
    committer = opened(store)
    committer.start()
    committer.apply(deliver(1))
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        ((_, decision),) = committer.apply(deliver(number))
        answers[number] = decision.reason

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committer.stop()

    assert store.saves == 2
    assert len(answers) == 28
    assert sorted(answers.values()).count("isolate") == 1


def test_the_nodes_are_looked_at_once_for_many() -> None:
    """What was seen is good for some seconds."""
    store, eyes = MemoryStore(), Eyes()
    committer = opened(store, eyes)
    committer.apply(deliver(1))
    committer.apply(deliver(2))
    assert eyes.looks == 1

    committer.fresh()
    committer.apply(deliver(3))

    assert eyes.looks == 2


def test_whoever_waits_when_the_service_stops_is_told_to_come_again() -> None:
    """And whoever comes later, too."""
    committer = opened(MemoryStore())
    committer.start()
    committer.stop()
    with pytest.raises(NotRecordedError, match="shutting down"):
        committer.apply(deliver(1))


def test_a_node_that_joined_a_moment_ago_is_looked_for() -> None:
    """What was seen a few seconds ago does not refuse it for good."""
    clock, sizes = [0.0], [1]
    committer = Committer(
        MemoryStore(), lambda: view(sizes[0]), Policy(mode=Mode.ACT), clock=lambda: NOW, monotonic=lambda: clock[0]
    )
    committer.apply(deliver(1))
    sizes[0] = 30
    clock[0] = 2.0

    ((_, decision),) = committer.apply(deliver(2))

    assert decision.reason == "isolate"
