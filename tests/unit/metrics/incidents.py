"""An incident and a switch's count, made by hand."""

from __future__ import annotations

from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import ErrorCount, Incident, Owner

INCIDENT = Incident(
    id="441cf96b49f8cd85",
    node="gpu-node-01",
    fault="79",
    blame=Blame.HARDWARE,
    action=Action.REBOOT_NODE,
    isolate=True,
    refund=True,
    opened_at=1_700_000_000.0,
    last_at=1_700_000_000.0,
    began_at=1_700_000_000.0,
    gpu=3,
    uuid="GPU-3",
    pci_bus_id="0000:52:00.0",
    owner=Owner(run='a "run"', workload_pod="pod-1"),
    shown_at=1_700_000_000.0,
)
SWITCH = ErrorCount(20034, "hardware", 4, pci_bus_id="0000:05:00.0")
