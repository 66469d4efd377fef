"""Hours of a simulated fleet in a real Prometheus, in a minute: scraped on a clock of their own, with the mixin's rules
evaluated over them.

The pages of each scrape become blocks of Prometheus's storage (promtool). Each recording rule is then asked of the
running server at the very times at which it would have evaluated it, in the order in which they need each other, and
what comes out is written back.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mixin.promql import uses
from tests.support.remote_write import write

Labels = tuple[tuple[str, str], ...]
Group = Mapping[str, Any]
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
) -> Path:
    """Storage of a Prometheus that has scraped for the span; ``scrape`` gives each target's labels and its page."""
    text = directory / "scrapes.txt"
    with text.open("w") as file:
        for at in span.times(step):
            for target, page in scrape(at).items():
                file.writelines(_stamped(page.decode(), target, at))
        file.write("# EOF\n")
    data = directory / "data"
    # By default there would be a block for two hours each, and the text would be read once for every one of them.
    command: list[str | Path] = [promtool, "tsdb", "create-blocks-from", "--max-block-duration=744h", "openmetrics"]
    subprocess.run([*command, text, data], check=True, capture_output=True, timeout=240)
    text.unlink()
    return data


def _stamped(page: str, target: Labels, at: int) -> Iterator[str]:
    own = ",".join([f'{name}="{value}"' for name, value in target])
    yield f"up{{{own}}} 1 {at}\n"
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, brace, rest = series.partition("{")
        yield f"{name}{{{own},{rest} {value} {at}\n" if brace else f"{name}{{{own}}} {value} {at}\n"


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


class Asked(Exception):
    """A rule or a panel's query was refused."""


RangeQuery = Callable[[str, int, int, int], list[dict[str, Any]]]
"""Expression, from, to, step (seconds) to the series of a matrix."""


def record(url: str, ask: RangeQuery, groups: Sequence[Group], span: Span) -> None:
    """Evaluate all recording rules over the span, and write what they give."""
    # The first sample says how far back others may be.
    write(url, [({"__name__": "recorded_until"}, [(span.end, 1)])])
    for group, rule in ordered(groups):
        found = evaluated(ask, rule["expr"], span, seconds(group["interval"]))
        labels = {"__name__": rule["record"], **rule.get("labels", {})}
        series = [({**metric, **labels}, samples) for metric, samples in found]
        if series:
            write(url, series)


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
