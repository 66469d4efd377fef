"""What counts against the bounds at one moment: nodes and places by pool, recent faults, tenants. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from gpufleet.quarantine.policy import Mode
from gpufleet.quarantine.record import Verdict

if TYPE_CHECKING:
    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Record
    from gpufleet.quarantine.view import View

HARDWARE = "hardware"
"""The class of faults that no program can bring about."""


class Standing:
    """Counts over a book and a view, kept up to date as places are taken: judging thousands of alerts stays linear."""

    def __init__(self, book: Book, view: View, policy: Policy, now: float) -> None:
        self._policy = policy
        self._view = view
        self._now = now
        self.size: Counter[str] = Counter()
        """Nodes of each pool."""
        self._ours: defaultdict[str, set[str]] = defaultdict(set)
        self._out: defaultdict[str, set[str]] = defaultdict(set)
        self._places: defaultdict[str, set[str]] = defaultdict(set)
        """Incidents that hold a node."""
        self._tenants: defaultdict[str, set[str]] = defaultdict(set)
        for node in view.nodes.values():
            self.size[node.pool] += 1
            if node.out:
                self._out[node.pool].add(node.name)
            if node.mark is not None:
                self._ours[node.pool].add(node.name)
        for record in book.records.values():
            self._note(record)

    def holds(self, node: str) -> bool:
        """Whether an incident of ours has the node's place."""
        return bool(self._places.get(node))

    def ours(self, pool: str) -> set[str]:
        """Nodes of a pool that are quarantined, or will be."""
        return self._ours[pool]

    def out_with(self, pool: str, node: str) -> int:
        """Nodes of a pool that were out, by anyone, if this one were, too."""
        return len(self._out[pool] | self._ours[pool] | {node})

    def nodes_of_tenant(self, tenant: str) -> set[str]:
        """Nodes that lately went out for a tenant's faults which need no broken hardware."""
        return self._tenants[tenant]

    def place(self, record: Record) -> None:
        """Count a record that was just made."""
        self._note(record)

    def _note(self, record: Record) -> None:
        # In a dry run a plan counts as a place: else it would show a budget without bounds.
        dry = self._policy.mode is Mode.DRY_RUN
        planned = dry and record.decision.verdict is Verdict.PLAN and record.resolved_at is None
        if record.takes_place or planned:
            self._ours[record.pool].add(record.node)
            self._places[record.node].add(str(record.key))
        caused = record.decision.verdict in {Verdict.QUARANTINE, Verdict.PLAN, Verdict.JOIN}
        recent = record.decided_at > self._now - self._policy.owners.window
        if caused and recent and record.incident.blame != HARDWARE:
            for tenant in {holder.tenant for holder in record.incident.holders} - {""}:
                self._tenants[tenant].add(record.node)
