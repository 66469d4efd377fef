"""Two replicas write one ledger of ConfigMaps, and anything may happen before and after each of their calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.quarantine.book import Book
from gpufleet.quarantine.record import Record, Stage
from gpufleet.quarantine.stores import ConflictError, StoreError
from gpufleet.quarantine.stores import config_map as module
from gpufleet.quarantine.stores.config_map import ConfigMapStore
from tests.support.fake_kubernetes import Call, Crashed, FakeCluster, Fault
from tests.support.quarantine_records import incident, record, refused

NOW = 1_700_000_100.0
KEYS = 9

OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.dictionaries(st.integers(0, KEYS - 1), st.sampled_from(["open", "closed", "released"]), max_size=4),
        st.booleans(),
        st.one_of(st.none(), st.tuples(st.integers(0, 6), st.sampled_from(list(Fault)))),
    ),
    max_size=12,
)


class Replica:
    """A process with its store; a fault may be planted at one of its next calls."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._planted: tuple[int, Fault] | None = None
        self._calls = 0
        self.start()

    def start(self) -> None:
        """A new process, which knows nothing."""
        self.store = ConfigMapStore(self._cluster.api(meet=self._meet), "ns", lambda: NOW)
        self.held = Book(), ""

    def plant(self, fault: tuple[int, Fault] | None) -> None:
        """Let the call of that number fail."""
        self._planted = fault
        self._calls = 0

    def _meet(self, _: Call) -> Fault:
        self._calls += 1
        if self._planted and self._calls == self._planted[0] + 1:
            return self._planted[1]
        return Fault.NONE


@pytest.fixture(autouse=True)
def _small_batches() -> Iterator[None]:
    """Records move two at a time, so that few are needed to see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOVE_AT", 2)
        yield


def _made(number: int, kind: str, turn: int) -> Record:
    told = incident(f"gpu-{number}", f"i-{number}")
    if kind == "open":
        return record(told, Stage.HELD, heard_at=float(turn))
    if kind == "closed":
        return replace(refused(told), heard_at=float(turn))
    return record(told, Stage.RELEASED, heard_at=float(turn))


@given(OPERATIONS)
@settings(max_examples=400, deadline=None)
def test_the_ledger_is_at_every_moment_what_was_last_committed(
    operations: list[tuple[int, dict[int, str], bool, tuple[int, Fault] | None]],
) -> None:
    """What returned is there, what was refused is not, and what nobody heard of is there, whole, or not at all."""
    cluster = FakeCluster()
    replicas = [Replica(cluster), Replica(cluster)]
    truth = Book()
    for turn, (which, changes, loads, fault) in enumerate(operations):
        replica = replicas[which]
        replica.plant(fault)
        possible = [truth]
        try:
            if loads or replica.held[1] == "":
                held = replica.store.load()
                assert held.book == truth
                replica.held = held.book, held.version
            book, version = replica.held
            made = {each.key: each for each in (_made(number, kind, turn) for number, kind in changes.items())}
            wanted = Book({**book.records, **made}, placed_at=(float(turn),))
            possible = [truth, wanted]
            saved = replica.store.save(wanted, version)
            assert saved.book == wanted
            replica.held = saved.book, saved.version
            possible = [wanted]
        except ConflictError:
            possible = [truth]
            replica.held = Book(), ""
        except StoreError:
            replica.held = Book(), ""
        except Crashed:
            replica.start()
        found = ConfigMapStore(cluster.api(), "ns", lambda: NOW).load().book
        assert found in possible
        truth = found
