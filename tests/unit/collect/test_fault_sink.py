"""What a poller without a ledger counts, and what stays of faults while a GPU is down."""

from __future__ import annotations

from gpufleet.collect.fault_sink import Counting, standing
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import ErrorCount, FaultsView
from gpufleet.model.readings import Key
from tests.support.poller_rig import values


def event(code: int | None) -> FaultEvent:
    """The driver's own event."""
    return FaultEvent(FaultKind.XID, 1.0, "nvml", "0000:1b:00.0", code)


def test_each_code_of_each_gpu_is_counted_by_its_class() -> None:
    """And a view that somebody holds does not change under him."""
    counting = Counting()
    before = counting.view
    for code, uuid in ((79, "GPU-1"), (31, "GPU-1"), (31, "GPU-2"), (31, "GPU-1")):
        counting.feed(event(code), uuid)
    assert before.xid_errors == ()
    assert counting.view.xid_errors == (
        ErrorCount(79, "hardware", 1, "GPU-1"),
        ErrorCount(31, "application", 2, "GPU-1"),
        ErrorCount(31, "application", 1, "GPU-2"),
    )


def test_an_event_without_a_code_counts_nothing() -> None:
    """The view stays the same object: nothing has to be rendered anew."""
    counting = Counting()
    view = counting.view
    counting.feed(event(None), "GPU-1")
    assert counting.view is view


def test_counts_and_times_stand_with_their_gpu() -> None:
    """Codes that are not told apart have one name; what has no UUID has no GPU to stand with."""
    view = FaultsView(
        xid_errors=(
            ErrorCount(79, "hardware", 2, "GPU-1"),
            ErrorCount(None, "unknown", 7, "GPU-1"),
            ErrorCount(31, "application", 5, "GPU-2"),
            ErrorCount(62, "hardware", 9, None, "0000:9b:00.0"),
        ),
        last_fault_at=(("GPU-1", 123.5), ("GPU-3", 7.0)),
    )
    assert {uuid: values(parts) for uuid, parts in standing(view).items()} == {
        "GPU-1": {
            Key("xid_errors", ("79", "hardware")): 2,
            Key("xid_errors", ("other", "unknown")): 7,
            Key("last_fault_timestamp_seconds"): 123.5,
        },
        "GPU-2": {Key("xid_errors", ("31", "application")): 5},
        "GPU-3": {Key("last_fault_timestamp_seconds"): 7.0},
    }


def test_nothing_stands_before_the_replay_has_ended() -> None:
    """A count that is shown too early would go up by what had happened long before."""
    assert standing(FaultsView()) == {}
