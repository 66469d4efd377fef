"""Just enough of PromQL to say which series, labels and functions an expression uses."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<variable>\$\{[^}]*\}|\$\w+)
  | (?P<duration>\[[^\]]*\])
  | (?P<name>[A-Za-z_:][\w:]*)
  | (?P<number>\d[\w.]*)
  | (?P<mark>=~|!~|!=|==|<=|>=|\S)
    """,
    re.VERBOSE,
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan", "atan2", "start", "end"}


@dataclass(slots=True)
class Uses:
    """What an expression uses."""

    series: set[str] = field(default_factory=set)
    """Names of metrics."""
    matched: dict[str, set[str]] = field(default_factory=dict)
    """Labels in the braces of each metric."""
    selectors: list[tuple[str, str]] = field(default_factory=list)
    """Each selector: its metric, and its braces as they stand ('' without)."""
    labels: set[str] = field(default_factory=set)
    """Labels in by (…), on (…) and the like."""
    functions: set[str] = field(default_factory=set)
    called: list[tuple[str, str]] = field(default_factory=list)
    """Functions whose argument is a selector itself, with its metric."""


def uses(expression: str) -> Uses:
    """What an expression uses. It must be one that promtool accepts; Grafana's variables may be in it."""
    found = Uses()
    tokens = [(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(expression)]
    position = 0
    while position < len(tokens):
        kind, text = tokens[position]
        following = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        position += 1
        if kind != "name" or text.lower() in _WORDS:
            continue
        if text in _LISTS:
            if following == "(":
                position, names = _until(tokens, position + 1, ")")
                found.labels |= {name for kind_of, name in names if kind_of == "name"}
        elif following == "(" or following in {"by", "without"}:
            found.functions.add(text)
            if position + 1 < len(tokens) and tokens[position + 1][0] == "name":
                found.called.append((text, tokens[position + 1][1]))
        else:
            braces = ""
            if following == "{":
                position, inside = _until(tokens, position + 1, "}")
                braces = "".join(each for _, each in inside)
                matched = {
                    name
                    for (kind_of, name), (_, operator) in itertools.pairwise(inside)
                    if kind_of == "name" and operator in {"=", "!=", "=~", "!~"}
                }
                found.matched.setdefault(text, set()).update(matched)
            found.series.add(text)
            found.selectors.append((text, braces))
    return found


def _until(tokens: list[tuple[str, str]], position: int, end: str) -> tuple[int, list[tuple[str, str]]]:
    inside = []
    while tokens[position][1] != end:
        inside.append(tokens[position])
        position += 1
    return position + 1, inside
