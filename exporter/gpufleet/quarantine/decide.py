"""The decision on each incident. Pure: the same book, view, policy and moment give the same answer.

A refusal is a decision, too, with its reason. Everything is judged in order, one place at a time, and the place is
taken in the same book that the judgement was made on: whoever writes that book by compare-and-swap has kept the budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.quarantine.book import Book, Seen, Tripped
from gpufleet.quarantine.policy import Mode
from gpufleet.quarantine.record import Decision, Record, Stage, Verdict
from gpufleet.quarantine.standing import HARDWARE, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.quarantine.alerts import Delivery, Resolved
    from gpufleet.quarantine.incident import Incident, Key
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.view import Node, View

_DAY = 86400.0
_LATE = 900.0
"""Seconds for which an unknown node is looked for again."""
_UNKNOWN, _OPTED_OUT = "unknown_node", "opted_out"
_LAST = {Stage.RELEASING, Stage.RELEASED}


class Session:
    """Judges incidents against one book and one view; ``book`` is what it comes to. Used by one thread."""

    def __init__(self, book: Book, view: View, policy: Policy, now: float) -> None:
        self._policy = policy
        self._view = view
        self._now = now
        self._records = dict(book.records)
        self._placed = [at for at in book.placed_at if at > now - policy.budget.window]
        self._seen = {(seen.node, seen.fault): seen for seen in book.seen if seen.at > now - policy.breaker.window}
        self._tripped = book.tripped
        self._before = book
        self._changed = len(self._placed) != len(book.placed_at) or len(self._seen) != len(book.seen)
        self._standing = Standing(book, view, policy, now)
        self.missed_a_node = False
        """A node was asked for that the view does not have: one that was read a while ago may be too old."""

    @property
    def book(self) -> Book:
        """The book with everything that was judged; the very one given when nothing was."""
        if not self._changed:
            return self._before
        return Book(self._records, tuple(self._placed), tuple(sorted(self._seen.values(), key=_when)), self._tripped)

    def deliver(self, delivery: Delivery) -> list[tuple[Key, Decision]]:
        """Judge everything in a payload; decisions in its order."""
        found = [(incident.key, self.judge(incident)) for incident in delivery.firing]
        for resolved in delivery.resolved:
            self.resolve(resolved)
        return found

    def judge(self, incident: Incident) -> Decision:
        """Decide on an incident that is told as firing, or say again what was decided."""
        known = self._records.get(incident.key)
        if known is None:
            return self._decide(incident, None)
        if known.stage in _LAST:
            return Decision(Verdict.SUPPRESS, "released", f"{known.released_by or 'a person'} has released it")
        joined = known.incident.joined(incident)
        if joined != known.incident or known.resolved_at is not None or self._now - known.heard_at > _DAY:
            known = replace(known, incident=joined, heard_at=self._now, resolved_at=None)
            if known.stage is Stage.HELD and joined.holders != self._records[incident.key].incident.holders:
                # Another holder of the same GPU was told later: its pods are still to be dealt with.
                known = replace(known, stage=Stage.MARKED, changed_at=self._now)
            self._put(known)
        return self._decide(known.incident, known) if self._is_open(known) else known.decision

    def again(self) -> list[tuple[Key, Decision]]:
        """Decide once more on everything that waits for room, or for its node to appear, oldest first."""
        waiting = [record for record in self._records.values() if self._waits(record)]
        waiting.sort(key=lambda record: (record.incident.since, record.key))
        return [(record.key, self._decide(record.incident, record)) for record in waiting]

    def _waits(self, record: Record) -> bool:
        if record.stage is not Stage.NONE or record.resolved_at is not None:
            return False
        # A node that was rebooted, or is new, tells of its GPUs before it is known everywhere.
        late = record.decision.reason == _UNKNOWN and self._now - record.decided_at < _LATE
        return record.decision.verdict is Verdict.DEFER or late

    def resolve(self, resolved: Resolved) -> None:
        """Note that an alert has ended. Nothing else follows: a person decides when a node returns."""
        known = self._records.get(resolved.key)
        if known is None or known.resolved_at is not None:
            return
        known = replace(known, resolved_at=resolved.at)
        if known.decision.verdict is Verdict.DEFER:
            known = replace(known, decision=Decision(Verdict.REFUSE, "resolved", "it was over before there was room"))
        self._put(known)

    def release(self, keys: Iterable[Key], who: str) -> None:
        """Let a person have nodes back: their incidents are remembered and do not come back."""
        for key in keys:
            record = self._records.get(key)
            if record is None or record.stage in _LAST:
                continue
            if record.takes_place:
                self._put(replace(record, stage=Stage.RELEASING, released_by=who, changed_at=self._now))
            else:
                self._put(replace(record, stage=Stage.RELEASED, released_by=who, changed_at=self._now))

    def reset_breaker(self) -> None:
        """Close the breaker, and forget the faults that opened it."""
        if self._tripped is not None or self._seen:
            self._tripped = None
            self._seen = {}
            self._changed = True

    def record(self, key: Key) -> Record | None:
        """The record of an incident as it stands now."""
        return self._records.get(key)

    def put(self, record: Record) -> None:
        """Note how far a record was carried out."""
        if self._records.get(record.key) != record:
            self._put(record)

    def _put(self, record: Record) -> None:
        self._records[record.key] = record
        self._changed = True

    def _is_open(self, record: Record) -> bool:
        """Whether what was decided may be decided otherwise now."""
        if record.decision.verdict is Verdict.PLAN:
            return self._policy.mode is Mode.ACT
        # A node may have joined, or lost its label, since.
        return record.decision.verdict is Verdict.DEFER or record.decision.reason in {_UNKNOWN, _OPTED_OUT}

    def _decide(self, incident: Incident, known: Record | None) -> Decision:
        name = self._policy.alerts.node_name(incident.key.node)
        node = self._view.nodes.get(name)
        decision = self._verdict(incident, node)
        if known is not None and known.decision == decision:
            return decision
        record = Record(
            incident,
            decision,
            decided_at=self._now,
            heard_at=self._now,
            node=name,
            pool=node.pool if node else "",
            scope=self._policy.scope(incident),
            stage=Stage.RESERVED if decision.verdict in {Verdict.QUARANTINE, Verdict.JOIN} else Stage.NONE,
            changed_at=self._now,
            was_cordoned=node is not None and node.held_out and node.mark is None,
        )
        self._put(record)
        self._standing.place(record)
        if decision.verdict in {Verdict.QUARANTINE, Verdict.PLAN} and decision.reason != "joined":
            self._placed.append(self._now)
        return decision

    def _verdict(self, incident: Incident, node: Node | None) -> Decision:
        """Refuse what is never acted on, and look for room for the rest."""
        if not incident.isolate:
            return Decision(Verdict.REFUSE, "not_isolating", "the GPU works on: its incident does not isolate")
        age = self._now - incident.since
        if age > self._policy.alerts.stale_after:
            return Decision(Verdict.REFUSE, "stale", f"it began {age / 3600:.1f} hours before it was heard of")
        if node is None:
            self.missed_a_node = True
            name = self._policy.alerts.node_name(incident.key.node)
            return Decision(Verdict.REFUSE, _UNKNOWN, f"there is no node {name} with GPUs")
        if node.opted_out:
            return Decision(Verdict.REFUSE, _OPTED_OUT, f"a label of node {node.name} says that it is left alone")
        return self._bounded(incident, node)

    def _bounded(self, incident: Incident, node: Node) -> Decision:
        """Whether there is room for it now. The breaker hears of it in any case."""
        self._hear(incident, node)
        acts = self._policy.mode is Mode.ACT
        if self._standing.holds(node.name):
            detail = f"node {node.name} is out for another incident"
            return Decision(Verdict.JOIN if acts else Verdict.PLAN, "joined", detail)
        if self._tripped is not None:
            return Decision(Verdict.DEFER, "breaker", self._tripped.detail)
        bound = self._over_cap(incident, node) or self._over_budget(node)
        if bound is not None:
            return bound
        budget = self._policy.budget.ours(self._standing.size[node.pool])
        taken = len(self._standing.ours(node.pool) | {node.name})
        reason = "isolate" if acts else "dry_run"
        return Decision(
            Verdict.QUARANTINE if acts else Verdict.PLAN, reason, f"place {taken} of {budget} in pool {node.pool!r}"
        )

    def _over_cap(self, incident: Incident, node: Node) -> Decision | None:
        if incident.blame == HARDWARE:
            return None
        owners = self._policy.owners
        for tenant in sorted({holder.tenant for holder in incident.holders if holder.tenant}):
            others = self._standing.nodes_of_tenant(tenant) - {node.name}
            if len(others) >= owners.most_nodes:
                return Decision(
                    Verdict.DEFER,
                    "owner_cap",
                    f"faults of {tenant} that need no broken hardware have taken {len(others)} of "
                    f"{owners.most_nodes} nodes",
                )
        return None

    def _over_budget(self, node: Node) -> Decision | None:
        budget, standing = self._policy.budget, self._standing
        size = standing.size[node.pool]
        ours = standing.ours(node.pool)
        if len(ours | {node.name}) > budget.ours(size):
            return Decision(
                Verdict.DEFER,
                "budget",
                f"{len(ours)} of {budget.ours(size)} nodes of pool {node.pool!r} are quarantined",
            )
        # A node that is out already costs nobody anything.
        if not node.out and standing.out_with(node.pool, node.name) > budget.out(size):
            return Decision(
                Verdict.DEFER,
                "out_by_anyone",
                f"{standing.out_with(node.pool, node.name) - 1} of {size} nodes of pool {node.pool!r} are out already",
            )
        if len(self._placed) >= budget.new:
            return Decision(
                Verdict.DEFER, "rate", f"{len(self._placed)} nodes in {budget.window / 60:.0f} minutes; more must wait"
            )
        return None

    def _hear(self, incident: Incident, node: Node) -> None:
        """Tell the breaker, which opens for the fault that is one too many: that one is not acted on any more."""
        mark = (node.name, incident.fault)
        if mark in self._seen or self._now - incident.since > self._policy.breaker.window:
            return
        self._seen[mark] = Seen(self._now, node.name, node.pool, incident.fault)
        self._changed = True
        if self._tripped is not None:
            return
        rules = self._policy.breaker
        minutes = f"{rules.window / 60:.0f} minutes"
        same = {seen.node for seen in self._seen.values() if seen.fault == incident.fault}
        pool = {seen.node for seen in self._seen.values() if seen.pool == node.pool}
        size = self._standing.size[node.pool]
        if len(same) >= rules.same_fault_nodes:
            told = f"fault {incident.fault} on {len(same)} nodes within {minutes}"
            self._tripped = Tripped(self._now, "same_fault", told)
        elif len(pool) > max(1.0, rules.pool_share * size):
            told = f"faults on {len(pool)} of {size} nodes of pool {node.pool!r} within {minutes}"
            self._tripped = Tripped(self._now, "pool_share", told)


def _when(seen: Seen) -> tuple[float, str, str]:
    return seen.at, seen.node, seen.fault
