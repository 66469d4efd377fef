"""What went wrong with a GPU: driver errors, incidents, and what the driver asks for."""

from __future__ import annotations

from gpufleet.metrics.family import GPU, Group, counter, gauge, gpu_counter, gpu_gauge

FAULTS = Group(
    "Faults",
    "Counts and incidents stay while the GPU is down. An Xid is the driver's error code. Many of them are the "
    "program's own fault, so alert on incidents, not on Xids.",
    (
        gpu_gauge(
            "gpu_recovery_action",
            "1 for what the driver asks for to make the GPU usable again and 0 for the rest; none when all is well.",
            "action",
            members=(
                "none",
                "gpu_reset",
                "node_reboot",
                "drain_p2p",
                "drain_and_reset",
                "recover_imex",
                "bus_reset",
                "system_reboot",
                "unknown",
            ),
            reported_by="driver 570 or newer",
            core=True,
        ),
        gpu_counter(
            "gpu_xid_errors_total",
            "Driver errors by code. A code has a series once it was seen.",
            "xid",
            "class",
            core=True,
        ),
        gauge(
            "gpu_fault_active",
            "An open incident, always 1; gone when it is closed. The owner is the one at the time of the fault.",
            (
                "node",
                *GPU,
                "pci_bus_id",
                "incident",
                "fault",
                "class",
                "action",
                "isolate",
                "refund",
                "project",
                "run",
                "task",
                "workload_namespace",
                "workload_pod",
                "workload_container",
            ),
            core=True,
        ),
        gpu_gauge(
            "gpu_last_fault_timestamp_seconds",
            "Unix time of the last event that belongs to an incident.",
            core=True,
        ),
        counter(
            "nvswitch_errors_total",
            "Errors of NVLink switches by code, as the kernel's log tells them.",
            ("pci_bus_id", "sxid", "class"),
            core=True,
        ),
    ),
)
