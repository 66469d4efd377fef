"""What is shown of faults, as text."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.collect.fault_sink import standing
from gpufleet.metrics.fault_sections import MOST_INCIDENTS
from gpufleet.metrics.render import Renderer
from gpufleet.model.incident import ErrorCount, FaultsView
from gpufleet.model.readings import Key
from tests.unit.metrics.incidents import INCIDENT, SWITCH
from tests.unit.metrics.snapshots import node


def lines(view: FaultsView, family: str) -> list[str]:
    """The series of one family."""
    text = Renderer().text(replace(node(), faults=view))
    return [line for line in text.splitlines() if line.startswith(f"{family}{{")]


def test_an_open_incident_has_the_labels_of_the_alert_contract() -> None:
    """In their order, escaped, and those that are not known left out."""
    assert lines(FaultsView(active=(INCIDENT,)), "gpu_fault_active") == [
        (
            'gpu_fault_active{node="gpu-node-01",gpu="3",uuid="GPU-3",pci_bus_id="0000:52:00.0",'
            'incident="441cf96b49f8cd85",fault="79",class="hardware",action="reboot_node",isolate="true",refund="true",'
            'run="a \\"run\\"",workload_pod="pod-1"} 1'
        )
    ]


def test_a_closed_incident_and_one_that_is_not_certain_have_no_series() -> None:
    """Only what is shown is shown."""
    assert lines(FaultsView(settling=(INCIDENT,), closed=(INCIDENT,)), "gpu_fault_active") == []


def test_a_flood_of_incidents_is_bounded() -> None:
    """A node with hundreds of incidents does not become a burden to Prometheus as well."""
    flood = tuple(replace(INCIDENT, id=f"{number:016x}") for number in range(2 * MOST_INCIDENTS))
    shown = lines(FaultsView(active=flood), "gpu_fault_active")
    assert len(shown) == len(set(shown)) == MOST_INCIDENTS


def test_errors_of_switches_are_counted_by_address_and_code() -> None:
    """A code beyond those that are told apart is called other."""
    other = ErrorCount(None, "unknown", 2, pci_bus_id="0000:06:00.0")
    assert lines(FaultsView(switch_errors=(SWITCH, other)), "nvswitch_errors_total") == [
        'nvswitch_errors_total{pci_bus_id="0000:05:00.0",sxid="20034",class="hardware"} 4',
        'nvswitch_errors_total{pci_bus_id="0000:06:00.0",sxid="other",class="unknown"} 2',
    ]


def test_counts_stay_with_the_gpu_that_they_are_of() -> None:
    """By UUID; a count of a board that was never enumerated has no series that it could go into."""
    view = FaultsView(
        xid_errors=(
            ErrorCount(79, "hardware", 1, uuid="GPU-3"),
            ErrorCount(31, "application", 5, uuid="GPU-4"),
            ErrorCount(48, "hardware", 1, pci_bus_id="0000:99:00.0"),
        ),
        last_fault_at=(("GPU-3", 12.5),),
    )
    shown = standing(view)
    assert sorted(shown) == ["GPU-3", "GPU-4"]
    assert shown["GPU-3"][0].get("xid_errors", "79", "hardware") == 1
    assert shown["GPU-3"][0].keys[1] == Key("last_fault_timestamp_seconds")
    assert shown["GPU-4"][0].values == (5,)


def test_before_the_log_was_read_there_are_no_counts() -> None:
    """A counter that begins too low would count what happened before as new."""
    assert standing(FaultsView(xid_errors=None)) == {}
