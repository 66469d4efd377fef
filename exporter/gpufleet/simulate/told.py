"""The text of metrics that are not the exporter's own: those of servers and services that a scenario has beside it.

Text format 0.0.4. Labels come as text between the braces, as their program writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Value = tuple[str, float]
"""Labels, value."""
Counted = tuple[str, Sequence[int], float]
"""Labels, observations up to each bound and last all of them, their sum."""


class Told:
    """Families one after the other. One without series is left out."""

    def __init__(self, first: str = "") -> None:
        """``first`` is a comment for whoever reads the text."""
        self._lines = [f"# {first}\n"] if first else []

    def gauge(self, name: str, meaning: str, values: Iterable[Value]) -> None:
        """A gauge."""
        self._plain(name, "gauge", meaning, values)

    def counter(self, name: str, meaning: str, values: Iterable[Value]) -> None:
        """A counter; ``name`` ends in ``_total``."""
        self._plain(name, "counter", meaning, values)

    def histogram(self, name: str, meaning: str, bounds: Sequence[str], values: Iterable[Counted]) -> None:
        """A histogram; ``bounds`` are the values of ``le``, ``+Inf`` last."""
        lines = []
        for labels, counts, total in values:
            before = f"{name}_bucket{{{labels},le=" if labels else f"{name}_bucket{{le="
            lines += [f'{before}"{bound}"}} {count}\n' for bound, count in zip(bounds, counts, strict=True)]
            lines += [f"{name}_sum{{{labels}}} {total!r}\n", f"{name}_count{{{labels}}} {counts[-1]}\n"]
        self._add(name, "histogram", meaning, lines)

    def text(self) -> bytes:
        """The whole."""
        return "".join(self._lines).encode()

    def _plain(self, name: str, kind: str, meaning: str, values: Iterable[Value]) -> None:
        lines = [f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n" for labels, value in values]
        self._add(name, kind, meaning, lines)

    def _add(self, name: str, kind: str, meaning: str, lines: list[str]) -> None:
        if lines:
            self._lines += [f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n", *lines]
