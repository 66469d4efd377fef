"""What happened before to the same board, or by the same owner: kept by UUID for 30 days, whatever boot and slot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpufleet.faults.condition_rows import LOST
from gpufleet.faults.entry import FaultClass, heaviest
from gpufleet.model.fault import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.faults.case import Case
    from gpufleet.faults.verdict import Verdict

DAY = 86_400.0
KEPT_SECONDS = 30 * DAY
MOST_ISOLATIONS = 3
"""Times a day that one owner's programs, not the hardware, may isolate a GPU of this node."""
_MOST_BOARDS = 24
_MOST_TOKENS = 12
_MOST_STAMPS = 4
_MOST_TENANTS = 32

_OFF_THE_BUS = ("79", LOST)
_SYSTEM_PROCESSOR = ("119", "120")
_SUSPICIOUS = frozenset({"13", "31"})


@dataclass(slots=True)
class Stamp:
    """One incident of the past."""

    at: float
    lineage: str
    """The incident that began it, so that it is not counted as its own repetition."""
    tenant: str = ""
    unit: str = ""


@dataclass(slots=True)
class Repeats:
    """Incidents by board and token, and isolations by owner. Newest last everywhere."""

    boards: dict[str, dict[str, list[Stamp]]] = field(default_factory=dict)
    isolations: dict[str, list[Stamp]] = field(default_factory=dict)

    def record(self, uuid: str, tokens: Iterable[str], stamp: Stamp) -> None:
        """Keep that an incident with these tokens happened to a board."""
        board = self.boards.pop(uuid, {})
        # Put back at the end: the board that was quiet longest is the first to be forgotten.
        self.boards[uuid] = board
        while len(self.boards) > _MOST_BOARDS:
            del self.boards[next(iter(self.boards))]
        for token in tokens:
            _append(board, token, stamp, _MOST_TOKENS)

    def count(self, uuid: str, tokens: Iterable[str], since: float, lineage: str) -> int:
        """Incidents of a board with one of these tokens since then, other than those of ``lineage``."""
        board = self.boards.get(uuid, {})
        found = {stamp.lineage for token in tokens for stamp in board.get(token, ()) if stamp.at >= since}
        return len(found - {lineage})

    def of(self, uuid: str, now: float) -> dict[str, int]:
        """Incidents of a board in the last 30 days by token, for a person."""
        board = self.boards.get(uuid, {})
        counts = {token: sum(stamp.at >= now - KEPT_SECONDS for stamp in stamps) for token, stamps in board.items()}
        return {token: count for token, count in counts.items() if count}

    def isolated(self, tenant: str, now: float, lineage: str) -> int:
        """Times that an owner's programs isolated a GPU in the last day, other than by ``lineage``."""
        stamps = self.isolations.get(tenant, ())
        return len({stamp.lineage for stamp in stamps if stamp.at >= now - DAY} - {lineage})

    def record_isolation(self, tenant: str, stamp: Stamp) -> None:
        """Keep that an owner's program isolated a GPU."""
        _append(self.isolations, tenant, stamp, _MOST_TENANTS)

    def is_suspect(self, case: Case, token: str) -> bool:
        """Whether the same fault of programs of two owners or more within a day points to the GPU.

        A kernel's exception (13) has to come from the same place of the GPU each time.
        """
        if token not in _SUSPICIOUS or case.uuid is None or not case.owner.tenant:
            return False
        stamps = self.boards.get(case.uuid, {}).get(token, ())
        tenants = {
            stamp.tenant
            for stamp in stamps
            if stamp.at >= case.last_at - DAY
            and stamp.tenant
            and (token != _EXCEPTION or stamp.unit == case.unit != "")
        }
        return bool(tenants - {case.owner.tenant})

    def adapt(self, verdict: Verdict, case: Case, at: float, link: int | None) -> Verdict:
        """What an event means on a board with this past."""
        if case.uuid is None:
            return verdict

        def before(tokens: tuple[str, ...], seconds: float) -> bool:
            return case.uuid is not None and self.count(case.uuid, tokens, at - seconds, case.lineage) > 0

        token = verdict.token
        if token in _OFF_THE_BUS and before(_OFF_THE_BUS, KEPT_SECONDS):
            return replace(
                verdict,
                action=Action.REPLACE,
                remedy="It fell off the bus before, within a month: have slot, power and board inspected or replaced.",
            )
        if token in _SYSTEM_PROCESSOR and before(_SYSTEM_PROCESSOR, 7 * DAY):
            return replace(
                verdict,
                fault_class=FaultClass.HARDWARE,
                remedy=f"{verdict.remedy} It came back within a week: treat it as the board's fault.",
            )
        if token == _CONTAINED and before((_CONTAINED,), DAY):
            return replace(verdict, isolates=True, action=heaviest(verdict.action, Action.RESET_GPU))
        if token == _NO_PROGRESS and before((_NO_PROGRESS,), DAY):
            return replace(verdict, action=heaviest(verdict.action, Action.RESET_GPU))
        if token == _LINK and verdict.needs_repeat and link is not None and before((link_token(link),), DAY):
            return replace(
                verdict, isolates=True, needs_repeat=False, action=heaviest(verdict.action, Action.RESET_GPU)
            )
        return verdict

    def forget(self, now: float) -> None:
        """Let go of what is older than it counts."""
        for table in (*self.boards.values(), self.isolations):
            for key, stamps in list(table.items()):
                kept = [stamp for stamp in stamps if stamp.at >= now - KEPT_SECONDS]
                if kept:
                    table[key] = kept
                else:
                    del table[key]
        for uuid in [uuid for uuid, board in self.boards.items() if not board]:
            del self.boards[uuid]


_EXCEPTION, _CONTAINED, _NO_PROGRESS, _LINK = "13", "94", "8", "74"


def link_token(link: int) -> str:
    """What faults of one link are counted by: the same link again is a fault, another one may be chance."""
    return f"74 link {link}"


def _append(table: dict[str, list[Stamp]], key: str, stamp: Stamp, most: int) -> None:
    stamps = table.setdefault(key, [])
    if not any(each.lineage == stamp.lineage for each in stamps):
        stamps.append(stamp)
        del stamps[:-_MOST_STAMPS]
    while len(table) > most:
        del table[min(table, key=lambda each: table[each][-1].at)]
