"""Where the poll thread takes the driver's events to, and where it gets what is shown of faults."""

from __future__ import annotations

from typing import Protocol

from gpufleet.faults.xids import xid_class
from gpufleet.model.fault import FaultEvent
from gpufleet.model.incident import ErrorCount, FaultsView
from gpufleet.model.readings import Key, Number, Readings


class FaultSink(Protocol):
    """Takes events in and has a view of them; both at once, without waiting."""

    @property
    def view(self) -> FaultsView:
        """What there is to show; the same object until something changed."""

    def feed(self, event: FaultEvent, uuid: str) -> None:
        """Take an event of the GPU with this UUID in."""


class Counting:
    """Counts Xids and folds nothing: for a poller that nobody has given a ledger."""

    def __init__(self) -> None:
        self.view = FaultsView(xid_errors=())
        self._counts: dict[tuple[str, int], int] = {}

    def feed(self, event: FaultEvent, uuid: str) -> None:
        """Count one."""
        if event.code is None:
            return
        key = (uuid, event.code)
        self._counts[key] = self._counts.get(key, 0) + 1
        rows = (ErrorCount(code, xid_class(code), count, gpu) for (gpu, code), count in self._counts.items())
        self.view = FaultsView(xid_errors=tuple(rows))


def standing(view: FaultsView) -> dict[str, tuple[Readings, ...]]:
    """Readings by UUID that stay while a GPU is down: its counts and the time of its last fault."""
    counts: dict[str, list[tuple[Key, Number]]] = {}
    for row in view.xid_errors or ():
        if row.uuid is not None:
            code = "other" if row.code is None else str(row.code)
            counts.setdefault(row.uuid, []).append((Key("xid_errors", (code, row.fault_class)), row.count))
    for uuid, at in view.last_fault_at:
        counts.setdefault(uuid, []).append((Key("last_fault_timestamp_seconds"), at))
    return {
        uuid: (Readings(tuple([key for key, _ in pairs]), tuple([value for _, value in pairs])),)
        for uuid, pairs in counts.items()
    }
