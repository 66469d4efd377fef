"""What is taken out of a snapshot to judge it, and that it is the same after the control socket."""

from __future__ import annotations

import json
from dataclasses import replace

from gpufleet.commands.check_facts import MOST_INCIDENTS, Facts, facts_of
from gpufleet.faults.stored import LONGEST_TEXT, decode, encode
from gpufleet.model.incident import FaultsView
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import GpuState, NvmlState
from tests.support.fault_rig import Gpu
from tests.support.incidents import HOSTILE, INCIDENT

MORE = Readings(
    (
        Key("nvlink_links", ("inactive",)),
        Key("nvlink_links", ("active",)),
        Key("nvlink_links", ("sleep",)),
        Key("clock_event_active", ("sw_power_cap",)),
        Key("clock_event_active", ("sw_thermal_slowdown",)),
        Key("clock_event_active", ("hw_thermal_slowdown",)),
        Key("pcie_link_width", ("current",)),
        Key("pcie_link_width", ("max",)),
        Key("row_remap_banks", ("none",)),
    ),
    (1, 15, 2, 1, 1, None, 8, 16, 2),
)


def snapshot(*gpus: Gpu, **changes: object) -> Snapshot:
    """A poll of invented GPUs."""
    made = Snapshot(
        sequence=1,
        at=0.0,
        monotonic=100.0,
        node=NodeIdentity("node-1"),
        nvml_state=NvmlState.OK,
        gpus=tuple(gpu.snapshot(0.0) for gpu in gpus),
        gpus_expected=len(gpus),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_facts_are_taken_from_the_readings() -> None:
    """Links that sleep are up; a power cap is ordinary; what is not reported is nothing."""
    sick = Gpu(3, recovery="gpu_reset", pending=1, failure=0, threshold=None, fabric={"route_unhealthy": 1})
    poll = snapshot(sick)
    (shown,) = poll.gpus
    (facts,) = facts_of(
        replace(poll, gpus=(replace(shown, parts=(*shown.parts, MORE)),)), FaultsView(), now=100.0, interval=1.0
    ).gpus
    assert (facts.number, facts.state, facts.recovery) == (3, GpuState.OK, "gpu_reset")
    assert (facts.remap_pending, facts.remap_failure, facts.sram_threshold, facts.banks_empty) == (True, False, None, 2)
    assert (facts.links_up, facts.links_down, facts.pcie_width, facts.pcie_width_max) == (17, 1, 8, 16)
    assert (facts.fabric, facts.slowdowns) == (("route_unhealthy",), ("sw_thermal_slowdown",))


def test_a_recovery_action_that_nobody_knows_is_unknown() -> None:
    """A newer driver may ask for something new."""
    assert (
        facts_of(snapshot(Gpu(0, recovery="unknown")), FaultsView(), now=100.0, interval=1.0).gpus[0].recovery
        == "unknown"
    )


def test_a_gpu_that_is_down_has_no_readings() -> None:
    """Only its state and the reason."""
    (facts,) = facts_of(snapshot(Gpu(0, state=GpuState.LOST)), FaultsView(), now=100.0, interval=1.0).gpus
    assert (facts.state, facts.recovery, facts.links_up, facts.slowdowns) == (GpuState.LOST, None, None, ())


def test_facts_survive_the_way_over_the_socket() -> None:
    """Whatever a tenant has named its things, and however much there is of it."""
    many = tuple(replace(INCIDENT, id=f"{number:016x}", isolate=False) for number in range(MOST_INCIDENTS))
    view = FaultsView(active=(*many, HOSTILE), settling=(INCIDENT,))
    poll = snapshot(Gpu(0), Gpu(1, state=GpuState.HUNG), nvml_state=NvmlState.HUNG, reason="x" * 5000, quiesced=True)
    facts = facts_of(poll, view, now=163.0, interval=1.0)
    assert decode(Facts, json.loads(json.dumps(encode(facts)))) == facts
    assert facts.age_seconds == 63.0
    assert len(facts.reason or "") == LONGEST_TEXT
    assert len(facts.active) == MOST_INCIDENTS
    # What decides comes first, so that nothing of it is cut off.
    assert facts.active[0].isolate
