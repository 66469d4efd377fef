"""The file ``--owners.config.file``: presets of one's own, and which pod labels are shown.

::

    presets:
      our-platform:
        place: before        # the built-in ones; or after
        project: [label:example.com/team, namespace]
        run: [label:example.com/run]
    labels: [example.com/team, app.kubernetes.io/*]
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config_file import ConfigFileError, Entry, parse_config
from gpufleet.owners.presets import Key, Preset, key
from gpufleet.small_file import read_small_file

_MAX_BYTES = 1 << 16
_MOST_PRESETS = 64
_FIELDS = ("project", "run", "task", "rank", "attempt")
_PLACE = "place"
_PLACES = ("before", "after")


class OwnersConfigError(Exception):
    """The file can't be used; the message names file, line, key and remedy."""


@dataclass(frozen=True, slots=True)
class OwnersConfig:
    """How pods are named; without a file, by the built-in presets alone."""

    before: tuple[Preset, ...] = ()
    """Tried before the built-in presets."""
    after: tuple[Preset, ...] = ()
    labels: tuple[str, ...] = ()
    """Pod labels that are shown: names, or the beginning of names and a ``*``."""


def read_owners_config(file: Path) -> OwnersConfig:
    """Read and check the file; OwnersConfigError when it is missing, unreadable or not acceptable."""
    try:
        content = read_small_file(file, _MAX_BYTES)
    except OSError as error:
        raise OwnersConfigError(
            f"{file}: can't be read: {error.strerror}; check the path and who may read it, "
            "or leave --owners.config.file out"
        ) from error
    if len(content) > _MAX_BYTES:
        raise OwnersConfigError(f"{file}: is larger than {_MAX_BYTES} bytes; this is no configuration of owners")
    return parse_owners_config(content, str(file))


def parse_owners_config(content: bytes, name: str) -> OwnersConfig:
    """The same of a file's content, which messages call ``name``."""
    try:
        entries = parse_config(content, name, "labels: [example.com/team]")
    except ConfigFileError as error:
        raise OwnersConfigError(str(error)) from error
    labels: tuple[str, ...] = ()
    fields: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        if entry.path == ("labels",):
            labels = _label_names(entry, name)
        elif entry.path == ("presets",):
            if entry.is_list or any(entry.values):
                raise _error(entry, name, "is no mapping; write the name of a preset and its keys below it")
        elif entry.path[0] != "presets":
            raise _error(entry, name, f"is not known; {_near(entry.path[0], ('presets', 'labels'))}")
        elif len(entry.path) != 3:
            raise _error(entry, name, f"is no preset; write {', '.join(_FIELDS)} below its name")
        elif entry.path[2] not in (*_FIELDS, _PLACE):
            raise _error(entry, name, f"is not known; {_near(entry.path[2], (*_FIELDS, _PLACE))}")
        else:
            fields.setdefault(entry.path[1], {})[entry.path[2]] = entry
    if len(fields) > _MOST_PRESETS:
        raise OwnersConfigError(f"{name}: presets: are {len(fields)}; {_MOST_PRESETS} are the most")
    made = [(_preset(preset, found, name), _place(found.get(_PLACE), name)) for preset, found in fields.items()]
    return OwnersConfig(
        before=tuple(preset for preset, place in made if place == "before"),
        after=tuple(preset for preset, place in made if place == "after"),
        labels=labels,
    )


def _preset(preset: str, found: dict[str, Entry], name: str) -> Preset:
    if "run" not in found:
        first = next(iter(found.values()))
        raise OwnersConfigError(
            f"{name}:{first.line}: presets.{preset}: has no run; say which key names the run, such as run: [label:run]"
        )
    keys = {field: _keys(found[field], name) if field in found else () for field in _FIELDS}
    return Preset(
        preset,
        run=keys["run"],
        project=keys["project"],
        task=keys["task"],
        rank=keys["rank"],
        attempt=keys["attempt"],
    )


def _keys(entry: Entry, name: str) -> tuple[Key, ...]:
    keys = []
    for value in entry.values:
        found = key(value)
        if found is None:
            raise _error(entry, name, f"{value!r} is no place of a value; write label:KEY, annotation:KEY or namespace")
        keys.append(found)
    if not keys:
        raise _error(entry, name, "is empty; write label:KEY, annotation:KEY or namespace, or take it out")
    return tuple(keys)


def _place(entry: Entry | None, name: str) -> str:
    if entry is None:
        return "before"
    if entry.is_list or entry.values[0] not in _PLACES:
        raise _error(entry, name, "is neither before nor after (the built-in presets); write one of the two")
    return entry.values[0]


def _label_names(entry: Entry, name: str) -> tuple[str, ...]:
    for value in entry.values:
        if not value or "*" in value[:-1]:
            raise _error(
                entry, name, f"{value!r} is no label's name; write a name, or its beginning and one * at the end"
            )
    return tuple(dict.fromkeys(entry.values))


def _near(word: str, words: Iterable[str]) -> str:
    known = list(words)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _error(entry: Entry, name: str, problem: str) -> OwnersConfigError:
    return OwnersConfigError(f"{name}:{entry.line}: {'.'.join(entry.path)}: {problem}")
