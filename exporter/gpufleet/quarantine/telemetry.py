"""What the quarantine says of itself, for Prometheus.

The names stand in gpufleet.metrics.catalog, which this program may not import; a test compares the two.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gpufleet.quarantine.record import Verdict

if TYPE_CHECKING:
    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.incident import Key
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Decision, Record, Step
    from gpufleet.quarantine.view import View

_REMEMBERED = 65_536
"""Decisions that are counted once, however often an alert is sent again; the oldest are forgotten."""


class Telemetry:
    """Counters since the start, and gauges as of the last round. Safe for use by several threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        given: dict[str, Any] = {"registry": self._registry}
        self._nodes = Gauge("gpufleet_quarantine_nodes", "Nodes that are quarantined now.", **given)
        self._budget = Gauge("gpufleet_quarantine_budget", "Nodes that may be quarantined at once.", **given)
        self._open = Gauge(
            "gpufleet_quarantine_breaker_open", "1 while the breaker stops new quarantines, else 0.", **given
        )
        self._waiting = Gauge(
            "gpufleet_quarantine_deferred", "Incidents that wait for room, or for the breaker.", **given
        )
        self._round = Gauge(
            "gpufleet_quarantine_last_round_timestamp_seconds",
            "When the nodes and the ledger were last read and everything due was tried.",
            **given,
        )
        self._decisions = Counter(
            "gpufleet_quarantine_decisions_total",
            "Decisions on incidents, refusals included.",
            ("decision", "reason"),
            **given,
        )
        self._actions = Counter(
            "gpufleet_quarantine_actions_total",
            "Changes made to nodes and workloads.",
            ("action", "outcome"),
            **given,
        )
        self._deliveries = Counter(
            "gpufleet_quarantine_deliveries_total", "Payloads of Alertmanager by their answer.", ("code",), **given
        )
        self._unusable = Counter(
            "gpufleet_quarantine_unusable_alerts_total", "Alerts that name no incident.", ("reason",), **given
        )
        self._writes = Counter("gpufleet_quarantine_ledger_writes_total", "Writes of the ledger.", **given)
        self._lock = threading.Lock()
        self._told: dict[Key, Decision] = {}

    def text(self) -> bytes:
        """In the text format."""
        return generate_latest(self._registry)

    def delivered(self, code: int) -> None:
        """A payload was answered."""
        self._deliveries.labels(str(code)).inc()

    def wrote(self) -> None:
        """The ledger was written."""
        self._writes.inc()

    def unusable(self, reason: str) -> None:
        """An alert names no incident."""
        self._unusable.labels(reason).inc()

    def decided(self, key: Key, decision: Decision) -> bool:
        """A decision; one that only says again what was decided is not counted. Whether it is new."""
        with self._lock:
            known = self._told.pop(key, None)
            self._told[key] = decision
            if len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
        new = known is None or (known.verdict, known.reason) != (decision.verdict, decision.reason)
        if new:
            self._decisions.labels(str(decision.verdict), decision.reason).inc()
        return new

    def acted(self, _: Record, step: Step) -> None:
        """Something was done, or could not be."""
        self._actions.labels(step.action, str(step.outcome)).inc()

    def seen(self, book: Book, view: View, policy: Policy, now: float) -> None:
        """A round has ended."""
        sizes: dict[str, int] = {}
        for node in view.nodes.values():
            sizes[node.pool] = sizes.get(node.pool, 0) + 1
        self._nodes.set(len({record.node for record in book.records.values() if record.takes_place}))
        self._budget.set(sum(map(policy.budget.ours, sizes.values())))
        self._open.set(book.tripped is not None)
        self._waiting.set(sum(record.decision.verdict is Verdict.DEFER for record in book.records.values()))
        self._round.set(now)
