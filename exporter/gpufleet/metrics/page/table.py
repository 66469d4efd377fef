"""The table of GPUs and their slices. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.metrics.page.held import Held
from gpufleet.metrics.page.markup import absent, meter, text
from gpufleet.metrics.page.words import (
    BAD,
    GPU_STATE_MEANINGS,
    GPU_STATES,
    QUIET,
    WARN,
    Values,
    chips,
    gibibytes,
    gigahertz,
    percent,
    present,
)
from gpufleet.model.state import GpuState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpufleet.model.readings import Number
    from gpufleet.model.snapshot import GpuSnapshot, SliceSnapshot, Snapshot

# A board runs hot by design; what matters is how far it is from slowing down.
_NEAR, _AT = 10, 3  # °C
_FULL = 0.95  # of the power limit: nothing wrong, but it explains the clocks
_COLUMNS = ("GPU", "State", "Utilization", "SM active", "Memory", "Temperature", "Power", "SM clock", "Notes")


def table(snapshot: Snapshot, *, known: bool) -> str:
    """Return the table; ``known`` says that the snapshot tells how the GPUs are now."""
    held = Held(snapshot)
    gpus = sorted(snapshot.gpus, key=lambda gpu: gpu.number)
    rows = [row for gpu in gpus for row in _rows(gpu, held, known=known)]
    columns = (*_COLUMNS[:2], *(("Held by",) if held.is_known else ()), *_COLUMNS[2:])
    # Roles are said again because narrow screens show rows as cards, and browsers then forget that this is a table.
    heads = "".join([f'<th scope="col" role="columnheader">{column}</th>' for column in columns])
    return (
        '<div class="frame"><table role="table"><caption>GPUs of this node</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n<tbody role="rowgroup">\n{"".join(rows)}</tbody>'
        "</table></div>\n"
    )


def _rows(gpu: GpuSnapshot, held: Held, *, known: bool) -> Iterator[str]:
    identity = gpu.identity
    head = (
        f'<th scope="row" role="rowheader"><div class="who"><span class="number">{gpu.number}</span>'
        f'<span><span class="name">{text(identity.name)}</span><small>{text(identity.pci_bus_id)}</small>'
        f"<small>{text(identity.uuid)}</small></span></div></th>"
    )
    standing, holder = Values(gpu.standing), held.cell(identity.uuid)
    if not known:
        yield _row(head, _badge("unknown", QUIET), holder, _wide(""), _notes(Values(()), standing))
        return
    words, tone = GPU_STATES[gpu.state]
    if gpu.state is not GpuState.OK:
        reason = f"{GPU_STATE_MEANINGS[gpu.state]} {gpu.reason or ''}"
        yield _row(head, _badge(words, tone), holder, _wide(reason), _notes(Values(()), standing))
        return
    values = Values(gpu.parts)
    processes = values("processes")
    busy = f"<small>{processes} process{'es' if processes != 1 else ''}</small>" if processes is not None else ""
    yield _row(head, _badge(words, tone, busy), holder, *_cells(values), _notes(values, standing))
    for part in gpu.slices:
        yield _slice_row(part, held.cell(identity.uuid, part.identity.mig_uuid))


def _row(*cells: str, kind: str = "gpu") -> str:
    return f'<tr class="{kind}" role="row">{"".join(cells)}</tr>\n'


def _badge(words: str, tone: str, rest: str = "") -> str:
    return f'<td class="state" role="cell"><span class="badge {tone}">{text(words)}</span>{rest}</td>'


def _wide(reason: str) -> str:
    return f'<td class="wide" role="cell" colspan="6"><span class="reason">{text(reason.strip())}</span></td>'


def _notes(values: Values, standing: Values) -> str:
    items = "".join([f'<li class="chip {chip.tone}">{text(chip.text)}</li>' for chip in chips(values, standing)])
    return f'<td class="notes" role="cell">{f"<ul class=chips>{items}</ul>" if items else ""}</td>'


def _cells(values: Values) -> Iterator[str]:
    yield _ratio("Utilization", values("utilization_ratio"))
    tensor = values("tensor_active_ratio")
    yield _ratio("SM active", values("sm_active_ratio"), "" if tensor is None else f"tensor {percent(tensor)}")
    yield _memory(values("memory_used_bytes"), values("memory_total_bytes"))
    yield _temperature(values)
    yield _power(values("power_watts"), values("power_limit_watts", "enforced"))
    clock, fastest = values("sm_clock_hertz"), values("sm_clock_max_hertz")
    if clock is None:
        yield absent("SM clock")
    else:
        rest = f"of {gigahertz(fastest)} GHz" if fastest else "GHz"
        yield meter("SM clock", gigahertz(clock), rest, clock / fastest if fastest else None)


def _slice_row(part: SliceSnapshot, holder: str) -> str:
    identity, values = part.identity, Values(part.parts)
    head = (
        f'<th scope="row" role="rowheader"><div class="who"><span>'
        f'<span class="name">MIG {text(identity.profile)}</span>'
        f"<small>GPU instance {identity.gpu_instance}, compute instance {identity.compute_instance}</small>"
        f"<small>{text(identity.mig_uuid)}</small></span></div></th>"
    )
    tensor = values("mig_tensor_active_ratio")
    return _row(
        head,
        '<td class="none" role="cell"></td>',
        holder,
        _ratio("Graphics engine", values("mig_graphics_active_ratio")),
        _ratio("SM active", values("mig_sm_active_ratio"), "" if tensor is None else f"tensor {percent(tensor)}"),
        _memory(values("mig_memory_used_bytes"), values("mig_memory_total_bytes")),
        '<td class="none" role="cell" colspan="4"></td>',
        kind="slice",
    )


def _ratio(label: str, ratio: Number | None, below: str = "") -> str:
    return absent(label) if ratio is None else meter(label, percent(ratio), "", ratio, below=below)


def _memory(used: Number | None, total: Number | None) -> str:
    if used is None:
        return absent("Memory")
    if not total:
        return meter("Memory", f"{gibibytes(used)} GiB", "")
    return meter("Memory", gibibytes(used), f"of {gibibytes(total)} GiB", used / total)


def _power(watts: Number | None, limit: Number | None) -> str:
    if watts is None:
        return absent("Power")
    if not limit:
        return meter("Power", f"{watts:.0f} W", "")
    ratio = watts / limit
    return meter("Power", f"{watts:.0f}", f"of {limit:.0f} W", ratio, WARN if ratio >= _FULL else QUIET)


def _temperature(values: Values) -> str:
    now, memory, left = (
        values("temperature_celsius"),
        values("memory_temperature_celsius"),
        values("temperature_margin_celsius"),
    )
    if now is None:
        return absent("Temperature")
    limits = present([values("temperature_threshold_celsius", name) for name in ("gpu_max", "slowdown")])
    if left is None and limits:
        left = min(limits) - now
    tone = QUIET
    if left is not None and left <= _NEAR:
        tone = BAD if left <= _AT else WARN
    limit = now + left if left is not None else None
    below = "" if memory is None else f"memory {memory:.0f} °C"
    rest = "" if limit is None else f"of {limit:.0f}"
    return meter("Temperature", f"{now:.0f} °C", rest, now / limit if limit else None, tone, below)
