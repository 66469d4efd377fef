"""A verdict as text and as JSON. Pure.

The first line alone has to say it: a node condition of Kubernetes shows no more than 80 characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.commands.check_verdict import Fitness, Row, Verdict

LONGEST_FIRST_LINE = 80
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), " ")


def text(verdict: Verdict, notes: Sequence[str]) -> str:
    """The first line, one a GPU, what concerns the node, and ``notes`` on how it was found out."""
    rows = [*verdict.gpus, *([verdict.node] if verdict.node.findings else [])]
    subject = max((len(row.subject) for row in rows), default=0)
    word = max((len(row.fitness.word) for row in rows), default=0)
    lines = [first_line(verdict)]
    for row in rows:
        said = "; ".join(_by_weight(row)) or " ".join(part for part in (row.uuid, row.pci_bus_id) if part)
        lines.append(f"{row.subject:<{subject}}  {row.fitness.word:<{word}}  {said}".rstrip())
    lines += [f"note: {note}" for note in notes]
    return "\n".join(line.translate(_CONTROL) for line in lines) + "\n"


def first_line(verdict: Verdict) -> str:
    """The worst finding and how many more there are of its kind; at most ``LONGEST_FIRST_LINE`` characters."""
    fitness = verdict.fitness
    worst = [
        f"{row.subject}: {finding.words}" if row is not verdict.node else finding.words
        for row in (*verdict.gpus, verdict.node)
        for finding in row.findings
        if finding.fitness is fitness
    ]
    if fitness is Fitness.HEALTHY:
        if not verdict.gpus:
            return _cut(f"healthy: {worst[0] if worst else 'no GPU'}", LONGEST_FIRST_LINE)
        return f"healthy: {len(verdict.gpus)} GPU{'' if len(verdict.gpus) == 1 else 's'}"
    more = f" (+{len(worst) - 1})" if len(worst) > 1 else ""
    return _cut(f"{fitness.word}: {worst[0]}", LONGEST_FIRST_LINE - len(more)) + more


def _by_weight(row: Row) -> list[str]:
    return [finding.words for finding in sorted(row.findings, key=lambda finding: -finding.fitness)]


def _cut(said: str, length: int) -> str:
    said = said.translate(_CONTROL)
    return said if len(said) <= length else f"{said[: length - 3].rstrip()}..."


def as_object(verdict: Verdict, source: str, notes: Sequence[str]) -> dict[str, object]:
    """For programs; ``source`` tells who looked: ``exporter`` or ``driver``."""
    return {
        "status": verdict.fitness.word,
        "exit": int(verdict.fitness),
        "summary": first_line(verdict),
        "source": source,
        "notes": list(notes),
        "node": _row_object(verdict.node),
        "gpus": [
            {"gpu": row.gpu, "uuid": row.uuid or None, "pci": row.pci_bus_id or None, **_row_object(row)}
            for row in verdict.gpus
        ],
    }


def _row_object(row: Row) -> dict[str, object]:
    return {
        "status": row.fitness.word,
        "findings": [{"status": finding.fitness.word, "words": finding.words} for finding in row.findings],
    }
