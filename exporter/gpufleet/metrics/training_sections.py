"""Series of training processes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import Family, le
from gpufleet.metrics.labels import pairs
from gpufleet.model.readings import Number
from gpufleet.model.training import TrainingProcess, TrainingRow

Describe = Callable[..., tuple[str, Sequence[tuple[Family, str, str]]]]
"""Gives the subject's labels and, for each value, the family, the other labels and what follows the family's name."""

_DURATION = FAMILIES["train_step_duration_seconds"]


def training_rows(
    node: str, processes: Sequence[TrainingRow]
) -> Iterator[tuple[Describe, tuple[object, ...], tuple[Number | None, ...]]]:
    """A way to describe, its arguments and the values, for each process."""
    for row in processes:
        outcomes = tuple([outcome for outcome, _ in row.checkpoints])
        durations = row.step_durations
        observed: tuple[Number | None, ...] = (None,) * (len(_DURATION.buckets) + 3)
        if durations is not None and len(durations.counts) == len(_DURATION.buckets) + 1:
            observed = (*durations.counts, durations.sum, durations.counts[-1])
        values: tuple[Number | None, ...] = (
            1,
            row.steps,
            row.last_step_at,
            *observed,
            row.tokens,
            row.loss,
            row.grad_norm,
            row.learning_rate,
            row.nonfinite_steps,
            row.last_checkpoint_at,
            row.checkpoint_seconds,
            row.restarts,
            *[count for _, count in row.checkpoints],
        )
        yield describe_process, (node, row.who, outcomes), values


def describe_process(
    node: str, who: TrainingProcess, outcomes: tuple[str, ...]
) -> tuple[str, list[tuple[Family, str, str]]]:
    """All that a process can tell."""
    subject = pairs(
        (
            ("project", who.project),
            ("run", who.run),
            ("task", who.task),
            ("attempt", who.attempt),
            ("node", node),
            ("rank", who.rank),
        )
    )
    about = pairs((("framework", who.framework), ("world_size", who.world_size)))
    checkpoints = FAMILIES["train_checkpoints_total"]
    return subject, [
        (FAMILIES["train_info"], about, ""),
        (FAMILIES["train_steps_total"], "", ""),
        (FAMILIES["train_last_step_timestamp_seconds"], "", ""),
        *[(_DURATION, pairs((("le", bound),)), "_bucket") for bound in le(_DURATION.buckets)],
        (_DURATION, "", "_sum"),
        (_DURATION, "", "_count"),
        (FAMILIES["train_tokens_total"], "", ""),
        (FAMILIES["train_loss"], "", ""),
        (FAMILIES["train_grad_norm"], "", ""),
        (FAMILIES["train_learning_rate"], "", ""),
        (FAMILIES["train_nonfinite_steps_total"], "", ""),
        (FAMILIES["train_last_checkpoint_timestamp_seconds"], "", ""),
        (FAMILIES["train_checkpoint_duration_seconds_total"], "", ""),
        (FAMILIES["train_restarts_total"], "", ""),
        *[(checkpoints, pairs((("outcome", outcome),)), "") for outcome in outcomes],
    ]
