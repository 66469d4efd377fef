"""Nodes for the meter: GPUs with a utilization, their holders, and polls of a clock that tests set."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.cost.meter import Meter
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.meter import COLUMNS, Account, MeterView, Price
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot, SliceSnapshot
from gpufleet.model.state import GpuState

WHOLE = (Key("temperature_celsius"), Key("utilization_ratio"), Key("sm_active_ratio"), Key("tensor_active_ratio"))
CUT = (Key("mig_sm_active_ratio"), Key("mig_tensor_active_ratio"))
IDENTITIES = tuple(
    GpuIdentity(f"GPU-{number}", "NVIDIA H100 80GB HBM3", f"0000:{number:02x}:00.0") for number in range(8)
)
USD = Price("", 3.6, "USD", "3.6")
"""A thousandth of a dollar a second."""


def gpu(
    number: int = 0,
    sm: float | None = 0.5,
    *,
    util: float | None = 0.9,
    tensor: float | None = 0.25,
    state: GpuState = GpuState.OK,
    basis: str | None = "sm",
    slices: Sequence[SliceSnapshot] = (),
) -> GpuSnapshot:
    """A GPU as one poll found it; one that is down has no readings."""
    parts = (Readings(WHOLE, (40, util, sm, tensor)),) if state is GpuState.OK else ()
    return GpuSnapshot(
        number, IDENTITIES[number], state, 1.0, parts=parts, slices=tuple(slices), utilization_basis=basis
    )


def cut(name: str, sm: float | None, *, instance: int, carries: bool = True) -> SliceSnapshot:
    """A slice; one that does not carry its GPU instance has no activity of its own."""
    identity = SliceIdentity(name, "1g.10gb", instance, 0 if carries else 1, carries_instance=carries)
    return SliceSnapshot(identity, (Readings(CUT, (sm, 0.1)),) if carries else ())


def held(number: int = 0, share: float = 1.0, run: str = "run", *, mig: str = "", hold: Hold = Hold.HELD) -> Holding:
    """A part of a GPU, held by ``run`` of project ``p`` unless ``hold`` says otherwise."""
    work = Workload(project="p", run=run, task="t") if hold is Hold.HELD else Workload()
    return Holding(IDENTITIES[number].uuid, share, work, mig, hold)


def owners(*holdings: Holding) -> OwnersView:
    """What the holders are."""
    return OwnersView(holdings)


class Node:
    """A meter and the clock that it is polled by."""

    def __init__(self, *, price: Price | None = USD, utilization: str = "auto", interval: float = 1.0) -> None:
        self.price = price
        self.meter = Meter(interval=interval, utilization=utilization, price_of=lambda _: self.price)
        self.now = 1000.0

    def poll(
        self, gpus: Sequence[GpuSnapshot], view: OwnersView, seconds: float = 1.0, *, quiesced: bool = False
    ) -> MeterView:
        """Poll after ``seconds``."""
        self.now += seconds
        return self.meter.poll(gpus, view, monotonic=self.now, quiesced=quiesced)


def rows(view: MeterView) -> dict[Account, tuple[float | None, ...]]:
    """Totals by account."""
    width = len(COLUMNS)
    assert len(view.values) == width * len(view.accounts)
    return {account: view.values[at * width : (at + 1) * width] for at, account in enumerate(view.accounts)}


def row(view: MeterView, run: str = "run", project: str = "p", currency: str | None = None) -> tuple[float | None, ...]:
    """Totals of the one account with these labels."""
    (found,) = [
        values
        for account, values in rows(view).items()
        if account.run == run and account.project == project and currency in {None, account.currency}
    ]
    return found
