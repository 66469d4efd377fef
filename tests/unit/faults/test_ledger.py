"""The ledger as a whole: what survives a crash, what is bounded, what a person reads."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpufleet.faults.docket import MOST_ADDRESSES, MOST_CLOSED, MOST_OPEN, MOST_OPEN_OF_A_GPU
from gpufleet.faults.ledger import Ledger
from gpufleet.faults.stored import StoredError
from gpufleet.faults.words import explain, headline
from gpufleet.model.fault import Action, FaultEvent, FaultKind
from gpufleet.model.incident import Owner
from gpufleet.model.state import GpuState
from tests.support.driver_lines import (
    CONTAINED,
    DBE,
    LINK_ECHO,
    LINK_UP_FAULT,
    MMU,
    OFF_THE_BUS,
    REMAP_FAILED,
    TIMEOUT,
    UNCONTAINED,
)
from tests.support.fault_rig import START, FaultRig, address, uuid

if TYPE_CHECKING:
    from collections.abc import Callable


def a_day(rig: FaultRig) -> list[FaultEvent]:
    """Something of everything; the events of the kernel's log."""
    rig.owners = {1: Owner(project="a", run="r")}
    rig.gpus[5].failure = 1
    rig.poll(after=5)
    told = [
        rig.xid(48, DBE, gpu=0),
        rig.xid(94, CONTAINED, gpu=0, after=0.02),
        rig.xid(119, f"pid=4, name=nvidia-smi, {TIMEOUT}", gpu=1, after=50),
        rig.xid(79, OFF_THE_BUS, gpu=1, after=3),
        rig.sxid(20034, LINK_UP_FAULT, after=9),
        rig.xid(74, LINK_ECHO, gpu=2, after=0.1),
        rig.xid(31, MMU.format(pid=8), gpu=3, after=100),
        rig.recovery(0, 1, gpu=3, after=1),
        rig.xid(45, "pid=8, name=python3, Ch 1", gpu=3, after=1),
    ]
    rig.gpus[3].recovery = "gpu_reset"
    rig.nvml(13, gpu=4, after=20)
    told.append(rig.xid(46, gpu=6, after=2))
    return told


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_a_restart_changes_nothing_that_is_shown() -> None:
    """Incidents, their names and labels, counts and times: the same after the state was written and read."""
    rig = FaultRig()
    told = a_day(rig)
    before = rig.view
    rig.restart(replay=told)
    after = rig.view

    assert len(before.active) == 4
    assert replace(after, closed=()) == replace(before, closed=())
    assert [(each.id, each.labels()) for each in after.closed] == [(each.id, each.labels()) for each in before.closed]


def test_the_log_read_again_counts_nothing_twice() -> None:
    """The kernel's log still has everything; what was fed is known by its number."""
    rig = FaultRig()
    told = a_day(rig)
    before = rig.view.xid_errors
    for _ in range(3):
        rig.restart(replay=told)

    assert rig.view.xid_errors == before
    for event in told:
        rig.ledger.feed(event, rig.now)
    assert rig.view.xid_errors == before


@pytest.mark.parametrize("at", range(10))
def test_a_crash_at_any_record_loses_nothing(at: int) -> None:
    """The state of any moment and the log since then come to the same incidents, names and counts."""
    whole, broken = FaultRig(), FaultRig()
    told = a_day(whole)
    broken.gpus[3].recovery = "gpu_reset"
    for event in told[:at]:
        broken.now = event.at
        broken.ledger.feed(event, event.at)
        broken.ledger.tick(event.at)
    broken.restart(replay=told)

    expected = {each.id for each in (*whole.view.active, *whole.view.settling) if each.fault != "row_remap_failure"}
    assert {each.id for each in (*broken.view.active, *broken.view.settling)} == expected
    assert {(row.uuid, row.code, row.count) for row in broken.view.xid_errors or ()} == {
        (uuid(gpu), code, 1)
        for gpu, code in [(0, 48), (0, 94), (1, 119), (1, 79), (2, 74), (3, 31), (3, 154), (3, 45), (6, 46)]
    }


def test_an_incident_survives_a_log_that_scrolled_away() -> None:
    """The ring buffer holds nothing of it any more."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED)
    shown = rig.active()
    rig.restart(replay=[])

    assert rig.active() == shown
    assert rig.count(95) == 1


def test_a_replacement_survives_the_reboot_and_counts_begin_anew() -> None:
    """Counts are since boot; the incident is the same, found where its board is now."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED, gpu=2)
    (before,) = rig.active()
    rig.restart(boot="boot-2")

    (after,) = rig.active()
    assert after.labels() == before.labels()
    assert (rig.count(64, 2), rig.ledger.repeats(uuid(2), rig.now)["64"]) == (0, 1)
    first = rig.xid(79, OFF_THE_BUS, gpu=4, after=10)
    assert first.sequence == 1
    assert rig.count(79, 4) == 1


def test_a_board_that_moved_at_the_reboot_is_found_in_its_new_slot() -> None:
    """The incident goes on under its name, and says where the board is."""
    rig = FaultRig(gpus=4)
    rig.xid(64, REMAP_FAILED, gpu=2)
    (before,) = rig.active()
    rig.gpus = [gpu for gpu in rig.gpus if gpu.number != 2]
    moved = rig.gpus[0].snapshot(rig.now)
    assert moved.identity.pci_bus_id == address(0)
    rig.restart(boot="boot-2")
    # The same board, in a slot that was empty before.
    rig.ledger.learn(address(9), uuid(2), rig.now)

    (after,) = rig.active()
    assert (after.id, after.pci_bus_id) == (before.id, address(9))


def test_what_waited_for_its_twin_survives_a_crash() -> None:
    """A driver's event that was not counted yet is not lost."""
    rig = FaultRig()
    rig.nvml(13)
    rig.restart()
    rig.wait(6)

    assert rig.count(13) == 1


def test_an_incident_is_settled_in_its_own_time_after_a_replay() -> None:
    """What happened and was over hours ago is not shown as if it were of now."""
    rig = FaultRig()
    told = [
        rig.xid(31, MMU.format(pid=1)),
        rig.xid(48, DBE, gpu=1, after=60),
        rig.xid(79, OFF_THE_BUS, gpu=2, after=60),
    ]
    rig.now += 10 * 3600
    rig.restart(replay=told, lose_state=True)

    assert [each.fault for each in rig.active()] == ["48", "79"]
    assert [(each.fault, each.closed_because) for each in rig.view.closed] == [("31", "three quiet hours")]


def test_echoes_are_echoes_in_a_replay_too() -> None:
    """The chain is folded in the time of the log, though it is read in a moment."""
    rig = FaultRig()
    told = [
        rig.xid(74, LINK_ECHO, gpu=1),
        rig.sxid(20034, LINK_UP_FAULT, after=1),
        rig.xid(79, OFF_THE_BUS, gpu=2, after=2),
        rig.xid(74, LINK_ECHO, gpu=3, after=10),
    ]
    rig.now += 3600
    rig.restart(replay=told, lose_state=True)

    assert [(each.fault, each.uuid) for each in rig.active()] == [("79", uuid(2))]


def test_a_revision_tells_when_to_write() -> None:
    """It moves when an incident is opened, shown or closed, and not with each event of a storm."""
    rig = FaultRig()
    revisions = [rig.ledger.revision]
    rig.xid(48, DBE)
    revisions.append(rig.ledger.revision)
    rig.wait(5)
    revisions.append(rig.ledger.revision)
    rig.ledger.clear(rig.active()[0].id, rig.now)
    revisions.append(rig.ledger.revision)
    assert sorted(set(revisions)) == revisions

    rig.xid(45)
    before, events = rig.ledger.revision, rig.ledger.events
    for _ in range(100):
        rig.xid(45)
    assert rig.ledger.revision == before
    assert rig.ledger.events == events + 100


def test_a_view_is_the_same_object_until_something_changes() -> None:
    """Whoever shows it may compare by identity."""
    rig = FaultRig()
    before = rig.view
    rig.poll(after=1)
    rig.wait(1)
    assert rig.view is before
    rig.xid(45)

    assert rig.view is not before


# --- state that can't be used -----------------------------------------------------------------------------------------


def fresh() -> Ledger:
    """A ledger that knows nothing."""
    return Ledger(node="node-1", boot_id="boot-1", random_id=lambda: "0" * 16)


def breakages() -> list[tuple[str, Callable[[dict[str, Any]], object]]]:
    """Ways in which a state can be wrong, and what the message has to name."""
    return [
        ("boot_id is missing", lambda state: state.pop("boot_id")),
        ("sequence is no int", lambda state: state.update(sequence="7")),
        ("sequence is no int", lambda state: state.update(sequence=True)),
        ("version is 2", lambda state: state.update(version=2)),
        ("more is not known", lambda state: state.update(more=1)),
        ("cases is no list", lambda state: state.update(cases={})),
        ("cases\\[0\\] is no table", lambda state: state.update(cases=[1])),
        ("last_at is no number", lambda state: state["cases"][0].update(last_at=float("nan"))),
        ("last_at is no float", lambda state: state["cases"][0].update(last_at="x")),
        ("frozen.action is no Action", lambda state: state["cases"][0]["frozen"].update(action="explode")),
        ("two incidents of one name", lambda state: state["cases"].append(copy.deepcopy(state["cases"][0]))),
        ("waits for nobody", lambda state: state["cases"][0].update(yielded_to="nobody")),
        ("under another name", lambda state: state["cases"][0]["seen"].update(x=state["cases"][0]["seen"]["79"])),
        ("not named by a number", lambda state: state["counts"]["xids"].update(a={"x": {}})),
        ("count below one", lambda state: state["counts"]["xids"][address(0)]["79"].update(count=-5)),
        ("longer than", lambda state: state["cases"][0].update(address="a" * 5000)),
        ("more than", lambda state: state.update(closed=[0] * 5000)),
    ]


@pytest.mark.parametrize(("message", "breakage"), breakages())
def test_a_damaged_state_is_refused_with_the_place(message: str, breakage: Callable[[dict[str, Any]], object]) -> None:
    """The message names what is wrong, and nothing was taken from it."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS)
    state = json.loads(json.dumps(rig.ledger.dump()))
    breakage(state)
    ledger = fresh()

    with pytest.raises(StoredError, match=message):
        ledger.load(state, rig.now)
    assert ledger.dump() == fresh().dump()


@pytest.mark.parametrize("kept", [None, [], "x", 7, {}, {"version": 1}])
def test_no_state_at_all_is_refused(kept: object) -> None:
    """Not a table, or one of nothing."""
    with pytest.raises(StoredError, match="state"):
        fresh().load(kept, START)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_flood_of_everything_stays_small() -> None:
    """Hundreds of GPUs, codes, processes and texts: the state stays below a megabyte, and the worst is kept."""
    rig = FaultRig(gpus=1)
    for number in range(12_000):
        rig.record += 1
        rig.now += 0.2
        event = FaultEvent(
            FaultKind.SXID if number % 5 == 0 else FaultKind.XID,
            rig.now,
            "kmsg",
            f"{number % 300:04x}:00:00.0",
            number % 211,
            pid=number,
            process="p" * 500,
            text="t" * 5000,
            sequence=rig.record,
            fatal=number % 3 == 0,
            link=number % 40,
            unit="u" * 300,
            caused_by=number % 97 if number % 11 == 0 else None,
        )
        rig.ledger.feed(event, rig.now)
        if number % 50 == 0:
            rig.ledger.tick(rig.now)
    rig.wait(40)
    kept = json.dumps(rig.ledger.dump())

    assert len(kept) < 1 << 20
    view = rig.view
    assert len(view.active) + len(view.settling) <= 2 * MOST_OPEN
    assert len(view.closed) <= MOST_CLOSED
    assert view.left_out > 0
    assert any(each.isolate for each in view.active)
    rig.restart()
    assert rig.active() == view.active


def test_failing_jobs_do_not_pile_up() -> None:
    """A job that fails every ten minutes for hours: as many incidents as a person can look at."""
    rig = FaultRig()
    for number in range(60):
        rig.xid(31, MMU.format(pid=number), after=600)

    assert 0 < len(rig.active()) <= MOST_OPEN_OF_A_GPU
    assert rig.count(31) == 60


def test_a_fault_of_a_known_gpu_finds_room_among_harmless_ones() -> None:
    """A node full of programs' faults still tells of the GPU that is lost."""
    rig = FaultRig(gpus=1)
    for number in range(MOST_ADDRESSES - 1):
        rig.now += 100
        rig.record += 1
        event = FaultEvent(FaultKind.XID, rig.now, "kmsg", f"{number + 1:04x}:00:00.0", 31, sequence=rig.record)
        rig.ledger.feed(event, rig.now)
    rig.xid(79, OFF_THE_BUS, after=1)

    assert "79" in {each.fault for each in rig.active()}


@pytest.mark.parametrize("at", [float("nan"), float("inf"), float("-inf"), -5.0, START + 1e9])
def test_a_time_that_can_not_be_is_no_time(at: float) -> None:
    """A clock that was set, or a number that is none, keeps nothing open for ever."""
    rig = FaultRig()
    rig.ledger.feed(FaultEvent(FaultKind.XID, at, "kmsg", address(0), 31, sequence=1), rig.now)
    rig.wait(4 * 3600)

    assert rig.view.active + rig.view.settling == ()
    assert rig.count(31) == 1


def test_events_without_what_makes_them_are_nothing() -> None:
    """An Xid without a code, an SXid without one, a further line of an SXid; an Xid of no GPU counts all the same."""
    rig = FaultRig()
    rig.ledger.feed(FaultEvent(FaultKind.XID, rig.now, "kmsg", address(0)), rig.now)
    rig.ledger.feed(FaultEvent(FaultKind.SXID, rig.now, "kmsg", address(0)), rig.now)
    rig.ledger.feed(FaultEvent(FaultKind.SXID, rig.now, "kmsg", address(0), 20034, continues=True), rig.now)
    assert (rig.view.xid_errors, rig.view.switch_errors) == ((), ())
    rig.ledger.feed(FaultEvent(FaultKind.XID, rig.now, "kmsg", None, 79), rig.now)
    rig.ledger.tick(rig.now)

    assert rig.view.xid_errors is not None
    assert [row.count for row in rig.view.xid_errors] == [1]
    assert [(each.fault, each.pci_bus_id, each.isolate) for each in rig.active()] == [("79", None, True)]


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_alert_contract() -> None:
    """Texts in the order of the contract; what is not known is empty."""
    rig = FaultRig()
    rig.owners = {3: Owner("proj", "run-7", "train", "ml", "pod-0", "main")}
    rig.xid(79, OFF_THE_BUS, gpu=3)
    labels = rig.active()[0].labels()

    assert [(name, getattr(labels, name)) for name in labels.__dataclass_fields__] == [
        ("node", "node-1"),
        ("gpu", "3"),
        ("uuid", uuid(3)),
        ("pci_bus_id", address(3)),
        ("incident", rig.active()[0].id),
        ("fault", "79"),
        ("class_", "hardware"),
        ("action", "reboot_node"),
        ("isolate", "true"),
        ("refund", "true"),
        ("project", "proj"),
        ("run", "run-7"),
        ("task", "train"),
        ("workload_namespace", "ml"),
        ("workload_pod", "pod-0"),
        ("workload_container", "main"),
    ]


def test_the_time_of_the_last_fault_is_kept() -> None:
    """Of what was shown, after it was closed and after a restart; a consequence that opens nothing leaves none."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1), gpu=2)
    rig.xid(45, "pid=1, name=python3, Ch 1", gpu=2, after=3)
    last = rig.now
    rig.xid(45, "pid=1, name=python3, Ch 1", gpu=3, after=3)
    rig.wait(4 * 3600)
    rig.restart()

    assert rig.view.last_fault_at == ((uuid(2), last),)


def test_words_say_what_happened_to_which_gpu_whose_fault_and_what_to_do() -> None:
    """All that a person needs, a line each."""
    rig = FaultRig()
    rig.owners = {3: Owner("proj", "run-7")}
    rig.xid(79, OFF_THE_BUS, gpu=3)
    rig.xid(119, f"pid=51, name=nvidia-smi, {TIMEOUT}", gpu=3, after=3)
    rig.xid(74, LINK_ECHO, gpu=4, after=1)
    said = explain(rig.only)

    assert said.splitlines()[0] == headline(rig.only)
    assert said.splitlines()[0] == (
        f"GPU 3 at {address(3)} of node-1: Xid 79, hardware; reboot the node, no work until then"
    )
    for part in (
        "What happened: The GPU no longer answers on PCIe",
        f"Board: {uuid(3)}",
        "Whose fault: this GPU",
        "What to do: reboot the node. Drain the node and reboot it",
        "Runs that it ended get their retry back.",
        "Held by: proj / run-7",
        f"Hit: process 51 (nvidia-smi), GPU {address(4)}",
        "Events: Xid 79, Xid 119, Xid 74 on peers",
        "First line: GPU has fallen off the bus.",
        "open until a reboot of the node",
        rig.only.id,
    ):
        assert part in said


def test_words_keep_hostile_text_on_its_line() -> None:
    """A process can have any name: it starts no line of its own and moves no cursor."""
    rig = FaultRig()
    name = "a\nWhat to do: nothing\x1b[2J\x7f"
    rig.record += 1
    event = FaultEvent(FaultKind.XID, rig.now, "kmsg", address(0), 31, pid=1, process=name, text=name, sequence=1)
    rig.ledger.feed(event, rig.now)
    said = explain(rig.only)

    assert sum(line.startswith("What to do") for line in said.splitlines()) == 0
    assert not set(said) & {"\x1b", "\x7f", "\r"}


@pytest.mark.parametrize("action", list(Action))
def test_words_know_every_action(action: Action) -> None:
    """None is without a sentence of what to do and of what closes it."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS)
    said = explain(replace(rig.active()[0], action=action))

    assert "What to do: " in said
    assert "open until " in said


def test_words_name_the_node_when_it_is_to_blame() -> None:
    """Two boards off the bus together: neither is."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS, gpu=1)
    rig.xid(79, OFF_THE_BUS, gpu=5, after=5)
    first, second = rig.active()

    assert "not these boards" in explain(first)
    assert f"one cause with {first.id}" in explain(second)


def test_a_lost_gpu_is_told_by_the_poll_where_nothing_else_can() -> None:
    """No log, no events: the state of the GPU alone opens the incident."""
    rig = FaultRig(has_log=False)
    rig.gpus[2].state = GpuState.LOST
    rig.poll(after=1)

    assert [(each.fault, each.uuid) for each in rig.active()] == [("gpu_lost", uuid(2))]
