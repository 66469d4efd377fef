"""The alert of an incident: its labels are its identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.metrics.labels import MOST_BYTES
from gpufleet.notify.alert import hardware_incident
from tests.support.incidents import HOSTILE, INCIDENT, OF_THE_NODE, OPENED_AT


def test_an_alert_has_the_labels_of_its_incident_and_those_that_route_it() -> None:
    """Exactly the contract: what receivers tell incidents apart by, who held the GPU, and who shall act."""
    assert dict(hardware_incident(INCIDENT).labels) == {
        "alertname": "GpuHardwareIncident",
        "severity": "critical",
        "team": "infra",
        "quarantine": "node",
        "node": "gpu-a-01",
        "gpu": "3",
        "uuid": "GPU-3",
        "pci_bus_id": "0000:4b:00.0",
        "incident": "00000000000000a1",
        "fault": "79",
        "class": "hardware",
        "action": "reboot_node",
        "isolate": "true",
        "refund": "true",
        "project": "vision",
        "run": "r-17",
        "task": "train",
        "workload_namespace": "ml",
        "workload_pod": "r-17-0",
        "workload_container": "main",
    }
    assert hardware_incident(INCIDENT).starts_at == OPENED_AT


def test_what_is_empty_is_no_label() -> None:
    """Prometheus drops empty labels, and an alert with one would be another alert to Alertmanager."""
    labels = dict(hardware_incident(OF_THE_NODE, [("cluster", "")]).labels)

    assert all(labels.values())
    assert labels.keys().isdisjoint({"gpu", "uuid", "pci_bus_id", "project", "run", "workload_pod", "cluster"})


def test_external_labels_are_added_as_prometheus_adds_them() -> None:
    """They go where the alert has no such label, and over severity and team, which are the rule's to choose."""
    external = [("cluster", "east-1"), ("team", "gpu"), ("severity", "page"), ("run", "none"), ("node", "other")]
    labels = dict(hardware_incident(INCIDENT, external).labels)

    assert labels["cluster"] == "east-1"
    assert (labels["team"], labels["severity"]) == ("gpu", "page")
    assert (labels["run"], labels["node"]) == ("r-17", "gpu-a-01")
    assert dict(hardware_incident(OF_THE_NODE, external).labels)["run"] == "none"


def test_names_that_a_tenant_chose_are_cut_and_cleaned() -> None:
    """They are in the alert as in the exposition: whole characters, at most so many bytes, nothing unprintable."""
    labels = dict(hardware_incident(HOSTILE).labels)

    assert all(len(value.encode()) <= MOST_BYTES for value in labels.values())
    assert labels["workload_container"] == "\N{REPLACEMENT CHARACTER}"
    assert labels["task"] == "é" * (MOST_BYTES // 2)


def test_equal_incidents_make_equal_alerts_whatever_they_counted_since() -> None:
    """The poster tells a new alert from an old one by comparing."""
    later = replace(INCIDENT, last_at=OPENED_AT + 60, counts=(("xid 79", 5),), root="48")

    assert hardware_incident(later) == hardware_incident(INCIDENT)


def test_an_incident_that_does_not_isolate_is_no_alert() -> None:
    """It would quarantine a node for an application's fault."""
    with pytest.raises(ValueError, match="does not isolate"):
        hardware_incident(replace(INCIDENT, isolate=False))


def test_the_description_names_what_is_broken_and_who_held_it() -> None:
    """A person needs no other page to know where to look."""
    said = [dict(hardware_incident(each).annotations)["description"] for each in (INCIDENT, OF_THE_NODE)]

    assert said == [
        (
            "GPU 3 of node gpu-a-01 (PCI 0000:4b:00.0): fault 79, class hardware, action reboot_node. Run: r-17. "
            "Pod: ml/r-17-0. Incident: 00000000000000a1."
        ),
        "Node gpu-a-01: fault gpu_lost, class hardware, action reboot_node. Incident: 00000000000000b2.",
    ]
