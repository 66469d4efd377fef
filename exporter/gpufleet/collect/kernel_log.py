"""The kernel's log as events: opened as soon as it can be, read as it grows, and opened again when that fails."""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from gpufleet.logs import OnChange
from gpufleet.model.fault import FaultEvent
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.errors import SourceError
from gpufleet.sources.kmsg import SOURCE, Follower, RecordClock
from gpufleet.sources.kmsg_lines import KmsgRecord, Lines, believable, harvest_identity, parse_record

log = logging.getLogger(__name__)

OPEN_AGAIN_SECONDS = 60.0
_LOOK_SECONDS = 0.2
"""A file does not tell when it grows."""
_OVERRUN_SECONDS = 60.0
"""A flood makes one line of ours in so long."""


@dataclass(frozen=True, slots=True)
class Named:
    """The driver says which board is at an address."""

    pci_bus_id: str
    uuid: str


class KernelLog:
    """One log, for one thread. Says itself why it can't be read."""

    def __init__(
        self,
        path: Path,
        *,
        accept_userspace: bool = False,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        open_again_seconds: float = OPEN_AGAIN_SECONDS,
    ) -> None:
        """``accept_userspace`` believes every record, whoever wrote it: for tests."""
        self.health = SourceHealth(SOURCE, up=False, reason="not opened yet")
        """Replaced whole: may be read from any thread."""
        self.replayed = False
        """Everything that was in the log when it was opened has been given."""
        self._path = path
        self._accept_userspace = accept_userspace
        self._monotonic = monotonic
        self._wall = wall
        self._open_again_seconds = open_again_seconds
        self._follower: Follower | None = None
        self._open_at = -inf
        self._opened_at = inf
        self._drained_at = -inf
        self._clock = RecordClock()
        self._lines = Lines()
        self._overruns_said = (0, -inf)
        self._said = OnChange(log)

    @property
    def is_open(self) -> bool:
        """Whether it is followed now."""
        return self._follower is not None

    def open(self) -> bool:
        """Open it when it is time to; whether it is open."""
        if self._follower is not None:
            return True
        now = self._monotonic()
        if now < self._open_at:
            return False
        try:
            self._follower = Follower(self._path)
        except SourceError as error:
            self._lose(error)
            return False
        self._opened_at, self._drained_at = now, -inf
        self._overruns_said = (0, -inf)
        self.health = SourceHealth(SOURCE, up=True)
        self._said.over(SOURCE, "the kernel's log is followed", path=str(self._path))
        return True

    def read(self) -> list[FaultEvent | Named]:
        """What there is of the driver's, in the order of the log. Not open any more when reading has failed."""
        follower, before = self._follower, self._monotonic()
        if follower is None:
            return []
        try:
            records = follower.read()
        except SourceError as error:
            self._lose(error)
            return []
        now, wall = self._monotonic(), self._wall()
        newest = -inf
        told: list[FaultEvent | Named] = []
        for raw in records:
            record = parse_record(raw)
            if record is None:
                continue
            at = self._clock.time(record.microseconds, since=self._drained_at, now=now)
            newest = max(newest, at)
            if believable(record, accept_userspace=self._accept_userspace):
                self._tell(record, wall - (now - at), told)
        if follower.at_end:
            self._drained_at = before
        # In a flood that never ends the log has no end either.
        self.replayed = self.replayed or follower.caught_up or newest > self._opened_at
        self._say_overruns(follower.overruns, now)
        return told

    def _tell(self, record: KmsgRecord, at: float, told: list[FaultEvent | Named]) -> None:
        event = self._lines.record(record, at=at)
        if event is not None:
            told.append(event)
        elif (named := harvest_identity(record.text)) is not None:
            told.append(Named(*named))

    def wait_with(self, waiting: select.poll) -> float:
        """Have a poll(2) end when there is something to read; seconds after which to look anyway."""
        follower = self._follower
        if follower is None:
            return max(0.0, self._open_at - self._monotonic())
        if not follower.at_end:
            return 0.0
        if not follower.waits_by_poll:
            return _LOOK_SECONDS
        waiting.register(follower.descriptor, select.POLLIN)
        return inf

    def close(self) -> None:
        """Give the descriptor back."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _lose(self, error: SourceError) -> None:
        self.close()
        self._open_at = self._monotonic() + self._open_again_seconds
        self.health = SourceHealth(SOURCE, up=False, reason=error.reason)
        self._said.failed(SOURCE, "the kernel's log can't be followed", error.reason)

    def _say_overruns(self, overruns: int, now: float) -> None:
        said, at = self._overruns_said
        if overruns > said and now - at >= _OVERRUN_SECONDS:
            self._overruns_said = (overruns, now)
            log.warning(
                "the kernel's log went round before it was read: faults may have been missed",
                extra={"path": str(self._path), "times": overruns - said},
            )
