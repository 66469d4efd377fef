"""What the catalogue says of an NVSwitch's SXid."""

from __future__ import annotations

import pytest

from gpufleet.faults import sxids
from gpufleet.faults.entry import Entry, FaultClass
from gpufleet.faults.sxid_rows import RETIRED, ROWS, UNITS
from gpufleet.faults.xids import expand
from gpufleet.model.fault import Action

ALWAYS_FATAL = [12020, 22003, 22010, 22011, *range(23001, 23018)]


def outcome(entry: Entry) -> tuple[Action, bool, bool]:
    """What follows from an entry."""
    return entry.action, entry.isolates, entry.needs_victim


def test_each_number_has_one_row() -> None:
    """No number means two things, and each belongs to a unit that has a name."""
    codes = [code for row in (*ROWS, RETIRED) for code in expand(row.codes)]

    assert len(codes) == len(set(codes)) == 399
    assert {code // 1000 for code in codes} <= set(UNITS)
    assert set(sxids.known()) == {*codes, 28006}


def test_every_row_says_what_happened_and_where_that_is_from() -> None:
    """A person can act on each, and check it."""
    for code in sxids.known():
        entry = sxids.lookup(code)
        assert entry.summary.startswith("NVSwitch, ")
        assert entry.summary.endswith(".")
        assert entry.remedy.endswith(".")
        assert entry.source.startswith("https://")


@pytest.mark.parametrize("code", [20034, 22012, 24007, 11001, 19055, 19049])
def test_the_word_in_the_line_decides(code: int) -> None:
    """The same number is fatal or not by what the driver did with the link; a switch's word needs a GPU's beside it."""
    assert outcome(sxids.lookup(code, fatal=True)) == (Action.DRAIN_AND_RESET, True, True)
    assert outcome(sxids.lookup(code, fatal=False)) == (Action.NONE, False, False)
    assert outcome(sxids.lookup(code)) == (Action.NONE, False, False)


@pytest.mark.parametrize("code", ALWAYS_FATAL)
def test_errors_of_the_whole_switch_are_always_fatal(code: int) -> None:
    """They take down the fabric, whatever the word."""
    for word in (True, False, None):
        assert outcome(sxids.lookup(code, word)) == (Action.REBOOT_NODE, True, False)


@pytest.mark.parametrize("code", [26006, 10006, 27005])
def test_messages_without_a_word_may_be_fatal(code: int) -> None:
    """A switch's engine, a module or the cooling has no link and no word."""
    assert outcome(sxids.lookup(code)) == (Action.REBOOT_NODE, True, False)


def test_uncorrectable_errors_that_the_driver_calls_non_fatal_ask_for_a_reset_when_idle() -> None:
    """Guide and driver disagree: alert, but leave the node in service."""
    assert outcome(sxids.lookup(19061, fatal=False)) == (Action.RESET_GPU, False, False)
    assert outcome(sxids.lookup(19061, fatal=True)) == (Action.DRAIN_AND_RESET, True, True)


def test_the_notice_at_link_start_is_harmless() -> None:
    """It comes in bursts at every boot and is never a root."""
    entry = sxids.lookup(22013, fatal=False)

    assert entry.fault_class is FaultClass.INFORMATIONAL
    assert entry.rank is None
    assert outcome(entry) == (Action.NONE, False, False)


@pytest.mark.parametrize(
    ("code", "driver", "words"),
    [
        (28001, "550.40.07", "too warm"),
        (28001, "545.23.08", "corrected memory errors"),
        (28002, "535.129.03", "uncorrectable"),
        (28006, "535.129.03", "collective"),
        (28006, "570.86.15", "collective"),
        (29001, "545.23.08", "port reduction state"),
        (29001, "550.40.07", "port multicast state"),
        (30001, "550.54.15", "port reduction state"),
    ],
)
def test_renumbered_codes_mean_what_they_meant(code: int, driver: str, words: str) -> None:
    """550.40.07 moved three blocks of numbers on by a thousand."""
    entry = sxids.lookup(code, driver=driver)

    assert words in entry.summary
    assert entry.code == code


@pytest.mark.parametrize("code", [0, 11999, 31000, 999999])
def test_an_unknown_code_is_said_to_be_unknown(code: int) -> None:
    """It blames nobody; a fatal one still needs the link reset once a GPU reports it too."""
    assert sxids.lookup(code).fault_class is FaultClass.UNKNOWN
    assert sxids.sxid_class(code) == "unknown"
    assert outcome(sxids.lookup(code)) == (Action.NONE, False, False)
    assert outcome(sxids.lookup(code, fatal=True)) == (Action.DRAIN_AND_RESET, True, True)


@pytest.mark.parametrize(
    ("code", "word"), [(20034, "hardware"), (12028, "driver"), (22013, "informational"), (10005, "informational")]
)
def test_the_label_speaks_the_words_of_incidents(code: int, word: str) -> None:
    """Counters of switches use the vocabulary of those of GPUs."""
    assert sxids.sxid_class(code) == word


def test_a_fatal_switch_error_ranks_with_link_faults_of_gpus() -> None:
    """Below what loses a GPU, above what a program does."""
    assert sxids.lookup(20034, fatal=True).rank == 11
    assert sxids.lookup(20034, fatal=False).rank == 19
