"""What a client accepts: pure readings of Accept and Accept-Encoding (RFC 9110 section 12.5).

A scraper that sends nonsense still gets its metrics: what cannot be read counts as not said.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OPENMETRICS = "application/openmetrics-text"
# The versions of OpenMetrics that there are, best first. 1.0.0 is what a client means that names none (0.0.1 is what
# Prometheus called it before the format was finished; the text is the same).
OPENMETRICS_VERSIONS = ("1.0.0", "0.0.1")

_Q_VALUE = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\Z")
_MOST_RANGES = 32


class _Range(NamedTuple):
    name: str
    quality: float
    parameters: dict[str, str]


def wants_openmetrics(accept: str) -> str | None:
    """Return the OpenMetrics version to answer with, or None where the Prometheus text format is wanted.

    accept is the Accept header, "" where there is none. OpenMetrics must be named: ``*/*``, which browsers and curl
    send, means the older format, which everything reads. Named with equal quality, OpenMetrics wins, as in Prometheus'
    own Go library.
    """
    best: tuple[float, int] | None = None
    text_quality = 0.0
    for name, quality, parameters in _ranges(accept):
        if name == OPENMETRICS:
            version = parameters.get("version", OPENMETRICS_VERSIONS[0])
            if quality > 0 and version in OPENMETRICS_VERSIONS:
                candidate = (quality, -OPENMETRICS_VERSIONS.index(version))
                best = candidate if best is None else max(best, candidate)
        elif name == "text/plain" and parameters.get("version", "0.0.4") == "0.0.4":
            text_quality = max(text_quality, quality)
    if best is None or text_quality > best[0]:
        return None
    return OPENMETRICS_VERSIONS[-best[1]]


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether a gzip body may be sent; accept_encoding is the header, "" where there is none."""
    wildcard = False
    named: bool | None = None
    for name, quality, _ in _ranges(accept_encoding):
        if name in {"gzip", "x-gzip"}:
            named = bool(named) or quality > 0
        elif name == "*":
            wildcard = quality > 0
    return wildcard if named is None else named


def _ranges(header: str) -> list[_Range]:
    # Each range costs a little work and the header may be 32 KiB long; no client has reason to name more.
    ranges = []
    for part in header.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        name, *rest = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        parameters: dict[str, str] = {}
        for parameter in rest:
            key, _, value = parameter.partition("=")
            key = key.strip().lower()
            value = value.strip().strip('"')
            if key == "q":
                quality = float(value) if _Q_VALUE.match(value) else 0.0
            else:
                parameters[key] = value
        if name:
            ranges.append(_Range(name.lower(), quality, parameters))
    return ranges
