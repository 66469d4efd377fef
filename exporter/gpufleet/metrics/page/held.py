"""Who holds a GPU and what it costs, on the landing page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.metrics.owner_sections import holdings_by_gpu, prices_by_gpu
from gpufleet.metrics.page.markup import text
from gpufleet.model.owner import Hold, Holding
from gpufleet.model.snapshot import Snapshot

_MOST = 3
_NOBODY = {Hold.UNALLOCATED: "unallocated", Hold.UNSLICED: "no slice", Hold.UNKNOWN: "not known"}


class Held:
    """Cells of one page: by GPU, and by slice."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._holdings = holdings_by_gpu(snapshot.owners)
        self._prices = prices_by_gpu(snapshot.meter)
        self.is_known = bool(self._holdings or self._prices)
        """Whether the column is there at all."""

    def cell(self, uuid: str, mig_uuid: str = "") -> str:
        """The cell of a GPU, or of a slice of it; nothing where the page has no such column."""
        if not self.is_known:
            return ""
        here = [each for each in self._holdings.get(uuid, ()) if each.mig_uuid == mig_uuid]
        sliced = not mig_uuid and any(each.mig_uuid for each in self._holdings.get(uuid, ()))
        # In MIG mode the slices below have their holders; the GPU itself has none.
        names = "" if sliced else _names(here)
        price = self._prices.get(uuid)
        cost = f"<small>{text(price.text)} {text(price.currency)} an hour</small>" if price and not mig_uuid else ""
        return f'<td class="held" role="cell" data-label="Held by">{names}{cost}</td>'


def _names(holdings: Sequence[Holding]) -> str:
    shown = "".join([_name(each) for each in holdings[:_MOST]])
    more = len(holdings) - _MOST
    return f"{shown}<small>and {more} more</small>" if more > 0 else shown


def _name(holding: Holding) -> str:
    if holding.hold is not Hold.HELD:
        return f'<span class="nobody">{_NOBODY[holding.hold]}</span>'
    work = holding.workload
    run = f'<span class="name">{text(work.run or work.workload_pod or work.project)}</span>'
    parts = [part for part in (work.project, work.task, work.workload_user) if part and part != work.run]
    return f"{run}<small>{text(' · '.join(parts))}</small>" if parts else run
