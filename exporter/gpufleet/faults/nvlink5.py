"""Which of NVLink 5's many faults an Xid 144 to 150 is: the words in brackets, read as the driver's version asks."""

from __future__ import annotations

from typing import NamedTuple

from gpufleet.faults.driver_version import parse_driver_version
from gpufleet.faults.entry import Severity
from gpufleet.faults.nvlink5_rows import (
    DOWN,
    FIRMWARE,
    LINK_DOWN_REASONS,
    PACKET,
    PROMOTED,
    RXPIPE_PROMOTED_V2,
    UNITS,
    Meaning,
    Unit,
)
from gpufleet.model.fault import Action

XIDS = range(144, 151)
_V2_SINCE = (575,)
_REASON_MASK = 0x03F0_0000
_REASON_SHIFT = 20
_V1_MASK = 0x3FF
_V2_MASK = 0x7F
_LINK_DOWN = "NETIR_LINK_DOWN"
_CALLED = {unit.name: {unit.name, unit.also} - {""} for unit in UNITS}


class Subcode(NamedTuple):
    """One decoded event."""

    unit: str
    layout: int
    """1 before R575, 2 from R575 on: the same word means another unit."""
    meaning: Meaning


def decode(
    code: int, registers: tuple[int, ...], *, unit: str | None = None, driver: str | None = None
) -> Subcode | None:
    """What the words of an Xid 144 to 150 say; None when they are not there or name no unit of that Xid.

    ``unit`` is the unit that the line names. It settles the layout where the driver's version isn't known, or isn't the
    one that wrote the line.
    """
    if len(registers) < 2:
        return None
    word, status = registers[0], registers[1]
    version = parse_driver_version(driver)
    newest_first = version is not None and version >= _V2_SINCE
    found = [
        Subcode(each.name, layout, meaning)
        for layout in ((2, 1) if newest_first else (1, 2))
        for each in UNITS
        if _names(each, layout, code, word) and (meaning := _meaning(each, layout, word, status)) is not None
    ]
    names = set((unit or "").split("/"))
    called = [each for each in found if names & _CALLED[each.unit]]
    if called:
        return called[0]
    if version is None:
        return found[0] if len(found) == 1 else None
    return next((each for each in found if (each.layout == 2) == newest_first), None)


def _names(unit: Unit, layout: int, code: int, word: int) -> bool:
    low = word & _V1_MASK == unit.v1 if layout == 1 else word & _V2_MASK == unit.v2
    return unit.code == code and low and (unit.name == _LINK_DOWN or not word & _REASON_MASK)


def _meaning(unit: Unit, layout: int, word: int, status: int) -> Meaning | None:
    if unit.name == _LINK_DOWN:
        return LINK_DOWN_REASONS.get((word & _REASON_MASK) >> _REASON_SHIFT, DOWN)
    if unit.name == "NETIR_INT":
        return DOWN
    if unit.code == 150:
        return FIRMWARE
    if not unit.bitwise:
        return unit.errors.get(status)
    told = [meaning for bit, meaning in unit.errors.items() if status & bit]
    if PACKET in told and layout == 2 and word & RXPIPE_PROMOTED_V2:
        told.append(PROMOTED)
    return max(told, key=_weight, default=None)


def _weight(meaning: Meaning) -> tuple[int, int]:
    return list(Action).index(meaning.action), list(Severity).index(meaning.severity)
