"""Incidents, nodes, payloads and a ledger in memory, for tests of the quarantine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import Holder, Incident, Key
from gpufleet.quarantine.stores import ConflictError, Held, StoreError
from gpufleet.quarantine.view import Node, View

NOW = 1_796_000_000.0
"""2026-11-29, in whose middle every test begins."""


def incident(number: int = 1, node: str = "n1", **changes: Any) -> Incident:  # noqa: ANN401 - fields of any type
    """A hardware incident that isolates; ``number`` tells it from others."""
    given: dict[str, Any] = {
        "key": Key("c", node, f"{number:016x}"),
        "since": NOW - 5,
        "fault": "79",
        "blame": "hardware",
        "action": "reboot_node",
        "isolate": True,
        "refund": True,
        "uuid": f"GPU-{node}-0",
        "gpu": "0",
        "holders": (Holder("team-a", "run-1", "task", "ns", f"pod-{node}", "main"),),
    }
    return Incident(**{**given, **changes})


def labels_of(told: Incident) -> dict[str, str]:
    """Its alert's labels, as gpufleet's rule has them."""
    holder = told.holders[0] if told.holders else Holder()
    found = {
        "alertname": "GpuHardwareIncident",
        "quarantine": "node",
        "severity": "critical",
        "team": "infra",
        "cluster": told.key.cluster,
        "node": told.key.node,
        "incident": told.key.incident,
        "gpu": told.gpu,
        "uuid": told.uuid,
        "pci_bus_id": told.pci_bus_id,
        "fault": told.fault,
        "class": told.blame,
        "action": told.action,
        "isolate": "true" if told.isolate else "false",
        "refund": "true" if told.refund else "false",
        "project": holder.project,
        "run": holder.run,
        "task": holder.task,
        "workload_namespace": holder.namespace,
        "workload_pod": holder.pod,
        "workload_container": holder.container,
    }
    return {name: value for name, value in found.items() if value}


def payload(firing: Iterable[Incident] = (), resolved: Iterable[Incident] = (), **changes: Any) -> bytes:  # noqa: ANN401
    """What Alertmanager posts of them."""
    alerts = [_alert(told, "firing") for told in firing] + [_alert(told, "resolved") for told in resolved]
    body = {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing" if any(alert["status"] == "firing" for alert in alerts) else "resolved",
        "receiver": "quarantine",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.test",
        "alerts": alerts,
    }
    return json.dumps({**body, **changes}).encode()


def _alert(told: Incident, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": labels_of(told),
        "annotations": {"summary": "told"},
        "startsAt": _time(told.since),
        "endsAt": _time(told.since + 60) if status == "resolved" else "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.test/graph",
        "fingerprint": "5d050528467d6fff",
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def view(size: int = 40, at: float = NOW, **nodes: Mapping[str, Any]) -> View:
    """Nodes n1, n2, … of one pool that all take work, but for what ``nodes`` says of them."""
    names = [f"n{number}" for number in range(1, size + 1)]
    return View(at, {name: Node(name, **{"pool": "", **nodes.get(name, {})}) for name in {*names, *nodes}})


class MemoryStore:
    """A ledger that lies in memory; ``failing`` is raised by the next call, and ``conflicts`` are still to come."""

    def __init__(self, book: Book | None = None) -> None:
        self.book = book or Book()
        self.version = 0
        self.failing: StoreError | None = None
        self.conflicts = 0
        self.saves = 0

    def load(self) -> Held:
        """As Store."""
        if self.failing is not None:
            raise self.failing
        return Held(self.book, str(self.version))

    def save(self, book: Book, version: str) -> Held:
        """As Store."""
        if self.failing is not None:
            raise self.failing
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError
        if version != str(self.version):
            raise ConflictError
        self.version += 1
        self.saves += 1
        self.book = book
        return Held(book, str(self.version))
