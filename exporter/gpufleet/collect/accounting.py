"""Where the poll thread gets holders and totals of cost from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpufleet.model.meter import NO_METER, MeterView
from gpufleet.model.owner import NO_OWNERS, OwnersView
from gpufleet.model.snapshot import GpuSnapshot


class Accounting(Protocol):
    """Takes the GPUs of a snapshot in and tells what to show beside them; never waits."""

    def take(
        self, gpus: Sequence[GpuSnapshot], *, monotonic: float, whole: bool, quiesced: bool
    ) -> tuple[OwnersView, MeterView]:
        """``whole`` is whether a poll is at its end: only then time is billed."""


class NoAccounts:
    """For a node without any source of owners."""

    def take(
        self,
        gpus: Sequence[GpuSnapshot],  # noqa: ARG002 - as the protocol says
        *,
        monotonic: float,  # noqa: ARG002 - as above
        whole: bool,  # noqa: ARG002 - as above
        quiesced: bool,  # noqa: ARG002 - as above
    ) -> tuple[OwnersView, MeterView]:
        """Nothing is known."""
        return NO_OWNERS, NO_METER
