"""The sub-codes of Xid 144 to 150: unit, error status, and what they mean; from NVIDIA's sheet of 2025-09-30.

The first register word names the unit, in its low bits, and for a link that went down the reason in bits 25 to 20; the
second is the error status, one bit a cause for most units.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gpufleet.faults.entry import FaultClass, Severity
from gpufleet.faults.xid_row import CATALOG
from gpufleet.model.fault import Action

SOURCE = CATALOG
_HARDWARE, _DRIVER = FaultClass.HARDWARE, FaultClass.DRIVER_OR_FIRMWARE
_EITHER, _INFORMATIONAL = FaultClass.EITHER, FaultClass.INFORMATIONAL


class End(StrEnum):
    """Where to look for the cause of a link fault."""

    HERE = "this GPU"
    LINK = "link: signal, cable or module"
    PEER = "other end of the link"
    SOFTWARE = "software or an operator"
    HOST = "host"
    UNKNOWN = "not told"


class Meaning(NamedTuple):
    """What one sub-code says."""

    fault_class: FaultClass
    severity: Severity
    action: Action
    words: str
    end: End = End.HERE


class Unit(NamedTuple):
    """One unit of the link interface: its number in both layouts of the first word, and its error bits."""

    code: int
    name: str
    v1: int
    """Low ten bits, drivers before R575."""
    v2: int
    """Low seven bits, from R575 on."""
    errors: dict[int, Meaning]
    bitwise: bool = True
    """Several errors may be set at once; else the word is a number."""
    also: str = ""
    """Its other name: the driver uses one in the first layout and one in the second."""


NOISE = Meaning(_INFORMATIONAL, Severity.BENIGN, Action.NONE, "a corrected error without effect")
CORRECTED = Meaning(_HARDWARE, Severity.DEGRADED, Action.NONE, "an error that Xid 48, 94 or 95 tells more of")
DEAD = Meaning(_HARDWARE, Severity.FATAL, Action.RESET_GPU, "an uncorrectable error; data was lost and the job ends")
JOB = Meaning(_EITHER, Severity.CONTAINED, Action.RESTART_APPLICATION, "a request that failed; the job ends")
PEER_JOB = JOB._replace(words="a request that the other end refused or did not answer; the job ends", end=End.PEER)
PACKET = Meaning(_DRIVER, Severity.DEGRADED, Action.NONE, "a packet was lost")
PROMOTED = Meaning(_DRIVER, Severity.FATAL, Action.RESET_GPU, "packets were lost, and too many of them")
QUIET = Meaning(_DRIVER, Severity.BENIGN, Action.NONE, "a note of the firmware without effect")
POISON = Meaning(_EITHER, Severity.BENIGN, Action.NONE, "an error without effect here")
FIRMWARE = Meaning(_DRIVER, Severity.FATAL, Action.RESET_GPU, "the firmware that manages the links failed")
BITS = Meaning(_HARDWARE, Severity.DEGRADED, Action.NONE, "too many bit errors on the link", End.LINK)
MODULE = Meaning(_EITHER, Severity.FATAL, Action.RESET_GPU, "the link's firmware stopped; every job on the GPU ends")
DOWN = Meaning(_EITHER, Severity.FATAL, Action.DRAIN_AND_RESET, "a link went down", End.UNKNOWN)

_NOTE = {0x8000_0000: QUIET}
_PIPE = {0x1: NOISE, 0x2: CORRECTED, 0x4: DEAD, **_NOTE}

UNITS = (
    Unit(144, "SAW_MVB", 0x021, 0x01, {0x1: CORRECTED, 0x2: DEAD, 0x4: NOISE, 0x8: CORRECTED, 0x10: DEAD, 0x20: NOISE}),
    Unit(145, "RLW_CTRL", 0x062, 0x03, _NOTE),
    Unit(
        145,
        "RLW_REMAP",
        0x082,
        0x04,
        {0x1: JOB, 0x2: JOB}
        | dict.fromkeys((0x4, 0x8, 0x10, 0x20), PEER_JOB)
        | {0x40: DEAD, 0x80: DEAD, 0x100: NOISE, 0x200: NOISE, **_NOTE},
    ),
    Unit(145, "RLW_RSPCOL", 0x0A2, 0x05, {0x1: NOISE, 0x2: DEAD, **_NOTE}),
    Unit(145, "RLW_RXPIPE", 0x0C2, 0x06, {0x1: PACKET, 0x2: PACKET, 0x4: PACKET, 0x8: POISON, **_NOTE}),
    Unit(
        145,
        "RLW_SRC_TRACK",
        0x0E2,
        0x07,
        {0x1: DEAD, 0x2: NOISE, 0x4: PEER_JOB, 0x8: PEER_JOB, 0x10: DEAD, 0x20: DEAD, **_NOTE},
    ),
    Unit(
        145,
        "RLW_TAGSTATE",
        0x102,
        0x08,
        {0x1: NOISE, 0x2: DEAD, 0x1_0000: NOISE, 0x2_0000: DEAD, 0x10_0000: DEAD, **_NOTE},
    ),
    Unit(146, "TLW_CTRL", 0x123, 0x09, _PIPE),
    Unit(146, "TLW_RX_PIPE0", 0x143, 0x0A, _PIPE, also="TLW_RX"),
    Unit(146, "TLW_RX_PIPE1", 0x143, 0x0B, _PIPE, also="TLW_RX"),
    Unit(146, "TLW_TX_PIPE0", 0x163, 0x0C, _PIPE, also="TLW_TX"),
    Unit(146, "TLW_TX_PIPE1", 0x163, 0x0D, _PIPE, also="TLW_TX"),
    Unit(147, "TREX", 0x184, 0x0E, {0x1: QUIET, **_NOTE}),
    Unit(148, "NVLPW_CTRL", 0x005, 0x0F, _NOTE, also="NVLPW"),
    Unit(149, "NETIR_INT", 0x006, 0x18, {}, also="NETIR"),
    Unit(149, "NETIR_LINK_DOWN", 0x1C6, 0x11, {}, also="NETIR_LINK_EVT"),
    Unit(149, "NETIR_BER_EVENT", 0x226, 0x13, dict.fromkeys(range(4), BITS), bitwise=False),
    Unit(
        149,
        "NETIR_MFDE_EVENT",
        0x246,
        0x14,
        {0x1: MODULE, 0x3: NOISE, 0x4: MODULE, 0x5: MODULE, 0x7: MODULE},
        bitwise=False,
    ),
    Unit(150, "MSE", 0x000, 0x00, {}, also="MSE_WATCHDOG"),
)

RXPIPE_PROMOTED_V2 = 0x80
"""Bit of the first word: RLW_RXPIPE counted too many. The sheet gives it for the second layout only."""


def _signal(also: str = "") -> Meaning:
    return Meaning(_HARDWARE, Severity.FATAL, Action.DRAIN_AND_RESET, f"a link went down: bad signal{also}", End.LINK)


_PEER = DOWN._replace(words="a link went down: the other end let it fall", end=End.PEER)
_TAKEN = Meaning(_DRIVER, Severity.FATAL, Action.DRAIN_AND_RESET, "a link was taken down by software", End.SOFTWARE)
_TAKEN_OR_SIGNAL = _TAKEN._replace(words="a link went down: by software, or for a bad signal")

LINK_DOWN_REASONS = {
    0: DOWN._replace(words="a link went down without a reason given"),
    1: DOWN._replace(words="a link went down for a reason of its own"),
    2: _signal()._replace(fault_class=_EITHER),
    4: _signal(),
    10: _signal(),
    15: _TAKEN,
    16: _TAKEN_OR_SIGNAL,
    17: _TAKEN,
    18: _TAKEN_OR_SIGNAL,
    21: _PEER,
    22: _TAKEN,
    32: _PEER,
    33: _PEER,
    34: _PEER,
    35: _PEER._replace(fault_class=_HARDWARE),
    36: _PEER,
    37: _PEER,
    38: _TAKEN._replace(action=Action.NONE, severity=Severity.DEGRADED),
    40: _TAKEN._replace(action=Action.NONE, words="a link went down with the host", end=End.HOST),
    42: _signal(", cable or module"),
    43: _signal(", cable or module"),
}
"""By bits 25 to 20 of the first word. 38 and 40 need no reset."""
