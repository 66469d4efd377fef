"""Carries out what the ledger says: marks nodes, moves and refunds, releases; and notices what people did by hand.

Each round begins with what the ledger and the nodes say now, and every step is one that may be repeated: so a round may
be cut off anywhere, and two replicas may run theirs at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpufleet.logs import OnChange
from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.audit import AuditError
from gpufleet.quarantine.committer import NotRecordedError
from gpufleet.quarantine.policy import Mode
from gpufleet.quarantine.record import Outcome, Record, Stage, Step, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpufleet.quarantine.actuators import Actuator
    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.committer import Committer
    from gpufleet.quarantine.decide import Session
    from gpufleet.quarantine.incident import Key
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Decision
    from gpufleet.quarantine.view import View

_log = logging.getLogger(__name__)

_LEAVE = "leave"
"""The step for a node that somebody else has out, where that leaves no room for a mark of ours."""
_MARKS = frozenset({"cordon", "drain", _LEAVE})
"""Steps that take the node out."""
_DONE = frozenset({Outcome.DONE, Outcome.ALREADY})
_KEPT_STEPS = 256
_BY_HAND = "a person, by hand"
REFUND_FOR = 900.0
"""Seconds after the mark for which pods that died of the fault are still looked for: a Job's replacements may have died
on the same GPU before the node was out, and peers take a while to give up."""


class Worker:
    """Rounds over the ledger. ``plan`` stands in for the actuator in a dry run; ``told`` hears of each new step."""

    def __init__(
        self,
        committer: Committer,
        actuator: Actuator,
        plan: Actuator,
        policy: Policy,
        audit: Audit,
        *,
        clock: Callable[[], float],
        told: Callable[[Record, Step], None],
        decided: Callable[[Key, Decision], object],
    ) -> None:
        self._committer = committer
        self._actuator = plan if policy.mode is Mode.DRY_RUN else actuator
        self._plan = plan
        self._policy = policy
        self._audit = audit
        self._clock = clock
        self._told = told
        self._decided = decided
        self._failures = OnChange(_log)

    def round(self) -> bool:
        """Do everything that is to be done now; whether anything is left that should be tried again soon.

        Never raises: what failed is logged, once, and tried in the next round.
        """
        try:
            left = self._round()
        except UnobservableError as error:
            self._failures.failed("round", "the nodes cannot be seen: nothing is done", str(error))
            return True
        except NotRecordedError as error:
            self._failures.failed("round", "the ledger cannot be written: nothing is done", str(error))
            return True
        except AuditError as error:
            self._failures.failed("round", "the audit cannot be written: nothing is done", str(error))
            return True
        self._failures.over("round", "a round has ended as it should")
        return left

    def release(self, keys: Iterable[Key]) -> None:
        """Take our marks off at once, where the ledger says that they shall go. Never raises, as a round."""
        try:
            for key in keys:
                record = self._now().get(key)
                if record is not None and record.stage is Stage.RELEASING:
                    self._release(record)
        except (UnobservableError, NotRecordedError, AuditError) as error:
            self._failures.failed("release", "a node is not given back yet", str(error))

    def _round(self) -> bool:
        book, view = self._committer.fresh()
        self._notice(view, book)
        for key, decision in self._commit(lambda session: session.again()):
            self._decided(key, decision)
        left = False
        for record in sorted(self._now().values(), key=lambda each: (each.decided_at, each.key)):
            try:
                left |= self._carry_out(record)
            except UnobservableError as error:
                # Its own trouble: the others are still dealt with.
                self._failures.failed(str(record.key), "an incident is not dealt with", str(error))
                left = True
        return left

    def _notice(self, view: View, book: Book) -> None:
        """Take what a person did to a node for what it means: a node that takes work again was released."""
        freed = []
        for record in book.records.values():
            if record.stage not in {Stage.MARKED, Stage.HELD}:
                continue
            node = view.nodes.get(record.node)
            # A node that is gone, or came back without our mark, is another one: nothing of ours is on it.
            if node is None or not node.held_out or (node.mark is None and not record.was_cordoned):
                freed.append(record.key)
        self._take_off(view, book)
        if freed:
            self._commit(lambda session: session.release(freed, _BY_HAND))
            for key in freed:
                self._audit.note("released", incident=str(key), by=_BY_HAND)

    def _take_off(self, view: View, book: Book) -> None:
        """Release once more what bears the mark of an incident that was released.

        Another replica was about to mark the node while this one released it: it saw no mark, and made one.
        """
        by_name = {str(key): record for key, record in book.records.items()}
        for node in view.nodes.values():
            record = by_name.get(node.mark.incident) if node.mark is not None else None
            if record is not None and record.stage is Stage.RELEASED and record.node == node.name:
                self._commit(_release_again(record.key, self._clock()))

    def _carry_out(self, record: Record) -> bool:
        if record.stage is Stage.RESERVED:
            record = self._mark(record)
        if record.stage is Stage.RELEASING:
            return self._release(record)
        if record.stage is Stage.MARKED:
            return self._deal_with_runs(record)
        if record.decision.verdict is Verdict.PLAN and not record.steps:
            self._keep(record, (*self._plan.mark(record), *self._plan.move(record)))
        return record.stage is Stage.RESERVED

    def _mark(self, record: Record) -> Record:
        steps = self._actuator.mark(record)
        outcomes = {step.outcome for step in steps if step.action in _MARKS}
        now = self._clock()
        if outcomes & _DONE:
            theirs = record.was_cordoned or any(step.action == _LEAVE for step in steps)
            record = replace(record, stage=Stage.MARKED, marked_at=now, changed_at=now, was_cordoned=theirs)
        elif Outcome.REFUSED in outcomes:
            # Somebody has taken back what we had out already: what is left of our mark comes off.
            record = replace(record, stage=Stage.RELEASING, released_by=_BY_HAND, changed_at=now)
        elif Outcome.GONE in outcomes:
            record = replace(record, stage=Stage.RELEASED, released_by="nobody: the node is gone", changed_at=now)
        return self._keep(record, steps)

    def _deal_with_runs(self, record: Record) -> bool:
        steps: list[Step] = []
        if self._policy.retries.move:
            steps += self._actuator.move(record)
        if self._policy.retries.refund and record.incident.refund:
            refunds = self._actuator.refund(record)
            steps += refunds
            given = {step.target.rpartition("@")[2] for step in refunds if step.action == "refund" and _is_done(step)}
            record = replace(record, refunded=tuple(sorted({*record.refunded, *given})))
        planned = any(step.outcome is Outcome.PLANNED for step in steps)
        open_still = planned or any(not step.is_final for step in steps)
        watched = record.incident.refund and self._clock() < (record.marked_at or 0.0) + REFUND_FOR
        if not open_still and not watched:
            record = replace(record, stage=Stage.HELD, changed_at=self._clock())
        self._keep(record, steps)
        return open_still

    def _release(self, record: Record) -> bool:
        others = [
            each
            for each in self._now().values()
            if each.node == record.node and each.key != record.key and each.takes_place
            if each.stage is not Stage.RELEASING
        ]
        steps = self._actuator.release(record, last=not others)
        if all(step.is_final and step.outcome is not Outcome.PLANNED for step in steps):
            record = replace(record, stage=Stage.RELEASED, changed_at=self._clock())
        self._keep(record, steps)
        return record.stage is not Stage.RELEASED

    def _keep(self, record: Record, steps: Iterable[Step]) -> Record:
        """Note in the ledger how far a record is, unless it was released meanwhile; and tell of what is new."""
        new = [step for step in steps if step not in record.steps]
        known = {(step.action, step.target): step for step in record.steps}
        for step in new:
            known.pop((step.action, step.target), None)
            known[step.action, step.target] = step
        kept = replace(record, steps=tuple(known.values())[-_KEPT_STEPS:])

        def put(session: Session) -> Record:
            now = session.record(record.key)
            if now is None:
                return kept
            newer = now.stage in {Stage.RELEASING, Stage.RELEASED} and kept.stage is not Stage.RELEASED
            # Another payload may have told of a further holder while we were at work.
            merged = replace(
                kept,
                incident=now.incident.joined(kept.incident),
                stage=now.stage if newer else kept.stage,
                released_by=now.released_by or kept.released_by,
                resolved_at=now.resolved_at,
                heard_at=now.heard_at,
                refunded=tuple(sorted({*now.refunded, *kept.refunded})),
            )
            session.put(merged)
            return merged

        merged: Record = self._committer.apply(put, needs_view=False, wait=30.0)
        for step in new:
            if step.outcome is Outcome.FAILED:
                self._failures.failed(f"{record.key} {step.action}", f"{step.action} failed", step.detail)
            self._told(merged, step)
        return merged

    def _commit(self, change: Callable[[Session], Any]) -> Any:  # noqa: ANN401 - whatever the change returns
        return self._committer.apply(change, wait=30.0)

    def _now(self) -> dict[Key, Record]:
        book = self._committer.book
        return {} if book is None else dict(book.records)


def _release_again(key: Key, now: float) -> Callable[[Session], None]:
    def change(session: Session) -> None:
        record = session.record(key)
        if record is not None and record.stage is Stage.RELEASED:
            session.put(replace(record, stage=Stage.RELEASING, changed_at=now))

    return change


def _is_done(step: Step) -> bool:
    return step.outcome in _DONE
