"""A configuration file's entries as sections and fields that know their path and line, so that a refusal says where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpufleet.config_file import Entry

# YAML 1.1's words, as Go's YAML library reads them.
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


class FieldError(Exception):
    """What is wrong at which line (from 1) of the file."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Field:
    """A value in the file, still text; path is dotted."""

    path: str
    line: int
    values: tuple[str, ...]
    is_list: bool

    def error(self, problem: str) -> FieldError:
        """Return the error that problem is at this field."""
        return FieldError(self.line, f"{self.path}: {problem}")

    def is_blank(self) -> bool:
        """Tell whether the value is left out or nothing but spaces."""
        return not self.is_list and not self.values[0].strip()

    def text(self) -> str:
        """Return text that is not blank."""
        if self.is_list or self.is_blank():
            raise self.error("must be text; give a value or leave the key out")
        return self.values[0]

    def flag(self) -> bool:
        """Return a boolean."""
        word = self.text().lower()
        if word not in _TRUE | _FALSE:
            raise self.error(f"{self.text()!r} must be true or false")
        return word in _TRUE

    def whole_number(self) -> int:
        """Return a whole number from 0 up."""
        if not _WHOLE_NUMBER.fullmatch(self.text()):
            raise self.error(f"{self.text()!r} must be a whole number, such as 10")
        return int(self.text())

    def items(self) -> tuple[str, ...]:
        """Return the texts of a list; a value left out is an empty one."""
        if self.is_blank():
            return ()
        if not self.is_list:
            raise self.error("must be a list; write each value after a dash, on a line of its own")
        if not all(item.strip() for item in self.values):
            raise self.error("must not have a blank item")
        return self.values


def section(entries: Iterable[Entry], above: tuple[str, ...], known: Collection[str] | None) -> dict[str, Field]:
    """Return the fields of the mapping at path above, by key; none where it is left out. known None allows every key.

    Raises:
        FieldError: a key that is not known, or a value that is no mapping where there should be one.
    """
    fields: dict[str, Field] = {}
    name = ".".join(above)
    for entry in entries:
        if entry.path[: len(above)] != above:
            continue
        field = Field(".".join(entry.path), entry.line, entry.values, entry.is_list)
        if entry.path == above:
            if field.is_blank():  # the section's name without anything below it
                continue
            raise field.error("must be a mapping of keys to values")
        key, *below = entry.path[len(above) :]
        if known is not None and key not in known:
            where = f"{name} has" if name else "there are"
            path = ".".join((*above, key))
            raise FieldError(entry.line, f"{path}: is no key of this file; {where} {', '.join(sorted(known))}")
        if not below:
            fields[key] = field
    return fields


def refuse_nested(entries: Iterable[Entry], sections: Collection[tuple[str, ...]]) -> None:
    """Refuse a mapping where a plain value belongs: an entry that lies deeper than directly below one of sections.

    Raises:
        FieldError: there is one.
    """
    for entry in entries:
        if entry.path not in sections and entry.path[:-1] not in sections:
            value = entry.path[:-1]
            raise FieldError(entry.line, f"{'.'.join(value)}: must be a plain value, not a mapping")
