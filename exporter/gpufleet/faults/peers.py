"""Faults that look like several and are one: echoes on other GPUs, and patterns over the whole node. Pure questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults.condition_rows import LOST, MISSING, RECOVERY
from gpufleet.faults.entry import FaultClass
from gpufleet.faults.settling import CHAIN_SECONDS, PROPAGATION_SECONDS
from gpufleet.model.fault import Blame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.faults.case import Case
    from gpufleet.faults.verdict import Verdict

PATTERN_SECONDS = 60.0
GPUS_OF_A_PROGRAM = 3
GPUS_OF_A_NODE = 2

# What takes a GPU's links down with it, or leaves its peers without an answer.
_SILENCING = frozenset({"79", LOST, MISSING, "167", "173", "143", "62", "169", "120", "119", "175", "48", "95", "140"})
_OFF_THE_BUS = frozenset({"79", LOST, MISSING, "167", "119", "175"})
CONFIRMING = frozenset({"74", "45", "149"})
"""What a GPU reports when the switch at its link failed."""


def follows(verdict: Verdict) -> bool:
    """Whether an event on a peer can be nothing but the consequence of a fault elsewhere."""
    return verdict.link or verdict.rank is None or verdict.token in {"43", "45"}


def source_of(case: Case, others: Iterable[Case]) -> Case | None:
    """The case that this one only echoes; ``None`` when it stands for itself."""
    if not _may_be_echo(case):
        return None
    found = [other for other in others if _is_other(case, other) and _explains(other, case)]
    return min(found, key=_seniority, default=None)


def _may_be_echo(case: Case) -> bool:
    fresh = case.fresh()
    tokens = [seen.verdict for seen in fresh.values() if seen.verdict.opens and seen.verdict.token != RECOVERY]
    return all(verdict.link for verdict in tokens) and (bool(tokens) or _only_removals(case))


def _only_removals(case: Case) -> bool:
    """Channels were removed (45) for no reason that this GPU gave."""
    return set(case.seen) == {"45"}


def _is_other(case: Case, other: Case) -> bool:
    return other.address not in {case.address, ""} and other.yielded_to is None


def _explains(source: Case, echo: Case) -> bool:
    silent = [seen.first_at for token, seen in source.seen.items() if token in _SILENCING]
    # A switch sees a link drop before the driver notices that the GPU behind it is gone.
    early = CHAIN_SECONDS if echo.switch else PROPAGATION_SECONDS
    if any(-early <= echo.started_at - at <= CHAIN_SECONDS for at in silent):
        return True
    links_only = _may_be_echo(source)
    if not links_only and any(0 <= echo.started_at - at <= CHAIN_SECONDS for at in source.asking.values()):
        return True  # the driver wants that GPU reset before anything else works
    if not abs(echo.started_at - source.began_at) <= CHAIN_SECONDS:
        return False
    root = source.judged.root
    if root is None or not root.link or not links_only:
        return False
    if _only_removals(echo):
        return source.switch and echo.started_at >= source.began_at - PROPAGATION_SECONDS
    # Both ends of a link report it, and all GPUs that use it: one incident, named after the one that says most.
    return _seniority(source) < _seniority(echo)


def _seniority(case: Case) -> tuple[int, bool, int, float, str]:
    root = case.judged.root
    rank, needs_repeat, kind = (1 << 30, True, 3) if root is None else root.order[:3]
    return rank, needs_repeat, kind, case.started_at, case.address


def program_on_many(case: Case, others: Iterable[Case]) -> list[Case]:
    """Cases of one program that fails on three GPUs or more within a minute, the first one first; empty when none."""
    if not _is_programs(case):
        return []
    near = [
        other
        for other in others
        if _is_programs(other)
        and (
            0 <= case.began_at - other.began_at <= PATTERN_SECONDS
            or (other.of_application and abs(case.began_at - other.last_at) <= PATTERN_SECONDS)
        )
    ]
    if len({address for other in near for address in (other.address, *other.members)}) < GPUS_OF_A_PROGRAM:
        return []
    return sorted(near, key=lambda each: (each.began_at, each.address))


def _is_programs(case: Case) -> bool:
    assessed = case.judged
    return (
        assessed.root is not None
        and assessed.blame is Blame.APPLICATION
        and assessed.root.fault_class in {FaultClass.APPLICATION, FaultClass.EITHER}
        and case.address != ""
        and not case.switch
        and case.yielded_to is None
    )


def off_the_bus_together(case: Case, others: Iterable[Case]) -> list[Case]:
    """Cases of two GPUs or more that left the bus within a minute, the first one first; empty when there is one."""
    at = _left_at(case)
    if at is None:
        return []
    near = [
        (left, other)
        for other in others
        if other.address != "" and (left := _left_at(other)) is not None and abs(left - at) <= PATTERN_SECONDS
    ]
    if len({other.address for _, other in near}) < GPUS_OF_A_NODE:
        return []
    return [other for _, other in sorted(near, key=lambda each: (each[0], each[1].address))]


def _left_at(case: Case) -> float | None:
    return min((seen.first_at for token, seen in case.seen.items() if token in _OFF_THE_BUS), default=None)
