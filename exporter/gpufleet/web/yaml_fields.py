"""A YAML file as fields that know their path and line, so that a refusal can say where.

Reads the node tree, not Python objects: PyYAML's loader keeps the last of two equal keys and forgets line numbers. Only
what a configuration needs is there: mappings, lists, text, booleans and whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    import yaml

# PyYAML reads about 1 MiB in 2 s; a web configuration of a hundred users has 8 KiB.
_MOST_CHARACTERS = 262_144
_TAG = "tag:yaml.org,2002:"


class FieldError(Exception):
    """What is wrong at which line (from 1; 0 for the whole file) of a YAML text."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Field:
    """A value in the file; path is dotted, "" for the whole."""

    path: str
    line: int
    node: yaml.Node | None

    def error(self, problem: str) -> FieldError:
        """Return the error that problem is at this field."""
        return FieldError(self.line, f"{self.path}: {problem}" if self.path else problem)

    def mapping(self, known: Collection[str] | None) -> dict[str, Field]:
        """Return the fields of a mapping; a value left out is an empty one. known None allows every key."""
        import yaml

        if self._is_null():
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("must be a mapping of keys to values")
        fields: dict[str, Field] = {}
        for key_node, value_node in self.node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise FieldError(line, f"{self.path or 'the file'}: a key must be plain text")
            key = key_node.value
            path = f"{self.path}.{key}" if self.path else key
            if key in fields:
                raise FieldError(line, f"{path}: is already set in line {fields[key].line}; remove one of the two")
            if known is not None and key not in known:
                where = f"in {self.path}" if self.path else "at the top level"
                raise FieldError(line, f"{path}: unknown key; {where} there are {', '.join(sorted(known))}")
            fields[key] = Field(path, line, value_node)
        return fields

    def items(self) -> list[Field]:
        """Return the fields of a list; a value left out is an empty one."""
        import yaml

        if self._is_null():
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("must be a list")
        return [
            Field(f"{self.path}[{index}]", node.start_mark.line + 1, node) for index, node in enumerate(self.node.value)
        ]

    def text(self) -> str:
        """Return text that is not empty. A number or boolean is taken as it is written, as Go's YAML library does."""
        import yaml

        if not isinstance(self.node, yaml.ScalarNode) or self.is_blank():
            raise self.error("must be text; give a value or leave the key out")
        return str(self.node.value)

    def flag(self) -> bool:
        """Return a boolean."""
        if self.node is None or self.node.tag != f"{_TAG}bool":
            raise self.error("must be true or false")
        return str(self.node.value).lower() in {"true", "yes", "on"}

    def whole_number(self) -> int:
        """Return a whole number from 0 up."""
        if self.node is None or self.node.tag != f"{_TAG}int" or not str(self.node.value).isdecimal():
            raise self.error("must be a whole number, such as 10")
        return int(self.node.value)

    def is_blank(self) -> bool:
        """Tell whether the value is left out or is text of nothing but spaces."""
        return self._is_null() or (self.node is not None and not str(self.node.value).strip())

    def _is_null(self) -> bool:
        return self.node is None or self.node.tag == f"{_TAG}null"


def parse_fields(text: str) -> Field:
    """Parse YAML text with one document, or none.

    Raises:
        FieldError: text is no YAML, is too long, or holds more than one document.
    """
    import yaml

    if len(text) > _MOST_CHARACTERS:
        raise FieldError(0, f"the file is longer than {_MOST_CHARACTERS} characters")
    try:
        return Field("", 1, yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FieldError(mark.line + 1 if mark else 0, f"this is no YAML: {error.problem}") from error
    except yaml.YAMLError as error:  # a character that YAML forbids
        raise FieldError(0, f"this is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise FieldError(0, "the YAML is nested too deeply") from error
