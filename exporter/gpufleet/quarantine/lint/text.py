"""Findings in words, and as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gpufleet.quarantine.lint.finding import WHOLE, Change, Finding, Skipped, Verdict
from gpufleet.quarantine.lint.tree import dotted

_SUMS = {
    Verdict.SAFE: "safe",
    Verdict.COSTS: "cost a retry",
    Verdict.LOST: "cannot be saved",
    Verdict.UNKNOWN: "cannot be told",
}


def as_text(found: Sequence[Finding | Skipped]) -> str:
    """What was found, a paragraph each, and a line that sums it up."""
    lines = [_shown(line) for each in found for line in _lines(each)]
    counts = {
        verdict: sum(isinstance(each, Finding) and each.verdict is verdict for each in found) for verdict in _SUMS
    }
    told = [f"{number} {_SUMS[verdict]}" for verdict, number in counts.items() if number]
    skipped = sum(isinstance(each, Skipped) for each in found)
    told += [f"{skipped} skipped"] if skipped else []
    return "\n".join([*lines, ", ".join(told) or "nothing here has retries"]) + "\n"


def as_json(found: Sequence[Finding | Skipped]) -> str:
    """The same as one JSON document."""
    documents = [_finding(each) for each in found if isinstance(each, Finding)]
    skipped = [
        {"file": each.file, "line": each.line, "kind": each.kind, "name": each.name}
        for each in found
        if isinstance(each, Skipped)
    ]
    return json.dumps({"workloads": documents, "skipped": skipped}, indent=2, ensure_ascii=False, default=str) + "\n"


def _lines(each: Finding | Skipped) -> Iterator[str]:
    where = f"{each.file}:{each.line}: {each.kind}" + (f" {each.name}" if each.name else "")
    if isinstance(each, Skipped):
        yield f"{where}: skipped: no kind that is known here"
        return
    told = each.judgement
    yield f"{where}: {told.verdict}"
    yield f"  {told.reason}"
    if told.path != WHOLE:
        yield f"  key: {dotted(told.path)}"
    yield from (f"  note: {note}" for note in told.notes)
    for change in told.changes:
        yield from _change(change)


def _change(change: Change) -> Iterator[str]:
    if change.path == WHOLE:
        yield "  write:"
    else:
        above = dotted(change.path[:-1])
        yield f"  set {change.where}" + (f", below {above}:" if above else ":")
    yield from (f"    {line}" for line in change.yaml().splitlines())


def _shown(line: str) -> str:
    """The line without what would change a terminal: names are a stranger's."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)


def _finding(each: Finding) -> dict[str, Any]:
    told = each.judgement
    return {
        "file": each.file,
        "line": each.line,
        "kind": each.kind,
        "name": each.name,
        "verdict": str(told.verdict),
        "reason": told.reason,
        "path": dotted(told.path),
        "notes": list(told.notes),
        "changes": [{"path": change.where, "value": change.value, "yaml": change.yaml()} for change in told.changes],
    }
