"""The report's questions to Prometheus, and what their answers come to for each project, run or task. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.model.owner import Hold

LEVELS: Mapping[str, tuple[str, ...]] = {
    "project": ("project",),
    "run": ("project", "run"),
    "task": ("project", "run", "task"),
}
"""What ``--by`` takes, and the labels that tell its rows apart."""
NOBODYS = tuple([hold.value for hold in (Hold.UNALLOCATED, Hold.UNSLICED, Hold.UNKNOWN)])
"""Projects of what no holder is known of, in the order in which they are listed."""
_HOUR = 3600.0
_RUN = "cluster, project, run, task"
_NOISE = 1e-9
"""Part of a sum that may be lost in adding up as many increments as a month has."""


class Question(enum.StrEnum):
    """What is asked."""

    COST = "cost"
    UNUSED = "unused cost"
    MEASURED_COST = "cost of what was measured"
    UNMEASURED_UNUSED = "unused cost of what was not measured"
    ALLOCATED = "GPU time"
    MEASURED = "GPU time of what was measured"
    PRODUCTIVE = "productive GPU time"


def queries(by: str, seconds: float, cluster: str | None) -> Mapping[Question, str]:
    """PromQL of each question about the ``seconds`` up to the time at which it is asked."""
    selector = "" if cluster is None else "{cluster=" + _quoted(cluster) + "}"
    # A millisecond less: Prometheus 2 counts a sample at either end of a window, and one of them is of the time before.
    window = f"[{round(seconds * 1000) - 1}ms]"

    def total(record: str) -> str:
        return f"sum_over_time(run:{record}:increase5m{selector}{window})"

    # Utilization is a reading that a run has or has not: all its time without it has no productive series at all.
    measured = f"on ({_RUN}) count_over_time(run:gpu_productive_seconds:increase5m{selector}{window})"
    labels = ", ".join(LEVELS[by])
    cost, unused, allocated = total("gpu_cost"), total("gpu_unused_cost"), total("gpu_allocated_seconds")
    return {
        Question.COST: f"sum by ({labels}, currency) ({cost})",
        Question.UNUSED: f"sum by ({labels}, currency, reason) ({unused})",
        Question.MEASURED_COST: f"sum by ({labels}, currency) ({cost} and {measured})",
        Question.UNMEASURED_UNUSED: f"sum by ({labels}, currency) ({unused} unless {measured})",
        Question.ALLOCATED: f"sum by ({labels}) ({allocated})",
        Question.MEASURED: f"sum by ({labels}) ({allocated} and {measured})",
        Question.PRODUCTIVE: f"sum by ({labels}) ({total('gpu_productive_seconds')})",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Money:
    """What something cost, in one currency: ``cost`` is ``used`` and ``unused`` and ``unmeasured`` together.

    What nobody held has a cost alone.
    """

    cost: float = 0.0
    unused_idle: float = 0.0
    unused_down: float = 0.0
    unmeasured: float = 0.0

    @property
    def unused(self) -> float:
        """Paid and not made use of."""
        return self.unused_idle + self.unused_down

    @property
    def used(self) -> float:
        """The rest of what was measured."""
        return _difference(self.cost, self.unused, self.unmeasured)

    @property
    def unused_ratio(self) -> float | None:
        """Unused cost over cost, as far as either is known; ``None`` where it is not."""
        known = _difference(self.cost, self.unmeasured)
        return self.unused / known if known > 0.0 else None

    def plus(self, other: Money) -> Money:
        """Both together; of the same currency."""
        return Money(
            self.cost + other.cost,
            self.unused_idle + other.unused_idle,
            self.unused_down + other.unused_down,
            self.unmeasured + other.unmeasured,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report."""

    key: tuple[str, ...]
    """Values of the labels of its level."""
    seconds: float = 0.0
    """GPU time held."""
    measured_seconds: float = 0.0
    productive_seconds: float | None = None
    """``None``: never measured."""
    money: Mapping[str, Money] = field(default_factory=dict)
    """By currency; empty where there was no price."""

    @property
    def is_nobodys(self) -> bool:
        """No holder is known: there is a cost, and nothing that could be said of its use."""
        return self.key[0] in NOBODYS

    @property
    def hours(self) -> float:
        """GPU time held, in hours."""
        return self.seconds / _HOUR

    @property
    def utilization(self) -> float | None:
        """Productive time over the time that was measured; ``None``: none was."""
        if self.productive_seconds is None or self.measured_seconds <= 0.0:
            return None
        return min(self.productive_seconds / self.measured_seconds, 1.0)


@dataclass(frozen=True, slots=True)
class Report:
    """The whole table."""

    by: str
    held: tuple[Row, ...]
    """The dearest first, by the currency that most was paid in; then by time."""
    nobodys: tuple[Row, ...]
    """In the order of ``NOBODYS``."""
    currencies: tuple[str, ...]
    """The one that most was paid in first."""

    @property
    def total(self) -> Row:
        """All holders together."""
        return added(("total",), self.held)


def report_of(by: str, answers: Mapping[Question, Sequence[Sample]]) -> Report:
    """The table that the answers make."""
    level = LEVELS[by]
    seconds, measured, productive = (
        _by_key(level, answers[question]) for question in (Question.ALLOCATED, Question.MEASURED, Question.PRODUCTIVE)
    )
    money = _money(level, answers)
    totals: dict[str, float] = {}
    for found in money.values():
        for currency, amounts in found.items():
            totals[currency] = totals.get(currency, 0.0) + amounts.cost
    currencies = tuple(sorted(totals, key=lambda currency: (-totals[currency], currency)))
    rows = [
        Row(key, seconds.get(key, 0.0), measured.get(key, 0.0), productive.get(key), money.get(key, {}))
        for key in {**seconds, **money}
    ]
    nobody = Money()

    def dearest(row: Row) -> tuple[object, ...]:
        return *[-row.money.get(currency, nobody).cost for currency in currencies], -row.seconds, row.key

    return Report(
        by,
        tuple(sorted((row for row in rows if not row.is_nobodys), key=dearest)),
        tuple(sorted((row for row in rows if row.is_nobodys), key=lambda row: (NOBODYS.index(row.key[0]), row.key))),
        currencies,
    )


def added(key: tuple[str, ...], rows: Iterable[Row]) -> Row:
    """Rows together; currencies stay apart."""
    seconds = measured = 0.0
    productive: float | None = None
    money: dict[str, Money] = {}
    for row in rows:
        seconds += row.seconds
        measured += row.measured_seconds
        if row.productive_seconds is not None:
            productive = row.productive_seconds + (productive or 0.0)
        for currency, amounts in row.money.items():
            money[currency] = money.get(currency, Money()).plus(amounts)
    return Row(key, seconds, measured, productive, money)


_Key = tuple[str, ...]


def _money(level: Sequence[str], answers: Mapping[Question, Sequence[Sample]]) -> dict[_Key, dict[str, Money]]:
    with_currency = (*level, "currency")
    cost = _by_key(with_currency, answers[Question.COST])
    measured = _by_key(with_currency, answers[Question.MEASURED_COST])
    unused = _by_key((*with_currency, "reason"), answers[Question.UNUSED])
    elsewhere = _by_key(with_currency, answers[Question.UNMEASURED_UNUSED])
    found: dict[_Key, dict[str, Money]] = {}
    for key, amount in cost.items():
        is_held = key[0] not in NOBODYS
        found.setdefault(key[:-1], {})[key[-1]] = Money(
            amount,
            unused.get((*key, "idle"), 0.0),
            unused.get((*key, "down"), 0.0),
            _difference(amount, measured.get(key, 0.0), elsewhere.get(key, 0.0)) if is_held else 0.0,
        )
    return found


def _by_key(labels: Sequence[str], samples: Sequence[Sample]) -> dict[_Key, float]:
    # A label that is not there is empty, and the other way round.
    return {tuple([sample.labels.get(label, "") for label in labels]): sample.value for sample in samples}


def _difference(whole: float, *parts: float) -> float:
    rest = whole - sum(parts)
    return rest if rest > whole * _NOISE else 0.0
