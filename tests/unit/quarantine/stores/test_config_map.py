"""The ledger in ConfigMaps: what is where, who may write, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpufleet.quarantine.actuators.kubernetes.grants import LEDGER, ROLES
from gpufleet.quarantine.actuators.kubernetes.places import config_map
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.record import Decision, Record, Stage, Verdict
from gpufleet.quarantine.stores import ConflictError, FullError, StoreError
from gpufleet.quarantine.stores import config_map as module
from gpufleet.quarantine.stores.config_map import NAME, ConfigMapStore, part_names
from tests.support.fake_kubernetes import Call, FakeCluster, Fault
from tests.support.quarantine_records import incident, record, refused

NOW = 1_700_000_100.0
DAY = 86_400.0


def store(cluster: FakeCluster, now: float = NOW) -> ConfigMapStore:
    """A store of one replica, with no more rights than the ledger's role has."""
    return ConfigMapStore(cluster.api(grants=ROLES[LEDGER]), "gpufleet", lambda: now)


def of(*records: Record) -> Book:
    """A book with these records."""
    return Book({each.key: each for each in records})


def many(count: int, at: float = NOW) -> list[Record]:
    """Closed records."""
    return [refused(incident(f"gpu-{number}", f"closed-{number}"), at) for number in range(count)]


def written(cluster: FakeCluster) -> set[str]:
    """The ConfigMaps that have content."""
    return {each["metadata"]["name"] for each in cluster.all("configmaps") if each.get("binaryData")}


def test_an_empty_place_is_an_empty_book() -> None:
    """Nothing is made before there is something to write."""
    cluster = FakeCluster()

    held = store(cluster).load()

    assert held.book == Book()
    assert not cluster.all("configmaps")
    assert len(cluster.calls) == 1


def test_what_was_saved_is_loaded_by_another() -> None:
    """By one that was just started."""
    cluster = FakeCluster()
    first = store(cluster)
    book = replace(of(record(), *many(3)), placed_at=(1.0,))

    saved = first.save(book, first.load().version)

    assert saved == store(cluster).load()
    assert saved.book == book
    assert written(cluster) == {NAME}


def test_config_maps_that_a_chart_has_made_are_used_and_keep_their_labels() -> None:
    """They are there and empty."""
    cluster = FakeCluster()
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    for name in (NAME, *part_names()):
        cluster.put(config_map("gpufleet", name), {"metadata": {"labels": labels}})
    ledger = store(cluster)

    held = ledger.save(of(*many(40)), ledger.load().version)
    held = ledger.save(of(*many(40), record()), held.version)

    assert held == store(cluster).load()
    assert len(written(cluster)) > 2
    assert all(each["metadata"]["labels"] == labels for each in cluster.all("configmaps"))


def test_the_second_writer_loads_again() -> None:
    """One of two that write over the same version is told so, and nothing of it is kept."""
    cluster = FakeCluster()
    first, second = store(cluster), store(cluster)
    one, two = first.load(), second.load()
    first.save(of(record()), one.version)

    with pytest.raises(ConflictError):
        second.save(of(record(incident("gpu-9"))), two.version)

    assert second.load().book == of(record())


def test_a_version_that_was_not_loaded_is_a_conflict() -> None:
    """A version of another time is not written over by accident."""
    cluster = FakeCluster()
    ledger = store(cluster)
    held = ledger.load()
    ledger.save(Book(), held.version)

    with pytest.raises(ConflictError):
        ledger.save(of(record()), held.version)


def test_closed_records_go_to_the_history_once_they_are_many() -> None:
    """Which keeps small what is written each second; the book stays whole."""
    cluster = FakeCluster()
    ledger = store(cluster)
    book = of(record(), *many(60))
    held = ledger.save(book, ledger.load().version)
    before = len(cluster.at(config_map("gpufleet", NAME))["binaryData"]["book"])

    held = ledger.save(book, held.version)

    assert held.book == book
    assert store(cluster).load() == held
    assert written(cluster) > {NAME}
    assert len(cluster.at(config_map("gpufleet", NAME))["binaryData"]["book"]) < before / 2


def test_a_write_that_moves_nothing_writes_one_config_map() -> None:
    """And a load reads one: the digests say that the others are as they were."""
    cluster = FakeCluster()
    ledger = store(cluster)
    book = of(record(), *many(60))
    held = ledger.save(book, ledger.load().version)
    held = ledger.save(book, held.version)
    cluster.calls.clear()

    held = ledger.save(replace(book, placed_at=(5.0,)), held.version)
    ledger.load()

    assert [(call.verb, call.place.name) for call in cluster.calls] == [("update", NAME), ("get", NAME)]
    assert held.book.placed_at == (5.0,)


def test_a_record_of_the_history_that_changes_comes_back_and_goes_again() -> None:
    """An alert that resolves after its node was released is noted on a record that is closed."""
    cluster = FakeCluster()
    ledger = store(cluster)
    records = many(60)
    held = ledger.save(of(*records), ledger.load().version)
    held = ledger.save(of(*records), held.version)
    changed = [replace(each, resolved_at=7.0) for each in records]

    held = ledger.save(of(*changed), held.version)
    assert held.book == of(*changed) == store(cluster).load().book
    held = ledger.save(of(*changed), held.version)
    assert held.book == of(*changed) == store(cluster).load().book


def test_a_write_that_fails_between_history_and_main_loses_and_doubles_nothing() -> None:
    """The record is in both for a while, and once in the book."""
    cluster = FakeCluster()
    ledger = store(cluster)
    book = of(record(), *many(60))
    ledger.save(book, ledger.load().version)

    def meet(call: Call) -> Fault:
        return Fault.LOST_REQUEST if call.verb == "update" and call.place.name == NAME else Fault.NONE

    broken = ConfigMapStore(cluster.api(meet=meet), "gpufleet", lambda: NOW)
    version = broken.load().version
    with pytest.raises(StoreError, match="cannot be written"):
        broken.save(replace(book, placed_at=(9.0,)), version)

    assert len(written(cluster)) > 1
    assert store(cluster).load().book == book
    # The same one goes on as if nothing had been.
    again = broken.load()
    assert again.book == book


@pytest.mark.parametrize("known", [0, 60])
def test_a_move_that_another_replica_left_half_done_is_ended(known: int) -> None:
    """By one that has seen the history as it was before: it is told once to load again, and then goes on."""
    cluster = FakeCluster()
    other = store(cluster)
    before, after = of(*many(known)), of(*many(known), *[replace(each, resolved_at=3.0) for each in many(60)])
    held = other.save(before, other.load().version)
    held = other.save(before, held.version)
    held = other.save(after, held.version)

    def meet(call: Call) -> Fault:
        return Fault.LOST_REQUEST if call.verb == "update" and call.place.name == NAME else Fault.NONE

    broken = ConfigMapStore(cluster.api(meet=meet), "gpufleet", lambda: NOW)
    with pytest.raises(StoreError):
        broken.save(after, broken.load().version)

    with pytest.raises(ConflictError):
        other.save(after, held.version)
    held = other.save(after, other.load().version)
    assert held.book == after == store(cluster).load().book


def test_what_others_write_during_a_load_is_seen_whole_or_not_at_all() -> None:
    """A part of the history that is newer than the main ConfigMap that was read may not be put together with it."""
    cluster = FakeCluster()
    other = store(cluster)
    first, second = many(60), [replace(each, resolved_at=8.0) for each in many(60)]
    held = other.save(of(*first), other.load().version)
    held = other.save(of(*first), held.version)
    last = held
    acts = iter([second, second])

    def meet(call: Call) -> Fault:
        nonlocal last
        if call.place.name != NAME:
            for records in acts:
                last = other.save(of(*records), last.version)
        return Fault.NONE

    found = ConfigMapStore(cluster.api(meet=meet), "gpufleet", lambda: NOW).load()

    assert last.book == of(*second)
    assert found == last


def test_a_ledger_that_never_rests_is_given_up() -> None:
    """Rather than read for ever."""
    cluster = FakeCluster()
    other = store(cluster)
    held = other.save(of(*many(60)), other.load().version)
    held = other.save(of(*many(60)), held.version)
    last = held
    turn = 0

    def meet(call: Call) -> Fault:
        nonlocal last, turn
        if call.place.name in {NAME, part_names()[0]}:
            turn += 1
            for _ in range(2):
                last = other.save(of(*[replace(each, resolved_at=float(turn)) for each in many(60)]), last.version)
        return Fault.NONE

    with pytest.raises(StoreError, match="faster than it can be read"):
        ConfigMapStore(cluster.api(meet=meet), "gpufleet", lambda: NOW).load()


def test_records_are_forgotten_after_thirty_days() -> None:
    """Closed ones; what is open stays for as long as it is."""
    cluster = FakeCluster()
    ledger = store(cluster)
    old, young = many(40, NOW), refused(incident("late"), NOW + 29 * DAY)
    held_open = record(stage=Stage.HELD)
    book = of(held_open, young, *old)
    held = ledger.save(book, ledger.load().version)
    ledger.save(book, held.version)
    later = store(cluster, NOW + 31 * DAY)

    held = later.load()
    assert held.book == of(held_open, young)
    held = later.save(of(held_open, young, *many(40, NOW + 31 * DAY)), held.version)
    held = later.save(held.book, held.version)
    assert set(store(cluster, NOW).load().book.records) == set(held.book.records)


def test_a_ledger_that_is_full_says_so_and_stays() -> None:
    """Before the API server would refuse it."""
    cluster = FakeCluster()
    ledger = store(cluster)
    held = ledger.save(of(record()), ledger.load().version)
    noise = random.Random(1)
    records = [record(incident(f"gpu-{number}", noise.randbytes(900).hex()), Stage.HELD) for number in range(1_200)]

    with pytest.raises(FullError, match=r"ConfigMap gpufleet/gpufleet-quarantine: 1200 records make \d+ bytes"):
        ledger.save(of(*records), held.version)

    assert ledger.load().book == of(record())
    ledger.save(of(record(), *many(3)), held.version)


def test_a_part_that_is_full_leaves_its_records_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main one holds them for as long as it can."""
    monkeypatch.setattr(module, "part_names", lambda name: (f"{name}-history-00",) * 16)
    cluster = FakeCluster()
    ledger = store(cluster)
    noise = random.Random(1)
    records = [refused(incident(f"gpu-{number}", noise.randbytes(400).hex())) for number in range(160)]
    held = ledger.save(of(*records), ledger.load().version)
    monkeypatch.setattr(module, "_MOST_BYTES", 90_000)

    held = ledger.save(of(*records[:60]), held.version)
    held = ledger.save(of(*records[:60]), held.version)
    held = ledger.save(of(*records), held.version)
    held = ledger.save(of(*records), held.version)

    assert held.book == of(*records) == ledger.load().book


@pytest.mark.parametrize("content", ["!", "AAAA", "H4sIAAAAAAAA", "e30="])
def test_a_ledger_that_somebody_has_spoiled_is_not_written_over(content: str) -> None:
    """It says which ConfigMap."""
    cluster = FakeCluster()
    cluster.put(config_map("gpufleet", NAME), {"binaryData": {"book": content}})

    with pytest.raises(StoreError, match="ConfigMap gpufleet/gpufleet-quarantine: "):
        store(cluster).load()


def test_a_server_that_is_away_is_a_store_error() -> None:
    """For loads as for writes; the answer to Alertmanager is then: send it again."""
    cluster = FakeCluster()
    away = ConfigMapStore(cluster.api(meet=lambda _: Fault.LOST_REQUEST), "gpufleet", lambda: NOW)

    with pytest.raises(StoreError, match="cannot be read: get configmaps/gpufleet/gpufleet-quarantine"):
        away.load()


def test_a_ledger_that_was_deleted_meanwhile_is_a_conflict() -> None:
    """What is in memory is not put back over a person's head: it is loaded again, and empty."""
    cluster = FakeCluster()
    ledger = store(cluster)
    held = ledger.save(of(record()), ledger.load().version)
    cluster.end(config_map("gpufleet", NAME))

    with pytest.raises(ConflictError):
        ledger.save(of(record(), *many(1)), held.version)
    assert ledger.load().book == Book()


@pytest.mark.parametrize(
    ("stage", "verdict", "closed"),
    [
        (Stage.NONE, Verdict.DEFER, False),
        (Stage.NONE, Verdict.REFUSE, True),
        (Stage.NONE, Verdict.PLAN, True),
        (Stage.RESERVED, Verdict.QUARANTINE, False),
        (Stage.HELD, Verdict.JOIN, False),
        (Stage.RELEASING, Verdict.QUARANTINE, False),
        (Stage.RELEASED, Verdict.QUARANTINE, True),
    ],
)
def test_what_is_closed(stage: Stage, verdict: Verdict, closed: bool) -> None:
    """Nothing that is looked at in each round may go to the history."""
    assert record(stage=stage, decision=Decision(verdict, "any")).is_closed is closed
