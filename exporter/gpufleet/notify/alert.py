"""An isolating incident as the alert GpuHardwareIncident: the very alert that the rule of the same name makes. Pure.

Alertmanager takes two alerts for one when all their labels are equal. So whatever is changed here is changed in
alerts/gpufleet-hardware.yaml, too, and tests hold the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.labels import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpufleet.model.incident import Incident

Pairs = tuple[tuple[str, str], ...]

NAME = "GpuHardwareIncident"
SEVERITY = "critical"
TEAM = "infra"
QUARANTINE = "node"
SUMMARY = "A GPU or its node must get no work until it is reset, rebooted or replaced."
SERIES = FAMILIES["gpu_fault_active"]
"""What the rule reads."""
RUNBOOK_URL = "https://github.com/gpufleet/gpufleet/blob/main/docs/runbooks/GpuHardwareIncident.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, which is open for as long as it is among those that the poster is given."""

    labels: Pairs
    """By name, none of them empty: the alert's identity."""
    annotations: Pairs
    starts_at: float
    """Unix time."""


def hardware_incident(incident: Incident, external: Iterable[tuple[str, str]] = ()) -> Alert:
    """The alert of an isolating incident.

    ``external`` are the external labels of the Prometheus that evaluates the rule. As there, they go where the alert
    has no such label; severity and team, which a rule of one's own may set otherwise, they replace.

    Raises:
        ValueError: the incident does not isolate: it is no alert's business.
    """
    if not incident.isolate:
        raise ValueError(f"incident {incident.id} does not isolate")
    told = incident.labels()
    # Cut and cleaned as in the exposition, or Prometheus's alert would be another one. Python keeps "class" for itself.
    shown = {name: fit(getattr(told, "class_" if name == "class" else name)) for name in SERIES.labels}
    shown = {name: value for name, value in shown.items() if value}
    given = {name: value for name, value in external if value}
    labels = {"severity": SEVERITY, "team": TEAM} | given | shown | {"alertname": NAME, "quarantine": QUARANTINE}
    return Alert(
        labels=tuple(sorted(labels.items())),
        annotations=(("description", _description(shown)), ("runbook_url", RUNBOOK_URL), ("summary", SUMMARY)),
        starts_at=incident.opened_at,
    )


def _description(shown: Mapping[str, str]) -> str:
    """What the rule's template makes of the same labels."""
    subject = f"GPU {shown['gpu']} of node {shown['node']}" if "gpu" in shown else f"Node {shown['node']}"
    place = f" (PCI {shown['pci_bus_id']})" if "pci_bus_id" in shown else ""
    held = f" Run: {shown['run']}." if "run" in shown else ""
    if "workload_pod" in shown:
        held += f" Pod: {shown.get('workload_namespace', '')}/{shown['workload_pod']}."
    return (
        f"{subject}{place}: fault {shown['fault']}, class {shown['class']}, action {shown['action']}."
        f"{held} Incident: {shown['incident']}."
    )
