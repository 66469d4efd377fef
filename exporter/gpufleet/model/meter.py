"""What GPU time was held by whom, what was made of it, and what that cost: totals as of one poll."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """Whom time on one GPU is billed to: the labels of a row of totals."""

    gpu: int
    """Value of the label ``gpu``."""
    uuid: str
    project: str
    run: str = ""
    task: str = ""
    currency: str = ""
    """ISO 4217; empty while the GPU has no price."""


COLUMNS = ("allocated_seconds", "productive_seconds", "cost", "unused_cost_idle", "unused_cost_down")
"""The totals of each account, in the order of ``MeterView.values``."""


@dataclass(frozen=True, slots=True)
class Price:
    """What the whole GPU costs for an hour."""

    uuid: str
    per_hour: float
    currency: str
    text: str
    """``per_hour`` in its canonical form: the shortest decimal without an exponent, such as ``4.8``."""
    rule: str = ""
    """Name of the rule of the price book, for a person."""


@dataclass(frozen=True, slots=True)
class MeterView:
    """Totals of every account that is shown: those that hold something, and those that did some minutes ago."""

    accounts: tuple[Account, ...] = ()
    """The same object until one comes or goes."""
    values: tuple[float | None, ...] = ()
    """len(COLUMNS) numbers for each account in turn; ``None`` was never measured, and has no series."""
    prices: tuple[Price, ...] = ()
    """The same object until one changes."""
    gaps: int = 0
    """Times between two polls that were too long to be billed; a total since the state was first kept."""
    unbilled_seconds: float = 0.0
    """GPU-seconds that were in those gaps."""


NO_METER = MeterView()
