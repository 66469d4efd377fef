"""What is found of one workload: a verdict, why, and the exact keys to add. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gpufleet.quarantine.lint.tree import Path, dotted

WHOLE: Path = ()
"""The path of a change that no key of the document holds: a line of a script, a file of its own."""


class Verdict(StrEnum):
    """What a hardware fault costs, from the best to the worst."""

    SAFE = "safe"
    UNKNOWN = "cannot tell"
    COSTS = "costs a retry"
    LOST = "cannot be saved"

    @property
    def badness(self) -> int:
        """0 for the best."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Change:
    """A key to set, or with the path WHOLE text to add."""

    path: Path
    value: Any
    """What the key must hold then: all of it, with what it holds now where that stays."""

    @property
    def where(self) -> str:
        """The key as people write it, empty for WHOLE."""
        return dotted(self.path)

    def yaml(self) -> str:
        """The key with its new value as YAML; with the path WHOLE the text itself."""
        if self.path == WHOLE:
            return str(self.value)
        import yaml

        last = self.path[-1]
        written: Any = {last: self.value} if isinstance(last, str) else [self.value]
        return yaml.dump(written, Dumper=_dumper(), sort_keys=False, width=100, allow_unicode=True).rstrip("\n")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons."""

    verdict: Verdict
    reason: str
    """A sentence without a full stop."""
    path: Path = ()
    """The key that decides it, empty where none does."""
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    """What else is to be known; changes no verdict."""

    def under(self, where: str) -> Judgement:
        """The same, said of a part of the workload."""
        return replace(self, reason=f"{where}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one document."""

    file: str
    line: int
    """Where the document begins, counted from 1."""
    kind: str
    name: str
    """With its namespace where it has one."""
    judgement: Judgement

    @property
    def verdict(self) -> Verdict:
        """That of the judgement."""
        return self.judgement.verdict


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document of a kind that is not judged."""

    file: str
    line: int
    kind: str
    name: str


def worst(judgements: Iterable[Judgement], otherwise: Judgement) -> Judgement:
    """One judgement of a workload's parts: the worst of them, with everything that is to be added to any."""
    parts = sorted(judgements, key=lambda each: -each.verdict.badness)
    if not parts:
        return otherwise
    changes: dict[Path, Change] = {}
    for each in parts:
        for change in each.changes:
            changes.setdefault(change.path, change)
    notes = dict.fromkeys(note for each in parts for note in each.notes)
    return replace(parts[0], changes=tuple(changes.values()), notes=tuple(notes))


def _dumper() -> Any:  # noqa: ANN401 - PyYAML's dumpers have no type of their own
    """Short lists of plain values, such as a command, in one line, as people write them."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's signature
            super().increase_indent(flow, indentless=False)

    def listed(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
        plain = not any(isinstance(item, list | dict) for item in items)
        short = plain and len(json.dumps(items, default=str)) < 80 and not any("\n" in str(item) for item in items)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)

    Dumper.add_representer(list, listed)
    return Dumper
