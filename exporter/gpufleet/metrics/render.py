"""Snapshot to text, in both formats, at the cost of what changed. Pure: the text depends on the snapshot alone.

A node has hundreds of series. Their names and labels stay the same for days, and half of their values from one poll to
the next. So a renderer keeps every line, writes anew those whose value is another one, and joins them in an order that
it worked out once: the formats demand that a family's lines stand together, snapshots have them by GPU.
"""

from __future__ import annotations

import sys
from itertools import compress
from operator import itemgetter, ne
from typing import TYPE_CHECKING

from gpufleet.metrics.catalog import FAMILIES, ORDER
from gpufleet.metrics.family import Level
from gpufleet.metrics.sections import Rank, Section, sections_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpufleet.metrics.family import Family
    from gpufleet.model.readings import Number
    from gpufleet.model.snapshot import Snapshot

OPENMETRICS_END = "# EOF\n"

# Every comparison with NaN is false and an infinity is beyond the largest float, so one chained comparison keeps out
# what is no measurement, and integers that would be read as an infinity.
_LARGEST = sys.float_info.max


_Row = tuple[tuple[int, int], Rank, int]
"""Subject, rank and place of a line: lines of a family stand in this order."""


class _Block:
    """The lines of one section: where they are, what they begin with, and the values that they show now."""

    __slots__ = ("describe", "families", "first", "layout", "prefixes", "values")

    def __init__(self, section: Section, prefixes: list[str | None], families: list[int], first: int) -> None:
        self.describe = section.describe
        self.layout = section.layout
        self.prefixes = prefixes  # "name{labels} ", None where the series isn't shown
        self.families = families  # place of the family among those laid out
        self.first = first  # place of the first line
        self.values: tuple[Number | None, ...] = (None,) * len(prefixes)


class Renderer:
    """Writes snapshots of one node, each at most as old as the one before.

    Not safe for use by several threads at once: it remembers the lines of the snapshot before.
    """

    def __init__(self, level: Level = Level.STANDARD) -> None:
        self._level = level
        self._blocks: list[_Block] = []
        # Lines, then the families' headers for the text format, then those for OpenMetrics; "" for what isn't there.
        self._pieces: list[str] = []
        self._headers: list[tuple[str, str]] = []
        self._lines = 0
        self._alive: list[int] = []  # lines that are there now, by family
        self._order_text: Callable[[list[str]], Sequence[str]] = tuple
        self._order_openmetrics: Callable[[list[str]], Sequence[str]] = tuple

    def text(self, snapshot: Snapshot, *, stale: bool = False) -> str:
        """Return the snapshot in Prometheus' text format 0.0.4; see ``sections_of`` for ``stale``."""
        self._show(snapshot, stale=stale)
        return "".join(self._order_text(self._pieces))

    def openmetrics(self, snapshot: Snapshot, *, stale: bool = False) -> str:
        """Return the snapshot in OpenMetrics 1.0, without the closing ``# EOF``: more families may follow."""
        self._show(snapshot, stale=stale)
        return "".join(self._order_openmetrics(self._pieces))

    def _show(self, snapshot: Snapshot, *, stale: bool) -> None:
        sections = sections_of(snapshot, stale=stale)
        blocks = self._blocks
        if len(sections) != len(blocks) or any(
            section.layout != block.layout or section.describe is not block.describe
            for section, block in zip(sections, blocks, strict=True)
        ):
            self._lay_out(sections)
            blocks = self._blocks
        for section, block in zip(sections, blocks, strict=True):
            if section.values is not block.values:
                self._write(block, section.values)

    def _write(self, block: _Block, values: tuple[Number | None, ...]) -> None:
        if len(values) != len(block.prefixes):  # values without their keys: whose they are is anybody's guess
            values = (None,) * len(block.prefixes)
        pieces, prefixes, first = self._pieces, block.prefixes, block.first
        # The comparison of all values runs in C; half of them are what they were.
        for index in compress(range(len(values)), map(ne, block.values, values)):
            prefix = prefixes[index]
            if prefix is None:
                continue
            value, place = values[index], first + index
            # Adding 0 makes numbers of booleans and takes the sign from a zero.
            line = f"{prefix}{value + 0!r}\n" if value is not None and -_LARGEST <= value <= _LARGEST else ""
            if not line or not pieces[place]:
                self._count(block.families[index], bool(line) - bool(pieces[place]))
            pieces[place] = line
        block.values = values

    def _count(self, family: int, change: int) -> None:
        """Note that lines of a family appeared or went: a family without any has no header either."""
        before = self._alive[family]
        self._alive[family] = after = before + change
        if not before or not after:
            shown = self._headers[family] if after else ("", "")
            self._pieces[self._lines + family], self._pieces[self._lines + len(self._headers) + family] = shown

    def _lay_out(self, sections: list[Section]) -> None:
        """Work out every line's beginning and the order of all lines; no line has a value afterwards."""
        everything = self._level is Level.STANDARD
        rows: dict[int, list[_Row]] = {}
        blocks: list[_Block] = []
        taken: set[str] = set()
        place = 0
        for section in sections:
            subject, columns = section.describe(*section.layout)
            prefixes: list[str | None] = []
            families: list[int] = []
            for series in columns:
                prefix: str | None = None
                order = -1
                if series is not None and (everything or series.family.shown_at(self._level, series.member)):
                    order = ORDER[series.family.name]
                    name, labels = series.family.name + series.suffix, series.labels
                    between = "," if subject and labels else ""
                    prefix = f"{name}{{{subject}{between}{labels}}} " if subject or labels else f"{name} "
                    # Two label values may be one once they are cut, and a line too many would cost the whole scrape.
                    if prefix in taken:
                        prefix = None
                        order = -1
                    else:
                        taken.add(prefix)
                        rows.setdefault(order, []).append((section.subject, series.rank, place + len(prefixes)))
                prefixes.append(prefix)
                families.append(order)
            blocks.append(_Block(section, prefixes, families, place))
            place += len(prefixes)
        self._blocks = blocks
        self._arrange(rows, place)

    def _arrange(self, rows: dict[int, list[_Row]], lines: int) -> None:
        catalogue = list(FAMILIES.values())
        present = sorted(rows)
        text: list[int] = []
        openmetrics: list[int] = []
        for number, order in enumerate(present):
            places = [place for _, _, place in sorted(rows[order])]
            text += [lines + number, *places]
            openmetrics += [lines + len(present) + number, *places]
        numbers = {order: number for number, order in enumerate(present)}
        for block in self._blocks:
            block.families = [numbers.get(order, -1) for order in block.families]
        self._lines = lines
        self._headers = [(_text_header(catalogue[order]), _openmetrics_header(catalogue[order])) for order in present]
        self._alive = [0] * len(present)
        self._pieces = [""] * (lines + 2 * len(present))
        # The node's own families are always there, so there are at least two pieces and itemgetter gives a tuple.
        self._order_text = itemgetter(*text)
        self._order_openmetrics = itemgetter(*openmetrics)


def _text_header(family: Family) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"


def _openmetrics_header(family: Family) -> str:
    name = family.openmetrics_name
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    return f"# TYPE {name} {family.kind}\n{unit}# HELP {name} {family.help}\n"
