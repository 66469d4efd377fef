"""Letting go of the driver on request, and taking it up again. Used by the poll thread alone.

An open ``/dev/nvidia*`` blocks a GPU reset, a change of MIG mode and an unload of the driver; this is how an
administrator has them all closed without losing the endpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpufleet.collect.lifecycle import Lifecycle, Phase
from gpufleet.collect.options import QuiesceOutcome, World
from gpufleet.collect.roster import Roster

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""A poll that is under way is waited for; a call that takes longer than this is in the way."""

Answer = Callable[[QuiesceOutcome], None]


class Quiesce:
    """Whether the driver is let go of: from ``begin`` until ``resume`` or until the longest time has passed."""

    def __init__(self, longest: float, world: World, roster: Roster, lifecycle: Lifecycle) -> None:
        self.active = False
        """No session is opened while this is true."""
        self._longest = longest
        self._world = world
        self._roster = roster
        self._lifecycle = lifecycle
        self._waiting: list[Answer] = []
        self._begun = 0.0
        self._ends: float | None = None

    def begin(self, answer: Answer, *, for_ever: bool = False) -> None:
        """Release every handle, then ``answer``; at once when none is held."""
        now = self._world.monotonic()
        overdue = self._lifecycle.overdue(now)
        if overdue is not None or self._roster.anything_out():
            # Known to be in the way: the polls of the other GPUs need not be interrupted to find that out.
            calls = self._roster.calls_out() + ([] if overdue is None else [overdue])
            answer(QuiesceOutcome(ok=False, blocked_by="; ".join(calls)))
            return
        self.active, self._begun = True, now
        self._ends = None if for_ever else now + self._longest
        self._waiting.append(answer)
        if self._lifecycle.phase is Phase.CLOSED:
            self.released()
        else:
            self._lifecycle.let_go()

    def released(self) -> None:
        """The session is closed: answer those who wait."""
        held = self._world.open_device_files()
        outcome = QuiesceOutcome(ok=True)
        if held:
            # Nothing of ours: another library in this process, or a descriptor that was inherited.
            outcome = QuiesceOutcome(ok=False, blocked_by=f"open descriptors: {', '.join(held)}")
        else:
            log.info("the driver is let go of")
        self._answer(outcome)

    def check_at(self) -> float:
        """When ``tick`` has to be called next."""
        if not self.active:
            return float("inf")
        if self._waiting:
            return self._begun + PATIENCE_SECONDS
        return float("inf") if self._ends is None else self._ends

    def tick(self, now: float) -> bool:
        """Give up when a call stays out, and resume when the longest time is over; whether either has happened."""
        if not self.active:
            return False
        if self._waiting and now - self._begun >= PATIENCE_SECONDS:
            calls = self._roster.calls_out()
            if self._lifecycle.busy_with is not None:
                calls.append(self._lifecycle.busy_with)
            if not self._lifecycle.events_ended:
                calls.append("nvmlEventSetWait_v2")
            self._give_up("; ".join(calls) or "the driver's handles are still being closed")
        elif not self._waiting and self._ends is not None and now >= self._ends:
            log.warning("quiesced for the longest time allowed: taking the driver up again")
            self.resume()
        return not self.active

    def _give_up(self, calls: str) -> None:
        self.active = False
        self._lifecycle.stay()
        self._answer(QuiesceOutcome(ok=False, blocked_by=calls))

    def _answer(self, outcome: QuiesceOutcome) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(outcome)

    def resume(self) -> None:
        """Open the driver again."""
        if self.active and not self._waiting:
            self.active = False
            log.info("the driver is taken up again")
            self._lifecycle.open_soon()
