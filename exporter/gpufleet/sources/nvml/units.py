"""How a raw number of the driver becomes a reading in SI units, and when it can't be true.

Users saw utilizations of 808334905 % and temperatures of 644245923 degrees come out of other exporters: a driver that
has no value may leave a sentinel (all ones, 2^63-1) or a stale union behind. Every raw number is therefore masked to
the width that the driver documents and held against the largest value that can be true; what exceeds it is dropped and
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

U32 = 0xFFFF_FFFF
U64 = 0xFFFF_FFFF_FFFF_FFFF
BLANK = 0x7FFF_FFF0
"""The least of what stands for "no value" in 32 bits: DCGM's words for it begin here, NVML's is all ones."""
BLANKS = frozenset((*range(BLANK, 1 << 31), U32))
"""The same words where a true count may be larger: it meets one of them by chance in one reading of a hundred
million.
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """``reading = raw * times`` where ``per`` is 1, else ``raw / per``: a division keeps 123456 mW at 123.456 W."""

    times: int = 1
    per: int = 1
    mask: int = U32
    high: int = U32 - 1
    """Largest raw value that can be true."""


PERCENT = Unit(per=100, high=100)
MILLIWATT = Unit(per=1000, high=100_000_000)
MILLIJOULE = Unit(per=1000, mask=U64, high=1 << 62)
MEGAHERTZ = Unit(times=1_000_000, high=20_000)
CELSIUS = Unit(high=200)
NANOSECOND = Unit(per=1_000_000_000, mask=U64, high=1 << 62)
BYTE = Unit(mask=U64, high=1 << 60)
KIBIBYTE = Unit(times=1024, mask=U64, high=1 << 53)
COUNT = Unit(high=BLANK - 1)
"""Of events that nobody leaves to happen two thousand million times, in 32 bits."""
MEMORY_ERRORS = Unit(mask=U64, high=BLANK - 1)
"""The same in 64 bits, where drivers leave a blank of 32: a board is replaced long before."""
PARTS = Unit(high=1_000_000)
"""Rows, banks or pages of a memory: no board has so many that could be replaced or retired."""
COUNT64 = Unit(mask=U64, high=1 << 60)
"""Of what a link can do that often; see ``BLANKS``."""
FLAG = Unit(high=1)
GENERATION = Unit(high=15)
LANES = Unit(high=64)


def signed(raw: int) -> int:
    """The low 32 bits of a driver value as a signed number (T.Limit offsets and margins)."""
    raw &= U32
    return raw - (1 << 32) if raw & 0x8000_0000 else raw
