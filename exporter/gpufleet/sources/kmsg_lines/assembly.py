"""Lines that belong together: three lines at probe that say a GPU is lost, three lines that are one SXid."""

from __future__ import annotations

import re
from dataclasses import replace

from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.sources.kmsg_lines.address import ADDRESS, of
from gpufleet.sources.kmsg_lines.driver_text import NVRM, parse_driver_text
from gpufleet.sources.kmsg_lines.record import KmsgRecord
from gpufleet.sources.kmsg_lines.saved import SOURCE, driver_text, parse_saved_line

# The message is one printk of three lines (osinit.c): whole in /dev/kmsg, apart in what dmesg and syslog write.
_FIRST = re.compile(rf"NVRM: The NVIDIA GPU {ADDRESS}\s*\Z")
_LAST = re.compile(r"NVRM: fallen off the bus and is not responding")
_LINES_BETWEEN = 6

SAME_SXID_SECONDS = 2.0
"""The three lines come within milliseconds; syslog's clock has whole seconds, and they may lie across one."""
_SWITCHES = 64


class Lines:
    """Gives each fault once, from lines in their order. One for each source; not for several threads."""

    def __init__(self) -> None:
        self._lost: str | None = None
        self._patience = 0
        self._sxids: dict[str, tuple[int, float]] = {}
        self._last = 0.0

    def record(self, record: KmsgRecord, *, at: float, source: str = "kmsg") -> FaultEvent | None:
        """The fault that a believed record of the live log completes, at Unix time ``at``; None when it does none."""
        event = parse_driver_text(record.text, at=at, source=source, sequence=record.sequence)
        return self._whole(record.text, event, at, source, record.sequence)

    def saved(self, line: str, *, year: int | None = None, boot: float | None = None) -> FaultEvent | None:
        """The fault that a line of a saved log completes; None when it does none. Time as in ``parse_saved_line``."""
        event = parse_saved_line(line, year=year, boot=boot, last=self._last)
        if event is not None:
            self._last = event.at
        text = driver_text(line) if event is None and NVRM in line else ""
        return self._whole(text or "", event, self._last, SOURCE, None)

    def _whole(
        self, text: str, event: FaultEvent | None, at: float, source: str, sequence: int | None
    ) -> FaultEvent | None:
        if event is None:
            return self._at_probe(text, at, source, sequence)
        if event.kind is FaultKind.SXID and event.pci_bus_id is not None and event.code is not None:
            return self._sxid(event, event.pci_bus_id, event.code)
        return event

    def _at_probe(self, text: str, at: float, source: str, sequence: int | None) -> FaultEvent | None:
        if not text.startswith(NVRM):
            return None
        if first := _FIRST.match(text):
            self._lost, self._patience = of(first), _LINES_BETWEEN
            return None
        if self._lost is None:
            return None
        if last := _LAST.match(text):
            address, self._lost = self._lost, None
            said = f"The NVIDIA GPU {address} has {last[0].removeprefix(NVRM)}"
            return FaultEvent(FaultKind.GPU_LOST, at, source, address, text=said, sequence=sequence)
        self._patience -= 1
        if self._patience <= 0:
            self._lost = None
        return None

    def _sxid(self, event: FaultEvent, switch: str, code: int) -> FaultEvent | None:
        told, when = self._sxids.get(switch, (None, 0.0))
        if event.continues and told == code and abs(event.at - when) <= SAME_SXID_SECONDS:
            return None
        if len(self._sxids) >= _SWITCHES:
            self._sxids.clear()
        self._sxids[switch] = (code, event.at)
        # The first line was lost (an overrun of the log): what came after it stands for the event.
        return replace(event, continues=False) if event.continues else event
