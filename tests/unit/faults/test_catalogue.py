"""What one event means, its text included."""

from __future__ import annotations

import pytest

from gpufleet.faults.catalogue import class_of, entry_of, isolates, recovery
from gpufleet.faults.entry import FaultClass
from gpufleet.model.fault import Action, Blame, FaultEvent, FaultKind
from gpufleet.sources.kmsg_lines import parse_driver_text


def event(text: str) -> FaultEvent:
    """The event of a driver's line."""
    found = parse_driver_text(text, at=0.0, source="kmsg")
    assert found is not None
    return found


def xid(code: int, said: str = "x") -> FaultEvent:
    """An Xid with a text."""
    return event(f"NVRM: Xid (PCI:0000:01:00): {code}, {said}")


@pytest.mark.parametrize(
    ("code", "said", "action", "isolating"),
    [
        (94, "Contained: SM (0x1). RST: No, D-RST: No", Action.RESTART_APPLICATION, False),
        (94, "Contained: SM (0x1). RST: Yes, D-RST: No", Action.RESET_GPU, True),
        (94, "Contained: SM (0x1). RST: No, D-RST: Yes", Action.DRAIN_AND_RESET, True),
        (94, "Contained: SM (0x1).", Action.RESTART_APPLICATION, False),
        (95, "Uncontained: LTC (0x1). RST: Yes, D-RST: No", Action.RESET_GPU, True),
        (95, "Uncontained: LTC (0x1). RST: No, D-RST: No", Action.RESTART_APPLICATION, False),
        (95, "Uncontained: LTC (0x1).", Action.RESET_GPU, True),
    ],
)
def test_the_text_of_a_memory_error_holds_over_its_code(code: int, said: str, action: Action, isolating: bool) -> None:
    """The driver knows whether the GPU has to be reset for it."""
    entry = entry_of(xid(code, said))

    assert (entry.action, entry.isolates, entry.code) == (action, isolating, code)


@pytest.mark.parametrize(
    ("value", "action", "isolating"),
    [
        ("0x0", Action.NONE, False),
        ("0x1", Action.RESET_GPU, True),
        ("0x2", Action.REBOOT_NODE, True),
        ("0x3", Action.RESTART_APPLICATION, False),
        ("0x4", Action.DRAIN_AND_RESET, True),
        ("0x5", Action.RESTART_APPLICATION, False),
        ("0x63", Action.NONE, False),
    ],
)
def test_an_xid_154_asks_for_what_its_number_says(value: str, action: Action, isolating: bool) -> None:
    """It is the driver's verdict and nobody's fault."""
    entry = entry_of(xid(154, f"GPU recovery action changed from 0x0 (None) to {value} (x)"))

    assert (entry.action, entry.isolates, entry.rank) == (action, isolating, None)
    assert not entry.refundable


def test_every_recovery_action_of_nvml_has_an_action() -> None:
    """6 and 7 come with NVML 13; what is not known asks for nothing."""
    assert [recovery(value) for value in (6, 7, 99, -1)] == [
        Action.RESET_GPU,
        Action.REBOOT_NODE,
        Action.NONE,
        Action.NONE,
    ]
    assert isolates(Action.REPLACE)


NVLINK = "NVLink: fatal error detected on link 8"


@pytest.mark.parametrize(
    ("said", "isolating", "blame"),
    [
        (NVLINK, True, Blame.HARDWARE),
        (f"{NVLINK}(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", True, Blame.HARDWARE),
        (f"{NVLINK}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", False, Blame.HARDWARE),
        (f"{NVLINK}(0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", False, Blame.UNKNOWN),
        (f"{NVLINK}(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", False, Blame.HARDWARE),
    ],
)
def test_the_registers_of_an_xid_74_correct_its_code(said: str, isolating: bool, blame: Blame) -> None:
    """An echo or a weak signal leaves the GPU in service."""
    entry = entry_of(xid(74, said))

    assert (entry.isolates, entry.blame) == (isolating, blame)
    assert entry.needs_repeat != entry.isolates or entry.action is Action.NONE


def test_an_nvlink_5_event_is_decoded() -> None:
    """The words say more than the code; a link that fell isolates until it is reset."""
    down = entry_of(xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004525c6 0x00000000)"), "570.195.03")
    noise = entry_of(xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"), "570.195.03")

    assert (down.action, down.isolates, down.blame, down.rank) == (Action.DRAIN_AND_RESET, True, Blame.HARDWARE, 11)
    assert "signal" in down.summary
    assert (noise.action, noise.isolates, noise.rank) == (Action.NONE, False, 19)


def test_an_event_that_calls_itself_nonfatal_does_not_isolate() -> None:
    """Xid 154 will, where the driver wants a reset."""
    entry = entry_of(xid(145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040)"))

    assert (entry.action, entry.isolates, entry.needs_repeat) == (Action.RESET_GPU, False, True)


def test_without_words_an_nvlink_5_event_means_its_code() -> None:
    """NVML gives the number alone."""
    alone = FaultEvent(FaultKind.XID, 0.0, "nvml", "0000:01:00.0", 149)

    assert entry_of(alone).name == "NVLink 5 event"
    assert not entry_of(alone).isolates


def test_a_placeholder_is_not_decoded() -> None:
    """A driver without NVLink 5 cannot mean it."""
    entry = entry_of(xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004525c6 0x00000000)"), "555.42.02")

    assert entry.fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(
    ("text", "fault_class", "action", "rank"),
    [
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", FaultClass.HARDWARE, Action.REBOOT_NODE, 1),
        ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", FaultClass.HARDWARE, Action.RESET_GPU, 2),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            FaultClass.EITHER,
            Action.NONE,
            19,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
            FaultClass.HARDWARE,
            Action.DRAIN_AND_RESET,
            11,
        ),
    ],
)
def test_events_that_are_no_xid_have_a_meaning_too(
    text: str, fault_class: FaultClass, action: Action, rank: int
) -> None:
    """A lost GPU is one whether or not an Xid says so."""
    found = event(text)
    entry = entry_of(found)

    assert (class_of(found), entry.action, entry.rank) == (fault_class, action, rank)


def test_a_polled_state_has_no_code_to_look_up() -> None:
    """What it means is known to who polls it."""
    state = FaultEvent(FaultKind.CONDITION, 0.0, "poll", condition="row_remap_failure")

    assert class_of(state) is FaultClass.UNKNOWN
    assert entry_of(state).action is Action.NONE


def test_the_class_does_not_depend_on_the_text() -> None:
    """A line's class is its code's, however the line is decoded."""
    said = xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 14 (0x0215c5c6 0x00000000)")

    assert class_of(said) is FaultClass.HARDWARE
    assert entry_of(said).fault_class is FaultClass.EITHER
