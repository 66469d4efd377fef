"""Durations as Prometheus writes them: ``100ms``, ``1s``, ``1m30s``, ``2h``."""

from __future__ import annotations

import re

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
"""Milliseconds of each unit, longest first. Weeks and years are no times to poll or to pause for."""
_WRITTEN = re.compile("".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit, _ in _UNITS))


def parse_duration(text: str) -> float:
    """Seconds in ``text``; ValueError when it is no duration (a bare number is none: its unit would be a guess)."""
    found = _WRITTEN.fullmatch(text)
    if not text or found is None:
        raise ValueError(text)
    return sum(int(count) * unit for count, (_, unit) in zip(found.groups(), _UNITS, strict=True) if count) / 1000


def format_duration(seconds: float) -> str:
    """The shortest way to write a duration of whole milliseconds, read back exactly by :func:`parse_duration`."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
