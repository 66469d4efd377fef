"""Each fault counts once, whoever told it, and counts never fall within a boot."""

from __future__ import annotations

import pytest

from gpufleet.faults.counts import MOST_ADDRESSES, MOST_CODES, Counts
from gpufleet.faults.roster import Board, Roster
from gpufleet.model.incident import ErrorCount
from gpufleet.sources.kmsg_lines import parse_driver_text
from tests.support.driver_lines import DBE, LINK_ECHO, MMU, OFF_THE_BUS
from tests.support.fault_rig import FaultRig, address, uuid


def test_the_same_xid_from_the_log_and_the_driver_counts_once() -> None:
    """Whichever comes first."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1), gpu=0)
    rig.nvml(31, gpu=0, after=0.1)
    rig.nvml(31, gpu=1, after=1)
    rig.xid(31, MMU.format(pid=1), gpu=1, after=0.1)
    rig.wait(60)

    assert (rig.count(31, 0), rig.count(31, 1)) == (1, 1)
    assert [dict(each.counts) for each in rig.active()] == [{"31": 1}, {"31": 1}]


@pytest.mark.parametrize("code", [79, 119, 120, 62])
def test_what_the_driver_never_tells_counts_from_the_log(code: int) -> None:
    """These do not come as events of the driver."""
    rig = FaultRig()
    rig.xid(code)
    rig.wait(10)

    assert rig.count(code) == 1


def test_what_the_log_lacks_counts_after_five_seconds() -> None:
    """A record that was overwritten: the driver's own event stands for it."""
    rig = FaultRig()
    rig.nvml(13)
    rig.wait(4.9)
    assert rig.count(13) == 0
    rig.wait(0.2)

    assert rig.count(13) == 1


@pytest.mark.parametrize(("gap", "count"), [(4.9, 1), (5.1, 2)])
def test_a_twin_is_within_five_seconds(gap: float, count: int) -> None:
    """Further apart they are two faults."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1))
    rig.nvml(31, after=gap)
    rig.wait(10)

    assert rig.count(31) == count


def test_another_gpu_or_code_is_no_twin() -> None:
    """The pair of both is what makes one."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1), gpu=0)
    rig.nvml(31, gpu=1)
    rig.nvml(13, gpu=0)
    rig.wait(10)

    assert (rig.count(31, 0), rig.count(31, 1), rig.count(13, 0)) == (1, 1, 1)


def test_without_a_log_the_driver_counts_at_once() -> None:
    """Where /dev/kmsg may not be read."""
    rig = FaultRig(has_log=False)
    rig.nvml(31)
    rig.nvml(31)

    assert rig.count(31) == 2


def test_a_log_that_becomes_readable_counts_nothing_again() -> None:
    """Its replay tells what the driver told before, and more: what is new counts."""
    rig = FaultRig(has_log=False)
    rig.nvml(31)
    rig.nvml(31, after=0.5)
    rig.ledger.log_readable(readable=True, now=rig.now)
    rig.now -= 0.5
    for _ in range(3):
        rig.xid(31, MMU.format(pid=1), after=0.2)

    assert rig.count(31) == 3


def test_a_log_that_becomes_readable_is_folded_in_its_own_time() -> None:
    """What happened while nobody could read it: an echo then is an echo now, and what was over is over."""
    rig = FaultRig()
    rig.ledger.log_readable(readable=False, now=rig.now)
    start = rig.now
    rig.now += 12 * 3600
    rig.ledger.log_readable(readable=True, now=rig.now)
    for at, gpu, code, text in (
        (1, 5, 31, MMU.format(pid=1)),
        (600, 0, 74, LINK_ECHO),
        (602, 2, 79, OFF_THE_BUS),
        (700, 3, 48, DBE),
    ):
        rig.record += 1
        said = f"NVRM: Xid (PCI:{address(gpu)[:-2]}): {code}, {text}"
        event = parse_driver_text(said, at=start + at, source="kmsg", sequence=rig.record)
        assert event is not None
        rig.ledger.feed(event, rig.now)
        rig.ledger.tick(rig.now)
    assert rig.count(31, 5) == 1
    rig.ledger.replay_ended(rig.now)

    assert [(each.fault, each.gpu) for each in rig.active()] == [("79", 2), ("48", 3)]


def test_a_log_that_is_lost_lets_the_waiting_count() -> None:
    """No twin can come any more."""
    rig = FaultRig()
    rig.nvml(31)
    rig.ledger.log_readable(readable=False, now=rig.now)

    assert rig.count(31) == 1


def test_counts_are_not_shown_before_the_replay_ends() -> None:
    """A count that is still growing from the past would look like a storm of now."""
    rig = FaultRig(replayed=False)
    rig.poll()
    rig.xid(31, MMU.format(pid=1))
    assert (rig.view.xid_errors, rig.view.switch_errors) == (None, None)
    rig.ledger.replay_ended(rig.now)

    assert rig.count(31) == 1


def test_counts_follow_the_board_by_its_uuid() -> None:
    """Told before the first poll by address, shown by UUID as soon as that is known."""
    rig = FaultRig(replayed=False)
    rig.xid(31, MMU.format(pid=1), gpu=4)
    rig.ledger.replay_ended(rig.now)
    assert rig.view.xid_errors == (ErrorCount(31, "application", 1, None, address(4)),)
    rig.poll()

    assert rig.view.xid_errors == (ErrorCount(31, "application", 1, uuid(4), None),)


def test_the_log_names_a_board_before_any_poll_does() -> None:
    """The line with the UUID comes before the first Xid of a GPU."""
    rig = FaultRig(replayed=False)
    rig.ledger.learn(address(4), uuid(4), rig.now)
    rig.xid(79, OFF_THE_BUS, gpu=4)
    rig.ledger.replay_ended(rig.now)

    assert rig.count(79, 4) == 1
    assert [(each.uuid, each.gpu) for each in rig.active()] == [(uuid(4), None)]


def test_a_board_that_is_exchanged_takes_its_counts_along() -> None:
    """Neither starts with the other's."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1), gpu=4)
    rig.gpus[4].generation = 1
    rig.poll(after=100)
    rig.xid(31, MMU.format(pid=1), gpu=4)
    rig.xid(31, MMU.format(pid=1), gpu=4)

    assert rig.view.xid_errors is not None
    assert {(row.uuid, row.count) for row in rig.view.xid_errors} == {(uuid(4), 1), (uuid(4, 1), 2)}


def test_one_sxid_is_counted_for_its_switch() -> None:
    """By address and code, with its class."""
    rig = FaultRig()
    rig.sxid(20034, "Fatal, Link 28 LTSSM Fault Up", switch=2)
    rig.sxid(22013, "Non-fatal, Link 44 Minion Link DLREQ interrupt", switch=2)

    assert rig.view.switch_errors == (
        ErrorCount(20034, "hardware", 1, None, "0000:c2:00.0"),
        ErrorCount(22013, "informational", 1, None, "0000:c2:00.0"),
    )


def test_codes_and_gpus_without_end_are_bounded() -> None:
    """Beyond sixty-four codes a GPU has one count for the rest; beyond so many GPUs nothing is counted."""
    counts = Counts()
    for code in range(200):
        assert counts.add(counts.xids, "a", code, "unknown")
    for number in range(MOST_ADDRESSES - 1):
        assert counts.add(counts.xids, f"b{number}", 1, "unknown")

    assert not counts.add(counts.xids, "one too many", 1, "unknown")
    rows = [row for row in counts.xid_errors(lambda _: None) if row.pci_bus_id == "a"]
    assert len(rows) == MOST_CODES + 1
    assert [row.count for row in rows if row.code is None] == [200 - MOST_CODES]
    assert sum(row.count for row in rows) == 200


def test_the_class_of_a_series_never_changes() -> None:
    """A driver that was not known when the first came gives the number another meaning: a second series is worse."""
    counts = Counts()
    counts.add(counts.xids, "a", 139, "unknown")
    counts.add(counts.xids, "a", 139, "driver")

    assert [(row.fault_class, row.count) for row in counts.xid_errors(lambda _: None)] == [("unknown", 2)]


def test_a_board_of_the_boot_before_is_believed_where_nothing_else_is_known() -> None:
    """A GPU that died at probe has no UUID in this boot; one that was seen elsewhere is not there."""
    roster = Roster()
    roster.learn("a", "GPU-1", 1)
    roster.learn("b", "GPU-2", 2)
    roster.start_boot()
    roster.learn("c", "GPU-2", 0)

    assert roster.at("a") == Board("GPU-1", 1)
    assert roster.at("b") is None
    assert roster.at("c") == Board("GPU-2", 0)
