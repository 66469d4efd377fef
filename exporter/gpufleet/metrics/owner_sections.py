"""Series of holders and of what GPU time costs. Pure.

Both stay while a GPU is down: whoever holds it pays for it all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import SLICE, Family
from gpufleet.metrics.labels import pairs
from gpufleet.model.meter import Account, MeterView, Price
from gpufleet.model.owner import Hold, Holding, OwnersView
from gpufleet.model.readings import Number

Describe = Callable[..., tuple[str, Sequence[tuple[Family, str]]]]
"""Gives the subject's labels and, for each value, the family and the other labels."""
Row = tuple[Describe, tuple[object, ...], tuple[Number | None, ...]]

_IDENTITY = ("rank", "attempt", "workload_user", "workload_job")
_WORKLOAD = ("workload_namespace", "workload_pod", "workload_container")


def holdings_by_gpu(owners: OwnersView) -> Mapping[str, list[Holding]]:
    """Holdings of each physical GPU, in their order."""
    found: dict[str, list[Holding]] = {}
    for holding in owners.holdings:
        found.setdefault(holding.uuid, []).append(holding)
    return found


def prices_by_gpu(meter: MeterView) -> Mapping[str, Price]:
    """The price of each GPU that has one."""
    return {price.uuid: price for price in meter.prices}


def owner_row(node: str, number: int, holdings: Sequence[Holding]) -> Row:
    """The holders of one GPU: a share each, and who they are."""
    values: list[Number] = []
    for holding in holdings:
        values += (holding.share, 1) if holding.hold is Hold.HELD else (holding.share,)
    return describe_owners, (node, number, tuple(holdings)), tuple(values)


def describe_owners(node: str, number: int, holdings: tuple[Holding, ...]) -> tuple[str, list[tuple[Family, str]]]:
    """A share each; what nobody holds has no other identity."""
    info, share = FAMILIES["gpu_owner_info"], FAMILIES["gpu_owner_share"]
    described = []
    for holding in holdings:
        work = holding.workload
        subject = [
            ("node", node),
            *zip(SLICE, (str(number), holding.uuid, holding.mig_uuid), strict=True),
            ("project", holding.project),
            ("run", work.run),
            ("task", work.task),
        ]
        workload = [(name, getattr(work, name)) for name in _WORKLOAD]
        described.append((share, pairs(subject + workload)))
        if holding.hold is Hold.HELD:
            identity = [(name, getattr(work, name)) for name in _IDENTITY]
            described.append((info, pairs([*subject, *identity, *workload, *work.labels])))
    return "", described


def meter_row(node: str, meter: MeterView) -> Row:
    """The totals of every account that is shown."""
    return describe_accounts, (node, meter.accounts), meter.values


def describe_accounts(node: str, accounts: tuple[Account, ...]) -> tuple[str, list[tuple[Family, str]]]:
    """As many series an account as a meter has columns."""
    allocated, productive = FAMILIES["gpu_allocated_seconds_total"], FAMILIES["gpu_productive_seconds_total"]
    cost, unused = FAMILIES["gpu_cost_total"], FAMILIES["gpu_unused_cost_total"]
    described = []
    for account in accounts:
        billed = pairs(
            (
                ("node", node),
                ("gpu", str(account.gpu)),
                ("uuid", account.uuid),
                ("project", account.project),
                ("run", account.run),
                ("task", account.task),
            )
        )
        money = f"{billed},{pairs((('currency', account.currency),))}" if account.currency else billed
        described += [
            (allocated, billed),
            (productive, billed),
            (cost, money),
            (unused, f'{money},reason="idle"'),
            (unused, f'{money},reason="down"'),
        ]
    return "", described


def self_rows(owners: OwnersView, meter: MeterView) -> Iterator[Row]:
    """What gpufleet says of its own knowledge of holders; nothing where there is none to be had."""
    sources = tuple([source for source, _ in owners.refreshed_at])
    if sources:
        yield describe_refreshes, (sources,), (owners.conflicts, *[at for _, at in owners.refreshed_at])
    if meter.accounts or meter.gaps:
        yield describe_gaps, (), (meter.unbilled_seconds,)


def describe_refreshes(sources: tuple[str, ...]) -> tuple[str, list[tuple[Family, str]]]:
    """Conflicts, and each source's last answer."""
    refreshed = FAMILIES["gpufleet_owners_last_refresh_timestamp_seconds"]
    return "", [
        (FAMILIES["gpufleet_owner_conflicts_total"], ""),
        *[(refreshed, pairs((("source", source),))) for source in sources],
    ]


def describe_gaps() -> tuple[str, list[tuple[Family, str]]]:
    """Time that was billed to nobody."""
    return "", [(FAMILIES["gpufleet_unbilled_gpu_seconds_total"], "")]
