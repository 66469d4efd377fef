"""Sequences as they were seen in logs of real machines: one root, one cure, and who was hit."""

from __future__ import annotations

import pytest

from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Owner, Scope
from tests.support.driver_lines import (
    CONTAINED,
    DBE,
    LINK_ECHO,
    LINK_UP_FAULT,
    MMU,
    OFF_THE_BUS,
    PROBE,
    REMAP_FAILED,
    REMAPPED,
    TIMEOUT,
    UNCONTAINED,
    WARP,
)
from tests.support.fault_rig import FaultRig, address, pids, uuid

# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_repaired_row_costs_one_job_and_waits_for_an_idle_reset() -> None:
    """48, 63 and 94 within milliseconds: the row was set aside, the error contained, the GPU works on."""
    rig = FaultRig()
    rig.xid(48, DBE)
    rig.xid(63, REMAPPED, after=0.023)
    rig.xid(94, CONTAINED, after=0.002)
    rig.xid(45, "pid=7194, name=python3, Ch 00000003", after=0.001)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("48", Blame.HARDWARE, Action.RESET_GPU)
    assert (incident.isolate, incident.refund) == (False, True)
    assert pids(rig) == {7194}
    assert incident.counts == (("48", 1), ("63", 1), ("94", 1), ("45", 1))


def test_a_failed_repair_ends_with_a_new_board() -> None:
    """48 then 64: no spare row is left, so the GPU is replaced; it is shown at the line that says so."""
    rig = FaultRig()
    rig.xid(48, DBE)
    rig.xid(64, REMAP_FAILED, after=0.02)

    (incident,) = rig.active()

    assert (incident.fault, incident.action, incident.isolate, incident.refund) == ("48", Action.REPLACE, True, True)


def test_an_uncontained_error_takes_every_job_on_the_gpu() -> None:
    """48, 95, a 45 for each process and the driver's verdict: one incident, and every process a victim."""
    rig = FaultRig()
    rig.xid(48, DBE)
    rig.xid(95, UNCONTAINED, after=0.01)
    for pid in (11, 12, 13):
        rig.xid(45, f"pid={pid}, name=python3, Ch 00000003", after=0.01)
    rig.recovery(0, 1, after=0.01)

    incident = rig.only

    assert (incident.fault, incident.action, incident.isolate, incident.refund) == ("48", Action.RESET_GPU, True, True)
    assert pids(rig) == {7062, 11, 12, 13}


@pytest.mark.parametrize("detail", [172, None])
def test_an_error_in_a_cache_is_reset_for(detail: int | None) -> None:
    """48 in SRAM, told by its text or by 172: nothing is remapped, so the GPU waits for its reset."""
    rig = FaultRig()
    rig.xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU in the SRAM")
    if detail is not None:
        rig.xid(detail, "Uncorrectable SRAM error", after=0.01)

    incident = rig.only

    assert (incident.fault, incident.action, incident.isolate) == ("48", Action.RESET_GPU, True)


def test_a_context_switch_timeout_under_the_number_48_blames_nobody() -> None:
    """The text decides: this 48 is no memory error, and nobody gets a retry for it; the reset is needed anyhow."""
    rig = FaultRig()
    rig.xid(48, "pid=91237, name=nv-hostengine, Ch 00000076, errorString CTX SWITCH TIMEOUT, Info 0x3c046")

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("48", Blame.UNKNOWN, Action.RESET_GPU)
    assert (incident.isolate, incident.refund) == (True, False)


def test_a_retired_row_alone_waits_for_an_idle_reset() -> None:
    """63 by itself isolates nothing."""
    rig = FaultRig()
    rig.xid(63, REMAPPED)

    incident = rig.only

    assert (incident.fault, incident.action, incident.isolate) == ("63", Action.RESET_GPU, False)


def test_a_second_contained_error_within_a_day_isolates() -> None:
    """One 94 costs a job; another on the same GPU the next hour is a pattern."""
    rig = FaultRig()
    rig.xid(94, CONTAINED)
    assert rig.only.isolate is False

    rig.xid(94, CONTAINED, after=3600)
    rig.wait(6)

    first, second = rig.active()
    assert (first.isolate, second.isolate, second.action) == (False, True, Action.RESET_GPU)


# --- lost GPUs --------------------------------------------------------------------------------------------------------


def test_a_gpu_off_the_bus_is_the_one_to_blame_for_what_its_peers_say() -> None:
    """79, its second line, clients' 119, the verdict, then SXid 20034 on the switches and 74 on the peers."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS, gpu=2)
    rig.say(f"NVRM: GPU {address(2)}: GPU has fallen off the bus.")
    for pid in (100, 101):
        rig.xid(119, f"pid={pid}, name=nvidia-smi, {TIMEOUT}", gpu=2, after=3)
    rig.recovery(0, 2, gpu=2)
    for switch in range(4):
        rig.sxid(20034, LINK_UP_FAULT, switch=switch, after=3 if switch == 0 else 0.01)
    for peer in (0, 1, 3):
        rig.xid(74, LINK_ECHO, gpu=peer, after=0.01)

    incident = rig.only

    assert (incident.fault, incident.uuid, incident.action) == ("79", uuid(2), Action.REBOOT_NODE)
    assert (incident.blame, incident.scope, incident.isolate, incident.refund) == (
        Blame.HARDWARE,
        Scope.GPU,
        True,
        True,
    )
    assert dict(incident.counts)["echo:74"] == 3
    assert dict(incident.counts)["echo:sxid_20034"] == 4
    assert {victim.pid for victim in incident.victims} >= {100, 101}
    assert {victim.pci_bus_id for victim in incident.victims} >= {address(0), address(1), address(3)}


def test_switches_may_speak_before_the_driver_notices_the_loss() -> None:
    """A switch sees its link drop first; it is an echo of the 79 that comes seconds later."""
    rig = FaultRig()
    rig.sxid(20034, LINK_UP_FAULT)
    rig.xid(79, OFF_THE_BUS, gpu=2, after=8)

    assert (rig.only.fault, rig.only.uuid) == ("79", uuid(2))


def test_a_gpu_lost_at_probe_needs_no_xid() -> None:
    """The three lines at probe: root gpu_lost, reboot."""
    rig = FaultRig()
    rig.say(f"NVRM: The NVIDIA GPU {address(1)}\n{PROBE}")

    (incident,) = rig.active()

    assert (incident.fault, incident.action, incident.isolate) == ("gpu_lost", Action.REBOOT_NODE, True)


def test_two_gpus_off_the_bus_within_a_minute_blame_the_node() -> None:
    """Power, a PCIe switch or the baseboard: each GPU keeps its holder's incident, and both name one cause."""
    rig = FaultRig()
    rig.owners = {1: Owner(project="a"), 5: Owner(project="b")}
    rig.xid(79, OFF_THE_BUS, gpu=1)
    rig.xid(79, OFF_THE_BUS, gpu=5, after=50)

    first, second = rig.active()

    assert (first.scope, second.scope) == (Scope.NODE, Scope.NODE)
    assert (first.part_of, second.part_of) == (None, first.id)
    assert [each.owner.project for each in rig.active()] == ["a", "b"]
    assert all(each.action is Action.REBOOT_NODE and each.refund for each in rig.active())


def test_two_gpus_off_the_bus_an_hour_apart_are_two_faults() -> None:
    """Nothing binds them together."""
    rig = FaultRig()
    rig.xid(79, OFF_THE_BUS, gpu=1)
    rig.xid(79, OFF_THE_BUS, gpu=5, after=61)

    assert [each.scope for each in rig.active()] == [Scope.GPU, Scope.GPU]


def test_a_gpu_that_does_not_start_beside_one_with_bad_memory_are_two_incidents() -> None:
    """RmInitAdapter failed on A again and again while B has 48 and 64: both are taken out."""
    rig = FaultRig()
    for _ in range(5):
        rig.say(f"NVRM: GPU {address(3)}: RmInitAdapter failed! (0x24:0x72:1568)", after=0.5)
    rig.xid(48, DBE, gpu=4, after=0.1)
    rig.xid(64, REMAP_FAILED, gpu=4, after=0.01)
    rig.wait(35)

    assert {(each.pci_bus_id, each.fault, each.isolate) for each in rig.active()} == {
        (address(3), "rm_init_failed", True),
        (address(4), "48", True),
    }
    assert next(dict(each.counts) for each in rig.active() if each.gpu == 3) == {"rm_init_failed": 5}


# --- controllers ------------------------------------------------------------------------------------------------------


def test_a_silent_system_processor_names_the_monitors_as_victims() -> None:
    """119 every 6 s, then the driver's verdict: one incident, and nvidia-smi is no culprit."""
    rig = FaultRig()
    for pid in (51, 52, 53):
        rig.xid(119, f"pid={pid}, name=nvidia-smi, {TIMEOUT}", after=6)
    rig.recovery(0, 1, after=1)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("119", Blame.DRIVER, Action.RESET_GPU)
    assert (incident.isolate, incident.refund) == (True, False)
    assert pids(rig) == {51, 52, 53}


def test_what_follows_a_halted_power_controller_is_its_consequence() -> None:
    """62, the verdict, then 16, 44, 109, 119 and 45."""
    rig = FaultRig()
    rig.xid(62, "0096(1c54) 00000000 00000000")
    rig.recovery(0, 1, after=0.1)
    for code in (16, 44, 109, 119, 45):
        rig.xid(code, "pid=9, name=Xorg", after=1)

    incident = rig.only

    assert (incident.fault, incident.action, incident.isolate, incident.refund) == ("62", Action.RESET_GPU, True, True)
    assert pids(rig) == {9}


def test_a_halt_after_a_page_fault_is_the_programs_with_a_reset() -> None:
    """31 first and 62 after: nobody knows the job to be good, so it isolates and refunds nothing."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=5))
    rig.xid(62, "0096(1c54) 00000000 00000000", after=0.5)
    rig.xid(45, "pid=5, name=python3, Ch 1", after=0.1)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("62", Blame.APPLICATION, Action.RESET_GPU)
    assert (incident.isolate, incident.refund) == (True, False)


def test_a_page_fault_after_a_flash_error_is_not_the_jobs() -> None:
    """122, then 31 fifty milliseconds later: the board's flash, and the job is innocent."""
    rig = FaultRig()
    rig.xid(122, "SPI PMU RPC read failed")
    rig.xid(31, MMU.format(pid=5), after=0.05)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("122", Blame.HARDWARE, Action.RESET_GPU)
    assert incident.refund


def test_a_broken_channel_group_is_the_drivers() -> None:
    """51 of driver 610 and its verdict: reset, not hardware."""
    rig = FaultRig()
    rig.xid(51, "BAD_TSG encountered on runlist: 0 with error code: 4")
    rig.recovery(0, 1, after=0.1)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("51", Blame.DRIVER, Action.RESET_GPU)
    assert (incident.isolate, incident.refund) == (True, False)


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [(), (43,), (45,)])
def test_a_page_fault_is_the_jobs_own(after: tuple[int, ...]) -> None:
    """31 alone, with 43 or with 45: restart the job, isolate nothing, refund nothing."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=77))
    for code in after:
        rig.xid(code, "pid=77, name=python3, Ch 00000018", after=0.01)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("31", Blame.APPLICATION, Action.RESTART_APPLICATION)
    assert (incident.isolate, incident.refund) == (False, False)
    assert pids(rig) == {77}


def test_one_programs_page_faults_on_every_gpu_blame_the_program_and_reboot() -> None:
    """31 on eight GPUs within a minute, then the driver wants a reboot: isolate, and blame the job all the same."""
    rig = FaultRig()
    for gpu in range(8):
        rig.xid(31, MMU.format(pid=477445), gpu=gpu, after=2)
    for gpu in range(8):
        rig.recovery(0, 2, gpu=gpu, after=0.1)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.scope) == ("31", Blame.APPLICATION, Scope.NODE)
    assert (incident.action, incident.isolate, incident.refund) == (Action.REBOOT_NODE, True, False)
    assert {victim.pci_bus_id for victim in incident.victims} == {address(gpu) for gpu in range(8)}


def test_page_faults_on_two_gpus_are_two_jobs() -> None:
    """Two are no pattern."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=1), gpu=0)
    rig.xid(31, MMU.format(pid=2), gpu=1, after=1)
    rig.wait(35)

    assert [(each.fault, each.scope) for each in rig.active()] == [("31", Scope.GPU), ("31", Scope.GPU)]


def test_the_third_gpu_within_a_minute_makes_one_of_incidents_that_were_shown() -> None:
    """Twenty-five seconds apart the first is shown when the third comes; one stays, and the others are part of it."""
    rig = FaultRig()
    for gpu in range(3):
        rig.xid(31, MMU.format(pid=1), gpu=gpu, after=25)

    incident = rig.only

    assert (incident.uuid, incident.scope) == (uuid(0), Scope.NODE)
    assert {victim.pci_bus_id for victim in incident.victims} >= {address(1), address(2)}
    assert dict(incident.counts)["echo:31"] == 2


@pytest.mark.parametrize("last", [43, 109])
def test_exceptions_all_over_the_gpu_are_the_jobs_own(last: int) -> None:
    """13 on many GPCs and TPCs at once, then 43 or 109: restart the job."""
    rig = FaultRig()
    for gpc in range(4):
        for tpc in range(3):
            rig.xid(13, WARP.format(gpc=gpc, tpc=tpc), after=0.001)
    rig.xid(last, "pid=3, name=train, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005", after=0.5)

    incident = rig.only

    assert (incident.blame, incident.action) == (Blame.APPLICATION, Action.RESTART_APPLICATION)
    assert (incident.isolate, incident.refund) == (False, False)


def test_one_broken_place_of_a_gpu_shows_across_tenants() -> None:
    """13 at the same GPC and TPC under two owners: suspect hardware, which isolates nothing and refunds nobody."""
    rig = FaultRig()
    rig.owners = {0: Owner(project="a")}
    rig.xid(13, WARP.format(gpc=1, tpc=2))
    assert rig.only.blame is Blame.APPLICATION

    rig.owners = {0: Owner(project="b")}
    rig.xid(13, WARP.format(gpc=1, tpc=2), after=3600)
    rig.wait(35)

    second = rig.active()[-1]
    assert (second.blame, second.isolate, second.refund) == (Blame.HARDWARE, False, False)


@pytest.mark.parametrize(("owner", "tpc"), [("a", 2), ("b", 3), ("", 2)])
def test_one_tenant_or_two_places_make_no_suspect(owner: str, tpc: int) -> None:
    """The same owner again, an unknown one, or another place: still the program's own."""
    rig = FaultRig()
    rig.owners = {0: Owner(project="a")}
    rig.xid(13, WARP.format(gpc=1, tpc=2))
    rig.wait(35)

    rig.owners = {0: Owner(project=owner)}
    rig.xid(13, WARP.format(gpc=1, tpc=tpc), after=3600)
    rig.wait(35)

    assert [each.blame for each in rig.active()] == [Blame.APPLICATION, Blame.APPLICATION]


def test_a_damaged_command_stream_is_the_jobs() -> None:
    """32, 69 and 31 on one GPU: restart the job."""
    rig = FaultRig()
    rig.xid(32, "Channel ID 00000052 intr 02000000")
    rig.xid(69, "pid=1, name=train.3, Class Error: ChId 0008, Class 0000cbc0, Offset 00000184", after=0.2)
    rig.xid(31, MMU.format(pid=1), after=0.2)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("31", Blame.APPLICATION, Action.RESTART_APPLICATION)
    assert not incident.isolate


def test_the_second_hang_within_a_day_asks_for_a_reset() -> None:
    """8 once: restart the job. Twice: reset, which still isolates nothing, since any program can do it."""
    rig = FaultRig()
    rig.xid(8, "pid=463898, name=llama-server, channel 0x00000007")
    assert rig.only.action is Action.RESTART_APPLICATION

    rig.xid(8, "pid=463899, name=llama-server, channel 0x00000007", after=7200)
    rig.wait(35)

    assert (rig.active()[-1].action, rig.active()[-1].isolate) == (Action.RESET_GPU, False)


def test_an_applications_fault_that_ends_in_a_reboot_isolates_and_refunds_nobody() -> None:
    """The driver's verdict is action, not blame."""
    rig = FaultRig()
    rig.xid(31, MMU.format(pid=5))
    rig.recovery(0, 2, after=1)

    incident = rig.only

    assert (incident.fault, incident.blame, incident.action) == ("31", Blame.APPLICATION, Action.REBOOT_NODE)
    assert (incident.isolate, incident.refund) == (True, False)
