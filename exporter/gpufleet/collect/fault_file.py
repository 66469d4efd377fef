"""The ledger on disk: read once, written before what it holds is shown."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from gpufleet.collect.state_file import StateError, read_state, replace_state, sync_state
from gpufleet.faults.ledger import Ledger
from gpufleet.faults.stored import StoredError
from gpufleet.logs import OnChange

log = logging.getLogger(__name__)

NAME = "faults.json"
WRITE_SECONDS = 1.0
"""Counts alone are written, and shown, this often at most; incidents at once."""


class FaultFile:
    """One file in the state directory; without a directory nothing is kept. For one thread."""

    def __init__(self, directory: Path | None, monotonic: Callable[[], float]) -> None:
        self._file = None if directory is None else directory / NAME
        self._monotonic = monotonic
        self._written = (-1, -1)
        self._write_at = 0.0
        self._fails = False
        self._to_sync = False
        self._said = OnChange(log)

    def load(self, ledger: Ledger, now: float) -> None:
        """Give a new ledger what is kept, if that can be used. ``now`` is Unix time."""
        if self._file is None:
            return
        try:
            content = read_state(self._file)
            if content is not None:
                ledger.load(json.loads(content), now)
        except (StateError, StoredError, ValueError, RecursionError) as error:
            self._said.failed("read", "the kept faults can't be used: beginning anew", str(error), file=str(self._file))
            return
        if content is None:
            log.info("no faults are kept: beginning anew", extra={"file": str(self._file)})

    def keep(self, ledger: Ledger, *, force: bool = False) -> float | None:
        """Write down what has changed. None when the ledger may be shown as it is; else seconds to wait before that.

        ``force`` writes even if only the counters have moved that prove a reset. What is written outlives this process;
        ``sync`` makes it outlive the machine.
        """
        state = ledger.revision, ledger.events
        if self._file is None:
            return None
        if ledger.replaying:
            # It is in the log, which is read anew after a crash.
            return WRITE_SECONDS
        if state == self._written and not force:
            return None
        now = self._monotonic()
        is_urgent = force or (state[0] != self._written[0] and not self._fails)
        if not is_urgent and now < self._write_at:
            return None if self._fails else self._write_at - now
        self._write_at = now + WRITE_SECONDS
        self._write(self._file, ledger)
        return None

    def _write(self, file: Path, ledger: Ledger) -> None:
        table = ledger.dump()
        try:
            replace_state(file, json.dumps(table, separators=(",", ":")).encode(), sync=False)
        except StateError as error:
            self._fail(file, error)
            return
        self._said.over("write", "faults are kept again", file=str(file))
        self._fails, self._to_sync = False, True
        self._written = ledger.revision, ledger.events

    def sync(self) -> None:
        """Wait for the disk, which takes seconds when it is busy: after what was written is shown."""
        if self._file is None or not self._to_sync:
            return
        self._to_sync = False
        try:
            sync_state(self._file)
        except StateError as error:
            self._fail(self._file, error)

    def _fail(self, file: Path, error: StateError) -> None:
        self._fails = True
        self._said.failed(
            "write",
            "faults can't be kept: after a restart of gpufleet they begin anew; make --state.dir writable",
            str(error),
            file=str(file),
        )
