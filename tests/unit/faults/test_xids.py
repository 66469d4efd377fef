"""What the catalogue says of an Xid."""

from __future__ import annotations

import pytest

from gpufleet.faults import xids
from gpufleet.faults.entry import BLAMES, Entry, FaultClass, Severity, heaviest
from gpufleet.faults.xid_rows import ROWS
from gpufleet.faults.xid_rows_retired import ROWS as RETIRED
from gpufleet.model.fault import Action, Blame

TENANT_CAN_CAUSE = (8, 13, 31, 32, 43, 45, 69, 109)
ISOLATING = (46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 150, 151, 158, 167, 169, 172, 173, 175)
ROOTS = (
    (79, 167),
    (143,),
    (62, 169, 120),
    (119, 175),
    (48,),
    (64,),
    (95,),
    (140,),
    (94,),
    (63,),
    (149, 74, 136),
    (110,),
    (46, 158),
    (109,),
    (8,),
    (13,),
    (31,),
    (32, 69, 39, 40, 41),
    (145, 137),
    (43,),
    (45,),
)
"""Which code is the root of an incident that has several, likeliest first."""


def entries() -> list[Entry]:
    """Every entry there is."""
    return [xids.lookup(code) for code in xids.known()]


def test_every_number_of_the_driver_has_a_row() -> None:
    """1 to 176, each once."""
    rows = [code for row in (*ROWS, *RETIRED) for code in xids.expand(row.codes)]

    assert sorted(rows) == list(range(1, 177))


def test_every_row_says_what_happened_what_to_do_and_where_that_is_from() -> None:
    """A person can act on each, and check it."""
    for entry in entries():
        assert entry.name
        assert entry.summary.endswith(".")
        assert entry.remedy.endswith(".")
        assert entry.source.startswith("http") or entry.source == "reports from the field"


@pytest.mark.parametrize(
    ("code", "fault_class", "action", "severity"),
    [
        (13, FaultClass.APPLICATION, Action.RESTART_APPLICATION, Severity.CONTAINED),
        (31, FaultClass.APPLICATION, Action.RESTART_APPLICATION, Severity.CONTAINED),
        (45, FaultClass.INFORMATIONAL, Action.NONE, Severity.BENIGN),
        (48, FaultClass.HARDWARE, Action.RESET_GPU, Severity.FATAL),
        (63, FaultClass.HARDWARE, Action.RESET_GPU, Severity.DEGRADED),
        (64, FaultClass.HARDWARE, Action.REPLACE, Severity.FATAL),
        (79, FaultClass.HARDWARE, Action.REBOOT_NODE, Severity.FATAL),
        (92, FaultClass.HARDWARE, Action.NONE, Severity.DEGRADED),
        (94, FaultClass.HARDWARE, Action.RESTART_APPLICATION, Severity.CONTAINED),
        (95, FaultClass.HARDWARE, Action.RESET_GPU, Severity.FATAL),
        (109, FaultClass.EITHER, Action.RESTART_APPLICATION, Severity.DEGRADED),
        (119, FaultClass.DRIVER_OR_FIRMWARE, Action.RESET_GPU, Severity.FATAL),
        (154, FaultClass.INFORMATIONAL, Action.NONE, Severity.BENIGN),
    ],
)
def test_well_known_codes(code: int, fault_class: FaultClass, action: Action, severity: Severity) -> None:
    """The codes that every operator knows mean what they know."""
    entry = xids.lookup(code)

    assert (entry.code, entry.fault_class, entry.action, entry.severity) == (code, fault_class, action, severity)


def test_what_a_tenant_can_cause_neither_isolates_nor_refunds() -> None:
    """A tenant must not be able to take nodes out of service or to get retries for nothing."""
    for code in TENANT_CAN_CAUSE:
        entry = xids.lookup(code)
        assert not entry.isolates, code
        assert not entry.refundable, code


def test_what_isolates_is_a_short_list() -> None:
    """Of the codes alone only these mean that the GPU is of no use; a change here is a decision."""
    assert [entry.code for entry in entries() if entry.isolates] == list(ISOLATING)


def test_what_isolates_has_an_action_that_cures_it() -> None:
    """Isolated without a way out would be for ever."""
    for entry in entries():
        if entry.isolates:
            assert entry.action not in {Action.NONE, Action.RESTART_APPLICATION}, entry.code


def test_a_refund_is_for_hardware_alone() -> None:
    """Driver hangs isolate, but the driver's word on whose fault they are is out."""
    for entry in entries():
        assert entry.refundable == (entry.blame is Blame.HARDWARE), entry.code
    assert xids.lookup(119).isolates
    assert not xids.lookup(119).refundable


def test_roots_are_in_the_order_in_which_faults_cause_each_other() -> None:
    """Of two codes of one incident the earlier in this order is the root."""
    ranks = [{xids.lookup(code).rank for code in same} for same in ROOTS]

    assert ranks == [{rank} for rank in range(1, len(ROOTS) + 1)]


def test_a_verdict_a_notice_and_a_test_are_never_a_root() -> None:
    """Xid 154 says what to do about something else; 14 and 106 are injected."""
    for code in (14, 106, 107, 154, 162):
        assert xids.lookup(code).rank is None, code


def test_codes_whose_echoes_come_for_hours_are_marked() -> None:
    """They hold an incident open."""
    assert [entry.code for entry in entries() if entry.sticky] == [74, 79, 95, 109, 119]


@pytest.mark.parametrize("code", [0, 177, 999, 65535])
def test_an_unknown_code_is_said_to_be_unknown(code: int) -> None:
    """A later driver's number blames nobody and asks for nothing."""
    entry = xids.lookup(code)

    assert (entry.fault_class, entry.blame, entry.action) == (FaultClass.UNKNOWN, Blame.UNKNOWN, Action.NONE)
    assert not entry.isolates
    assert not entry.refundable
    assert str(code) in entry.name
    assert xids.xid_class(code) == "unknown"


@pytest.mark.parametrize(
    ("code", "word"),
    [(79, "hardware"), (31, "application"), (119, "driver"), (109, "unknown"), (45, "informational")],
)
def test_the_label_speaks_the_words_of_incidents(code: int, word: str) -> None:
    """Counters and incidents use one vocabulary; consequences are apart from unknown faults."""
    assert xids.xid_class(code) == word


def test_every_class_has_a_blame() -> None:
    """The words of the catalogue are turned into those of incidents in one place."""
    assert set(BLAMES) == set(FaultClass)
    assert BLAMES[FaultClass.EITHER] is Blame.UNKNOWN
    assert BLAMES[FaultClass.DRIVER_OR_FIRMWARE] is Blame.DRIVER


@pytest.mark.parametrize(
    ("code", "driver", "like"),
    [
        (139, "535.288.01", 141),
        (139, "560.28.03", 139),
        (144, "550.163.01", 151),
        (144, "560.28.03", 144),
        (144, "610.11", 144),
        (149, "575.51.02", 149),
        (166, "590.44.01", 166),
        (169, "580.65.06", 169),
        (170, "590.44.01", 170),
    ],
)
def test_a_number_means_what_it_meant_to_that_driver(code: int, driver: str, like: int) -> None:
    """Some numbers were something else before."""
    assert xids.lookup(code, driver).summary == xids.lookup(like).summary
    assert xids.lookup(code, driver).code == code


@pytest.mark.parametrize(
    ("code", "driver"),
    [
        (144, "555.42.02"),
        (149, "555.58"),
        (167, "570.211.01"),
        (169, "580.65"),
        (170, "580.95.05"),
        (145, "550.163.01"),
    ],
)
def test_a_placeholder_means_nothing(code: int, driver: str) -> None:
    """Where the driver has the number without a meaning, ours is not read into it."""
    entry = xids.lookup(code, driver)

    assert entry.fault_class is FaultClass.UNKNOWN
    assert not entry.isolates


@pytest.mark.parametrize("driver", [None, "", "unknown", "550.x", "٥٥٠.1", "9" * 40, "."])
def test_without_a_version_a_number_means_what_it_means_today(driver: str | None) -> None:
    """A saved log need not say which driver wrote it."""
    assert xids.lookup(144, driver) == xids.lookup(144)


def test_the_heaviest_action_includes_the_others() -> None:
    """Actions are in the order of what they include."""
    assert heaviest(Action.RESET_GPU, Action.REBOOT_NODE, Action.NONE) is Action.REBOOT_NODE
    assert heaviest(Action.REPLACE, Action.REBOOT_NODE) is Action.REPLACE
    assert heaviest() is Action.NONE
