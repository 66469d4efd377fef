"""Incidents for tests, without what no receiver sees."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Incident, Owner

OPENED_AT = 1_785_000_000.25

INCIDENT = Incident(
    id="00000000000000a1",
    node="gpu-a-01",
    fault="79",
    blame=Blame.HARDWARE,
    action=Action.REBOOT_NODE,
    isolate=True,
    refund=True,
    opened_at=OPENED_AT,
    last_at=OPENED_AT,
    began_at=OPENED_AT,
    gpu=3,
    uuid="GPU-3",
    pci_bus_id="0000:4b:00.0",
    owner=Owner("vision", "r-17", "train", "ml", "r-17-0", "main"),
)
"""A GPU that fell off the bus while a run held it."""

OF_THE_NODE = replace(
    INCIDENT, id="00000000000000b2", fault="gpu_lost", gpu=None, uuid=None, pci_bus_id=None, owner=Owner(), refund=False
)
"""One that is not a single GPU's, on a node that nobody held."""

HOSTILE = replace(
    INCIDENT,
    id="00000000000000c3",
    owner=Owner(
        project='a"b\\c{{ .Labels }}',
        run="r\nun\t{{ $labels.node }}",
        task="é" * 100,
        workload_namespace="<script>",
        workload_pod="x" * 300,
        workload_container="\ud800",
    ),
)
"""One whose holder chose its names with malice."""
