"""A YAML document as a tree whose scalars stay text and whose every part knows its line.

YAML's own guesses would make 2026-01-01 a date, 1_000 a thousand and 4.80 a binary fraction; a price is what was
written.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MAX_DEPTH = 8


class PriceBookError(Exception):
    """A price book that can't be used; the message names file, line, key, problem and remedy."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A part of the document."""

    file: str
    line: int
    """Counted from 1."""

    def wrong(self, key: str, problem: str, remedy: str) -> PriceBookError:
        """The error that says what is wrong here."""
        return PriceBookError(f"{self.file}:{self.line}: {key}: {problem}; {remedy}")


@dataclass(frozen=True, slots=True)
class Text(Tree):
    """A scalar."""

    text: str


@dataclass(frozen=True, slots=True)
class Items(Tree):
    """A list."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Keys(Tree):
    """A mapping."""

    values: Mapping[str, Tree]


def suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean …?`` for the nearest of ``known``; empty when none is near."""
    near = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def parse(content: bytes, file: str) -> Tree:
    """The document in ``content``; duplicate keys, tags and aliases are refused. Raises PriceBookError."""
    import yaml  # only nodes that have a price book pay for it

    try:
        _refuse_unplain(content, file)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        # YAML takes a leading * for a reference, and that is how most patterns begin.
        is_pattern = "alias" in (error.context or "")
        remedy = "put a pattern that begins with * between quotes" if is_pattern else "correct it there"
        raise PriceBookError(f"{file}:{line}: is no YAML: {error.problem}; {remedy}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise PriceBookError(f"{file}: is no YAML: {str(error).splitlines()[0]}; write it as UTF-8 text") from error
    return Text(file, 1, "") if root is None else _tree(root, file)


def _refuse_unplain(content: bytes, file: str) -> None:
    """Refuse what a few lines of can stand for gigabytes (aliases), tags, and what is deeper than PyYAML can go."""
    import yaml

    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        here = Tree(file, 1 if event.start_mark is None else event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            raise here.wrong(f"*{event.anchor}", "is an alias", "write the value itself, a pattern between quotes")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise here.wrong(str(event.tag), "is a tag", "write the value without it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise here.wrong("rules", "is nested too deeply", "write keys as the guide to price books has them")


def _tree(node: object, file: str) -> Tree:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return Text(file, node.start_mark.line + 1, node.value)
    if isinstance(node, yaml.SequenceNode):
        return Items(file, node.start_mark.line + 1, tuple([_tree(item, file) for item in node.value]))
    if not isinstance(node, yaml.MappingNode):
        raise TypeError(f"PyYAML composed {node!r}")
    values: dict[str, Tree] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        here = Tree(file, key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise here.wrong("a key", "is no plain text", "write keys such as gpu or per_hour")
        if key.value in values:
            raise here.wrong(key.value, f"is there twice, first in line {lines[key.value]}", "keep one of them")
        values[key.value], lines[key.value] = _tree(value, file), here.line
    return Keys(file, node.start_mark.line + 1, values)
