"""Values of a manifest and the way to them: a missing key is empty, a value of a wrong shape is an error that names it.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


class ShapeError(Exception):
    """A value is not of the shape that an API server would accept; says which key and what it must be."""


def dotted(path: Path) -> str:
    """A path as people write it: ``spec.template.spec.containers[0].command``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.match(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


@dataclass(frozen=True, slots=True)
class Tree:
    """A value of a document and its path there."""

    value: Any = None
    path: Path = ()

    def at(self, *keys: str) -> Tree:
        """What is below these keys; empty where one is missing. Raises ShapeError."""
        found = self
        for key in keys:
            found = Tree(found.mapping().get(key), (*found.path, key))
        return found

    @property
    def is_set(self) -> bool:
        """Whether there is a value: ``key:`` alone has none."""
        return self.value is not None

    def mapping(self) -> Mapping[str, Any]:
        """Keys and values. Raises ShapeError."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise ShapeError(f"{dotted(self.path) or 'the document'} must be a mapping")
        return self.value

    def items(self) -> list[Tree]:
        """Items of a list. Raises ShapeError."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise ShapeError(f"{dotted(self.path)} must be a list")
        return [Tree(item, (*self.path, index)) for index, item in enumerate(self.value)]

    def text(self, default: str = "") -> str:
        """A text. Raises ShapeError."""
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            raise ShapeError(f"{dotted(self.path)} must be text; put it in quotes")
        return self.value

    def texts(self) -> list[str]:
        """A list of texts. Raises ShapeError."""
        return [item.text() for item in self.items()]

    def number(self) -> int | None:
        """A whole number, None where none is given. Raises ShapeError."""
        if self.value is None:
            return None
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise ShapeError(f"{dotted(self.path)} must be a whole number")
        return self.value

    def numbers(self) -> list[int]:
        """A list of whole numbers. Raises ShapeError."""
        return [number for item in self.items() if (number := item.number()) is not None]

    def flag(self) -> bool:
        """True or false, false where none is given. Raises ShapeError."""
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise ShapeError(f"{dotted(self.path)} must be true or false")
        return self.value
