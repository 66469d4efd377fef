"""What an Xid means, by its number and the driver that printed it.

NVIDIA has used some numbers for something else before. Where the driver's version isn't known a number has the meaning
of today.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpufleet.faults.driver_version import parse_driver_version
from gpufleet.faults.entry import METRIC_CLASSES, Entry, FaultClass, Severity
from gpufleet.faults.xid_row import HEADER, ISOLATES, REPEAT, STICKY, Row
from gpufleet.faults.xid_rows import ROWS
from gpufleet.faults.xid_rows_retired import ROWS as RETIRED
from gpufleet.model.fault import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpufleet.faults.driver_version import DriverVersion

RESERVED = -1
"""Stands for: this driver has the number but gives it no meaning."""


class _Trap(NamedTuple):
    """From one driver version on and below another a number has the meaning of another number."""

    codes: range
    since: DriverVersion
    below: DriverVersion
    means: int


_TRAPS = (
    # nverror.h of the tags named: 535 calls CUDA's fast path 139, from 550.40 it is 141; 139 is an engine from 560 on.
    _Trap(range(139, 140), (535,), (560,), 141),
    # 550.40.63 to 550.163.01 with confidential computing call the rotation of keys 144; it is 151 from 555.42 on.
    _Trap(range(144, 145), (550,), (551,), 151),
    # Before NVLink 5 (560) and before 580.65.06 and 590.44 the header has these as placeholders, if at all.
    _Trap(range(144, 145), (551,), (560,), RESERVED),
    _Trap(range(145, 151), (0,), (560,), RESERVED),
    _Trap(range(162, 170), (0,), (580, 65, 6), RESERVED),
    _Trap(range(170, 171), (0,), (590, 44), RESERVED),
)


def expand(codes: str) -> Iterator[int]:
    """The numbers that ``39-41,70`` names."""
    for part in codes.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


_ROWS: dict[int, Row] = {code: row for row in (*ROWS, *RETIRED) for code in expand(row.codes)}


@lru_cache(maxsize=256)
def lookup(code: int, driver: str | None = None) -> Entry:
    """What an Xid means to a driver of that version (``550.163.01``); an unknown number has an entry that says so."""
    row = _ROWS.get(_meaning(code, driver))
    if row is None:
        return _unknown(code)
    return Entry(
        code=code,
        name=row.name,
        summary=row.summary,
        fault_class=row.fault_class,
        action=row.action,
        severity=row.severity,
        remedy=row.remedy,
        source=row.source,
        isolates=ISOLATES in row.marks,
        rank=row.rank,
        sticky=STICKY in row.marks,
        needs_repeat=REPEAT in row.marks,
    )


def xid_class(code: int, driver: str | None = None) -> str:
    """Label ``class`` of ``gpu_xid_errors_total``: hardware, application, driver, unknown or informational."""
    return METRIC_CLASSES[lookup(code, driver).fault_class]


def known() -> tuple[int, ...]:
    """Every number that has a row."""
    return tuple(sorted(_ROWS))


def _meaning(code: int, driver: str | None) -> int:
    version = parse_driver_version(driver)
    if version is not None:
        for trap in _TRAPS:
            if code in trap.codes and trap.since <= version < trap.below:
                return trap.means
    return code


def _unknown(code: int) -> Entry:
    return Entry(
        code=code,
        name=f"Xid {code}",
        summary="A number that is in no list of NVIDIA's, or that this driver gives no meaning.",
        fault_class=FaultClass.UNKNOWN,
        action=Action.NONE,
        severity=Severity.BENIGN,
        remedy="Look it up in NVIDIA's catalogue; what the driver asks for (Xid 154, recovery action) counts.",
        source=HEADER,
        rank=_UNKNOWN_RANK,
    )


_UNKNOWN_RANK = 20
"""Below everything that says more."""
