"""The totals of a meter as they are kept: checked when they come back, exact to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.model.meter import COLUMNS, Account

MOST_ACCOUNTS = 8192
"""Of a node. The meter keeps at most 256 a GPU."""
_LONGEST_TEXT = 1024
_HIGHEST_GPU = 1 << 20
_LARGEST = 1e18
"""Seconds or money that no node comes to; beyond, one poll's addition would be lost in the rounding."""


class MeterStateError(Exception):
    """Kept totals that can't be used; the message says why."""


@dataclass(frozen=True, slots=True)
class MeterState:
    """Everything that a meter needs to go on after a restart."""

    monotonic: float | None = None
    """Of the last poll, on the clock of the boot that it was taken in."""
    gaps: int = 0
    unbilled_seconds: float = 0.0
    accounts: tuple[Account, ...] = ()
    values: tuple[float | None, ...] = ()
    """len(COLUMNS) numbers for each account in turn."""
    until: tuple[float | None, ...] = ()
    """For each account the monotonic time at which it is dropped; ``None`` for those that hold something."""


def check(state: MeterState) -> None:
    """Raise MeterStateError unless a meter can go on from ``state`` and all of it can be shown."""
    count = len(state.accounts)
    if count > MOST_ACCOUNTS:
        raise MeterStateError(f"it has {count} accounts, more than {MOST_ACCOUNTS}")
    if len(state.values) != count * len(COLUMNS) or len(state.until) != count:
        raise MeterStateError("its numbers are not as many as its accounts need")
    for value in (*state.values, state.unbilled_seconds):
        if value is not None and not 0.0 <= value <= _LARGEST:
            raise MeterStateError(f"{value} is no total")
    for time in (*state.until, state.monotonic):
        if time is not None and not math.isfinite(time):
            raise MeterStateError(f"{time} is no time")
    if not 0 <= state.gaps <= _LARGEST:
        raise MeterStateError(f"{state.gaps} is no number of gaps")
    _check_accounts(state.accounts, state.values)


def _check_accounts(accounts: Sequence[Account], values: Sequence[float | None]) -> None:
    seen = set()
    timed = set()
    for at, account in enumerate(accounts):
        texts = (account.uuid, account.project, account.run, account.task, account.currency)
        for text in texts:
            if len(text) > _LONGEST_TEXT or not _is_encodable(text):
                raise MeterStateError(f"{text[:40]!r} is no label's value")
        if not 0 <= account.gpu < _HIGHEST_GPU:
            raise MeterStateError(f"{account.gpu} is no number of a GPU")
        if texts in seen:
            raise MeterStateError(f"an account of {account.uuid} is there twice")
        seen.add(texts)
        first = at * len(COLUMNS)
        if values[first] is not None or values[first + 1] is not None:
            # Seconds have no currency: two accounts that differ in nothing else would be one series, twice.
            if texts[:-1] in timed:
                raise MeterStateError(f"the seconds of an account of {account.uuid} are there twice")
            timed.add(texts[:-1])


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
