"""What is shown of holders and of cost, as text."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.meter import MeterView
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.state import GpuState
from tests.unit.metrics.snapshots import down, gpu, held, hopper_node, node

UUID = "GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e100"
SECOND = "GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e101"


def lines(snapshot: Snapshot, family: str) -> list[str]:
    """The series of one family."""
    text = Renderer().text(snapshot)
    return [line for line in text.splitlines() if line.startswith((f"{family}{{", f"{family} "))]


def test_a_holder_has_a_share_and_an_identity() -> None:
    """Labels in the order of the catalogue; what nobody holds has a share and no identity."""
    snapshot = held(hopper_node(2), labels=(("label_team", "vision"),))
    assert lines(snapshot, "gpu_owner_info") == [
        (
            f'gpu_owner_info{{node="gpu-node-01",gpu="0",uuid="{UUID}",project="llm",run="llm-7b",task="worker",rank="0",'
            'attempt="1",workload_user="ada",workload_job="17",workload_namespace="ml",workload_pod="pod-1",'
            'workload_container="main",label_team="vision"} 1'
        )
    ]
    assert lines(snapshot, "gpu_owner_share") == [
        (
            f'gpu_owner_share{{node="gpu-node-01",gpu="0",uuid="{UUID}",project="llm",run="llm-7b",task="worker",'
            'workload_namespace="ml",workload_pod="pod-1",workload_container="main"} 1.0'
        ),
        f'gpu_owner_share{{node="gpu-node-01",gpu="1",uuid="{SECOND}",project="(unallocated)"}} 1.0',
    ]


def test_totals_have_one_series_an_account_and_none_that_was_never_measured() -> None:
    """Unused cost by reason; what nobody holds costs, and nothing says how it was used."""
    snapshot = held(hopper_node(2))
    of_llm = f'{{node="gpu-node-01",gpu="0",uuid="{UUID}",project="llm",run="llm-7b",task="worker"'
    of_nobody = f'{{node="gpu-node-01",gpu="1",uuid="{SECOND}",project="(unallocated)"'
    assert lines(snapshot, "gpu_allocated_seconds_total") == [
        f"gpu_allocated_seconds_total{of_llm}}} 3600.0",
        f"gpu_allocated_seconds_total{of_nobody}}} 60.0",
    ]
    assert lines(snapshot, "gpu_productive_seconds_total") == [f"gpu_productive_seconds_total{of_llm}}} 3000.5"]
    assert lines(snapshot, "gpu_cost_total") == [
        f'gpu_cost_total{of_llm},currency="USD"}} 4.8',
        f'gpu_cost_total{of_nobody},currency="USD"}} 0.08',
    ]
    assert lines(snapshot, "gpu_unused_cost_total") == [
        f'gpu_unused_cost_total{of_llm},currency="USD",reason="idle"}} 0.8',
        f'gpu_unused_cost_total{of_llm},currency="USD",reason="down"}} 0.0',
    ]


def test_the_price_is_shown_as_a_series_and_as_labels_of_who_the_gpu_is() -> None:
    """As a number, and as the canonical text of that number."""
    snapshot = held(hopper_node(2))
    assert lines(snapshot, "gpu_price_per_hour") == [
        f'gpu_price_per_hour{{gpu="0",uuid="{UUID}",currency="USD"}} 4.8',
        f'gpu_price_per_hour{{gpu="1",uuid="{SECOND}",currency="USD"}} 4.8',
    ]
    assert all(',cost_per_hour="4.8",currency="USD"' in line for line in lines(snapshot, "gpu_info"))
    unpriced = replace(snapshot, meter=MeterView())
    assert lines(unpriced, "gpu_price_per_hour") == []
    assert not any("cost_per_hour" in line or "currency" in line for line in lines(unpriced, "gpu_info"))


def test_holders_and_totals_stay_while_a_gpu_is_down() -> None:
    """Whoever holds it still pays."""
    snapshot = held(node(down(0, GpuState.LOST, "fell off the bus"), gpu(1)))
    assert len(lines(snapshot, "gpu_owner_info")) == 1
    assert len(lines(snapshot, "gpu_cost_total")) == 2
    assert len(lines(snapshot, "gpu_price_per_hour")) == 2


def test_it_says_what_it_knows_of_its_own_knowledge() -> None:
    """Conflicts, the age of each source's answer, and time that is in no account; nothing without a source."""
    snapshot = held(hopper_node(2))
    assert lines(snapshot, "gpufleet_owner_conflicts_total") == ["gpufleet_owner_conflicts_total 1"]
    assert lines(snapshot, "gpufleet_owners_last_refresh_timestamp_seconds") == [
        'gpufleet_owners_last_refresh_timestamp_seconds{source="podresources"} 1764500000.5'
    ]
    assert lines(snapshot, "gpufleet_unbilled_gpu_seconds_total") == ["gpufleet_unbilled_gpu_seconds_total 16.0"]
    assert not any("owner" in line or "unbilled" in line for line in Renderer().text(hopper_node(2)).splitlines())


def test_two_holders_that_look_alike_once_they_are_cut_do_not_cost_the_scrape() -> None:
    """A series is written once; everything else is served."""
    long = "x" * 200
    holdings = tuple(
        Holding(UUID, 0.5, Workload(project="p", run=f"{long}{number}", workload_pod=f'{long}"\n{number}'))
        for number in range(2)
    )
    snapshot = replace(hopper_node(1), owners=OwnersView(holdings=holdings))
    assert len(lines(snapshot, "gpu_owner_info")) == 1
    text = Renderer().openmetrics(snapshot) + OPENMETRICS_END
    assert {family.name for family in text_string_to_metric_families(text)} >= {"gpu_owner_share", "gpu_power_watts"}


def test_a_slices_holder_names_the_slice() -> None:
    """The uuid stays that of the physical GPU, so that shares sum to 1 for it."""
    holdings = (
        Holding(UUID, 1 / 7, Workload(project="a"), mig_uuid="MIG-1"),
        Holding(UUID, 6 / 7, hold=Hold.UNSLICED),
    )
    shown = lines(replace(hopper_node(1), owners=OwnersView(holdings=holdings)), "gpu_owner_share")
    assert [line.rpartition(" ")[0] for line in shown] == [
        f'gpu_owner_share{{node="gpu-node-01",gpu="0",uuid="{UUID}",mig_uuid="MIG-1",project="a"}}',
        f'gpu_owner_share{{node="gpu-node-01",gpu="0",uuid="{UUID}",project="(unsliced)"}}',
    ]
