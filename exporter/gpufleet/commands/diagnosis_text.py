"""A diagnosis for a person: what is wrong first to see, GPUs that report the same told once. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpufleet.commands.diagnosis import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpufleet.commands.diagnosis import Check, Diagnosis, GpuReport, GroupReport

_WIDTH = 100


def text(diagnosis: Diagnosis) -> str:
    """The diagnosis as lines of at most about 100 characters."""
    return "\n".join([f"gpufleet {diagnosis.version} on node {diagnosis.node}", "", *_body(diagnosis), ""])


def _body(diagnosis: Diagnosis) -> Iterator[str]:
    width = max((len(check.subject) for check in diagnosis.checks), default=0)
    for check in diagnosis.checks:
        yield from _check(check, width)
    for alike in _alike(diagnosis.gpus):
        yield ""
        yield from _gpus(alike)
    yield ""
    yield _verdict(diagnosis)


def _check(check: Check, width: int) -> Iterator[str]:
    mark = {Status.OK: "ok     ", Status.NOTE: "note   ", Status.MISSING: "MISSING"}[check.status]
    indent = " " * (12 + width)
    yield from _wrapped(f"  {mark}  {check.subject:<{width}} {check.detail}", indent)
    if check.remedy is not None:
        yield from _wrapped(f"{indent}→ {check.remedy}", f"{indent}  ")


def _alike(gpus: Iterable[GpuReport]) -> Iterator[Sequence[GpuReport]]:
    """GPUs of the same model that report the same, together, in the order of the first of each."""
    found: dict[object, list[GpuReport]] = {}
    for gpu in gpus:
        found.setdefault((gpu.name, gpu.state, gpu.reason, gpu.slices, gpu.groups), []).append(gpu)
    yield from found.values()


def _gpus(gpus: Sequence[GpuReport]) -> Iterator[str]:
    first = gpus[0]
    for gpu in gpus:
        about = "  ".join(part for part in (gpu.name, gpu.uuid, gpu.pci_bus_id) if part)
        yield f"GPU {gpu.index}  {about}".rstrip()
    if first.state != "ok":
        yield from _wrapped(f"  {first.state}: {first.reason}", "    ")
    if first.slices:
        yield f"  MIG is on: {first.slices} slice{'s' if first.slices > 1 else ''}"
    for group in first.groups:
        yield from _group(group)


def _group(group: GroupReport) -> Iterator[str]:
    total = len(group.reported) + len(group.absent)
    yield f"  {group.title}: {len(group.reported)} of {total}"
    if group.reported:
        yield from _wrapped(f"    {' '.join(group.reported)}", "    ")
    reasons: dict[str, list[str]] = {}
    for family, reason in group.absent:
        reasons.setdefault(reason, []).append(family)
    for reason, families in reasons.items():
        yield from _wrapped(f"    - {' '.join(families)}: {reason}", "      ")


def _verdict(diagnosis: Diagnosis) -> str:
    missing = sum(check.status is Status.MISSING for check in diagnosis.checks)
    down = sum(gpu.state != "ok" for gpu in diagnosis.gpus)
    if not missing and not down:
        return "Nothing is missing."
    parts = []
    if missing:
        parts.append(f"{missing} thing{' is' if missing == 1 else 's are'} missing; the remedy stands at the arrow")
    if down:
        parts.append(f"{down} GPU{' does' if down == 1 else 's do'} not answer")
    return f"{'; '.join(parts)}."


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
