"""Who holds a GPU, and what that costs."""

from __future__ import annotations

from gpufleet.metrics.family import GPU, SLICE, Facts, Group, counter, gauge

_OWNED: Facts = {"core": True, "reported_by": "a source of owners"}
_METERED: Facts = {"core": True, "reported_by": "a source of owners"}
_PRICED: Facts = {"core": True, "reported_by": "a source of owners, and `--prices.file`"}

_OWNER = ("node", *SLICE, "project", "run", "task")
_WORKLOAD = ("workload_namespace", "workload_pod", "workload_container")
_BILLED = ("node", *GPU, "project", "run", "task")

OWNERS = Group(
    "Owners",
    "Who holds each GPU or slice. Per `uuid` the shares sum to 1, what nobody holds included: it has the project "
    "`(unallocated)`, the part of a GPU that no MIG slice covers `(unsliced)`, and `(unknown)` stands for holders that "
    "can't be told because the kubelet or Slurm's files have not answered for too long. Join any GPU series with the "
    "shares on `uuid` to attribute it. `gpu_owner_info` also has the pod labels that the owners' configuration allows, "
    "as `label_…`.",
    (
        gauge(
            "gpu_owner_info",
            "A holder of the GPU or slice, always 1.",
            (
                *_OWNER,
                "rank",
                "attempt",
                "workload_user",
                "workload_job",
                *_WORKLOAD,
            ),
            **_OWNED,
        ),
        gauge(
            "gpu_owner_share",
            "Fraction of the physical GPU that this holder has.",
            (*_OWNER, *_WORKLOAD),
            **_OWNED,
        ),
    ),
)

COST = Group(
    "Cost",
    "Metered at every poll. Unused cost is cost times one minus utilization; time whose utilization is not known has a "
    "cost and no unused cost. Series stay for a while after a run ends.",
    (
        counter("gpu_allocated_seconds_total", "GPU time held, weighted by share.", _BILLED, **_METERED),
        counter("gpu_productive_seconds_total", "GPU time held times utilization.", _BILLED, **_METERED),
        counter("gpu_cost_total", "Price of the GPU time held.", (*_BILLED, "currency"), **_PRICED),
        counter(
            "gpu_unused_cost_total",
            "Price of the GPU time that was held and not used.",
            (*_BILLED, "currency", "reason"),
            **_PRICED,
        ),
        gauge(
            "gpu_price_per_hour",
            "Price of the whole GPU for an hour.",
            (*GPU, "currency"),
            reported_by="`--prices.file`",
            core=True,
        ),
    ),
)
