"""What a training process says of its progress, and who the exporter knows it to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """One process of a training run: whose it is the exporter knows, the rest it says itself. Empty is unknown."""

    project: str = ""
    run: str = ""
    task: str = ""
    attempt: str = ""
    rank: str = ""
    framework: str = ""
    world_size: str = ""


@dataclass(frozen=True, slots=True)
class Observations:
    """What a histogram counts."""

    counts: tuple[int, ...]
    """Observations up to each bound of the family, and last all of them: each at least the one before."""
    sum: float


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """What one process has told by now; ``None`` is what it has not told. Counts are since the process started."""

    who: TrainingProcess
    steps: int | None = None
    last_step_at: float | None = None
    """Unix time."""
    step_durations: Observations | None = None
    """Seconds."""
    tokens: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    nonfinite_steps: int | None = None
    checkpoints: tuple[tuple[str, int], ...] = ()
    """(outcome, how many)."""
    last_checkpoint_at: float | None = None
    """Unix time of the last one that succeeded."""
    checkpoint_seconds: float | None = None
    restarts: int | None = None
    """Of the run: the processes before this one."""
