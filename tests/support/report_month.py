"""A month of 88 GPUs, metered poll by poll on a clock of its own, as the five-minute series that are recorded.

What is held is a plan in minutes, so what each project must come to is known to the cent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpufleet.cost.meter import Meter
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.meter import COLUMNS, Account, MeterView, Price
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState

HOURS = 720
MINUTES = 60 * HOURS
BEGIN = 1_780_272_000
"""2026-06-01T00:00:00Z."""
END = BEGIN + 60 * MINUTES
WINDOW = 5
H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
PRICES = {H100: (4.8, "4.8"), L40S: (1.6, "1.6")}
NODES = 11
GPUS = 8
_KEYS = (Key("sm_active_ratio"),)
_SWING = 0.0625
"""Utilization goes up and down by so much from minute to minute; a binary fraction, so that it averages exactly."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One project's use of some GPUs: ``runs`` runs of ``hours``, one after the other, with gaps of ``gap`` minutes."""

    project: str
    gpus: int
    runs: int
    hours: int
    gap: int
    utilization: float
    tasks: tuple[str, ...]
    """The first is of all GPUs but as many as there are further ones, which have one each."""
    run: str
    shared: bool = False
    """Its first GPU is held by two tasks, half each."""


ON_H100 = (
    Kind("llm-pretrain", 41, 6, 120, 0, 0.88, ("train", "evaluate"), "llm-70b"),
    Kind("fine-tuning", 13, 20, 36, 0, 0.81, ("sft", "reward-model"), "chat-ft"),
    Kind("research-sandbox", 6, 10, 71, 60, 0.23, ("notebook", "debug"), "scratch", shared=True),
    Kind("evals", 2, 10, 44, 28 * 60, 0.64, ("judge",), "suite-h100"),
)
ON_L40S = (Kind("evals", 24, 25, 25, 228, 0.64, ("mmlu", "code", "long-context"), "suite"),)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a project comes to."""

    hours: float
    cost: float
    unused: float
    utilization: float


EXPECTED = {
    "llm-pretrain": Expected(29_520, 141_696, 17_004, 0.88),
    "fine-tuning": Expected(9_360, 44_928, 8_536, 0.81),
    "evals": Expected(15_880, 28_224, 10_161, 0.64),
    "research-sandbox": Expected(4_260, 20_448, 15_745, 0.23),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU of a kind."""

    kind: Kind | None
    """``None``: nobody has it for the whole month."""
    task: str = ""
    shared_with: str = ""

    def run_at(self, minute: int) -> int:
        """Number of the run that has it in this minute; -1: none."""
        if self.kind is None:
            return -1
        cycle, within = divmod(minute, 60 * self.kind.hours + self.kind.gap)
        return cycle if cycle < self.kind.runs and within < 60 * self.kind.hours else -1

    def holdings(self, uuid: str, run: int) -> tuple[Holding, ...]:
        """Who has it."""
        if self.kind is None or run < 0:
            return (Holding(uuid, 1.0, hold=Hold.UNALLOCATED),)
        name = f"{self.kind.run}-{run + 1:02d}"
        tasks = [self.task, self.shared_with] if self.shared_with else [self.task]
        return tuple([Holding(uuid, 1 / len(tasks), Workload(self.kind.project, name, task)) for task in tasks])


def slots(kinds: Sequence[Kind], gpus: int) -> list[Slot]:
    """The GPUs of one model."""
    found = []
    for kind in kinds:
        first, *others = kind.tasks
        tasks = [first] * (kind.gpus - len(others)) + others
        found += [
            Slot(kind, task, others[-1] if kind.shared and place == 0 else "") for place, task in enumerate(tasks)
        ]
    return found + [Slot(None)] * (gpus - len(found))


Series = tuple[str, str, str, str, str]
"""Project, run, task, currency, reason; the last two are empty for time."""
_RECORDS = ("gpu_allocated_seconds", "gpu_productive_seconds", "gpu_cost", "gpu_unused_cost", "gpu_unused_cost")
_REASONS = ("", "", "", "idle", "down")


class Rollup:
    """Increments of windows, as the recording rules make them of the accounts of many nodes."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, Series], dict[int, float]] = {}
        self._before: dict[str, dict[Account, tuple[float | None, ...]]] = {}

    def take(self, node: str, minute: int, view: MeterView) -> None:
        """The totals of one node at the end of a window."""
        width = len(COLUMNS)
        before = self._before.get(node, {})
        now = {}
        for at, account in enumerate(view.accounts):
            values = view.values[at * width : (at + 1) * width]
            now[account] = values
            for column, (value, old) in enumerate(zip(values, before.get(account, (None,) * width), strict=True)):
                if value is None:
                    continue
                money = (account.currency, _REASONS[column]) if column >= 2 else ("", "")
                series = (account.project, account.run, account.task, *money)
                found = self.samples.setdefault((_RECORDS[column], series), {})
                found[minute] = found.get(minute, 0.0) + (value - old if old is not None and old <= value else value)
        self._before[node] = now


def metered() -> Rollup:
    """The whole month."""
    rollup = Rollup()
    fleet = [*slots(ON_H100, 64), *slots(ON_L40S, 24)]
    for number in range(NODES):
        _node(f"node-{number:02d}", H100 if number < 8 else L40S, fleet[number * GPUS : (number + 1) * GPUS], rollup)
    return rollup


def _node(name: str, model: str, slots: Sequence[Slot], rollup: Rollup) -> None:
    per_hour, text = PRICES[model]
    uuids = [f"GPU-{name}-{at}" for at in range(GPUS)]
    prices = {uuid: Price(uuid, per_hour, "USD", text) for uuid in uuids}
    meter = Meter(interval=60.0, utilization="auto", price_of=lambda gpu: prices[gpu.identity.uuid])
    identities = [GpuIdentity(uuid, model, f"0000:{at:02x}:00.0") for at, uuid in enumerate(uuids)]
    readings = [[_gpu(at, identities[at], slot, up=up) for at, slot in enumerate(slots)] for up in (False, True)]
    holders: tuple[int, ...] = ()
    owners = OwnersView()
    for minute in range(MINUTES + 1):
        # The poll at the end of a minute bills it to whoever holds then.
        runs = tuple([slot.run_at(max(minute - 1, 0)) for slot in slots])
        if runs != holders:
            holders = runs
            owners = OwnersView(tuple(_sorted(slots, uuids, runs)))
        view = meter.poll(readings[minute & 1], owners, monotonic=60.0 * minute, quiesced=False)
        if minute % WINDOW == 0 and minute:
            rollup.take(name, minute, view)


def _sorted(slots: Sequence[Slot], uuids: Sequence[str], runs: Sequence[int]) -> Iterator[Holding]:
    for slot, uuid, run in zip(slots, uuids, runs, strict=True):
        yield from slot.holdings(uuid, run)


def _gpu(number: int, identity: GpuIdentity, slot: Slot, *, up: bool) -> GpuSnapshot:
    level = 0.0 if slot.kind is None else slot.kind.utilization + (_SWING if up else -_SWING)
    parts = (Readings(_KEYS, (level,)),)
    return GpuSnapshot(number, identity, GpuState.OK, 1.0, parts=parts, utilization_basis="sm")


def openmetrics(rollup: Rollup) -> Iterator[str]:
    """What promtool makes blocks of."""
    for record in dict.fromkeys(_RECORDS):
        name = f"run:{record}:increase5m"
        yield f"# TYPE {name} gauge\n"
        for (of, (project, run, task, currency, reason)), samples in rollup.samples.items():
            if of != record:
                continue
            labels = f'project="{project}",run="{run}",task="{task}"'
            if currency:
                labels += f',currency="{currency}"' + (f',reason="{reason}"' if reason else "")
            for minute, value in sorted(samples.items()):
                yield f"{name}{{{labels}}} {value!r} {BEGIN + 60 * minute}\n"
    yield "# EOF\n"
