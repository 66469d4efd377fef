"""A configuration file as a tree of texts, each with the line that it stands on.

Scalars stay text, exactly as a flag's value is text: one parser serves both, and YAML's guesses (``no`` is false,
``1:30`` is ninety) can't change what a person wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpufleet.small_file import read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import yaml

_MAX_BYTES = 1 << 16
_MAX_DEPTH = 16


class ConfigFileError(Exception):
    """The file can't be used; the message names file, line where there is one, problem and remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the file: one text, or a list of texts."""

    path: tuple[str, ...]
    """Keys from the top: ``("poll", "interval")``."""
    values: tuple[str, ...]
    is_list: bool
    line: int
    """Counted from 1."""


def read_config(file: Path) -> tuple[Entry, ...]:
    """Read and parse ``file``; ConfigFileError when it is missing, unreadable or not acceptable."""
    try:
        content = read_small_file(file, _MAX_BYTES)
    except OSError as error:
        raise ConfigFileError(
            f"{file}: can't be read: {error.strerror}; check the path and who may read it, or leave --config.file out"
        ) from error
    if len(content) > _MAX_BYTES:
        raise ConfigFileError(f"{file}: is larger than {_MAX_BYTES} bytes; this is no configuration of gpufleet")
    return parse_config(content, str(file))


def parse_config(content: bytes, name: str, example: str = "poll: {interval: 1s}") -> tuple[Entry, ...]:
    """Entries of a YAML document; ``name`` is what messages call it. Duplicate keys, tags and aliases are refused.

    ``example`` is a key with a value that such a document may have, for who wrote something else than a mapping.
    """
    import yaml  # only nodes that are given a configuration file pay for it

    try:
        root = yaml.compose(_plain(content, name), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ConfigFileError(
            f"{name}:{_line(error.problem_mark or error.context_mark)}: is no YAML: {error.problem}; correct it there"
        ) from error
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise ConfigFileError(f"{name}: is no YAML: {problem}; write it as UTF-8 text") from error
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise ConfigFileError(
            f"{name}:{_line(root.start_mark)}: is no mapping; write keys and values, such as {example}"
        )
    return tuple(_entries(root, name, ()))


def _plain(content: bytes, name: str) -> bytes:
    """The content itself, once it is known to be plain: no aliases (a few lines of those can stand for gigabytes), no
    tags, and no deeper than PyYAML, which recurses, can go.
    """
    import yaml

    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        where = f"{name}:{_line(event.start_mark)}"
        if isinstance(event, yaml.AliasEvent):
            raise ConfigFileError(f"{where}: *{event.anchor} is an alias; write the value itself")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise ConfigFileError(f"{where}: {event.tag} is a tag; write the value without it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ConfigFileError(f"{where}: is nested too deeply; keys are at most three deep")
    return content


class _Mark(Protocol):
    """Where PyYAML found something; the pure parser and the one over libyaml have a class each."""

    line: int
    """Counted from 0."""


def _line(mark: _Mark | None) -> int:
    return mark.line + 1 if mark is not None else 1


def _entries(node: yaml.MappingNode, name: str, above: tuple[str, ...]) -> Iterator[Entry]:
    import yaml

    seen: dict[str, int] = {}
    for key_node, value in node.value:
        line = _line(key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigFileError(f"{name}:{line}: a key is no plain text; write keys such as poll or interval")
        path = (*above, key_node.value)
        dotted = ".".join(path)
        if key_node.value in seen:
            first = seen[key_node.value]
            raise ConfigFileError(f"{name}:{line}: {dotted}: is there twice, first in line {first}; keep one of them")
        seen[key_node.value] = line
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _entries(value, name, path)
        elif isinstance(value, yaml.MappingNode):
            # As blank as a key without a value: a section whose keys are all commented out, and never unseen.
            yield Entry(path, ("",), is_list=False, line=line)
        elif isinstance(value, yaml.ScalarNode):
            yield Entry(path, (value.value,), is_list=False, line=line)
        else:
            yield Entry(path, tuple(_items(value, name, dotted)), is_list=True, line=line)


def _items(node: yaml.SequenceNode, name: str, dotted: str) -> Iterator[str]:
    import yaml

    for item in node.value:
        line = _line(item.start_mark)
        if not isinstance(item, yaml.ScalarNode):
            raise ConfigFileError(f"{name}:{line}: {dotted}: an item is no plain text; write one value for each item")
        yield item.value
