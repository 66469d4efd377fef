"""What training processes report through the exporter."""

from __future__ import annotations

from gpufleet.metrics.family import Facts, Group, counter, gauge, histogram

# From the exporter, which knows who holds the GPU; only the rank is what the process says of itself.
_RUN = ("project", "run", "task", "attempt", "node", "rank")
_NOT_YET: Facts = {"served": False, "simulated": True}
# Steps take a tenth of a second on one GPU and half a minute on thousands. A quarter more from bound to bound shows who
# is slow, and 23 of them are what a rank can have among its series.
_STEPS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12.5, 15, 20, 30, 60, 120, 300)

TRAINING = Group(
    "Training",
    "Reported by the training processes themselves; `project`, `run`, `task`, `attempt` and `node` are the exporter's "
    "knowledge, so that a process can not pass for another.",
    (
        gauge("train_info", "A training process, always 1.", (*_RUN, "framework", "world_size"), **_NOT_YET),
        counter("train_steps_total", "Optimizer steps.", _RUN, **_NOT_YET),
        gauge("train_last_step_timestamp_seconds", "Unix time of the last optimizer step.", _RUN, **_NOT_YET),
        histogram(
            "train_step_duration_seconds",
            "Duration of an optimizer step.",
            _RUN,
            _STEPS,
            **_NOT_YET,
        ),
        counter("train_tokens_total", "Tokens trained on.", _RUN, **_NOT_YET),
        gauge("train_loss", "Loss, as last reported.", _RUN, **_NOT_YET),
        gauge("train_grad_norm", "Norm of the gradient, as last reported.", _RUN, **_NOT_YET),
        gauge("train_learning_rate", "Learning rate, as last reported.", _RUN, **_NOT_YET),
        counter("train_nonfinite_steps_total", "Steps whose loss or gradient was not a number.", _RUN, **_NOT_YET),
        counter("train_checkpoints_total", "Checkpoints, by outcome: ok or failed.", (*_RUN, "outcome"), **_NOT_YET),
        gauge("train_last_checkpoint_timestamp_seconds", "Unix time of the last good checkpoint.", _RUN, **_NOT_YET),
        counter("train_checkpoint_duration_seconds_total", "Time spent on checkpoints.", _RUN, **_NOT_YET),
        counter("train_restarts_total", "Times that the run's processes were started again.", _RUN, **_NOT_YET),
    ),
)
