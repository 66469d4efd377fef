"""Whether GPUs may get work: each rule, on facts that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.commands.check_facts import Facts, GpuFacts
from gpufleet.commands.check_verdict import Fitness, Verdict, judge
from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Incident, Scope
from gpufleet.model.state import NOT_ASKED, GpuState, NvmlState
from tests.support.incidents import INCIDENT

HEALTHY, DEGRADED, UNFIT = Fitness.HEALTHY, Fitness.DEGRADED, Fitness.UNFIT


def gpu(number: int) -> GpuFacts:
    """A GPU with which nothing is wrong."""
    return GpuFacts(
        number=number,
        uuid=f"GPU-{number}",
        pci_bus_id=f"0000:{number:02x}:00.0",
        name="NVIDIA H100 80GB HBM3",
        state=GpuState.OK,
        minor=7 - number,
        recovery="none",
        remap_pending=False,
        remap_failure=False,
        sram_threshold=False,
        banks_empty=0,
        links_up=18,
        links_down=0,
        pcie_width=16,
        pcie_width_max=16,
    )


NODE = Facts(
    node="node-1",
    nvml_state=NvmlState.OK,
    reason=None,
    quiesced=False,
    age_seconds=0.4,
    interval_seconds=1.0,
    expected=4,
    gpus=tuple(gpu(number) for number in range(4)),
    active=(),
    settling=(),
)
LOST = replace(INCIDENT, gpu=2, uuid="GPU-2", pci_bus_id="0000:02:00.0")
CRASH = replace(
    LOST,
    id="b" * 16,
    fault="31",
    blame=Blame.APPLICATION,
    action=Action.RESTART_APPLICATION,
    isolate=False,
    refund=False,
)


def changed(number: int, **facts: object) -> Facts:
    """The node with one GPU that is not as it should be."""
    return replace(
        NODE,
        gpus=tuple(replace(each, **facts) if each.number == number else each for each in NODE.gpus),  # type: ignore[arg-type]
    )


def said(verdict: Verdict, number: int) -> tuple[Fitness, list[str]]:
    """Fitness and words of one GPU."""
    (row,) = (row for row in verdict.gpus if row.gpu == number)
    return row.fitness, [finding.words for finding in row.findings]


def test_a_healthy_node_has_a_line_a_gpu_and_nothing_to_say() -> None:
    """Status 0."""
    verdict = judge(NODE)
    assert verdict.fitness is HEALTHY
    assert [row.subject for row in verdict.gpus] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert not any(row.findings for row in (verdict.node, *verdict.gpus))


# --- incidents --------------------------------------------------------------------------------------------------------
def test_an_isolating_incident_makes_its_gpu_unfit_and_no_other() -> None:
    """By UUID, and by address where the driver has not told the UUID."""
    for incident in (LOST, replace(LOST, uuid=None), replace(LOST, pci_bus_id="0000:99:00.0")):
        verdict = judge(replace(NODE, active=(incident,)))
        assert said(verdict, 2) == (UNFIT, ["Xid 79, hardware; reboot the node"])
        assert said(verdict, 1) == (HEALTHY, [])
        assert verdict.fitness is UNFIT


@pytest.mark.parametrize(
    ("incident", "fitness"),
    [
        (CRASH, HEALTHY),
        (replace(CRASH, action=Action.NONE, blame=Blame.UNKNOWN), HEALTHY),
        (replace(CRASH, blame=Blame.HARDWARE), DEGRADED),
        (replace(CRASH, fault="63", action=Action.RESET_GPU, blame=Blame.HARDWARE), DEGRADED),
        (replace(CRASH, action=Action.REBOOT_NODE, blame=Blame.DRIVER), DEGRADED),
    ],
)
def test_an_incident_that_does_not_isolate_counts_when_somebody_has_to_look(
    incident: Incident, fitness: Fitness
) -> None:
    """A tenant's crash must not take a GPU from anybody; a reset that is due, or suspect hardware, is told."""
    assert said(judge(replace(NODE, active=(incident,))), 2)[0] is fitness


def test_what_is_not_certain_yet_takes_nothing_away() -> None:
    """Half a minute later it may be the echo of another GPU's fault."""
    verdict = judge(replace(NODE, settling=(LOST,)))
    assert said(verdict, 2) == (DEGRADED, ["not certain yet: Xid 79, hardware; reboot the node"])
    assert judge(replace(NODE, settling=(CRASH,))).fitness is HEALTHY


def test_a_switchs_incident_and_a_nodes_are_everybodys() -> None:
    """Also of those that were asked for one by one."""
    switch = replace(LOST, fault="sxid_20034", scope=Scope.SWITCH, pci_bus_id="0000:c0:00.0")
    nowhere = replace(LOST, fault="gpu_missing", scope=Scope.NODE, gpu=None, uuid=None, pci_bus_id=None)
    for incident, words in (
        (switch, "NVSwitch at 0000:c0:00.0 of gpu-a-01: SXid 20034, hardware; reboot the node"),
        (nowhere, "Node gpu-a-01: gpu missing, hardware; reboot the node"),
    ):
        verdict = judge(replace(NODE, active=(incident,)), ["0"])
        assert [(finding.fitness, finding.words) for finding in verdict.node.findings] == [(UNFIT, words)]
        assert verdict.fitness is UNFIT


def test_a_gpu_that_only_its_incident_knows_has_a_line() -> None:
    """It was gone when the exporter was started anew."""
    verdict = judge(replace(NODE, gpus=NODE.gpus[:2], expected=2, active=(LOST,)))
    assert said(verdict, 2) == (UNFIT, ["Xid 79, hardware; reboot the node"])
    assert judge(replace(NODE, gpus=NODE.gpus[:2], expected=2, active=(LOST,)), ["0"]).fitness is HEALTHY


# --- one GPU ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("facts", "fitness", "words"),
    [
        ({"state": GpuState.HUNG, "reason": "nvmlX is out"}, UNFIT, "hung: nvmlX is out"),
        ({"state": GpuState.DRIVER_BLOCKED}, UNFIT, "driver blocked"),
        ({"state": GpuState.LOST}, UNFIT, "lost"),
        ({"state": GpuState.RESET_REQUIRED}, UNFIT, "reset required"),
        ({"state": GpuState.GONE}, UNFIT, "gone"),
        ({"state": GpuState.NO_PERMISSION}, DEGRADED, "no permission"),
        ({"recovery": "gpu_reset"}, UNFIT, "the driver asks for a recovery action: gpu reset"),
        ({"recovery": "node_reboot"}, UNFIT, "the driver asks for a recovery action: node reboot"),
        ({"recovery": "drain_and_reset"}, UNFIT, "the driver asks for a recovery action: drain and reset"),
        ({"recovery": "bus_reset"}, UNFIT, "the driver asks for a recovery action: bus reset"),
        ({"recovery": "system_reboot"}, UNFIT, "the driver asks for a recovery action: system reboot"),
        ({"recovery": "drain_p2p"}, DEGRADED, "the driver asks for a recovery action: drain p2p"),
        ({"recovery": "recover_imex"}, DEGRADED, "the driver asks for a recovery action: recover imex"),
        ({"recovery": "unknown"}, DEGRADED, "the driver asks for a recovery action: unknown"),
        ({"remap_pending": True}, DEGRADED, "row remapping pending: reset the GPU when it is idle"),
        ({"remap_failure": True}, DEGRADED, "a row of memory could not be replaced, and its incident was cleared"),
        ({"sram_threshold": True}, DEGRADED, "SRAM errors beyond the threshold, and their incident was cleared"),
        ({"banks_empty": 1}, DEGRADED, "1 bank of memory has no spare row left"),
        ({"banks_empty": 3}, DEGRADED, "3 banks of memory have no spare row left"),
        ({"fabric": ("route_unhealthy",)}, DEGRADED, "NVLink fabric: route unhealthy"),
        ({"links_up": 17, "links_down": 1}, DEGRADED, "17 NVLinks are up, 18 of other GPUs here"),
        ({"links_up": 0, "links_down": 18}, DEGRADED, "0 NVLinks are up, 18 of other GPUs here"),
        ({"pcie_width": 8}, DEGRADED, "PCIe link has 8 of 16 lanes"),
        ({"slowdowns": ("hw_thermal_slowdown", "hw_slowdown")}, DEGRADED, "slowed down by heat (hardware)"),
        ({"slowdowns": ("sw_thermal_slowdown",)}, DEGRADED, "slowed down by heat (driver)"),
        ({"slowdowns": ("hw_slowdown",)}, DEGRADED, "slowed down by hardware: heat or power"),
        (
            {"slowdowns": ("hw_power_brake_slowdown",)},
            DEGRADED,
            "slowed down by the power brake: look at power supplies",
        ),
    ],
)
def test_each_fact_that_is_not_as_it_should_be_is_told(facts: dict[str, object], fitness: Fitness, words: str) -> None:
    """Unfit is what no program can work on; degraded is what somebody should look at."""
    verdict = judge(changed(1, **facts))
    assert said(verdict, 1) == (fitness, [words])
    assert [row.fitness for row in verdict.gpus if row.gpu != 1] == [HEALTHY] * 3


def test_what_is_not_reported_is_no_finding() -> None:
    """A T4 has no rows to remap, no links and no recovery action."""
    names = ("recovery", "remap_pending", "remap_failure", "sram_threshold", "banks_empty", "links_up", "links_down")
    assert judge(changed(1, **dict.fromkeys((*names, "pcie_width", "pcie_width_max")))).fitness is HEALTHY


@pytest.mark.parametrize(
    ("token", "facts"),
    [
        ("recovery_action", {"recovery": "gpu_reset"}),
        ("row_remap_pending", {"remap_pending": True}),
        ("row_remap_failure", {"remap_failure": True}),
        ("sram_threshold_exceeded", {"sram_threshold": True}),
        ("fabric_route_unhealthy", {"fabric": ("route_unhealthy",)}),
    ],
)
def test_what_an_incident_tells_is_not_told_twice(token: str, facts: dict[str, object]) -> None:
    """The incident says whose fault it is and what to do; the bare fact adds nothing."""
    incident = replace(LOST, counts=(("48", 1), (token, 1)))
    verdict = judge(replace(changed(2, **facts), active=(incident,)))
    assert said(verdict, 2) == (UNFIT, ["Xid 79, hardware; reboot the node"])


@pytest.mark.parametrize("links", [(12, 12, 0, 0), (12, 12, 12, 12), (0, 0, 0, 0), (12, 0, 0, 0)])
def test_links_that_were_never_there_are_not_missed(links: tuple[int, ...]) -> None:
    """Boards in slots are bridged in pairs, or not at all, and some of their links lead nowhere."""
    gpus = tuple(replace(each, links_up=up, links_down=18 - up) for each, up in zip(NODE.gpus, links, strict=True))
    assert judge(replace(NODE, gpus=gpus)).fitness is HEALTHY


def test_links_are_compared_with_gpus_of_the_same_model() -> None:
    """Another model has another number of links."""
    assert judge(changed(1, name="NVIDIA A100-SXM4-80GB", links_up=12, links_down=6)).fitness is HEALTHY


# --- the node ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "fitness"),
    [
        (NvmlState.NO_LIBRARY, UNFIT),
        (NvmlState.NO_DRIVER, UNFIT),
        (NvmlState.MISMATCH, UNFIT),
        (NvmlState.NO_GPU, UNFIT),
        (NvmlState.HUNG, UNFIT),
        (NvmlState.NO_PERMISSION, DEGRADED),
    ],
)
def test_a_driver_that_can_not_be_used_is_the_nodes(state: NvmlState, fitness: Fitness) -> None:
    """What can't be looked at is not known to be broken; everything else is."""
    verdict = judge(replace(NODE, nvml_state=state, reason="because", gpus=(), expected=None))
    assert verdict.fitness is fitness
    assert verdict.node.findings[0].words.endswith(f"{state.value.replace('_', ' ')}: because")


@pytest.mark.parametrize(
    ("state", "fitness"),
    [
        (NvmlState.NO_LIBRARY, HEALTHY),
        (NvmlState.NO_DRIVER, HEALTHY),
        (NvmlState.NO_GPU, HEALTHY),
        (NvmlState.MISMATCH, UNFIT),
        (NvmlState.HUNG, UNFIT),
    ],
)
def test_a_node_without_gpus_passes_where_that_is_allowed(state: NvmlState, fitness: Fitness) -> None:
    """One health check for all nodes of a cluster; a node that has GPUs is not excused."""
    nothing = replace(NODE, nvml_state=state, gpus=(), expected=None)
    assert judge(nothing, missing_ok=True).fitness is fitness
    assert judge(replace(nothing, expected=8), missing_ok=True).fitness is UNFIT
    assert judge(replace(nothing, gpus=(replace(gpu(0), state=GpuState.GONE),)), missing_ok=True).fitness is UNFIT


def test_gpus_that_the_kernel_has_and_the_driver_does_not_list_are_missed() -> None:
    """Nobody knows which they are, so every job may want one."""
    one, two = judge(replace(NODE, expected=5)), judge(replace(NODE, expected=6), ["0"], missing_ok=True)
    assert [finding.words for finding in one.node.findings] == [
        "1 GPU is missing: the kernel has 5, the driver lists 4"
    ]
    assert [finding.words for finding in two.node.findings] == [
        "2 GPUs are missing: the kernel has 6, the driver lists 4"
    ]
    assert one.fitness is two.fitness is UNFIT


def test_a_quiesced_node_is_degraded_and_its_gpus_are_not_judged() -> None:
    """They are not polled: their state is nobody's word. Incidents stay what they are."""
    quiesced = replace(changed(1, state=GpuState.GONE), quiesced=True, nvml_state=NvmlState.NO_DRIVER)
    verdict = judge(quiesced)
    assert verdict.fitness is DEGRADED
    assert verdict.node.findings[0].words.startswith("quiesced: the exporter has let go of the GPUs")
    assert judge(replace(quiesced, active=(LOST,))).fitness is UNFIT


def test_an_exporter_that_has_just_started_knows_nothing() -> None:
    """A job that comes in the first second must not drain the node."""
    starting = replace(NODE, nvml_state=NvmlState.NO_DRIVER, reason=NOT_ASKED, gpus=(), expected=None)
    assert judge(starting).fitness is DEGRADED


@pytest.mark.parametrize(
    ("age", "interval", "fitness"),
    [(9.0, 1.0, HEALTHY), (11.0, 1.0, DEGRADED), (11.0, 60.0, HEALTHY), (200.0, 60.0, DEGRADED), (999.0, 0.0, HEALTHY)],
)
def test_an_old_poll_is_said(age: float, interval: float, fitness: Fitness) -> None:
    """What it tells may be over; a look that was taken just now has no interval."""
    assert judge(replace(NODE, age_seconds=age, interval_seconds=interval)).fitness is fitness


def test_what_could_not_be_looked_at_is_degraded() -> None:
    """Without it nobody can say that all is well."""
    verdict = judge(replace(NODE, flaws=("kept incidents can't be used",)))
    assert (verdict.fitness, verdict.node.findings[0].words) == (DEGRADED, "kept incidents can't be used")


# --- what was asked for -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["2", "GPU-2", "gpu-2", "0000:02:00.0", "nvidia5", "/dev/nvidia5"])
def test_one_gpu_can_be_asked_for_by_any_of_its_names(name: str) -> None:
    """The others' faults are not its own."""
    node = replace(NODE, active=(LOST,))
    assert [row.gpu for row in judge(node, [name]).gpus] == [2]
    assert judge(node, [name]).fitness is UNFIT
    assert judge(node, ["0", "GPU-3"]).fitness is HEALTHY


def test_a_gpu_that_is_not_there_must_not_get_work() -> None:
    """Whoever has it on a list would start on nothing, also where a node without GPUs is allowed."""
    verdict = judge(NODE, ["1", "9"], missing_ok=True)
    assert verdict.fitness is UNFIT
    assert [(row.subject, row.fitness) for row in verdict.gpus] == [("GPU 1", HEALTHY), ("GPU 9", UNFIT)]
