"""Which bits of an Xid 74 are a fault of this end, and which an echo or nothing (links before NVLink 5).

Bits as NVIDIA's catalogue evaluates them (WORKFLOW_NVLINK_ERR): seven words follow the link's number, of which four
tell something.
"""

from __future__ import annotations

from enum import StrEnum


class LinkVerdict(StrEnum):
    """What the bits of an Xid 74 say, the weightiest last."""

    HARMLESS = "harmless"
    ECHO = "echo"
    """The other end went away."""
    MARGINAL = "marginal"
    """A weak signal or a threshold crossed: a fault only when it comes again on the same link."""
    FAULT = "fault"
    """Hardware or connector."""


_H, _E, _M, _F = LinkVerdict.HARMLESS, LinkVerdict.ECHO, LinkVerdict.MARGINAL, LinkVerdict.FAULT


def _bits(**verdicts: tuple[int, ...]) -> dict[int, LinkVerdict]:
    return {bit: LinkVerdict[name.upper()] for name, bits in verdicts.items() for bit in bits}


_WORDS: dict[int, dict[int, LinkVerdict]] = {
    0: _bits(harmless=(0, 23, 30), echo=(1, 20), marginal=(4, 5, 21, 22), fault=(8, 9, 12, 16, 17, 24, 28)),
    2: _bits(marginal=(16, 17, 18, 19), fault=(0, 1, 2, 6, 13)),
    # 18 is an echo as well, but the fabric has to be reset for it; Xid 154 asks for that.
    3: _bits(echo=(16, 17, 18)),
    4: _bits(marginal=(20, 23, 26, 29), fault=(18, 19, 21, 22, 24, 25, 27, 28)),
}


def judge(registers: tuple[int, ...]) -> LinkVerdict | None:
    """The weightiest thing that the words of an Xid 74 say; None when they say nothing. An unknown bit is a fault."""
    found = [
        bits.get(bit, _F)
        for index, bits in _WORDS.items()
        if index < len(registers)
        for bit in range(32)
        if registers[index] >> bit & 1
    ]
    return max(found, key=list(LinkVerdict).index, default=None)
