"""Driver versions, as far as the meaning of a number depends on them."""

from __future__ import annotations

from functools import lru_cache

DriverVersion = tuple[int, ...]


@lru_cache(maxsize=8)
def parse_driver_version(version: str | None) -> DriverVersion | None:
    """``550.163.01`` as (550, 163, 1); None for what is no version, as when the driver isn't known."""
    parts = (version or "").split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))
