"""The audit: a line of JSON before each write to the outside (intent) and one after it (result).

A line that cannot be written stops the write that it announces: what is not on record is not done.
"""

from __future__ import annotations

import json
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.quarantine.incident import Key
    from gpufleet.quarantine.record import Outcome


class AuditError(Exception):
    """The audit cannot be written; says where and why."""


class Audit:
    """Writes to ``stream``, one JSON object a line, flushed; ``clock`` gives Unix time."""

    def __init__(self, stream: IO[str], clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._number = 0

    def intend(self, action: str, target: str, key: Key, **facts: str) -> Intent:
        """Announce a write; ``facts`` are what it depends on and what it changes. Raises AuditError."""
        with self._lock:
            self._number += 1
            number = self._number
        line: dict[str, str | int] = {"id": number, "incident": str(key), "action": action, "target": target}
        self._write({"event": "intent", **line, **facts})
        return Intent(self, line)

    def note(self, event: str, **facts: str) -> None:
        """Something that was decided, or that a person did. Raises AuditError."""
        self._write({"event": event, **facts})

    def _write(self, line: dict[str, str | int]) -> None:
        text = json.dumps({"at": round(self._clock(), 3), **line}, ensure_ascii=False)
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError) as error:
                raise AuditError(f"cannot write the audit to {self._stream.name}: {error}") from error


class Intent:
    """A write that was announced and has no result yet."""

    def __init__(self, audit: Audit, line: dict[str, str | int]) -> None:
        self._audit = audit
        self._line = line

    def result(self, outcome: Outcome, detail: str = "") -> None:
        """Say what came of it."""
        self._audit._write({"event": "result", **self._line, "outcome": str(outcome), "detail": detail})  # noqa: SLF001 - the two are one
