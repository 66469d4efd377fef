"""Sub-codes of Xid 144 to 150, and the register bits of Xid 74."""

from __future__ import annotations

import pytest

from gpufleet.faults import nvlink5
from gpufleet.faults.entry import FaultClass
from gpufleet.faults.nvlink5_rows import UNITS, End, Unit
from gpufleet.faults.nvlink_registers import LinkVerdict, judge
from gpufleet.model.fault import Action

R570, R575 = "570.195.03", "575.51.02"


def action(code: int, *words: int, unit: str | None = None, driver: str | None = None) -> Action | None:
    """What the decoded event asks for."""
    found = nvlink5.decode(code, words, unit=unit, driver=driver)
    return found.meaning.action if found else None


@pytest.mark.parametrize("driver", [R570, R575, None])
@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_each_unit_is_found_in_its_layout(unit: Unit, driver: str | None) -> None:
    """Each unit's number is understood for old and new drivers, and by the line's own name where there is none."""
    word = unit.v2 if driver == R575 else unit.v1
    status = next(iter(unit.errors), 0)
    found = nvlink5.decode(unit.code, (word, status), unit=unit.name, driver=driver)

    assert found is not None
    assert found.unit == unit.name
    assert found.layout == (2 if driver == R575 else 1)


def test_the_same_word_means_another_unit_to_another_driver() -> None:
    """R575 packed the word anew, so the driver's version must be known, or the unit's name."""
    old = nvlink5.decode(145, (0x082, 0x40), driver=R570)
    new = nvlink5.decode(145, (0x004, 0x40), driver=R575)

    assert old is not None
    assert new is not None
    assert (old.unit, new.unit) == ("RLW_REMAP", "RLW_REMAP")
    assert nvlink5.decode(145, (0x004, 0x40), driver=R570) is None
    assert nvlink5.decode(149, (0x0000_0006, 0x0), driver=R575) is None


def test_the_name_in_the_line_wins_over_the_version() -> None:
    """A saved log may have been written by another driver than the one that runs."""
    found = nvlink5.decode(146, (0x0A, 0x4), unit="TLW_RX/TLW_RX_PIPE0", driver=R570)

    assert found is not None
    assert (found.unit, found.layout) == ("TLW_RX_PIPE0", 2)


@pytest.mark.parametrize(
    ("code", "words", "unit", "expected"),
    [
        (149, (0x0215C5C6, 0x0), "NETIR_LINK_EVT", Action.DRAIN_AND_RESET),
        (149, (0x000FE406, 0x0), "NETIR", Action.DRAIN_AND_RESET),
        (145, (0x0409A0C2, 0x8), "RLW_RXPIPE", Action.NONE),
        (145, (0x040868E2, 0x8), "RLW_SRC_TRACK", Action.RESTART_APPLICATION),
        (148, (0x0F, 0x80000000), "NVLPW_CTRL/NVLPW", Action.NONE),
        (150, (0x0, 0x0), "MSE_WATCHDOG", Action.RESET_GPU),
    ],
)
def test_real_events_are_decoded_without_a_version(
    code: int, words: tuple[int, ...], unit: str, expected: Action
) -> None:
    """Words as lines from the field have them."""
    assert action(code, *words, unit=unit) is expected


@pytest.mark.parametrize(
    ("reason", "end", "fault_class"),
    [
        (0x02, End.LINK, FaultClass.EITHER),
        (0x0A, End.LINK, FaultClass.HARDWARE),
        (0x16, End.SOFTWARE, FaultClass.DRIVER_OR_FIRMWARE),
        (0x21, End.PEER, FaultClass.EITHER),
        (0x28, End.HOST, FaultClass.DRIVER_OR_FIRMWARE),
        (0x2A, End.LINK, FaultClass.HARDWARE),
        (0x3F, End.UNKNOWN, FaultClass.EITHER),
    ],
)
@pytest.mark.parametrize(("low", "driver"), [(0x1C6, R570), (0x11, R575)])
def test_a_link_that_went_down_says_why(reason: int, end: End, fault_class: FaultClass, low: int, driver: str) -> None:
    """Bits 25 to 20 tell where to look, in both layouts; a reason of a later firmware is still a link down."""
    found = nvlink5.decode(149, (reason << 20 | low, 0), driver=driver)

    assert found is not None
    assert (found.meaning.end, found.meaning.fault_class) == (end, fault_class)


def test_some_links_go_down_without_harm() -> None:
    """Taken down on purpose, or with the host: no reset is asked for."""
    assert action(149, 0x026001C6, 0, driver=R570) is Action.NONE
    assert action(149, 0x02800011, 0, driver=R575) is Action.NONE


def test_of_several_errors_the_heaviest_counts() -> None:
    """The status has one bit for each."""
    assert action(144, 0x21, 0x01, driver=R570) is Action.NONE
    assert action(144, 0x21, 0x03, driver=R570) is Action.RESET_GPU


def test_lost_packets_are_promoted_when_there_are_too_many() -> None:
    """From R575 on a bit says so; the error is the same."""
    assert action(145, 0x06, 0x1, driver=R575) is Action.NONE
    assert action(145, 0x86, 0x1, driver=R575) is Action.RESET_GPU


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (149, ()),
        (149, (0x0215C5C6,)),
        (145, (0x0215C5C6, 0x1)),
        (144, (0x21, 0x4000)),
        (149, (0x226, 0x9)),
        (13, (0x21, 0x1)),
        (144, (0x03F00021, 0x1)),
    ],
)
def test_what_is_not_in_the_sheet_is_not_decoded(code: int, words: tuple[int, ...]) -> None:
    """Missing words, another Xid's unit, or an unknown status: the code alone stands."""
    assert nvlink5.decode(code, words, driver=R570) is None


def test_what_two_layouts_read_differently_is_not_guessed() -> None:
    """Without version and name a word that fits both layouts says nothing."""
    both = 0x1C6 & ~0x7F | 0x11
    assert nvlink5.decode(149, (both, 0)) == nvlink5.decode(149, (both, 0), driver=R575)
    assert nvlink5.decode(150, (0, 0)) is None
    assert nvlink5.decode(150, (0, 0), unit="MSE_WATCHDOG") is not None


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ((0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0), LinkVerdict.MARGINAL),
        ((0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0), LinkVerdict.FAULT),
        ((1 << 20, 0, 0, 0, 0, 0, 0), LinkVerdict.ECHO),
        ((0, 0, 0, 1 << 18, 0, 0, 0), LinkVerdict.ECHO),
        ((1 << 30 | 1, 0, 0, 0, 0, 0, 0), LinkVerdict.HARMLESS),
        ((1 << 20, 0, 1 << 13, 0, 0, 0, 0), LinkVerdict.FAULT),
        ((1 << 31, 0, 0, 0, 0, 0, 0), LinkVerdict.FAULT),
        ((0, 0, 0, 0, 1 << 20, 0, 0), LinkVerdict.MARGINAL),
        ((0, 0xFFFF, 0, 0, 0, 0xFFFF, 0xFFFF), None),
        ((0, 0, 0, 0, 0, 0, 0), None),
        ((), None),
    ],
)
def test_the_bits_of_an_older_link_tell_faults_from_echoes(words: tuple[int, ...], verdict: LinkVerdict | None) -> None:
    """Some bits of an Xid 74 say only that the other end went away; an unknown bit is taken for a fault."""
    assert judge(words) is verdict
