"""Hours of a simulated fleet in a real Prometheus, in a minute: scraped on a clock of their own, with the mixin's rules
evaluated over them.

The pages of each scrape become blocks of Prometheus's storage (promtool). Each recording rule is then asked of the
running server at the very times at which it would have evaluated it, in the order in which they need each other, and
what comes out is written back. A series that is gone from a scrape or an evaluation is marked as such, as Prometheus
does it: without the mark it would be there for five minutes more.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mixin.promql import uses
from tests.support.remote_write import Series, write

Labels = tuple[tuple[str, str], ...]
Group = Mapping[str, Any]
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0002))[0]
"""Prometheus's mark of a series that is gone: a NaN of its own."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration: str) -> int:
    """Seconds of a duration of one unit, as rules have it."""
    return int(duration[:-1]) * _UNITS[duration[-1]]


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, in Unix seconds, both included."""

    begin: int
    end: int

    def times(self, step: int) -> range:
        """The times of evaluations or scrapes."""
        return range(self.begin, self.end + 1, step)


def blocks(
    promtool: Path, directory: Path, span: Span, step: int, scrape: Callable[[int], Mapping[Labels, bytes]]
) -> list[Series]:
    """Storage of a Prometheus that has scraped for the span; ``scrape`` gives each target's labels and its page.

    It comes into ``directory / "data"``. Returned are the marks of series that went away, which no text can express.
    """
    text = directory / "scrapes.txt"
    shown: dict[Labels, set[str]] = {}
    gone: list[Series] = []
    with text.open("w") as file:
        for at in span.times(step):
            pages = scrape(at)
            for target in shown.keys() | pages.keys():
                lines = list(_stamped(pages[target].decode(), target)) if target in pages else []
                file.writelines([f"{series} {value} {at}\n" for series, value in lines])
                now = {series for series, _ in lines}
                gone += [(_labels(series), [(at, STALE)]) for series in shown.get(target, set()) - now]
                shown[target] = now
        file.write("# EOF\n")
    data = directory / "data"
    # By default there would be a block for two hours each, and the text would be read once for every one of them.
    command: list[str | Path] = [promtool, "tsdb", "create-blocks-from", "--max-block-duration=744h", "openmetrics"]
    subprocess.run([*command, text, data], check=True, capture_output=True, timeout=240)
    text.unlink()
    return gone


def _labels(series: str) -> dict[str, str]:
    name, _, inside = series.partition("{")
    return {"__name__": name, **dict(_LABEL.findall(inside))}


def _stamped(page: str, target: Labels) -> Iterator[tuple[str, str]]:
    own = ",".join([f'{name}="{value}"' for name, value in target])
    yield f"up{{{own}}}", "1"
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, brace, rest = series.partition("{")
        yield f"{name}{{{own},{rest}" if brace else f"{name}{{{own}}}", value


def ordered(groups: Sequence[Group]) -> Iterator[tuple[Group, Mapping[str, Any]]]:
    """Recording rules, each after those whose series it reads."""
    waiting = [(group, rule) for group in groups for rule in group["rules"] if "record" in rule]
    reads = {id(rule): uses(rule["expr"]).series - {rule["record"]} for _, rule in waiting}
    while waiting:
        missing = {rule["record"] for _, rule in waiting}
        ready = [each for each in waiting if not reads[id(each[1])] & missing] or waiting[:1]
        yield from ready
        done = {id(rule) for _, rule in ready}
        waiting = [each for each in waiting if id(each[1]) not in done]


RangeQuery = Callable[[str, int, int, int], list[dict[str, Any]]]
"""Expression, from, to, step (seconds) to the series of a matrix."""


def record(url: str, ask: RangeQuery, groups: Sequence[Group], span: Span, gone: Sequence[Series]) -> None:
    """Evaluate all recording rules over the span, and write what they give; ``gone`` is what ``blocks`` returned."""
    # The first sample says how far back others may be.
    write(url, [({"__name__": "recorded_until"}, [(span.end, 1)])])
    if gone:
        write(url, gone)
    for group, rule in ordered(groups):
        found = evaluated(ask, rule["expr"], span, seconds(group["interval"]))
        labels = {"__name__": rule["record"], **rule.get("labels", {})}
        interval = seconds(group["interval"])
        series = [({**metric, **labels}, _with_ends(samples, interval, span.end)) for metric, samples in found]
        if series:
            write(url, series)


def _with_ends(samples: Sequence[tuple[float, float]], interval: int, end: int) -> list[tuple[float, float]]:
    """The samples, and where one is missing after them, the mark that the series is gone."""
    times = {at for at, _ in samples}
    ends = [(at + interval, STALE) for at in times if at + interval not in times and at + interval <= end]
    return sorted([*samples, *ends], key=lambda sample: sample[0])


def evaluated(
    ask: RangeQuery, expr: str, span: Span, interval: int
) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Labels (without the name) and samples of an expression at each time at which a rule would be evaluated."""
    first = -(-span.begin // interval) * interval
    return [
        (
            {name: value for name, value in each["metric"].items() if name != "__name__"},
            [(float(at), float(value)) for at, value in each["values"]],
        )
        for each in ask(expr, first, span.end, interval)
    ]


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that fired: its name, its labels, and from when to when."""

    alert: str
    labels: Mapping[str, str]
    since: float
    until: float


def firings(ask: RangeQuery, groups: Sequence[Group], span: Span, interval: int = 60) -> list[Firing]:
    """All alerts that fired in the span, each after its ``for``."""
    found = []
    for group in groups:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            needed = seconds(rule.get("for", "0s"))
            for metric, samples in evaluated(ask, rule["expr"], span, interval):
                labels = {**metric, **rule["labels"]}
                for first, last in _stretches([at for at, _ in samples], interval):
                    if last - first >= needed:
                        found.append(Firing(rule["alert"], labels, first + needed, last))
    return found


def _stretches(times: Sequence[float], interval: int) -> Iterator[tuple[float, float]]:
    first = None
    for at, following in zip(times, [*times[1:], None], strict=True):
        first = at if first is None else first
        if following is None or following - at > interval:
            yield first, at
            first = None
