"""The accounts of a meter: which there are, in which order, and how long those that hold nothing stay."""

from __future__ import annotations

from gpufleet.cost.meter_state import MeterState
from gpufleet.model.meter import COLUMNS, Account
from gpufleet.model.owner import Holding

WIDTH = len(COLUMNS)
MOST_HELD = 191
"""Accounts of one GPU that hold something; what further ones hold is billed to one more."""
MOST_LINGERING = 64
"""Accounts of one GPU that hold nothing any more; the oldest go first."""
OTHERS = "(others)"
"""Project of the account for holders beyond ``MOST_HELD``."""
_SECONDS = (0, 1)
"""Columns without a currency."""

_Key = tuple[str, str, str, str, str]


class Row:
    """One account and its totals while the accounts are being changed."""

    __slots__ = ("account", "is_held", "numbers", "place", "until")

    def __init__(self, account: Account, numbers: list[float | None], until: float | None) -> None:
        self.account = account
        self.numbers = numbers
        self.until = until
        self.is_held = False
        self.place = -1
        """Position among the accounts, once they are in order."""


class Rows:
    """The accounts, open for change."""

    def __init__(self, rows: dict[_Key, Row]) -> None:
        self.rows = rows
        self._siblings: dict[tuple[str, str, str, str], list[Row]] = {}
        for key, row in rows.items():
            self._siblings.setdefault(key[:-1], []).append(row)
        self._held: dict[str, int] = {}

    def row(self, gpu: int, holding: Holding, currency: str) -> Row:
        """The account that a holding is billed to."""
        uuid, work = holding.uuid, holding.workload
        key = (uuid, holding.project, work.run, work.task, currency)
        row = self.rows.get(key)
        if row is None or not row.is_held:
            count = self._held.get(uuid, 0)
            if count >= MOST_HELD:
                key = (uuid, OTHERS, "", "", currency)
                row = self.rows.get(key)
            else:
                self._held[uuid] = count + 1
        if row is None:
            row = self.rows[key] = Row(Account(gpu, *key), [None] * WIDTH, None)
            self._siblings.setdefault(key[:-1], []).append(row)
        if not row.is_held:
            row.is_held, row.until = True, None
            if row.account.gpu != gpu:
                row.account = Account(gpu, *key)
            self._take_seconds(row, key)
        return row

    def _take_seconds(self, row: Row, key: _Key) -> None:
        # Seconds have no currency: when the price gets another one, the totals of seconds go on under the new account,
        # and the old one keeps its money.
        for sibling in self._siblings[key[:-1]]:
            if sibling is row:
                continue
            for column in _SECONDS:
                value = sibling.numbers[column]
                if value is not None:
                    row.numbers[column] = value + (row.numbers[column] or 0.0)
                    sibling.numbers[column] = None


class Ledger:
    """The accounts between two changes."""

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self._rows: list[Row] = []
        self.accounts: tuple[Account, ...] = ()
        """The same object until one comes, goes or changes."""
        self.until: tuple[float | None, ...] = ()
        """When each is dropped; ``None`` while it holds something."""
        self.drop_at = float("inf")
        """Monotonic time at which the first of them has to be dropped."""

    def load(self, state: MeterState, *, same_boot: bool) -> None:
        """Take over kept accounts. Those that held nothing come back only with ``same_boot``."""
        rows = []
        for at, (account, until) in enumerate(zip(state.accounts, state.until, strict=True)):
            if until is None or same_boot:
                rows.append(Row(account, list(state.values[at * WIDTH : (at + 1) * WIDTH]), until))
        self._arrange(rows)
        # Whoever held something in another boot and does not now is gone for longer than any series may linger.
        self._is_foreign = not same_boot

    _is_foreign = False

    def totals(self) -> list[float | None]:
        """The totals of all accounts in their order, as they were when the accounts were last changed."""
        return [number for row in self._rows for number in row.numbers]

    def begin(self, totals: list[float | None]) -> Rows:
        """Open the accounts, whose totals have come to ``totals``."""
        found: dict[_Key, Row] = {}
        for row in self._rows:
            first = row.place * WIDTH
            row.numbers = totals[first : first + WIDTH]
            row.is_held = False
            account = row.account
            found[account.uuid, account.project, account.run, account.task, account.currency] = row
        return Rows(found)

    def end(self, rows: Rows, last: float, now: float) -> list[float | None]:
        """Close the accounts; returns all totals in order. ``last`` is when those that were not taken up were billed
        last, both on the monotonic clock.
        """
        kept: list[Row] = []
        lingering: dict[str, list[Row]] = {}
        for row in rows.rows.values():
            if row.is_held:
                kept.append(row)
                continue
            if row.until is None:
                row.until = last + self._linger
                if self._is_foreign:
                    continue
            # A clock that was set back in a virtual machine must not keep an account for ever.
            row.until = min(row.until, now + self._linger)
            if row.until > now and any(number is not None for number in row.numbers):
                lingering.setdefault(row.account.uuid, []).append(row)
        for several in lingering.values():
            several.sort(key=_until)
            kept += several[-MOST_LINGERING:]
        self._is_foreign = False
        self._arrange(kept)
        return self.totals()

    def _arrange(self, rows: list[Row]) -> None:
        rows.sort(key=_order)
        for place, row in enumerate(rows):
            row.place = place
        self._rows = rows
        accounts = tuple([row.account for row in rows])
        if accounts != self.accounts:
            self.accounts = accounts
        self.until = tuple([row.until for row in rows])
        self.drop_at = min((until for until in self.until if until is not None), default=float("inf"))


def _until(row: Row) -> float:
    return row.until or 0.0


def _order(row: Row) -> tuple[int, str, str, str, str, str]:
    account = row.account
    return account.gpu, account.uuid, account.project, account.run, account.task, account.currency
