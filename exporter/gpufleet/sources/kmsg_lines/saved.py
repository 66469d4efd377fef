"""Lines of saved logs: dmesg, journald, syslog, Talos, pstore, and tools that quote any of them.

Here the driver's text may stand anywhere in the line. Who can write into the file can forge it, so these functions are
for explaining a file to a person, never for a live source.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gpufleet.model.fault import FaultEvent
from gpufleet.sources.kmsg_lines.driver_text import NVRM, event_at, xid_at
from gpufleet.sources.kmsg_lines.record import parse_record

SOURCE = "file"
_TRACE_EVENT = "nvidia_dev_xid: "  # kernel-open/nvidia/nv-tracepoint.h, from 575.51.02 on
_PREFIX = re.compile(r"NVRM: |nvidia-nvswitch[0-9]")
_FAULT = re.compile(
    r"NVRM: (?=Xid \(|GPU|The NVIDIA GPU |RmInit|knvlink)|nvidia-nvswitch[0-9]|nvidia_dev_xid: |nvidia [0-9a-fA-F]{4}"
)
"""What stands where a fault may begin."""

_LONGEST_PREFIX = 300
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(?:(Z)|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_KMSG = re.compile(r"[0-9]{1,5},[0-9]{1,20},([0-9]{1,20}),[^;]{0,200};\Z")
_SHORT_UNIX = re.compile(r"([0-9]{9,11}\.[0-9]{1,9}) ")  # journalctl -o short-unix
_CLOCK = r"([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})"
_DMESG_T = re.compile(rf"\[[A-Z][a-z]{{2}} {_CLOCK} ([0-9]{{4}})\]")
_SYSLOG = re.compile(_CLOCK)
_SINCE_BOOT = re.compile(r"\[ {0,12}([0-9]{1,12}\.[0-9]{1,9})\]")
_MONTHS = {"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * month : 3 * month + 3]: month + 1 for month in range(12)}


class SavedTime(NamedTuple):
    """What a line's prefix tells of its time; either, both or none."""

    unix: float | None
    """A local time without a zone is taken as UTC: differences are right, the hour may not be."""
    since_boot: float | None


def driver_text(line: str) -> str | None:
    """The line from the driver's first prefix on; None when there is none."""
    match = _PREFIX.search(line) if NVRM in line or "nvidia" in line else None
    return line[match.start() :] if match else None


def parse_saved_line(
    line: str, *, year: int | None = None, boot: float | None = None, last: float = 0.0
) -> FaultEvent | None:
    """The fault that a saved line tells of; None when it tells of none.

    The event's time is what the prefix says: with a date, or in seconds since boot (then ``boot``, the Unix time of
    it, is added, and 0 where it isn't known); ``last``, the time of the line before, where it says nothing. ``year``
    is for syslog's dates, which have none; without it they are not used. Takes any text, never raises, and takes time
    in proportion to the length at most.
    """
    # Most lines of a log are not the driver's.
    if NVRM not in line and "nvidia" not in line:
        return None
    if "\\x" in line and line[0].isdigit() and (record := parse_record(line.encode("utf-8", "replace"))) is not None:
        # A copy of /dev/kmsg: its text may hold several lines.
        line = line.partition(";")[0] + ";" + record.text
    for match in _FAULT.finditer(line):
        start = match.start()
        if line.startswith(_TRACE_EVENT, start):
            event = xid_at(line, match.end(), at=last, source=SOURCE)
        else:
            event = event_at(line, start, at=last, source=SOURCE)
        if event is not None:
            return _timed(event, line, start, year, boot)
    return None


def _timed(event: FaultEvent, line: str, start: int, year: int | None, boot: float | None) -> FaultEvent:
    told = saved_time(line[:start], year=year)
    if told.unix is not None:
        return replace(event, at=told.unix)
    if told.since_boot is not None:
        return replace(event, at=(boot or 0.0) + told.since_boot)
    return event


def saved_time(prefix: str, *, year: int | None = None) -> SavedTime:
    """The time that stands before the driver's text, of whatever logger."""
    record = _KMSG.match(prefix)
    boot = _SINCE_BOOT.search(prefix, max(0, len(prefix) - _LONGEST_PREFIX))
    since_boot = int(record[1]) / 1e6 if record else float(boot[1]) if boot else None
    return SavedTime(_date(prefix[:_LONGEST_PREFIX], year), since_boot)


def _date(prefix: str, year: int | None) -> float | None:
    if iso := _ISO.search(prefix):
        return _unix(iso[1], iso[2], iso.group(3, 4, 5, 6), iso[7], _zone(iso))
    if dmesg := _DMESG_T.search(prefix):
        return _unix(dmesg[6], _MONTHS.get(dmesg[1]), dmesg.group(2, 3, 4, 5))
    if stamp := _SHORT_UNIX.match(prefix):
        return float(stamp[1])
    if year is not None and (syslog := _SYSLOG.search(prefix)):
        return _unix(year, _MONTHS.get(syslog[1]), syslog.group(2, 3, 4, 5))
    return None


def _zone(iso: re.Match[str]) -> timedelta:
    if iso[9] is None:
        return timedelta()
    offset = timedelta(hours=int(iso[10]), minutes=int(iso[11]))
    return -offset if iso[9] == "-" else offset


def _unix(
    year: str | int,
    month: str | int | None,
    clock: tuple[str | Any, ...],
    fraction: str | None = None,
    zone: timedelta = timedelta(),
) -> float | None:
    """Seconds since the epoch; None when there is no such date."""
    if month is None:
        return None
    day, hour, minute, second = map(int, clock)
    try:
        date = datetime(int(year), int(month), day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return date.timestamp() - zone.total_seconds() + float(f"0.{fraction or 0}")
