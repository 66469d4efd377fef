"""What training processes report through the exporter."""

from __future__ import annotations

from gpufleet.metrics.family import Facts, Family, Group, Kind, counter, gauge

# From the exporter, which knows who holds the GPU; only the rank is what the process says of itself.
_RUN = ("project", "run", "task", "attempt", "node", "rank")
_NOT_YET: Facts = {"served": False}

TRAINING = Group(
    "Training",
    "Reported by the training processes themselves; `project`, `run`, `task`, `attempt` and `node` are the exporter's "
    "knowledge, so that a process can not pass for another.",
    (
        gauge("train_info", "A training process, always 1.", (*_RUN, "framework", "world_size"), **_NOT_YET),
        counter("train_steps_total", "Optimizer steps.", _RUN, **_NOT_YET),
        gauge("train_last_step_timestamp_seconds", "Unix time of the last optimizer step.", _RUN, **_NOT_YET),
        Family(
            name="train_step_duration_seconds",
            kind=Kind.HISTOGRAM,
            help="Duration of an optimizer step.",
            labels=_RUN,
            served=False,
        ),
        counter("train_tokens_total", "Tokens trained on.", _RUN, **_NOT_YET),
        gauge("train_loss", "Loss, as last reported.", _RUN, **_NOT_YET),
        gauge("train_grad_norm", "Norm of the gradient, as last reported.", _RUN, **_NOT_YET),
        gauge("train_learning_rate", "Learning rate, as last reported.", _RUN, **_NOT_YET),
        counter("train_nonfinite_steps_total", "Steps whose loss or gradient was not a number.", _RUN, **_NOT_YET),
        counter("train_checkpoints_total", "Checkpoints, by outcome.", (*_RUN, "outcome"), **_NOT_YET),
        gauge("train_last_checkpoint_timestamp_seconds", "Unix time of the last good checkpoint.", _RUN, **_NOT_YET),
        counter("train_checkpoint_duration_seconds_total", "Time spent on checkpoints.", _RUN, **_NOT_YET),
        counter("train_restarts_total", "Times that the run's processes were started again.", _RUN, **_NOT_YET),
    ),
)
