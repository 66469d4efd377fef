"""The node as a whole, and what gpufleet says of itself."""

from __future__ import annotations

from gpufleet.metrics.family import Facts, Group, counter, gauge
from gpufleet.model.state import NvmlState

NODE = Group(
    "Node",
    "Compare expected and visible to notice a GPU that is missing altogether and so has no series of its own.",
    (
        gauge("gpu_count_expected", "GPUs known to the kernel driver, or to this exporter since boot.", core=True),
        gauge("gpu_count_visible", "GPUs that answer now. Absent while quiesced.", core=True),
    ),
)

SELF = Group(
    "gpufleet itself",
    "Beside these, `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, "
    "`process_start_time_seconds`, `process_open_fds` and `process_max_fds` of the exporter's process.",
    (
        gauge("gpufleet_node_info", "The node, always 1.", ("node", "boot_id", "driver_version"), core=True),
        gauge("gpufleet_nvml_up", "1 if the driver library works, else 0. Absent while quiesced.", core=True),
        gauge(
            "gpufleet_nvml_state",
            "1 for the state that the driver library is in and 0 for the others. Absent when it is not known.",
            ("state",),
            members=tuple(NvmlState),
            core=True,
        ),
        gauge("gpufleet_poll_duration_seconds", "How long the last poll of the node's GPUs took.", core=True),
        counter("gpufleet_polls_total", "Polls of the node's GPUs.", core=True),
        counter(
            "gpufleet_poll_gaps_total",
            "Polls that came more than five intervals after the one before; nothing is integrated over such a gap.",
            core=True,
        ),
        gauge("gpufleet_source_up", "1 if the source answered when it was last asked, else 0.", ("source",), core=True),
        counter(
            "gpufleet_nvml_errors_total",
            "Driver calls that failed, by return code; a reading that a GPU does not support is no error.",
            ("return",),
            core=True,
        ),
        counter(
            "gpufleet_invalid_readings_total",
            "Readings dropped because they can not be true.",
            ("reading",),
            core=True,
        ),
        counter(
            "gpufleet_owner_conflicts_total",
            "Devices that two claims of equal standing could not both have, each time that holders were worked out; "
            "they are taken to share it.",
            reported_by="a source of owners",
            core=True,
        ),
        gauge(
            "gpufleet_owners_last_refresh_timestamp_seconds",
            "Unix time of the last answer of a source of owners.",
            ("source",),
            reported_by="a source of owners",
            core=True,
        ),
        counter(
            "gpufleet_unbilled_gpu_seconds_total",
            "GPU time between two polls that were too far apart to know what happened: it is in no account.",
            reported_by="a source of owners",
            core=True,
        ),
        gauge("gpufleet_quiesced", "1 while the exporter has let go of the driver as it was told, else 0.", core=True),
        gauge("gpufleet_simulated", "1 if no real GPU is behind these metrics, else 0.", core=True),
        gauge("gpufleet_build_info", "Version of gpufleet and of Python, always 1.", ("version", "python"), core=True),
        counter(
            "gpufleet_collector_errors_total",
            "Times that a part of the exposition could not be made; it is left out then, the rest is served.",
            ("collector",),
            core=True,
        ),
        gauge(
            "gpufleet_alertmanager_up",
            "1 if this Alertmanager accepted the last post, else 0; tried every five minutes when all is well.",
            ("alertmanager",),
            reported_by="`--alertmanager.url`",
            core=True,
        ),
        counter(
            "gpufleet_alertmanager_notifications_total",
            "Alerts posted to an Alertmanager, again while they are open and once when they are over, by outcome: "
            "accepted, refused or failed.",
            ("alertmanager", "outcome"),
            reported_by="`--alertmanager.url`",
            core=True,
        ),
    ),
)

_NOT_YET: Facts = {"served": False, "simulated": True}

QUARANTINE = Group(
    "Quarantine",
    "Of the quarantine service, not of the exporter.",
    (
        gauge("gpufleet_quarantine_nodes", "Nodes that are quarantined now.", **_NOT_YET),
        gauge("gpufleet_quarantine_budget", "Nodes that may be quarantined at once.", **_NOT_YET),
        counter(
            "gpufleet_quarantine_decisions_total",
            "Decisions on incidents, refusals included.",
            ("decision", "reason"),
            **_NOT_YET,
        ),
        counter(
            "gpufleet_quarantine_actions_total",
            "Changes made to nodes and workloads.",
            ("action", "outcome"),
            **_NOT_YET,
        ),
        gauge("gpufleet_quarantine_breaker_open", "1 while the breaker stops new quarantines, else 0.", **_NOT_YET),
        gauge("gpufleet_quarantine_deferred", "Incidents that wait for room, or for the breaker.", served=False),
        gauge(
            "gpufleet_quarantine_last_round_timestamp_seconds",
            "When the nodes and the ledger were last read and everything due was tried.",
            served=False,
        ),
        counter(
            "gpufleet_quarantine_deliveries_total",
            "Payloads of Alertmanager by their answer.",
            ("code",),
            served=False,
        ),
        counter("gpufleet_quarantine_ledger_writes_total", "Writes of the ledger.", served=False),
        counter(
            "gpufleet_quarantine_unusable_alerts_total", "Alerts that name no incident.", ("reason",), served=False
        ),
    ),
)
