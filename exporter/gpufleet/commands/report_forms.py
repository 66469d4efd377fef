"""A report as text, as CSV and as JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gpufleet.commands.report_rows import LEVELS, Money, Report, Row, added

_NONE = Money()
_WORTH_TELLING = 0.005
"""Part of a cost below which what was not measured would be 0 % of it."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins with one of these is a formula to a spreadsheet, whoever named the run."""
_AMOUNTS = ("cost", "used", "unused", "unused_idle", "unused_down", "unmeasured")


def text(report: Report) -> str:
    """For a person; amounts that are large are rounded to the unit."""
    several = len(report.currencies) > 1
    currency = report.currencies[0] if len(report.currencies) == 1 else ""
    head = [*LEVELS[report.by]]
    if several:
        head.append("currency")
    if report.currencies:
        head += [f"cost {currency}".rstrip(), f"unused {currency}".rstrip(), "unused"]
    head += ["GPU hours", "utilization"]
    words = len(LEVELS[report.by]) + several
    lines = [head]
    for row in report.held:
        lines += _cells(report, row)
    lines.append([])
    lines += _cells(report, _titled(report, "total", report.held))
    for row in report.nobodys:
        lines += _cells(report, row)
    if report.nobodys:
        # Whether it was used is no question where nobody had it.
        lines += _cells(report, _titled(report, "everything", (*report.held, *report.nobodys)), is_held=False)
    said = _aligned(lines, words) + "".join(f"\n{line}" for line in _identities(report))
    if any(line[-1:] == ["*"] for line in lines):
        said += "\n* in part or wholly without a reading of utilization: unmeasured"
    return said


def _titled(report: Report, title: str, rows: Sequence[Row]) -> Row:
    return added((title, *[""] * (len(LEVELS[report.by]) - 1)), rows)


def _cells(report: Report, row: Row, *, is_held: bool = True) -> Iterator[list[str]]:
    is_held = is_held and not row.is_nobodys
    key = [_printable(word) for word in row.key]
    hours = _number(row.hours)
    utilization = row.utilization
    used = "" if not is_held else "unmeasured" if utilization is None else _percent(utilization)
    if not report.currencies:
        yield [*key, hours, used, *(["*"] if used == "unmeasured" else [])]
        return
    several = len(report.currencies) > 1
    # Time has no currency: it stands in the first line of those that are about the same thing.
    for place, currency in enumerate([each for each in report.currencies if each in row.money] or [""]):
        money = row.money.get(currency, _NONE)
        cells = list(key)
        if several:
            cells.append(currency)
        ratio = money.unused_ratio
        if not currency:
            cells += ["no price", "", ""]
        elif not is_held:
            cells += [_number(money.cost), "", ""]
        elif ratio is None and money.cost > 0.0:
            cells += [_number(money.cost), "unmeasured", ""]
        else:
            cells += [_number(money.cost), _number(money.unused), _percent(ratio or 0.0)]
        mark = ["*"] if (is_held and _is_partial(money)) or used == "unmeasured" else []
        yield [*cells, *(("", "") if place else (hours, used)), *mark]


def _is_partial(money: Money) -> bool:
    return money.unmeasured > money.cost * _WORTH_TELLING


def _identities(report: Report) -> Iterator[str]:
    everything = added(("",), (*report.held, *report.nobodys))
    total = report.total
    for currency in report.currencies:
        money = total.money.get(currency, _NONE)
        parts = [("used", money.used), ("unused", money.unused), ("unmeasured", money.unmeasured)]
        nobodys: dict[str, float] = {}
        for row in report.nobodys:
            nobodys[row.key[0]] = nobodys.get(row.key[0], 0.0) + row.money.get(currency, _NONE).cost
        terms = [f"{_number(amount)} {name}" for name, amount in (*parts, *nobodys.items()) if amount > 0.0]
        whole = everything.money[currency].cost
        yield f"{currency} {_number(whole)} = {' + '.join(terms) or '0'}"


def _aligned(lines: Sequence[Sequence[str]], words: int) -> str:
    """Columns: ``words`` of text to the left, the others to the right."""
    width = len(lines[0])
    widths = [max(len(line[at]) for line in lines if line) for at in range(width)]
    out = []
    for line in lines:
        cells = [
            cell.ljust(widths[at]) if at < words else cell.rjust(widths[at]) for at, cell in enumerate(line[:width])
        ]
        out.append("  ".join([*cells, *line[width:]]).rstrip())
    return "".join(f"{line}\n" for line in out)


def _number(amount: float) -> str:
    if amount != 0.0 and abs(amount) < 99.995:
        return f"{amount:.2f}"
    return f"{amount:,.0f}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _printable(word: str) -> str:
    """A name from outside, without what would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in word)


def csv_text(report: Report) -> str:
    """For a spreadsheet: a line a row and currency; time is in the first of the lines that are about the same thing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    times = ("gpu_hours", "measured_gpu_hours", "productive_gpu_hours", "utilization")
    writer.writerow([*LEVELS[report.by], "currency", *_AMOUNTS, *times])
    for row in (*report.held, *report.nobodys):
        key = [f"'{word}" if word.startswith(_FORMULA) else word for word in row.key]
        hours = _hours(row)
        time = ["" if hours[name] is None else hours[name] for name in times]
        for place, currency in enumerate([each for each in report.currencies if each in row.money] or [""]):
            money = _amounts(row, currency)
            amounts = ["" if money is None or money[name] is None else money[name] for name in _AMOUNTS]
            writer.writerow([*key, currency, *amounts, *([""] * len(times) if place else time)])
    return out.getvalue()


def json_text(report: Report, begin: float, end: float) -> str:
    """For a program; ``begin`` and ``end`` are Unix times."""
    level = LEVELS[report.by]

    def told(row: Row, names: Sequence[str]) -> dict[str, object]:
        money = {currency: _amounts(row, currency) for currency in report.currencies if currency in row.money}
        return {**dict(zip(names, row.key, strict=False)), **_hours(row), "money": money}

    return json.dumps(
        {
            "by": report.by,
            "from": _iso(begin),
            "to": _iso(end),
            "rows": [told(row, level) for row in report.held],
            "total": told(report.total, ()),
            "nobodys": [told(row, level) for row in report.nobodys],
        },
        indent=2,
    )


def _hours(row: Row) -> dict[str, object]:
    productive = row.productive_seconds
    return {
        "gpu_hours": round(row.hours, 6),
        "measured_gpu_hours": None if row.is_nobodys else round(row.measured_seconds / 3600, 6),
        "productive_gpu_hours": None if productive is None else round(productive / 3600, 6),
        "utilization": None if row.utilization is None else round(row.utilization, 6),
    }


def _amounts(row: Row, currency: str) -> dict[str, float | None] | None:
    money = row.money.get(currency)
    if money is None:
        return None
    if row.is_nobodys:
        return {name: round(money.cost, 6) if name == "cost" else None for name in _AMOUNTS}
    return {name: round(getattr(money, name), 6) for name in _AMOUNTS}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
