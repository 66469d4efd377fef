"""The totals on disk: handed over at each poll, written by a thread of its own.

The poll thread never touches the disk, which may make even a buffered write wait (dirty pages are throttled, a network
filesystem hangs); it leaves its newest totals and goes on. What is written outlives this process at once. The disk is
waited for once a minute, by one more thread, so that a sick disk's fsync does not hold up the writes either. Should the
process be killed between a poll and its write, the state before is loaded, and the time since that is billed then.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpufleet.collect.lanes import Lane
from gpufleet.cost.meter import Meter
from gpufleet.cost.meter_bytes import MAX_BYTES, Kept, Layout, decode_file, encode_file, encode_slot
from gpufleet.cost.meter_state import MeterState, MeterStateError
from gpufleet.logs import OnChange
from gpufleet.model.meter import Account
from gpufleet.model.snapshot import SourceHealth

log = logging.getLogger(__name__)

NAME = "meter.state"
SOURCE = "meter_state"
SYNC_SECONDS = 60.0
OVERDUE_SECONDS = 30.0
"""A write that takes longer is told of as a failure."""
STOP_SECONDS = 2.0
"""How long the process waits for its last write."""
_REMEDY = (
    "totals can't be kept: after a restart of gpufleet they begin anew; make --state.dir writable, with space left"
)


_SHARED = (
    "another process keeps totals in the same file: of both, a restart finds one's; each needs its own --state.dir"
)


class MeterFile:
    """One file in the state directory; without a directory nothing is kept. ``keep`` by one thread."""

    def __init__(
        self, directory: Path | None, boot_id: str | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = None if directory is None else directory / NAME
        self._boot_id = boot_id
        self._monotonic = monotonic
        self._newest: MeterState | None = None
        self._is_asked = False
        self._asked_at = 0.0
        self._written: _Writer | None = None if self._file is None else _Writer(self._file, boot_id)
        self._lane = Lane("meter-file")
        self._sync_lane = Lane("meter-sync")
        self._sync_at = monotonic() + SYNC_SECONDS
        self._is_syncing = False
        self._is_stopped = False
        self._reason: str | None = None
        self._sync_reason: str | None = None
        self._said = OnChange(log)

    def load(self, meter: Meter) -> None:
        """Let a new meter go on from what is kept, if that can be used; if not it is moved aside."""
        if self._file is None or self._written is None:
            return
        try:
            content = _read(self._file)
            if content is None:
                log.info("no totals are kept: beginning anew", extra={"file": str(self._file)})
                return
            kept: Kept = decode_file(content)
            meter.load(kept.state, same_boot=self._boot_id is not None and kept.boot_id == self._boot_id)
        except OSError as error:
            self._said.failed("read", "the kept totals can't be read: beginning anew", _text(error), file=self._file)
        except MeterStateError as error:
            aside = self._file.with_name(f"{NAME}.bad")
            with contextlib.suppress(OSError):
                self._file.replace(aside)
            self._said.failed(
                "read", "the kept totals can't be used: beginning anew", str(error), file=self._file, moved_to=aside
            )
        else:
            self._written.sequence = kept.sequence

    def keep(self, meter: Meter) -> None:
        """Hand the totals of the last poll over to be written. Does not wait."""
        if self._written is None or self._is_stopped:
            return
        self._newest = meter.dump()
        if not self._is_asked:
            self._is_asked = True
            self._asked_at = self._monotonic()
            self._submit()

    def _submit(self) -> None:
        try:
            self._lane.submit(self._write)
        except RuntimeError as error:  # no thread is to be had: the next poll tries again
            self._is_asked = False
            self._fail(str(error))

    def health(self) -> tuple[SourceHealth, ...]:
        """Whether totals are kept; nothing where none are to be."""
        if self._file is None:
            return ()
        reason = self._reason or self._sync_reason
        if reason is None and self._is_asked and self._monotonic() - self._asked_at > OVERDUE_SECONDS:
            reason = f"a write of {self._file} has taken longer than {OVERDUE_SECONDS:.0f} seconds"
        return (SourceHealth(SOURCE, up=reason is None, reason=reason),)

    def stop(self) -> None:
        """End, with the last totals on disk unless that takes too long. After the last ``keep``."""
        writer = self._written
        if writer is None or self._newest is None or self._is_stopped:
            return
        self._is_stopped = True
        done = threading.Event()

        def last() -> None:
            self._write()
            with contextlib.suppress(OSError):
                writer.sync()
            done.set()

        with contextlib.suppress(RuntimeError):
            self._lane.submit(last)
            if not done.wait(STOP_SECONDS):
                log.warning("the last totals are still being written", extra={"file": str(self._file)})
            self._lane.end()
            self._sync_lane.end()

    # --- by the threads of the lanes ----------------------------------------------------------------------------------
    def _write(self) -> None:
        # Before the state is taken: one that comes after it asks anew.
        self._is_asked = False
        state, writer = self._newest, self._written
        if state is None or writer is None:
            return
        try:
            writer.write(state)
        except (OSError, MeterStateError) as error:
            writer.forget()
            self._fail(_text(error) if isinstance(error, OSError) else str(error))
            return
        self._reason = None
        self._said.over("write", "totals are kept again", file=str(self._file))
        if writer.is_shared:
            # Once: in a rollout the old process and the new one are there together for a while, which is no fault.
            self._said.failed("shared", _SHARED, str(self._file))
        now = self._monotonic()
        if now >= self._sync_at and not self._is_syncing:
            self._sync_at = now + SYNC_SECONDS
            self._is_syncing = True
            with contextlib.suppress(RuntimeError):
                self._sync_lane.submit(self._sync)
                return
            self._is_syncing = False

    def _sync(self) -> None:
        try:
            if self._written is not None:
                self._written.sync()
            self._sync_reason = None
        except OSError as error:
            self._sync_reason = _text(error)
            self._said.failed("sync", "the disk does not take the totals that were written", _text(error))
        else:
            self._said.over("sync", "the disk takes the totals again")
        finally:
            self._is_syncing = False

    def _fail(self, reason: str) -> None:
        self._reason = reason
        self._said.failed("write", _REMEDY, reason, file=str(self._file))


class _Writer:
    """The open file. By one thread, except ``sync``."""

    def __init__(self, file: Path, boot_id: str | None) -> None:
        self.sequence = 0
        self.is_shared = False
        """Whether somebody else has put a file in the place of this one."""
        self._file = file
        self._boot_id = boot_id
        self._descriptor: int | None = None
        self._layout = Layout(0, 0)
        self._accounts: tuple[Account, ...] | None = None
        self._check_at = 0

    def write(self, state: MeterState) -> None:
        """Put ``state`` into the file. Raises OSError, MeterStateError; what was in it before stays then."""
        self.sequence += 1
        descriptor = self._descriptor
        if descriptor is None or state.accounts is not self._accounts or not self._is_there(descriptor):
            self._replace(state)
            return
        _write_at(descriptor, encode_slot(state, self.sequence), self._layout.place(self.sequence))

    def _is_there(self, descriptor: int) -> bool:
        # Somebody may have removed the file or mounted something over it; now and then is often enough to look.
        if self.sequence < self._check_at:
            return True
        self._check_at = self.sequence + 60
        try:
            is_there = os.path.samestat(self._file.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False
        self.is_shared = self.is_shared or not is_there
        return is_there

    def _replace(self, state: MeterState) -> None:
        content, layout = encode_file(state, self._boot_id, self.sequence)
        new = self._file.with_name(f".{self._file.name}.new")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            _write_at(descriptor, content, 0)
            new.replace(self._file)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self.forget()
        self._descriptor, self._layout, self._accounts = descriptor, layout, state.accounts
        self._check_at = self.sequence + 60

    def forget(self) -> None:
        """Write the file anew next time: after a failure nothing is known of the one that is open."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def sync(self) -> None:
        """Wait until the disk has what was written. Raises OSError. By any thread: it opens the file for itself."""
        for path in (self._file, self._file.parent):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _read(file: Path) -> bytes | None:
    """Content of the file, None when there is none. Raises OSError, MeterStateError."""
    try:
        # Without O_NONBLOCK a FIFO in its place would hold the start for ever.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise MeterStateError("it is no ordinary file")
        content = handle.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise MeterStateError(f"it is larger than {MAX_BYTES} bytes")
    return content


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    if os.pwrite(descriptor, content, offset) != len(content):
        # A write that ends early has met a full disk or a quota; the next one would say so.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
