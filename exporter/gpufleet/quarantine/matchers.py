"""Matchers as Alertmanager writes them: ``alertname="GpuHardwareIncident"``, ``class!~"application|driver"``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|([^"\s]*))\s*')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label; a label that is not there is an empty one."""

    label: str
    operator: str
    value: str
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        return f'{self.label}{self.operator}"{self.value}"'

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels fulfil it."""
        found = labels.get(self.label, "")
        if self.pattern is None:
            return (found == self.value) == (self.operator == "=")
        return (self.pattern.fullmatch(found) is not None) == (self.operator == "=~")


def parse_matcher(text: str) -> Matcher:
    """Read one matcher.

    Raises:
        ValueError: it is none; says what is wrong.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} is no matcher; write one like class="hardware" or fault=~"79|gpu_lost"')
    label, operator, quoted, bare = found.groups()
    value = bare if quoted is None else _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), quoted)
    if "~" not in operator:
        return Matcher(label, operator, value)
    try:
        return Matcher(label, operator, value, re.compile(value))
    except re.error as error:
        raise ValueError(f"{text!r}: {value!r} is no regular expression: {error}") from error
