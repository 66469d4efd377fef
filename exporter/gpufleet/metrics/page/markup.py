"""Pieces of HTML: text that stands for itself, bars, cells with a value. Pure."""

from __future__ import annotations

from gpufleet.metrics.labels import readable
from gpufleet.metrics.page.words import QUIET

_LONGEST = 400  # characters of a reason; a library's words can be a page
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def text(value: object) -> str:
    """Return any value as text that stands for itself in HTML, in attributes, too."""
    return readable(str(value).replace("\n", " ")[:_LONGEST]).translate(_HTML)


def meter(label: str, value: str, rest: str, ratio: float | None = None, tone: str = QUIET, below: str = "") -> str:
    """Make a cell with a value, what it is of, a bar where there is a ratio, and a line below."""
    picture = "" if ratio is None else bar(ratio, tone)
    more = f"<i> {text(rest)}</i>" if rest else ""
    small = f"<small>{text(below)}</small>" if below else ""
    shown = f'<span class="value">{text(value)}{more}</span>{picture}{small}'
    return f'<td class="meter" role="cell" data-label="{label}">{shown}</td>'


def absent(label: str) -> str:
    """Make a cell for what is not reported."""
    return (
        f'<td class="meter absent" role="cell" data-label="{label}"><span aria-hidden="true">\N{EN DASH}</span>'
        '<span class="hidden">not reported</span></td>'
    )


def bar(ratio: float, tone: str = QUIET) -> str:
    """Draw a bar. Width is an attribute of the picture: a style attribute would need a weaker policy."""
    width = f"{100 * min(1.0, max(0.0, ratio)):.1f}"
    return (
        f'<svg class="bar {tone}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="6"/><rect class="fill" width="{width}" height="6"/></svg>'
    )
