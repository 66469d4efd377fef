"""What the training processes of a node report: one of each run that trains on it, by the names of its pod. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from zlib import crc32

from gpufleet.model.training import Observations, TrainingProcess, TrainingRow
from gpufleet.simulate import progress
from gpufleet.simulate.gpu import noise
from gpufleet.simulate.holders import ATTEMPT, TASKS, project_of
from gpufleet.simulate.progress import Progress
from gpufleet.simulate.scenario import Run
from gpufleet.simulate.staging import Stage

_TOKENS = 65_536
"""Of one GPU in a step: eight sequences of 8,192."""
_WARM_UP_STEPS = 200
_SCHEDULE_STEPS = 50_000
_LEARNING_RATE = 3e-4


class NodeTraining:
    """The training processes of one node."""

    def __init__(self, stage: Stage, node: str, gpus: int) -> None:
        """``gpus`` is how many GPUs the node has; KeyError when there is no node of that name."""
        self._ranks = [
            _Rank(stage, run, node, gpus if run.gpus is None else len(set(run.gpus)))
            for run in stage.runs_on(node)
            if run.pattern == "train" and run.gpus != ()
        ]

    def rows(self, moment: int, unix: Callable[[int], float]) -> tuple[TrainingRow, ...]:
        """What they have told by ``moment``; ``unix`` makes Unix time of a moment."""
        return tuple([rank.row(moment, unix) for rank in self._ranks if rank.progress.runs(moment)])


class _Rank:
    """One process, which drives all GPUs that its run has on the node."""

    __slots__ = ("_seed", "_steps_before", "_tokens", "_who", "progress")

    def __init__(self, stage: Stage, run: Run, node: str, gpus: int) -> None:
        nodes = list(dict.fromkeys(run.nodes))
        phase = stage.phase(run, run.checkpoint_every)
        self._who = TrainingProcess(
            project=project_of(run),
            run=run.name,
            task=TASKS[run.pattern],
            attempt=ATTEMPT,
            rank=str(nodes.index(node)),
            framework="torchtitan",
            world_size=str(len(nodes)),
        )
        self._tokens = gpus * _TOKENS
        self._steps_before = phase // run.step
        self._seed = crc32(f"{run.name} {node}".encode())
        self.progress = Progress(run, stage.rank(run, node), stage.period, phase)

    def row(self, moment: int, unix: Callable[[int], float]) -> TrainingRow:
        """What it has told by ``moment``; a process that was started anew counts from zero."""
        of_the_run = self.progress.totals(moment)
        began = self.progress.began(moment)
        totals = of_the_run
        if began is not None:
            before = self.progress.totals(began)
            totals = [now - then for now, then in zip(of_the_run, before, strict=True)]
        steps = totals[progress.STEPS]
        last_step, last_checkpoint = self.progress.last_step(moment), self.progress.last_checkpoint(moment)
        trained = of_the_run[progress.STEPS] + self._steps_before
        told = steps > 0
        return TrainingRow(
            who=self._who,
            steps=steps,
            last_step_at=None if last_step is None else unix(last_step),
            step_durations=Observations(progress.cumulative(totals), totals[progress.DURATION] / 1000),
            tokens=steps * self._tokens,
            loss=self._loss(trained) if told else None,
            grad_norm=self._grad_norm(trained) if told else None,
            learning_rate=_learning_rate(trained) if told else None,
            nonfinite_steps=0,
            checkpoints=(("ok", totals[progress.CHECKPOINTS]), ("failed", totals[progress.FAILED])),
            last_checkpoint_at=None if last_checkpoint is None else unix(last_checkpoint),
            checkpoint_seconds=totals[progress.CHECKPOINTS] * self.progress.checkpoint_takes / 1000,
            restarts=of_the_run[progress.RESTARTS],
        )

    def _noise(self, step: int, salt: int) -> float:
        """From -1 to 1, small more often than large; the same for one step."""
        bits = noise(self._seed + salt, step)
        return ((bits & 0xFFFF) + (bits >> 16 & 0xFFFF)) / 0xFFFF - 1

    def _loss(self, step: int) -> float:
        return round(1.85 + 9.0 * math.exp(-0.34 * math.log1p(step / 40)) + 0.03 * self._noise(step, 1), 4)

    def _grad_norm(self, step: int) -> float:
        return round(0.3 + 2.0 / math.sqrt(1 + step / 80) + 0.08 * self._noise(step, 2), 4)


def _learning_rate(step: int) -> float:
    """A warm-up, then half a cosine down to a tenth."""
    cooled = 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / _SCHEDULE_STEPS)))
    return float(f"{_LEARNING_RATE * min(1.0, step / _WARM_UP_STEPS) * cooled:.6g}")
