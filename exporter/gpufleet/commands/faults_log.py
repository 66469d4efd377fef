"""A saved log of one node, folded into incidents as the exporter would have done when it was written.

Lines may come out of order (rotated files are named newest first), and a log may span several boots. Pure but for the
ledger that it owns.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpufleet.faults.condition_rows import RECOVERY
from gpufleet.faults.ledger import Ledger
from gpufleet.faults.telling import ECHO
from gpufleet.faults.verdict import token_of
from gpufleet.model.fault import Action, FaultEvent, FaultKind
from gpufleet.model.incident import Incident
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import NvmlState
from gpufleet.sources.kmsg_lines import Lines, driver_text, harvest_identity, held_back, parse_saved_line, saved_time

OLDEST_DATE = 315_360_000.0
"""Seconds: ten years. A time below it is one since boot: no machine is up for longer."""
_LATEST = 253_370_764_800.0
"""The year 9999, which a damaged file system may put far behind it."""
_SETTLED_SECONDS = 31.0
"""After this long everything that waited for echoes is decided."""
_REORDERED = 65_536
"""Lines of the driver that are put in the order of their times; beyond it, those of the last so many."""
_BACKWARDS_SECONDS = 60.0
"""Time since boot that is less than it was by so much is another boot's."""
_MOST_CLOSED = 4096

_BOOT = re.compile(r"^-- (?:Boot|Reboot)|(?:^|[\]:;] ?)Linux version [0-9]+\.")
_DRIVER = re.compile(
    r"NVRM: loading NVIDIA UNIX .{0,80}?Kernel Module(?: for \w{1,20})? {1,8}([0-9]{2,4}(?:\.[0-9]{1,4}){1,2})"
)
_SYSLOG_DATE = re.compile(r"(?:<[0-9]{1,3}>)?([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) [0-9]{2}:")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FROM_KERNEL = re.compile(
    r"(?!NVRM|nvidia)[^\[]{5,60}? ([A-Za-z0-9][A-Za-z0-9._-]{0,252}) kernel(?:\[[0-9]{1,10}\])?: "
)


@dataclass(frozen=True, slots=True)
class Told:
    """What a log comes down to."""

    name: str
    """The node, or the file where its lines name none."""
    incidents: tuple[Incident, ...]
    """In the order of their beginnings; times are Unix times or, below ``OLDEST_DATE``, seconds since boot."""
    alone: tuple[tuple[str, int], ...]
    """Events that belong to no incident, by what they said."""
    lines: int
    """Lines that told of a fault."""
    held_back: tuple[str, ...]
    """GPUs of which the driver printed less than happened."""


@dataclass(frozen=True, slots=True)
class _Boot:
    """The node was started here."""


@dataclass(frozen=True, slots=True)
class _Named:
    address: str
    uuid: str


@dataclass(frozen=True, slots=True)
class _Driver:
    version: str


_Item = FaultEvent | _Boot | _Named | _Driver


@dataclass(order=True, slots=True)
class _Entry:
    """Something that a line told, in its place: boots of undated lines, then time, then the order of the lines."""

    segment: int
    at: float
    number: int
    item: _Item = field(compare=False)
    since_boot: float | None = field(compare=False)


class Log:
    """One node's log. Give it ``line`` after line, then ask it once for ``told``."""

    def __init__(self, name: str, node: str, driver: str | None, numbers: Iterator[int]) -> None:
        """``node`` is the node's name, empty where it is not known; ``driver`` overrides what the log says of it.

        ``numbers`` are what the incidents of all logs are called by, in the end.
        """
        self.name = name
        self._node = node
        self._incident_numbers = numbers
        self._chosen_driver = driver
        self._lines = Lines()
        self._numbers = itertools.count()
        self._waiting: list[_Entry] = []
        self._segment = 0
        self._read_at = 0.0
        self._read_since_boot: float | None = None
        self._count = 0
        self._held_back: dict[str, None] = {}

        ids = itertools.count(1)
        self._ledger = Ledger(
            node=node, boot_id=None, random_id=lambda: str(next(ids)), has_log=False, keep_closed=_MOST_CLOSED
        )
        self._now = 0.0
        self._folded_segment = 0
        self._folded_since_boot: float | None = None
        self._tokens: Counter[str] = Counter()
        self._rebooted: dict[str, Incident] = {}
        if driver is not None:
            self._take_driver(driver)

    def line(self, text: str, written: float) -> FaultEvent | None:
        """Take a line in; the fault that it tells of, also when it only goes on about the one before."""
        year = _year(text, written)
        event = self._lines.saved(text, year=year)
        if event is not None:
            self._count += 1
            since_boot = saved_time(_prefix(text)).since_boot
            self._push(event, event.at, since_boot)
            return event
        told = driver_text(text)
        prefix = text if told is None else text[: len(text) - len(told)]
        if _BOOT.search(text) is not None and told is None:
            self._begin_boot(text, year)
        elif told is not None and (found := _DRIVER.match(told)) is not None:
            self._push_at(_Driver(found[1]), prefix, year)
        elif told is not None and (named := harvest_identity(told)) is not None:
            self._push_at(_Named(*named), prefix, year)
        elif told is not None and (notice := held_back(told)) is not None and notice.pci_bus_id is not None:
            self._held_back[notice.pci_bus_id] = None
        event = parse_saved_line(text, year=year, last=self._read_at) if told is not None else None
        self._count += event is not None
        return event

    def told(self) -> Told:
        """Fold what is left, and say what there is. Once, at the end."""
        while self._waiting:
            self._fold(heapq.heappop(self._waiting))
        self._ledger.tick(self._now + _SETTLED_SECONDS)
        view = self._ledger.view()
        closed = [self._rebooted.get(incident.id, incident) for incident in view.closed]
        found = [
            incident
            for incident in (*closed, *view.active, *view.settling)
            # Another incident tells the whole story.
            if not (incident.closed_because or "").startswith(("taken over by ", "part of "))
        ]
        counted = Counter(self._tokens)
        for incident in found:
            for token, count in incident.counts:
                counted[token.removeprefix(ECHO)] -= count
        # Seconds since boot say nothing about the order of boots; that of their closing does.
        found.sort(key=lambda incident: incident.began_at if incident.began_at >= OLDEST_DATE else 0.0)
        return Told(
            name=self.name,
            incidents=tuple(self._numbered(found)),
            alone=tuple((token, count) for token, count in counted.items() if count > 0),
            lines=self._count,
            held_back=tuple(self._held_back),
        )

    def _numbered(self, incidents: list[Incident]) -> Iterator[Incident]:
        """Call them by numbers without gaps: those of the ledger count what came to nothing, too."""
        numbers = {incident.id: str(next(self._incident_numbers)) for incident in incidents}
        for incident in incidents:
            part_of = numbers.get(incident.part_of or "")
            yield replace(incident, id=numbers[incident.id], part_of=part_of, successor_of=None)

    # --- in the order of the lines ------------------------------------------------------------------------------------
    def _begin_boot(self, text: str, year: int | None) -> None:
        at = saved_time(text, year=year).unix
        if at is not None:
            self._push(_Boot(), at, None)
        elif self._read_at >= OLDEST_DATE:
            self._push(_Boot(), self._read_at, None)
        else:
            self._next_segment()
            self._push(_Boot(), 0.0, None)

    def _push_at(self, item: _Item, prefix: str, year: int | None) -> None:
        time = saved_time(prefix, year=year)
        at = time.unix if time.unix is not None else time.since_boot if time.since_boot is not None else self._read_at
        self._push(item, at, time.since_boot)

    def _push(self, item: _Item, at: float, since_boot: float | None) -> None:
        if at < OLDEST_DATE and since_boot is not None:
            if self._read_since_boot is not None and since_boot < self._read_since_boot - _BACKWARDS_SECONDS:
                self._next_segment()
            self._read_since_boot = since_boot
        self._read_at = at
        heapq.heappush(self._waiting, _Entry(self._segment, at, next(self._numbers), item, since_boot))
        if len(self._waiting) > _REORDERED:
            self._fold(heapq.heappop(self._waiting))

    def _next_segment(self) -> None:
        self._segment += 1
        self._read_at, self._read_since_boot = 0.0, None

    # --- in the order of time -----------------------------------------------------------------------------------------
    def _fold(self, entry: _Entry) -> None:
        item, at = entry.item, entry.at
        since_boot, before = entry.since_boot, self._folded_since_boot
        went_back = since_boot is not None and before is not None and since_boot < before - _BACKWARDS_SECONDS
        if entry.segment != self._folded_segment or went_back or isinstance(item, _Boot):
            self._folded_segment = entry.segment
            self._reboot(at)
        self._folded_since_boot = since_boot if since_boot is not None else self._folded_since_boot
        self._now = max(self._now, at)
        match item:
            case FaultEvent():
                self._tokens[_token(item)] += 1
                self._ledger.feed(item, self._now)
            case _Named():
                self._ledger.learn(item.address, item.uuid, self._now)
            case _Driver() if self._chosen_driver is None:
                self._take_driver(item.version)
            case _:
                pass

    def _take_driver(self, version: str) -> None:
        """Let the ledger know whose numbers these are: a poll tells it so, and this one tells nothing else."""
        node = NodeIdentity(self._node, driver_version=version)
        self._ledger.observe(
            Snapshot(sequence=0, at=self._now, monotonic=self._now, node=node, nvml_state=NvmlState.NO_DRIVER),
            self._now,
        )

    def _reboot(self, at: float) -> None:
        """Close what a boot cures, or what it leaves behind: only a board that has to be replaced stays broken."""
        self._ledger.tick(self._now + _SETTLED_SECONDS)
        for incident in self._ledger.view().active:
            if incident.action is Action.REPLACE:
                continue
            self._ledger.clear(incident.id, self._now)
            self._rebooted[incident.id] = replace(
                incident,
                closed_at=at if at >= OLDEST_DATE else incident.last_at,
                closed_because="the node was rebooted",
            )
        self._now, self._folded_since_boot = (self._now if at >= OLDEST_DATE else 0.0), None


def node_of(text: str) -> str | None:
    """The node that a line of syslog or the journal names; None where it names none."""
    found = _FROM_KERNEL.match(text)
    return None if found is None else found[1]


def _token(event: FaultEvent) -> str:
    return RECOVERY if event.kind is FaultKind.XID and event.code == 154 and event.recovery_action else token_of(event)


def _prefix(text: str) -> str:
    told = driver_text(text)
    return text[: len(text) - len(told)] if told is not None else text.partition("nvidia")[0]


def _year(text: str, written: float) -> int | None:
    """The year of a date that syslog writes without one: the last such day up to when the log was written."""
    found = _SYSLOG_DATE.match(text)
    if found is None or found[1] not in _MONTHS:
        return None
    last = datetime.fromtimestamp(min(max(written, 0.0), _LATEST), UTC)
    day = (_MONTHS.index(found[1]) + 1, int(found[2]))
    # A day more: the log's clock may be ahead of UTC.
    return last.year if day <= (last.month, last.day + 1) else last.year - 1
