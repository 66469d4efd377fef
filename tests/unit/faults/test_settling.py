"""When an incident is shown, what takes over from it, and what closes it."""

from __future__ import annotations

import pytest

from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Incident, Owner
from gpufleet.model.state import GpuState
from tests.support.driver_lines import (
    CONTAINED,
    DBE,
    LINK_DOWN,
    LINK_FAULT,
    LINK_UP_FAULT,
    MMU,
    OFF_THE_BUS,
    REMAP_FAILED,
    REMAPPED,
    TIMEOUT,
    UNCONTAINED,
)
from tests.support.fault_rig import FaultRig, address, uuid

HALT = "0096(1c54) 00000000 00000000"
TEXTS = {
    79: OFF_THE_BUS,
    64: REMAP_FAILED,
    95: UNCONTAINED,
    119: f"pid=1, name=nvidia-smi, {TIMEOUT}",
    62: HALT,
    143: "GPU initialization failure",
    48: DBE,
    63: REMAPPED,
    94: CONTAINED,
    140: "Unrecovered ECC Error",
    74: LINK_FAULT,
    149: LINK_DOWN,
}


# --- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [79, 64, 95, 119, 62, 143])
def test_what_can_only_be_this_gpus_is_shown_at_once(code: int) -> None:
    """No wait, and no tick needed beside the one for the event."""
    rig = FaultRig()
    rig.xid(code, TEXTS[code])

    assert [each.fault for each in rig.active()] == [str(code)]


def test_a_lost_gpu_is_shown_at_once() -> None:
    """Told by the kernel's log without an Xid, and by the driver's answer to a poll."""
    rig = FaultRig()
    rig.say(f"NVRM: GPU {address(0)}: GPU has fallen off the bus.")
    rig.gpus[1].state = GpuState.LOST
    rig.poll()

    assert [each.fault for each in rig.active()] == ["gpu_lost", "gpu_lost"]


@pytest.mark.parametrize(
    ("code", "seconds"), [(48, 5), (63, 5), (94, 5), (140, 5), (74, 30), (149, 30), (31, 30), (46, 5), (109, 30)]
)
def test_what_may_be_repaired_or_an_echo_waits(code: int, seconds: float) -> None:
    """It is open before, and shown when its time has come."""
    rig = FaultRig()
    rig.xid(code, TEXTS.get(code, ""))

    rig.wait(seconds - 0.5)
    assert rig.active() == ()
    assert [each.fault for each in rig.view.settling] == [str(code)]
    rig.wait(0.5)
    assert [each.fault for each in rig.active()] == [str(code)]


def test_a_switch_waits_for_its_gpus() -> None:
    """SXid: thirty seconds."""
    rig = FaultRig()
    rig.sxid(20034, LINK_UP_FAULT)
    rig.wait(29.5)
    assert rig.active() == ()
    rig.wait(0.5)

    assert [each.fault for each in rig.active()] == ["sxid_20034"]


def test_the_ledger_says_when_it_wants_to_be_called() -> None:
    """A thread may sleep until then, and no longer."""
    rig = FaultRig()
    assert rig.ledger.tick(rig.now) is None
    rig.xid(48, DBE)

    assert rig.ledger.tick(rig.now) == pytest.approx(rig.now + 5)


def test_the_sooner_of_two_lines_decides() -> None:
    """74 would wait thirty seconds; a 95 on the same GPU does not."""
    rig = FaultRig()
    rig.xid(74, LINK_FAULT)
    rig.xid(95, UNCONTAINED, after=1)

    assert [each.fault for each in rig.active()] == ["95"]


# --- what takes over --------------------------------------------------------------------------------------------------


def labels_but_id(incident: Incident) -> tuple[object, ...]:
    """What was shown of an incident."""
    return (incident.fault, incident.blame, incident.action, incident.isolate, incident.refund, incident.owner)


def test_labels_stay_as_they_were_shown() -> None:
    """Later lines count; the owner of later is not the owner of the fault."""
    rig = FaultRig()
    rig.owners = {0: Owner(project="a", run="r1")}
    rig.xid(62, HALT)
    shown = rig.active()[0]

    rig.owners = {0: Owner(project="b", run="r2")}
    for _ in range(20):
        rig.xid(45, "pid=3, name=python3, Ch 1", after=1)
    (later,) = rig.active()

    assert later.labels() == shown.labels()
    assert (shown.events, later.events) == (1, 21)


def test_a_worse_line_opens_a_successor_that_names_the_first() -> None:
    """119 asks for a reset; the 79 after it for a reboot: the first is closed, the second says what it took over."""
    rig = FaultRig()
    rig.owners = {0: Owner(project="a")}
    rig.xid(119, f"pid=1, name=nvidia-smi, {TIMEOUT}")
    (first,) = rig.active()
    rig.owners = {}
    rig.xid(79, OFF_THE_BUS, after=20)

    (second,) = rig.active()

    assert second.successor_of == first.id != second.id
    assert (second.fault, second.action, second.owner) == ("79", Action.REBOOT_NODE, Owner(project="a"))
    assert (second.began_at, second.opened_at) == (first.opened_at, rig.now)
    closed = rig.view.closed[-1]
    assert (closed.id, closed.closed_because) == (first.id, f"taken over by {second.id}")
    assert labels_but_id(closed) == labels_but_id(first)


def test_a_successor_that_is_an_echo_takes_nothing_over() -> None:
    """A contained error was shown when a link of its GPU fails, because another GPU fell off the bus."""
    rig = FaultRig()
    rig.xid(94, CONTAINED, gpu=0)
    rig.wait(6)
    rig.xid(74, LINK_FAULT, gpu=0)
    assert [each.successor_of for each in rig.view.settling] == [rig.active()[0].id]
    rig.xid(79, OFF_THE_BUS, gpu=5, after=3)
    rig.wait(60)

    contained, lost = rig.active()
    assert (contained.fault, contained.isolate, dict(contained.counts)) == ("94", False, {"94": 1})
    assert (lost.fault, dict(lost.counts)) == ("79", {"79": 1, "echo:74": 1})
    assert {victim.pci_bus_id for victim in lost.victims} == {address(0)}


def test_a_verdict_hours_later_still_finds_the_gpus_incident() -> None:
    """A GPU that waits for its cure says whatever it says about the same fault."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED)
    first = rig.active()[0]
    rig.recovery(1, 2, after=5 * 3600)
    rig.wait(10)

    assert [(each.action, each.successor_of) for each in rig.active()] == [(Action.REBOOT_NODE, first.id)]


def test_a_milder_line_changes_nothing() -> None:
    """Reboot stays reboot when the driver would be content with a reset."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS)
    shown = rig.active()[0].labels()
    rig.recovery(0, 1, after=1)
    rig.xid(31, MMU.format(pid=1), after=1)
    rig.wait(60)

    assert [each.labels() for each in rig.active()] == [shown]


def test_a_gpu_off_the_bus_a_second_time_within_a_month_is_a_case_for_inspection() -> None:
    """The first asks for a reboot, the second for another board; after a month it is a first one again."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS)
    assert rig.active()[0].action is Action.REBOOT_NODE
    rig.restart(boot="boot-2")

    rig.xid(79, OFF_THE_BUS, after=20 * 86_400)
    assert rig.active()[0].action is Action.REPLACE
    rig.ledger.clear(rig.active()[0].id, rig.now)

    rig.xid(79, OFF_THE_BUS, after=31 * 86_400)
    assert rig.active()[0].action is Action.REBOOT_NODE


@pytest.mark.parametrize(("days", "blame"), [(6, Blame.HARDWARE), (8, Blame.DRIVER)])
def test_firmware_that_hangs_again_within_a_week_is_hardware(days: int, blame: Blame) -> None:
    """119, a reboot, and 119 again."""
    rig = FaultRig()
    rig.xid(119, f"pid=1, name=nvidia-smi, {TIMEOUT}")
    rig.restart(boot="boot-2")
    assert rig.active() == ()
    rig.xid(119, f"pid=1, name=nvidia-smi, {TIMEOUT}", after=days * 86_400)

    assert rig.active()[0].blame is blame


# --- what closes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "action"), [(95, Action.RESET_GPU), (79, Action.REBOOT_NODE), (64, Action.REPLACE)])
def test_silence_and_restarts_cure_nothing(code: int, action: Action) -> None:
    """Days without an event, and the exporter started anew: what needs a cure stays open."""
    rig = FaultRig()
    rig.xid(code, TEXTS[code])
    shown = rig.active()
    for _ in range(3):
        rig.wait(86_400)
        rig.restart()

    assert rig.active() == shown
    assert rig.active()[0].action is action


def test_what_needs_no_cure_closes_after_three_quiet_hours() -> None:
    """Each event starts the silence anew."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1))
    rig.wait(3 * 3600 - 60)
    assert len(rig.active()) == 1
    rig.restart()
    assert len(rig.active()) == 1
    rig.wait(61)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "three quiet hours"


def test_a_reboot_closes_what_asked_for_one_and_nothing_else() -> None:
    """79 is over with a new boot; a failed remap is not, and a bad link is when its GPU has answered."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS, gpu=1)
    rig.xid(64, REMAP_FAILED, gpu=2)
    rig.xid(95, UNCONTAINED, gpu=3)
    (replace,) = (each for each in rig.active() if each.gpu == 2)

    rig.gpus[3].state = GpuState.HUNG
    rig.restart(boot="boot-2")

    kept = {each.gpu: each for each in rig.active()}
    assert kept.keys() == {2, 3}
    assert (kept[2].id, kept[2].labels()) == (replace.id, replace.labels())
    assert {each.closed_because for each in rig.view.closed} == {"the node was rebooted"}


def test_a_gpu_that_answers_in_a_new_boot_was_reset_by_it() -> None:
    """Its counters began anew with the boot."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED, gpu=3)
    rig.restart(boot="boot-2")
    rig.poll(after=1)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "the GPU was reset by the reboot"


def test_an_unknown_boot_proves_no_reboot() -> None:
    """Where the boot id can't be read, nothing is taken for cured."""
    rig = FaultRig(boot=None)
    rig.xid(79, OFF_THE_BUS)
    rig.restart()

    assert [each.fault for each in rig.active()] == ["79"]


def test_counters_that_begin_anew_prove_a_reset() -> None:
    """Energy below what it was, and ECC errors fewer: the GPU was reset after the fault."""
    rig = FaultRig()
    rig.gpus[0].dram = 2
    rig.poll()
    rig.xid(95, UNCONTAINED)
    rig.gpus[0].energy = 1_000_500.0
    rig.poll(after=60)
    rig.gpus[0].energy = 20.0
    rig.gpus[0].dram = 0
    rig.poll(after=60)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "the GPU was reset: its energy and ECC counters began anew"


@pytest.mark.parametrize(("energy", "dram"), [(1_000_500.0, 0), (20.0, 2)])
def test_one_counter_alone_proves_no_reset(energy: float, dram: int) -> None:
    """Energy that goes on, or ECC errors that stay."""
    rig = FaultRig()
    rig.gpus[0].dram = 2
    rig.poll()
    rig.xid(95, UNCONTAINED)
    rig.poll(after=60)
    rig.gpus[0].energy, rig.gpus[0].dram = energy, dram
    rig.polls(600)

    assert [each.fault for each in rig.active()] == ["95"]


def test_a_reset_while_nobody_could_look_is_proved_by_what_follows() -> None:
    """The GPU hung from before its fault until its reset: a quiet minute afterwards settles it."""
    rig = FaultRig()
    rig.gpus[0].state = GpuState.HUNG
    rig.poll(after=5)
    rig.xid(62, HALT, after=5)
    rig.poll(after=600)
    rig.gpus[0].state, rig.gpus[0].energy = GpuState.OK, 50.0
    rig.poll(after=10)
    assert len(rig.active()) == 1
    rig.polls(70)

    assert rig.active() == ()


def test_a_fault_right_after_a_reset_is_not_cured_by_it() -> None:
    """It came after the counters began anew."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED)
    rig.poll(after=60)
    rig.gpus[0].energy = 20.0
    rig.poll(after=60)
    assert rig.active() == ()
    rig.xid(95, UNCONTAINED, after=1)
    rig.polls(300)

    assert [each.fault for each in rig.active()] == ["95"]


def test_the_drivers_verdict_back_to_none_closes_a_reset() -> None:
    """Polled: it asked, and asks no more. That it never asked proves nothing."""
    rig = FaultRig()
    rig.xid(62, HALT, gpu=0)
    rig.xid(95, UNCONTAINED, gpu=1)
    rig.gpus[0].recovery = "gpu_reset"
    rig.poll(after=1)
    assert len(rig.active()) == 2
    rig.gpus[0].recovery = "none"
    rig.polls(60)

    assert [each.gpu for each in rig.active()] == [1]


def test_a_poll_that_was_on_its_way_takes_no_verdict_back() -> None:
    """154 to 1 in the log, and a poll of the same second that still says none."""
    rig = FaultRig()
    rig.xid(62, HALT)
    rig.recovery(0, 1)
    rig.poll(after=0.5)

    assert len(rig.active()) == 1


@pytest.mark.parametrize("before", [3, 5])
def test_a_verdict_that_asked_for_no_reset_proves_none(before: int) -> None:
    """Back from draining peers or from an IMEX domain."""
    rig = FaultRig()
    rig.xid(95, UNCONTAINED)
    rig.recovery(before, 0, after=60)

    assert len(rig.active()) == 1


def test_a_verdict_taken_back_does_not_cure_a_reboot_or_a_replacement() -> None:
    """79 needs its reboot, 64 another board."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS, gpu=0)
    rig.xid(64, REMAP_FAILED, gpu=1)
    for gpu in (0, 1):
        rig.recovery(0, 1, gpu=gpu, after=1)
        rig.recovery(1, 0, gpu=gpu, after=60)

    assert [each.fault for each in rig.active()] == ["79", "64"]


def test_every_gpu_that_asked_has_to_be_reset() -> None:
    """Both ends of a link asked; one reset is half a cure."""
    rig = FaultRig()
    for gpu in (3, 6):
        rig.xid(74, LINK_FAULT, gpu=gpu, after=0.1)
        rig.recovery(0, 1, gpu=gpu, after=0.001)
    rig.wait(31)
    assert len(rig.active()) == 1
    rig.recovery(1, 0, gpu=3, after=60)
    assert len(rig.active()) == 1
    rig.recovery(1, 0, gpu=6, after=60)

    assert rig.active() == ()


def test_a_person_clears_an_incident() -> None:
    """It is closed and says by whom; another name is refused."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED)

    assert rig.ledger.clear("0" * 16, rig.now) is False
    assert rig.ledger.clear(rig.active()[0].id, rig.now) is True
    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "cleared by a person"


def test_a_board_that_left_takes_its_incidents_along() -> None:
    """Another UUID in its slot: replaced. The counts of the new one begin at nothing."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED, gpu=2)
    rig.gpus[2].generation = 1
    rig.poll(after=600)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "the GPU left the node"
    assert rig.view.xid_errors is not None
    assert [(row.uuid, row.count) for row in rig.view.xid_errors] == [(uuid(2), 1)]


def test_a_board_replaced_at_a_reboot_is_gone() -> None:
    """The incident survives the reboot until the slot shows another board, or the node is complete without it."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED, gpu=2)
    rig.gpus[2].generation = 1
    rig.restart(boot="boot-2")

    assert rig.active() == ()


def test_an_empty_slot_after_a_reboot_is_no_replacement() -> None:
    """A dead board does not answer either: it stays until another one is there."""
    rig = FaultRig()
    rig.xid(64, REMAP_FAILED, gpu=2)
    del rig.gpus[2]
    rig.restart(boot="boot-2")
    rig.polls(60)

    assert [each.uuid for each in rig.active()] == [uuid(2)]


# --- owners -----------------------------------------------------------------------------------------------------------


def test_isolations_by_one_owners_programs_are_capped() -> None:
    """Three a day are believed; the fourth is shown and isolates nothing. Hardware is not capped."""
    rig = FaultRig()
    rig.owners = dict.fromkeys(range(8), Owner(project="noisy"))
    for gpu in range(4):
        rig.xid(31, MMU.format(pid=gpu), gpu=gpu, after=300)
        rig.recovery(0, 1, gpu=gpu, after=1)
        rig.wait(35)
    rig.xid(95, UNCONTAINED, gpu=5, after=300)

    assert [each.isolate for each in rig.active()] == [True, True, True, False, True]
    assert "too often" in rig.active()[3].notes[-1]


def test_a_cap_on_programs_hides_no_dead_gpu() -> None:
    """The incident of a capped program becomes one of the hardware: that isolates and refunds."""
    rig = FaultRig()
    rig.owners = dict.fromkeys(range(8), Owner(project="noisy"))
    for gpu in range(4):
        rig.xid(31, MMU.format(pid=gpu), gpu=gpu, after=300)
        rig.recovery(0, 1, gpu=gpu, after=1)
        rig.wait(20)
    rig.xid(79, OFF_THE_BUS, gpu=3, after=1)

    last = rig.active()[-1]
    assert (last.fault, last.isolate, last.refund) == ("79", True, True)


def test_a_suspect_gpu_that_fails_for_good_refunds() -> None:
    """Two owners' page faults, then the GPU is off the bus: the second owner's run gets its retry back."""
    rig = FaultRig()
    for project in ("a", "b"):
        rig.owners = {0: Owner(project=project)}
        rig.xid(31, MMU.format(pid=1), after=3600)
        rig.wait(31)
    assert rig.active()[-1].blame is Blame.HARDWARE
    assert rig.active()[-1].refund is False
    rig.xid(31, MMU.format(pid=1))
    rig.xid(79, OFF_THE_BUS, after=1)

    assert [(each.fault, each.refund) for each in rig.active()][-1] == ("79", True)


def test_a_gpu_that_is_lost_after_a_programs_faults_is_not_the_programs() -> None:
    """31 on three GPUs, then one of them is off the bus: hardware, as it would be without the program."""
    rig = FaultRig()
    for gpu in range(3):
        rig.xid(31, MMU.format(pid=1), gpu=gpu, after=1)
    rig.wait(31)
    rig.xid(31, MMU.format(pid=1))
    rig.xid(79, OFF_THE_BUS, gpu=0, after=2)

    (incident,) = rig.active()
    assert (incident.fault, incident.uuid, incident.blame, incident.refund) == ("79", uuid(0), Blame.HARDWARE, True)


def test_the_owner_of_a_fault_long_ago_is_not_known() -> None:
    """Who holds the GPU now did not hold it when the log was written."""
    rig = FaultRig(replayed=False)
    rig.owners = {0: Owner(project="now")}
    rig.poll()
    rig.now -= 3600
    event = rig.xid(79, OFF_THE_BUS)
    rig.now += 3600
    rig.restart(replay=[event], lose_state=True)

    assert rig.active()[0].owner == Owner()
