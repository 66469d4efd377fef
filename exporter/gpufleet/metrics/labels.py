"""Label values as text: whatever the outside world puts into a name comes out as one valid, bounded label. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_BYTES = 128
"""Length of a label value in UTF-8; what is longer is cut."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Half of a surrogate pair is no Unicode text and can't be encoded. Control characters and line separators are allowed
# by the format, but break lines in half of the programs that people read metrics with; the line feed is escaped.
_UNFIT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def readable(value: str) -> str:
    """Return the value with a replacement for each character that is no text."""
    return _UNFIT.sub(_REPLACEMENT, value)


def fit(value: str) -> str:
    """Return the value as it will be read back: without unfit characters, at most MOST_BYTES long, whole characters."""
    if len(value) <= MOST_BYTES and value.isascii() and value.isprintable():
        return value
    # Each character has at least one byte, so what is cut here first could not have stayed.
    encoded = readable(value[:MOST_BYTES]).encode()
    return encoded[:MOST_BYTES].decode(errors="ignore")


def pairs(labels: Iterable[tuple[str, str | None]]) -> str:
    """Return ``a="x",b="y"``, without those that have no value: an empty label and an absent one mean the same."""
    return ",".join([f'{name}="{fit(value).translate(_ESCAPES)}"' for name, value in labels if value])
