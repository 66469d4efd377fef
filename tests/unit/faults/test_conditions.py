"""Polled signals: what opens an incident, what only adds to one, and what is no fault."""

from __future__ import annotations

import pytest

from gpufleet.faults.readouts import Readout, Readouts
from gpufleet.model.fault import Action, Blame
from gpufleet.model.readings import Key, Readings
from gpufleet.model.state import GpuState, NvmlState
from tests.support.driver_lines import DBE, MMU, OFF_THE_BUS, REMAP_FAILED, UNCONTAINED
from tests.support.fault_rig import FaultRig, address, uuid

# --- conditions of a board --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "fault"), [("failure", "row_remap_failure"), ("threshold", "sram_threshold_exceeded")]
)
def test_a_board_at_the_end_of_its_self_repair_is_replaced(reading: str, fault: str) -> None:
    """The flag is kept in the board; one look is enough."""
    rig = FaultRig()
    setattr(rig.gpus[3], reading, 1)
    rig.poll(after=10)
    rig.wait(5)

    (incident,) = rig.active()
    assert (incident.fault, incident.uuid) == (fault, uuid(3))
    assert (incident.blame, incident.action, incident.isolate, incident.refund) == (
        Blame.HARDWARE,
        Action.REPLACE,
        True,
        True,
    )


def test_a_standing_condition_is_the_same_incident_with_the_state_lost_and_after_a_reboot() -> None:
    """Its name holds neither the boot nor chance."""
    rig = FaultRig()
    rig.gpus[3].failure = 1
    rig.poll(after=10)
    rig.wait(6)
    (before,) = rig.active()
    rig.restart(boot="boot-2", lose_state=True)
    rig.wait(6)

    assert [each.id for each in rig.active()] == [before.id]


def test_a_standing_condition_that_a_person_cleared_is_not_told_again() -> None:
    """It still stands, and a person has seen it; not even a restart or a reboot brings it back."""
    rig = FaultRig()
    rig.gpus[3].failure = 1
    rig.poll(after=10)
    rig.wait(6)
    rig.ledger.clear(rig.active()[0].id, rig.now)
    rig.polls(120)
    rig.restart()
    rig.polls(60)
    rig.restart(boot="boot-2")
    rig.polls(60)

    assert rig.active() == ()


def test_another_board_in_the_slot_is_told_of() -> None:
    """What was cleared was cleared for one board."""
    rig = FaultRig()
    rig.gpus[3].failure = 1
    rig.poll(after=10)
    rig.wait(6)
    rig.ledger.clear(rig.active()[0].id, rig.now)
    rig.gpus[3].generation = 1
    rig.poll(after=10)
    rig.wait(6)

    assert [each.uuid for each in rig.active()] == [uuid(3, 1)]


def test_a_failed_remap_and_its_xid_are_one_incident() -> None:
    """64 at once, the flag with the next poll: nothing new."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED)
    shown = rig.active()[0].labels()
    rig.gpus[0].failure = 1
    rig.poll(after=1)
    rig.wait(60)

    assert [each.labels() for each in rig.active()] == [shown]


def test_the_sram_threshold_turns_a_reset_into_a_replacement() -> None:
    """48 asks for a reset; the flag, read a minute later, for another board."""
    rig = FaultRig()
    rig.xid(48, DBE)
    rig.wait(6)
    (first,) = rig.active()
    rig.gpus[0].threshold = 1
    rig.poll(after=50)
    rig.wait(6)

    (second,) = rig.active()
    assert (second.fault, second.action, second.successor_of) == ("48", Action.REPLACE, first.id)


def test_a_pending_remap_is_a_reset_when_idle() -> None:
    """Shown, isolating nothing, and over when the rows are replaced."""
    rig = FaultRig()
    rig.gpus[0].pending = 1
    rig.poll(after=10)
    rig.wait(6)
    (incident,) = rig.active()
    assert (incident.fault, incident.action, incident.isolate) == ("row_remap_pending", Action.RESET_GPU, False)

    rig.gpus[0].pending = 0
    rig.poll(after=10)
    assert rig.active() == ()


def test_what_is_not_reported_keeps_its_last_word() -> None:
    """Remap flags are not readable while MIG slices exist: that neither cures nor repeats anything."""
    rig = FaultRig()
    rig.gpus[0].pending = 1
    rig.poll(after=10)
    rig.wait(6)
    rig.gpus[0].pending = None
    rig.polls(60)
    rig.gpus[0].pending = 1
    rig.polls(60)

    assert [each.counts for each in rig.active()] == [(("row_remap_pending", 1),)]


@pytest.mark.parametrize(
    ("reading", "threshold", "fault", "isolate"),
    [
        ("dram", 0, "ecc_uncorrectable", False),
        ("sram", 0, "ecc_uncorrectable", False),
        ("sram", None, "ecc_uncorrectable_sram", True),
    ],
)
def test_new_uncorrectable_errors_are_told(reading: str, threshold: int | None, fault: str, isolate: bool) -> None:
    """Where no log tells of them. In a cache, with a threshold that can't be read, the GPU waits for a reset."""
    rig = FaultRig()
    rig.gpus[0].threshold = threshold
    rig.poll(after=10)
    setattr(rig.gpus[0], reading, 1)
    rig.poll(after=10)
    rig.wait(6)

    assert [(each.fault, each.isolate) for each in rig.active()] == [(fault, isolate)]


def test_errors_from_before_the_first_poll_are_history() -> None:
    """The log tells of them, with their time."""
    rig = FaultRig(replayed=False)
    rig.gpus[0].dram = 7
    rig.ledger.replay_ended(rig.now)
    rig.polls(60)

    assert rig.active() == ()


def test_errors_told_by_an_xid_are_not_told_again() -> None:
    """95, and the counter with the next poll: one incident."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED)
    rig.gpus[0].dram = 1
    rig.poll(after=1)
    rig.wait(60)

    assert [each.fault for each in rig.active()] == ["95"]


@pytest.mark.parametrize(
    ("issue", "action", "isolate"),
    [
        ("route_unhealthy", Action.DRAIN_AND_RESET, True),
        ("degraded_bandwidth", Action.NONE, False),
        ("route_recovery", Action.NONE, False),
        ("access_timeout_recovery", Action.NONE, False),
    ],
)
def test_issues_of_the_fabric_are_shown(issue: str, action: Action, isolate: bool) -> None:
    """Routes that do not work isolate; a degraded fabric does not."""
    rig = FaultRig()
    rig.gpus[0].fabric = {issue: 1}
    rig.poll(after=10)
    rig.wait(31)

    assert [(each.fault, each.action, each.isolate) for each in rig.active()] == [(f"fabric_{issue}", action, isolate)]


def test_a_condition_that_holds_is_no_silence() -> None:
    """A degraded fabric stays shown while it is degraded, and closes three hours after it is not."""
    rig = FaultRig()
    rig.gpus[0].fabric = {"degraded_bandwidth": 1}
    rig.polls(5 * 3600, every=600)
    assert len(rig.active()) == 1
    rig.gpus[0].fabric = {"degraded_bandwidth": 0}
    rig.polls(3 * 3600 - 1200, every=600)
    assert len(rig.active()) == 1
    rig.polls(1800, every=600)

    assert rig.active() == ()


# --- the driver's recovery action -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "action", "isolate"),
    [
        ("gpu_reset", Action.RESET_GPU, True),
        ("node_reboot", Action.REBOOT_NODE, True),
        ("drain_p2p", Action.RESTART_APPLICATION, False),
        ("drain_and_reset", Action.DRAIN_AND_RESET, True),
        ("recover_imex", Action.RESTART_APPLICATION, False),
        ("bus_reset", Action.RESET_GPU, True),
        ("system_reboot", Action.REBOOT_NODE, True),
        ("unknown", Action.NONE, False),
    ],
)
def test_a_recovery_action_that_nobody_told_is_obeyed(member: str, action: Action, isolate: bool) -> None:
    """Polled at the start: whatever led to it happened while nobody looked."""
    rig = FaultRig(replayed=False)
    rig.gpus[0].recovery = member
    rig.ledger.replay_ended(rig.now)
    rig.poll()
    rig.wait(6)

    (incident,) = rig.active()
    assert (incident.fault, incident.blame) == ("recovery_action", Blame.UNKNOWN)
    assert (incident.action, incident.isolate, incident.refund) == (action, isolate, False)


def test_a_polled_action_turns_a_programs_fault_into_a_reboot() -> None:
    """Without 154 in the log the poll says the same."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1))
    rig.gpus[0].recovery = "node_reboot"
    rig.poll(after=2)

    incident = rig.only
    assert (incident.fault, incident.blame, incident.action) == ("31", Blame.APPLICATION, Action.REBOOT_NODE)
    assert (incident.isolate, incident.refund) == (True, False)


def test_the_log_and_the_poll_tell_one_action_once() -> None:
    """154 to 1, and the poll of a second later."""
    rig = FaultRig()
    rig.recovery(0, 1)
    rig.gpus[0].recovery = "gpu_reset"
    rig.polls(60)

    assert [each.counts for each in rig.active()] == [(("recovery_action", 1),)]


def test_an_action_that_was_taken_while_the_exporter_was_down_is_noticed() -> None:
    """It asked for a reset, the exporter was stopped, the GPU was reset, the exporter started."""
    rig = FaultRig()
    rig.xid(62, "0096(1c54)")
    rig.recovery(0, 1, after=0.1)
    rig.now += 600
    rig.restart()

    assert rig.active() == ()


# --- GPUs that do not answer ------------------------------------------------------------------------------------------


def test_a_gpu_that_wants_a_reset_and_says_no_more() -> None:
    """RESET_REQUIRED: isolated, blamed on nobody, and over when it takes calls again."""
    rig = FaultRig()
    rig.gpus[0].state = GpuState.RESET_REQUIRED
    rig.poll(after=10)
    rig.wait(6)
    (incident,) = rig.active()
    assert (incident.fault, incident.blame, incident.action, incident.isolate) == (
        "reset_required",
        Blame.UNKNOWN,
        Action.RESET_GPU,
        True,
    )

    rig.gpus[0].state = GpuState.OK
    rig.poll(after=10)
    assert rig.active() == ()


@pytest.mark.parametrize("state", [GpuState.HUNG, GpuState.DRIVER_BLOCKED, GpuState.NO_PERMISSION])
def test_a_gpu_that_does_not_answer_for_other_reasons_opens_nothing(state: GpuState) -> None:
    """gpu_state says it; it proves no fault of the board."""
    rig = FaultRig()
    rig.gpus[0].state = state
    rig.polls(600)

    assert rig.active() == ()


def test_a_lost_gpu_and_its_xid_are_one_incident() -> None:
    """79 in the log, LOST at the poll."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS)
    rig.gpus[0].state = GpuState.LOST
    rig.polls(120)

    assert [each.fault for each in rig.active()] == ["79"]


def test_a_gpu_that_is_gone_is_missing_after_a_minute() -> None:
    """Reloads and resets take less. When it is there again, it is missing no more."""
    rig = FaultRig()
    rig.gpus[2].state = GpuState.GONE
    rig.polls(50)
    assert rig.active() == ()
    rig.polls(30)
    (incident,) = rig.active()
    assert (incident.fault, incident.uuid, incident.action, incident.isolate) == (
        "gpu_missing",
        uuid(2),
        Action.REBOOT_NODE,
        True,
    )

    rig.gpus[2].state = GpuState.OK
    rig.poll(after=10)
    assert rig.active() == ()


def test_gpus_are_not_missing_while_the_driver_is() -> None:
    """An unloaded driver enumerates nothing, and a quiesced exporter does not ask."""
    rig = FaultRig()
    for gpu in rig.gpus:
        gpu.state = GpuState.GONE
    for _ in range(20):
        rig.poll(after=10, nvml=NvmlState.NO_DRIVER)
        rig.poll(after=10, quiesced=True)

    assert rig.active() == ()


def test_a_gpu_that_was_unbound_on_purpose_is_not_missing() -> None:
    """A virtual machine has it; when the driver takes it back, it counts again."""
    rig = FaultRig()
    rig.ledger.device("unbind", address(2), rig.now)
    rig.gpus[2].state = GpuState.GONE
    rig.polls(600)
    assert rig.active() == ()

    rig.ledger.device("bind", address(2), rig.now)
    rig.polls(90)
    assert [each.fault for each in rig.active()] == ["gpu_missing"]


def test_a_gpu_that_the_kernel_removed_is_lost_at_once() -> None:
    """An unbinding comes before every removal; without the exporter being quiesced nobody did it on purpose."""
    rig = FaultRig()
    rig.ledger.device("unbind", address(2), rig.now)
    rig.ledger.device("remove", address(2), rig.now)
    rig.ledger.tick(rig.now)

    assert [(each.fault, each.uuid) for each in rig.active()] == [("gpu_lost", uuid(2))]


def test_a_gpu_removed_while_quiesced_is_somebodys_work() -> None:
    """Maintenance makes the exporter let go first. A device that was no GPU of this node is none of ours."""
    rig = FaultRig()
    rig.ledger.device("remove", "0000:ff:00.0", rig.now)
    rig.poll(quiesced=True)
    rig.ledger.device("remove", address(2), rig.now)
    rig.wait(60)

    assert rig.active() == ()


def test_a_gpu_taken_while_quiesced_is_not_missing_until_it_was_back() -> None:
    """Bound to a virtual machine while the exporter had let go; lost after its return it is missing like any other."""
    rig = FaultRig()
    rig.poll(after=10, quiesced=True)
    rig.gpus[2].state = GpuState.GONE
    rig.polls(600)
    assert rig.active() == ()

    rig.gpus[2].state = GpuState.OK
    rig.poll(after=10)
    rig.gpus[2].state = GpuState.GONE
    rig.polls(90)
    assert [each.fault for each in rig.active()] == ["gpu_missing"]


def test_an_attempt_to_start_a_gpu_that_is_not_named_ends_with_the_boot() -> None:
    """Old drivers name no GPU: none can prove that it was cured."""
    rig = FaultRig()
    rig.say("NVRM: RmInitAdapter failed! (0x24:0x72:1568)")
    rig.wait(6)
    assert [(each.fault, each.pci_bus_id) for each in rig.active()] == [("rm_init_failed", None)]
    rig.restart(boot="boot-2")

    assert rig.active() == ()


def test_a_gpu_that_was_never_enumerated_is_missing_by_count() -> None:
    """The kernel knows nine, the driver lists eight: the node is short of one, whoever it is."""
    rig = FaultRig()
    rig.expected = 9
    rig.polls(90)

    (incident,) = rig.active()
    assert (incident.fault, incident.uuid, incident.pci_bus_id, incident.isolate) == ("gpu_missing", None, None, True)
    assert incident.labels().uuid == ""
    rig.expected = 8
    rig.poll(after=10)
    assert rig.active() == ()


def test_a_missing_gpu_whose_fault_is_known_is_not_told_twice() -> None:
    """The ninth did not start, as the log said: that explains the count."""
    rig = FaultRig()
    rig.expected = 9
    rig.say("NVRM: GPU 0000:a1:00.0: RmInitAdapter failed! (0x24:0x72:1568)")
    rig.polls(120)

    assert [each.fault for each in rig.active()] == ["rm_init_failed"]


def test_a_gpu_that_starts_after_all_is_cured() -> None:
    """It answers, and goes on answering for a minute."""
    rig = FaultRig()
    rig.say(f"NVRM: GPU {address(2)}: RmInitAdapter failed! (0x24:0x72:1568)")
    rig.wait(6)
    assert [each.fault for each in rig.active()] == ["rm_init_failed"]
    rig.polls(90)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "the GPU was started again and answers"


# --- reading ----------------------------------------------------------------------------------------------------------


def test_nothing_reported_is_nothing_read() -> None:
    """Absent is absent."""
    assert Readouts().read(()) == Readout()
    assert Readouts().read((Readings((Key("row_remap_pending"),), (None,)),)) == Readout()


def test_a_changed_plan_is_read_anew() -> None:
    """Positions belong to one tuple of keys, not to its length or its looks."""
    readouts = Readouts()
    first = Readings((Key("row_remap_pending"), Key("row_remap_failure")), (1, 0))
    second = Readings((Key("row_remap_failure"), Key("row_remap_pending")), (1, 0))

    assert readouts.read((first,)) == Readout(remap_pending=True, remap_failure=False)
    assert readouts.read((second,)) == Readout(remap_pending=False, remap_failure=True)
    for number in range(200):
        made = Readings((Key("energy_joules"), Key(f"other_{number}")), (float(number), 1))
        assert readouts.read((made,)).energy == number
