"""What of the ledger is kept on disk, and what makes it sound."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpufleet.faults.case import Case
from gpufleet.faults.conditions import Polled
from gpufleet.faults.counts import Counts, Twins
from gpufleet.faults.docket import MOST_OPEN
from gpufleet.faults.repeats import Repeats
from gpufleet.faults.roster import Roster
from gpufleet.faults.stored import StoredError
from gpufleet.model.incident import Incident

VERSION = 1


@dataclass(slots=True)
class State:
    """Everything that outlives the process."""

    boot_id: str | None
    sequence: int
    """Of the last record of the kernel's log that was taken in; -1 before the first."""
    version: int = VERSION
    counts: Counts = field(default_factory=Counts)
    twins: Twins = field(default_factory=Twins)
    cases: list[Case] = field(default_factory=list)
    closed: list[Incident] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    roster: Roster = field(default_factory=Roster)
    polled: dict[str, Polled] = field(default_factory=dict)
    last_faults: dict[str, float] = field(default_factory=dict)
    left_out: int = 0


def sound(state: State) -> None:
    """Raise StoredError where the parts of a state contradict each other."""
    if state.version != VERSION:
        raise StoredError(f"state.version is {state.version}, not {VERSION}: another release wrote it")
    if len(state.cases) > MOST_OPEN * 2:
        raise StoredError(f"state.cases has more than {MOST_OPEN * 2} entries")
    names = [case.id for case in state.cases]
    if len(names) != len(set(names)):
        raise StoredError("state.cases has two incidents of one name")
    for case in state.cases:
        if case.yielded_to is not None and case.yielded_to not in names:
            raise StoredError(f"state.cases: {case.id} waits for {case.yielded_to}, which is not there")
        for token, seen in case.seen.items():
            if seen.verdict.token != token or seen.count < 0:
                raise StoredError(f"state.cases: {case.id} counts {token} under another name")
    for table in (state.counts.xids, state.counts.switches, state.counts.moved):
        if any(tally.count < 1 for codes in table.values() for tally in codes.values()):
            raise StoredError("state.counts has a count below one")
