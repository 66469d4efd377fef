"""Who holds the GPUs and what that costs, as the poll thread puts it into each snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpufleet.collect.meter_file import MeterFile
from gpufleet.cost.meter import Meter
from gpufleet.model.meter import NO_METER, MeterView
from gpufleet.model.owner import OwnersView
from gpufleet.model.snapshot import GpuSnapshot


class OwnersSource(Protocol):
    """Where holders come from; see ``OwnerWatch``."""

    @property
    def view(self) -> OwnersView:
        """The holders now."""

    @property
    def ready(self) -> bool:
        """Whether the view says who holds what."""


class Accounts:
    """Bills each poll to the holders of the moment. By the poll thread, which is the only one to call it."""

    def __init__(self, owners: OwnersSource, meter: Meter, file: MeterFile) -> None:
        self._owners = owners
        self._meter = meter
        self._file = file
        self._view = NO_METER

    def take(
        self, gpus: Sequence[GpuSnapshot], *, monotonic: float, whole: bool, quiesced: bool
    ) -> tuple[OwnersView, MeterView]:
        """As ``Accounting`` says.

        Until holders are known after a start nothing is billed and the meter's clock stands: the first poll that bills
        bills the time since the state that was kept, if that is not too long ago.
        """
        owners = self._owners.view
        if whole and self._owners.ready and gpus:
            self._view = self._meter.poll(gpus, owners, monotonic=monotonic, quiesced=quiesced)
            self._file.keep(self._meter)
        return owners, self._view
