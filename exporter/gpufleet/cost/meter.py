"""Totals of GPU time and money for each holder, taken forward by each poll.

Time is billed by the monotonic clock to whoever holds a part of a GPU when a poll ends. A poll with nothing new adds
numbers to a flat list and does nothing else; whatever changes (holders, slices, prices) makes a new plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpufleet.cost.ledger import WIDTH, Ledger, Rows
from gpufleet.cost.meter_state import MeterState, check
from gpufleet.cost.utilization import Ratio, Ratios
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.meter import NO_METER, MeterView, Price
from gpufleet.model.owner import Hold, Holding, OwnersView
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState

LONGEST_INTERVALS = 5
"""More time than this many intervals between two polls is not billed: nobody knows who held what meanwhile."""
_HOUR = 3600.0
_NOT_HELD = -2
_UNMEASURED = -1


class _Plan:
    """What a poll does for one GPU."""

    __slots__ = ("basis", "identity", "number", "price", "rows", "slice_ratio", "slices", "sources", "whole_ratio")

    def __init__(self, gpu: GpuSnapshot, price: Price | None, ratios: Ratios) -> None:
        self.identity: GpuIdentity = gpu.identity
        self.number = gpu.number
        self.basis = gpu.utilization_basis
        self.price = price
        self.slices: list[SliceIdentity] = [part.identity for part in gpu.slices]
        self.whole_ratio: Ratio | None = ratios.whole(self.basis)
        self.slice_ratio: Ratio | None = ratios.slice(self.basis)
        self.sources: list[int] = []
        """Where utilization is read: -1 the GPU itself, else the position of a slice."""
        self.rows: list[tuple[int, float, int]] = []
        """Offset of the account's totals, share, index into ``sources`` or one of the negative constants."""

    def source(self, holding: Holding) -> int:
        """Index into ``sources`` for a holding, or why there is none."""
        if holding.hold is not Hold.HELD:
            return _NOT_HELD
        position = self._position(holding.mig_uuid)
        if position is None:
            return _UNMEASURED
        if position not in self.sources:
            self.sources.append(position)
        return self.sources.index(position)

    def _position(self, mig_uuid: str) -> int | None:
        if not mig_uuid:
            return None if self.whole_ratio is None else -1
        if self.slice_ratio is None:
            return None
        own = next((each for each in self.slices if each.mig_uuid == mig_uuid), None)
        if own is None:
            return None
        # Compute instances of one GPU instance have one sample of activity, which the first of them reports.
        for position, each in enumerate(self.slices):
            if each.gpu_instance == own.gpu_instance and each.carries_instance:
                return position
        return None


class Meter:
    """Bills GPU time. For one thread."""

    def __init__(
        self,
        *,
        interval: float,
        utilization: str,
        price_of: Callable[[GpuSnapshot], Price | None],
        linger: float = 360.0,
    ) -> None:
        """``interval`` is the poll's, ``linger`` how long an account that holds nothing any more is shown; seconds.

        ``utilization`` is one of ``utilization.BASES``; ``price_of`` is asked at each poll and must be quick.
        """
        self._longest = LONGEST_INTERVALS * interval
        self._ratios = Ratios(utilization)
        self._price_of = price_of
        self._ledger = Ledger(linger)
        self._totals: list[float | None] = []
        self._plans: list[_Plan] = []
        self._holdings: tuple[Holding, ...] | None = None
        self._prices: tuple[Price, ...] = ()
        self._last: float | None = None
        self._drop_at = float("inf")
        self._billed_gpus = 0
        self._gaps = 0
        self._unbilled = 0.0
        self.view: MeterView = NO_METER
        """As of the last poll, or of the state that was loaded."""

    def poll(self, gpus: Sequence[GpuSnapshot], owners: OwnersView, *, monotonic: float, quiesced: bool) -> MeterView:
        """Bill the time since the poll before to the holders of now. ``monotonic`` is the end of this poll."""
        if monotonic >= self._drop_at or not self._fits(gpus, owners):
            self._plan(gpus, owners, monotonic)
        seconds = self._elapsed(monotonic)
        totals = self._totals
        if seconds is not None:
            for plan, gpu in zip(self._plans, gpus, strict=True):
                if plan.rows:
                    _bill(plan, gpu, seconds, totals, quiesced=quiesced)
        self.view = MeterView(self._ledger.accounts, tuple(totals), self._prices, self._gaps, self._unbilled)
        return self.view

    def dump(self) -> MeterState:
        """What ``load`` takes to go on from here."""
        view = self.view
        return MeterState(self._last, view.gaps, view.unbilled_seconds, view.accounts, view.values, self._ledger.until)

    def load(self, state: MeterState, *, same_boot: bool) -> None:
        """Go on from ``state``; before the first poll. ``same_boot``: its clock is the one that polls come with.

        Then the first poll bills the time since that state, if it is not too long. Accounts that held nothing any more
        come back only in the same boot. Raises MeterStateError.
        """
        check(state)
        self._ledger.load(state, same_boot=same_boot)
        self._totals = self._ledger.totals()
        self._last = state.monotonic if same_boot else None
        self._gaps, self._unbilled = state.gaps, state.unbilled_seconds
        self._holdings = None
        self.view = MeterView(self._ledger.accounts, tuple(self._totals), (), self._gaps, self._unbilled)

    def _elapsed(self, monotonic: float) -> float | None:
        """Seconds to bill; None: none."""
        last, self._last = self._last, monotonic
        if last is None:
            return 0.0
        seconds = monotonic - last
        if 0.0 <= seconds <= self._longest:
            return seconds
        self._gaps += 1
        self._unbilled += max(seconds, 0.0) * self._billed_gpus
        return None

    def _fits(self, gpus: Sequence[GpuSnapshot], owners: OwnersView) -> bool:
        """Whether the plan is that of these GPUs, holders and prices."""
        if owners.holdings is not self._holdings and owners.holdings != self._holdings:
            return False
        self._holdings = owners.holdings
        if len(gpus) != len(self._plans):
            return False
        price_of, okay = self._price_of, GpuState.OK
        for plan, gpu in zip(self._plans, gpus, strict=True):
            if (
                (gpu.identity is not plan.identity and gpu.identity != plan.identity)
                or gpu.number != plan.number
                or gpu.utilization_basis != plan.basis
            ):
                return False
            price = price_of(gpu)
            if price is not plan.price and price != plan.price:
                return False
            # A GPU that is down shows no slices; they are not asked for then.
            if (
                gpu.state is okay
                and (gpu.slices or plan.slices)
                and [part.identity for part in gpu.slices] != plan.slices
            ):
                return False
        return True

    def _plan(self, gpus: Sequence[GpuSnapshot], owners: OwnersView, monotonic: float) -> None:
        held: dict[str, list[Holding]] = {}
        for holding in owners.holdings:
            held.setdefault(holding.uuid, []).append(holding)
        ledger = self._ledger
        rows: Rows = ledger.begin(self._totals)
        plans = []
        wanted = []
        for gpu in gpus:
            plan = _Plan(gpu, self._price_of(gpu), self._ratios)
            plans.append(plan)
            currency = "" if plan.price is None else plan.price.currency
            for holding in held.get(gpu.identity.uuid, ()):
                row = rows.row(gpu.number, holding, currency)
                wanted.append((plan, row, holding.share, plan.source(holding)))
        self._totals = ledger.end(rows, monotonic if self._last is None else self._last, monotonic)
        for plan, row, share, source in wanted:
            first = row.place * WIDTH
            plan.rows.append((first, share, source))
            if self._totals[first] is None:
                self._totals[first] = 0.0
            if plan.price is not None and self._totals[first + 2] is None:
                self._totals[first + 2] = 0.0
        self._plans, self._holdings = plans, owners.holdings
        self._drop_at = ledger.drop_at
        self._billed_gpus = sum(1 for plan in plans if plan.rows)
        prices = tuple([plan.price for plan in plans if plan.price is not None])
        if prices != self._prices:
            self._prices = prices


_NOTHING: list[float | None] = []


def _measured(plan: _Plan, gpu: GpuSnapshot) -> list[float | None]:
    """The utilization of each of a plan's sources."""
    ratios = []
    for position in plan.sources:
        ratio = plan.whole_ratio if position < 0 else plan.slice_ratio
        parts = gpu.parts if position < 0 else gpu.slices[position].parts
        ratios.append(None if ratio is None else ratio.of(parts))
    return ratios


def _bill(plan: _Plan, gpu: GpuSnapshot, seconds: float, totals: list[float | None], *, quiesced: bool) -> None:
    """Add ``seconds`` of one GPU to its holders' totals."""
    is_down = not quiesced and gpu.state is not GpuState.OK
    ratios = _NOTHING if quiesced or is_down else _measured(plan, gpu)
    price = plan.price
    rate = -1.0 if price is None else price.per_hour / _HOUR
    for first, share, source in plan.rows:
        held = seconds * share
        totals[first] += held  # type: ignore[operator] # a plan begins its accounts' totals at 0
        cost = 0.0
        if rate >= 0.0:
            cost = held * rate
            totals[first + 2] += cost  # type: ignore[operator] # as above
        if source == _NOT_HELD:
            continue
        if is_down:
            if rate >= 0.0:
                totals[first + 4] = (totals[first + 4] or 0.0) + cost
        elif source >= 0 and ratios:
            ratio_now = ratios[source]
            if ratio_now is None:
                continue
            totals[first + 1] = (totals[first + 1] or 0.0) + held * ratio_now
            if rate >= 0.0:
                totals[first + 3] = (totals[first + 3] or 0.0) + cost * (1.0 - ratio_now)
                if totals[first + 4] is None:
                    totals[first + 4] = 0.0
