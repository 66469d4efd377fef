"""A policy in words, with what it comes to on pools of some sizes: what ``gpufleet quarantine check`` prints. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpufleet.durations import format_duration
from gpufleet.quarantine.policy import Mode, Platform

if TYPE_CHECKING:
    from gpufleet.quarantine.policy import Policy

_SIZES = (1, 4, 8, 32, 128, 512, 2048)


def explain(policy: Policy) -> str:
    """Some paragraphs, each line at most 120 characters."""
    return "\n".join(_lines(policy)) + "\n"


def _lines(policy: Policy) -> Iterator[str]:
    alerts, budget, breaker, owners, retries = (
        policy.alerts,
        policy.budget,
        policy.breaker,
        policy.owners,
        policy.retries,
    )
    if policy.mode is Mode.ACT:
        yield f"mode act: nodes of {policy.platform} are taken out."
    else:
        yield "mode dry-run: everything is judged and written down, and nothing else is touched. `mode: act` acts."
    yield ""
    yield "Alerts: those with all of"
    yield from (f"  {matcher}" for matcher in alerts.matchers)
    of = f", of cluster {alerts.cluster} alone" if alerts.cluster else ", of every cluster"
    yield f"and isolate=true{of}. The label {alerts.node_label} is the node's name" + (
        ", up to its first dot." if alerts.short_names else "."
    )
    yield f"An incident older than {format_duration(alerts.stale_after)} when it is first heard of is left alone."
    yield f"Of the whole node are faults like {', '.join(policy.node_faults) or '(none)'}, and those without a GPU."
    yield ""
    yield (
        f"Pools: nodes with one value of the label {policy.nodes.pool_label}."
        if policy.platform is Platform.KUBERNETES
        else "Pools: the partitions of Slurm."
    )
    yield f"  {'nodes of the pool':>18}  {'ours at once':>12}  {'out by anyone':>13}"
    yield from (f"  {size:>18}  {budget.ours(size):>12}  {budget.out(size):>13}" for size in _SIZES)
    yield f"New ones: {budget.new} within {format_duration(budget.window)}, in all pools together."
    yield ""
    yield (
        f"The breaker opens when one fault is on {breaker.same_fault_nodes} nodes, or any faults on more than "
        f"{breaker.pool_share:.0%} of a pool"
    )
    yield f"(two nodes at least), within {format_duration(breaker.window)}. It stops new quarantines, nothing else,"
    yield "until `gpufleet quarantine reset-breaker`."
    yield (
        f"Faults that need no broken hardware take out {owners.most_nodes} node(s) of one tenant within "
        f"{format_duration(owners.window)}."
    )
    yield ""
    if retries.move:
        yield "Runs: what held the broken GPU is moved" + (
            ", without costing a Job a retry." if retries.strip_finalizer else "."
        )
    else:
        yield "Runs: nothing is moved."
    if retries.refund:
        yield (
            f"Retries that a hardware fault has cost are given back: at most {retries.most_per_incident} for an "
            f"incident, {retries.most_per_job} for a job."
        )
    else:
        yield "Retries that are lost stay lost."
