"""Makes up a fleet: nodes, runs and mishaps in the proportions of a real one, the same for the same seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from gpufleet.simulate.profiles import load_profile
from gpufleet.simulate.scenario import (
    Duration,
    Ecc,
    Event,
    Heat,
    Loss,
    Mig,
    Node,
    Nvlink,
    Pattern,
    Run,
    Scenario,
    Xid,
)

DEFAULT_PROFILE = "h100-80gb-hbm3"
_REPEAT = 3_600_000
_SECOND, _MINUTE = 1000, 60_000
_KINDS: tuple[tuple[Pattern | None, int, tuple[int, ...]], ...] = (
    # Pattern (None: an empty node), how often, and how many nodes it may have.
    ("train", 46, (4, 8, 16, 32)),
    ("inference", 20, (1, 2, 4)),
    ("data_bound", 12, (1, 2)),
    ("evals", 8, (1,)),
    ("sandbox", 8, (1,)),
    (None, 6, (1,)),
)
_PROJECTS = ("foundation", "research", "products", "vision", "speech", "robotics")
_MODELS = ("llama3", "mixtral", "qwen", "whisper", "diffusion", "encoder", "ranker")
_ENDINGS: dict[Pattern, str] = {
    "train": "pretrain",
    "inference": "serving",
    "data_bound": "finetune",
    "evals": "evals",
    "sandbox": "sandbox",
}
# One in so many nodes has each of these within the hour.
_ECC, _NVLINK, _XID_79, _LOSS, _XID_31 = 40, 80, 250, 500, 60


def first_nodes(scenario: Scenario, count: int) -> Scenario:
    """The scenario with its first ``count`` nodes only, and what concerns them."""
    nodes = scenario.nodes[:count]
    names = {node.name for node in nodes}
    kept = [
        msgspec.structs.replace(run, nodes=tuple(node for node in run.nodes if node in names)) for run in scenario.runs
    ]
    return msgspec.structs.replace(
        scenario,
        nodes=nodes,
        runs=tuple(run for run in kept if run.nodes),
        events=tuple(event for event in scenario.events if event.node in names),
    )


def extend(scenario: Scenario | None, count: int, *, gpus: int, profile: str, seed: int) -> Scenario:
    """A scenario of ``count`` nodes: the given one's, cut short or with made-up nodes behind them."""
    if scenario is not None and count <= len(scenario.nodes):
        return first_nodes(scenario, count)
    taken = {node.name for node in scenario.nodes} if scenario else set()
    missing = count - len(taken)
    width = max(2, len(str(count)))
    names = _names(taken, width)
    repeat = _REPEAT if scenario is None or scenario.repeat is None else int(scenario.repeat)
    made = _Maker([next(names) for _ in range(missing)], gpus, profile, seed, repeat)
    made.fill({run.name for run in scenario.runs} if scenario else set())
    if scenario is None:
        return Scenario(
            name="a made-up fleet",
            repeat=Duration(repeat),
            nodes=tuple(made.nodes),
            runs=tuple(made.runs),
            events=tuple(made.events),
        )
    return msgspec.structs.replace(
        scenario,
        nodes=(*scenario.nodes, *made.nodes),
        runs=(*scenario.runs, *made.runs),
        events=(*scenario.events, *made.events),
    )


def _names(taken: set[str], width: int) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        name = f"gpu-node-{number:0{width}d}"
        if name not in taken and f"gpu-node-{number:02d}" not in taken:
            yield name


class _Maker:
    """Fills nodes with runs, one run after the other, until none is left."""

    def __init__(self, names: list[str], gpus: int, profile: str, seed: int, repeat: int) -> None:
        self._random = Random(seed)
        self._names = names
        self._gpus = gpus
        self._profile = load_profile(profile)
        self._repeat = repeat
        self.nodes: list[Node] = []
        self.runs: list[Run] = []
        self.events: list[Event] = []

    def fill(self, taken_runs: set[str]) -> None:
        """Make everything."""
        random = self._random
        left = list(self._names)
        number = 0
        weights = [weight for _, weight, _ in _KINDS]
        while left:
            pattern, _, sizes = random.choices(_KINDS, weights)[0]
            size = min(random.choice(sizes), len(left))
            names, left = left[:size], left[size:]
            cut = pattern == "evals" and self._profile.mig and random.random() < 0.5
            layout = {self._profile.mig[0].profile: 7} if cut else None
            self.nodes += [
                Node(
                    name=name,
                    profile=self._profile.key,
                    gpus=self._gpus,
                    mig=(Mig(layout=layout),) if layout else (),
                )
                for name in names
            ]
            if pattern is not None:
                number += 1
                run = self._run(pattern, names, number)
                if run.name not in taken_runs:
                    self.runs.append(run)
            for name in names:
                self._mishaps(name)
            if pattern == "train" and len(names) >= 4 and random.random() < 0.3:
                self._heat(random.choice(names))

    def _run(self, pattern: Pattern, names: list[str], number: int) -> Run:
        random = self._random
        return Run(
            name=f"{random.choice(_MODELS)}-{_ENDINGS[pattern]}-{number}",
            pattern=pattern,
            nodes=tuple(names),
            project=random.choice(_PROJECTS),
            step=Duration(random.randrange(1800, 9000)),
            communicate=round(random.uniform(0.1, 0.3), 2),
            checkpoint_every=Duration(random.randrange(8, 40) * _MINUTE),
            checkpoint_takes=Duration(random.randrange(10, 45) * _SECOND),
        )

    def _moment(self, lasts: int) -> Duration:
        return Duration(self._random.randrange(0, max(1, self._repeat - lasts)))

    def _heat(self, node: str) -> None:
        random = self._random
        lasts = min(random.randrange(10, 35) * _MINUTE, self._repeat // 2)
        self.events.append(
            Heat(
                node=node,
                gpu=random.randrange(self._gpus),
                at=self._moment(lasts),
                lasts=Duration(lasts),
                celsius=min(86, self._hottest()),
                speed=round(random.uniform(0.5, 0.8), 2),
            )
        )

    def _hottest(self) -> int:
        cool = self._profile.temperature
        if cool.limit_offsets is not None:
            return cool.limit_offsets.limit
        return cool.thresholds.gpu_max if cool.thresholds is not None else cool.full

    def _mishaps(self, node: str) -> None:
        random = self._random
        lasts = Duration(self._repeat // 2)
        gpu = random.randrange(self._gpus)
        if self._profile.ecc and random.randrange(_ECC) == 0:
            rate = random.choice((6, 30, 120))
            self.events.append(Ecc(node=node, gpu=gpu, at=self._moment(lasts), lasts=lasts, correctable_per_hour=rate))
        nvlink = self._profile.nvlink
        if nvlink is not None and random.randrange(_NVLINK) == 0:
            error = "symbol" if nvlink.version >= 5 else "replay"
            at, link, rate = self._moment(lasts), random.randrange(nvlink.links), random.choice((20, 200, 2000))
            self.events.append(Nvlink(node=node, gpu=gpu, at=at, lasts=lasts, error=error, link=link, per_hour=rate))
        if random.randrange(_XID_79) == 0:
            self.events.append(Xid(node=node, gpu=gpu, at=self._moment(lasts), lasts=lasts, code=79, lost=True))
        elif random.randrange(_LOSS) == 0:
            self.events.append(Loss(node=node, gpu=gpu, at=self._moment(lasts), lasts=lasts))
        if random.randrange(_XID_31) == 0:
            self.events.append(Xid(node=node, gpu=gpu, at=self._moment(0), code=31))
