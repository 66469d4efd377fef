"""What is measured, what was promised of it, and the table that holds one against the other. Pure.

Every row of the table is declared here, in the order in which it is printed: a row that a run did not measure stays
empty instead of being missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

GPUFLEET = "gpufleet"
NAIVE = "naive"
NVITOP = "nvitop-exporter"
SUBJECTS = (GPUFLEET, NAIVE, NVITOP)

_ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Limit:
    """What gpufleet's value must be: below, at most or at least ``bound``."""

    kind: Literal["<", "≤", "≥"]
    bound: float

    def met(self, value: float) -> bool:
        """Whether a value keeps to it."""
        if self.kind == "<":
            return value < self.bound
        return value <= self.bound if self.kind == "≤" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.kind} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``compare``: the others' values are also shown as multiples of gpufleet's."""

    key: str
    section: str
    what: str
    unit: str
    limit: Limit | None = None
    compare: bool = True


ROWS: tuple[Row, ...] = (
    Row("poll.warm", "Poll", "CPU per GPU and fast poll, back to back", "µs"),
    Row("poll.warm.bare", "Poll", "… as a multiple of a bare ctypes loop", "×", Limit("≤", 5), compare=False),
    Row("poll.second", "Poll", "CPU per GPU and fast poll, one a second: cold caches", "µs"),
    Row("poll.second.bare", "Poll", "… as a multiple of a bare ctypes loop", "×", Limit("≤", 5), compare=False),
    Row("process.cpu", "Process", "CPU of the process: 1 s polls, a scrape each 15 s", "% core", Limit("<", 0.5)),
    Row("process.start", "Process", "exec to the first full scrape", "s", Limit("<", 1)),
    Row("memory.imports", "Memory", "RSS after imports", "MiB", Limit("<", 28)),
    Row("memory.polls", "Memory", "RSS after 10,000 polls, 100 scrapes", "MiB", Limit("<", 36)),
    Row("memory.growth", "Memory", "RSS growth in the second half of them", "%", Limit("<", 1), compare=False),
    Row("scrape.gpus.zero.p50", "Scrape", "8 GPUs, p50", "ms"),
    Row("scrape.gpus.zero.p99", "Scrape", "8 GPUs, p99", "ms", Limit("<", 3)),
    Row("scrape.gpus.model.p50", "Scrape", "8 GPUs, calls as slow as a driver's, p50", "ms"),
    Row("scrape.gpus.model.p99", "Scrape", "8 GPUs, calls as slow as a driver's, p99", "ms", Limit("<", 3)),
    Row("scrape.slices.zero.p50", "Scrape", "8 × 7 slices, p50", "ms"),
    Row("scrape.slices.zero.p99", "Scrape", "8 × 7 slices, p99", "ms", Limit("<", 10)),
    Row("scrape.slices.model.p50", "Scrape", "8 × 7 slices, calls as slow as a driver's, p50", "ms"),
    Row("scrape.slices.model.p99", "Scrape", "8 × 7 slices, calls as slow as a driver's, p99", "ms", Limit("<", 10)),
    Row("scrape.first.gpus", "Scrape", "the first scrape after a start, 8 GPUs, worst of 5", "ms", Limit("<", 15)),
    Row("scrape.first.slices", "Scrape", "the first scrape after a start, 8 × 7 slices, worst of 5", "ms"),
    Row("scrape.parallel", "Scrape", "200 scrapes at once: all answered after", "ms"),
    Row("sample.cpu", "Per sample", "CPU per exported sample, poll and scrape each second", "µs"),
    Row("sample.count", "Per sample", "samples in a scrape", "", compare=False),
    Row("sample.scrape.cpu", "Per sample", "CPU per second, poll and scrape each second", "ms"),
    Row("sample.naive", "Per sample", "naive's as a multiple", "×", Limit("≥", 10), compare=False),
    Row("sample.nvitop", "Per sample", "nvitop-exporter's as a multiple", "×", Limit("≥", 10), compare=False),
    Row("hang.worst", "Hang", "slowest scrape while a call hangs on GPU 3", "ms", Limit("<", 50), compare=False),
    Row("hang.complete", "Hang", "GPUs of 8 that scrapes show as current", "", Limit("≥", 7), compare=False),
    Row("fleet.failed", "Fleet", "failed scrapes: 2,048 nodes × 8 at core, 30 s", "", Limit("≤", 0), compare=False),
    Row("fleet.cpu", "Fleet", "CPU of gpufleet simulate", "% core", compare=False),
    Row("fleet.memory", "Fleet", "RSS of gpufleet simulate", "MiB", compare=False),
    Row("fleet.prometheus.cpu", "Fleet", "CPU of the Prometheus that scrapes it", "% core", compare=False),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row with what was measured, as text."""

    row: Row
    cells: tuple[str, ...]
    target: str
    verdict: str
    note: str


@dataclass(slots=True)
class Figures:
    """Collects values by row and subject."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def put(self, key: str, value: float, subject: str = GPUFLEET, note: str = "") -> None:
        """Take a value. Raises KeyError for a row that is not declared."""
        row = _BY_KEY[key]
        if subject not in SUBJECTS:
            raise KeyError(f"{subject}: not one of {', '.join(SUBJECTS)}")
        self.values.setdefault(row.key, {})[subject] = value
        if note:
            self.say(key, note)

    def say(self, key: str, note: str) -> None:
        """Add a remark to a row: why a value is missing, or what stands behind it."""
        self.notes.setdefault(_BY_KEY[key].key, []).append(note)

    def lines(self) -> list[Line]:
        """Every row that something is known of."""
        return [self._line(row) for row in ROWS if row.key in self.values or row.key in self.notes]

    def missed(self) -> list[Row]:
        """Rows whose limit gpufleet does not keep."""
        return [row for row in ROWS if self._verdict(row) == "missed"]

    def _line(self, row: Row) -> Line:
        measured = self.values.get(row.key, {})
        own = measured.get(GPUFLEET)
        cells = [_ABSENT if own is None else number(own)]
        for subject in SUBJECTS[1:]:
            other = measured.get(subject)
            times = f" ({number(other / own)}×)" if row.compare and other is not None and own else ""
            cells.append(_ABSENT if other is None else number(other) + times)
        target = "" if row.limit is None else str(row.limit)
        return Line(row, tuple(cells), target, self._verdict(row), "; ".join(self.notes.get(row.key, ())))

    def _verdict(self, row: Row) -> str:
        own = self.values.get(row.key, {}).get(GPUFLEET)
        if row.limit is None or own is None:
            return ""
        return "met" if row.limit.met(own) else "missed"

    def as_json(self, **about: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON can hold
        """Everything, for a file."""
        rows = {
            line.row.key: {
                "what": f"{line.row.section}: {line.row.what}",
                "unit": line.row.unit,
                "values": self.values.get(line.row.key, {}),
                "target": line.target or None,
                "verdict": line.verdict or None,
                "note": line.note or None,
            }
            for line in self.lines()
        }
        return {**about, "rows": rows}


_BY_KEY = {row.key: row for row in ROWS}


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def plain_table(lines: list[Line]) -> str:
    """The table for a terminal."""
    head = ("", "unit", *SUBJECTS, "target", "", "")
    rows = [
        (f"{line.row.section}: {line.row.what}", line.row.unit, *line.cells, line.target, line.verdict, line.note)
        for line in lines
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    text = []
    for row in (head, *rows):
        first, *rest = row[:-1]
        padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        text.append("  ".join([*padded, row[-1]]).rstrip())
    return "\n".join(text)


def markdown_table(lines: list[Line]) -> str:
    """The table for a document, one a section."""
    text: list[str] = []
    section = ""
    for line in lines:
        if line.row.section != section:
            section = line.row.section
            head = f"| | unit | {' | '.join(SUBJECTS)} | target | |"
            text += ["", f"## {section}", "", head, "|---|---|" + "--:|" * 5]
        what = line.row.what + (f" ({line.note})" if line.note else "")
        text.append(f"| {what} | {line.row.unit} | {' | '.join(line.cells)} | {line.target} | {line.verdict} |")
    return "\n".join(text).lstrip("\n")
