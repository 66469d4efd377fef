"""Sequences on links and switches, the driver's own verdict, and storms: one root, one cure, and who was hit."""

from __future__ import annotations

import pytest

from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Owner, Scope
from tests.support.driver_lines import (
    CONTAINED,
    LINK_DOWN,
    LINK_ECHO,
    LINK_FAULT,
    LINK_MARGINAL,
    LINK_UP_FAULT,
    MMU,
    RXPIPE,
    TIMEOUT,
)
from tests.support.fault_rig import FaultRig, address, pids, uuid

# --- links ------------------------------------------------------------------------------------------------------------


def test_a_link_fault_may_come_after_its_own_consequence() -> None:
    """45 less than a millisecond before 74, then the verdict and 119: the link is the root."""
    rig = FaultRig()
    rig.xid(45, "pid=22884, name=VLLM::Worker, channel 0x00000010 caused by previous Xid 45")
    rig.xid(74, LINK_MARGINAL, after=0.0005)
    rig.recovery(0, 1, after=0.001)
    rig.xid(119, f"pid=4, name=nvidia-smi, {TIMEOUT}", after=2)

    incident = rig.only

    assert (incident.fault, incident.action, incident.isolate, incident.refund) == ("74", Action.RESET_GPU, True, True)
    assert pids(rig) == {22884, 4}


def test_both_ends_of_a_link_are_one_incident() -> None:
    """74 on two GPUs within seconds: one, which names the other as a victim."""
    rig = FaultRig()
    rig.xid(74, LINK_FAULT, gpu=3)
    rig.xid(74, LINK_ECHO, gpu=6, after=0.2)

    incident = rig.only

    assert (incident.fault, incident.uuid, incident.isolate) == ("74", uuid(3), True)
    assert {victim.pci_bus_id for victim in incident.victims} == {address(6)}


@pytest.mark.parametrize(
    ("registers", "isolate", "shown"),
    [
        ("0x100, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", True, True),
        ("0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0", True, True),
        ("0x0, 0x0, 0x0, 0x0, 0x40000, 0x0, 0x0", True, True),
        ("0x80000000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", True, True),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", False, True),
        ("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", False, True),
        ("0x100000, 0x0, 0x0, 0x10000, 0x0, 0x0, 0x0", False, True),
        ("0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", False, False),
    ],
)
def test_registers_say_whether_a_link_fault_is_this_gpus(registers: str, isolate: bool, shown: bool) -> None:
    """Connector, ECC and unknown bits isolate; a threshold, a weak signal and an echo don't; harmless bits are none."""
    rig = FaultRig()
    rig.xid(74, f"NVLink: fatal error detected on link 8({registers})")
    rig.wait(35)

    assert [each.isolate for each in rig.active()] == [isolate] * shown


@pytest.mark.parametrize(("link", "isolate"), [(8, True), (9, False)])
def test_a_weak_link_counts_when_it_is_the_same_again(link: int, isolate: bool) -> None:
    """A marginal bit twice a day on one link is a fault; on two links it is chance."""
    rig = FaultRig()
    rig.xid(74, LINK_MARGINAL)
    rig.wait(35)
    rig.xid(74, LINK_MARGINAL.replace("link 8", f"link {link}"), after=4 * 3600)
    rig.wait(35)

    assert rig.active()[-1].isolate is isolate


@pytest.mark.parametrize("code", [20034, 22012, 24007])
def test_a_fatal_switch_error_is_the_root_of_the_link_fault_on_its_gpu(code: int) -> None:
    """SXid, 74 on the GPU of that link, 45: drain and reset; the incident names the GPU that it hit and its holder."""
    rig = FaultRig()
    rig.owners = {4: Owner(project="a", run="r")}
    rig.sxid(code, LINK_UP_FAULT)
    rig.xid(74, LINK_ECHO, gpu=4, after=0.5)
    rig.xid(45, "pid=8, name=python3, Ch 00000003", gpu=4, after=0.1)

    incident = rig.only

    assert (incident.fault, incident.scope) == (f"sxid_{code}", Scope.SWITCH)
    assert (incident.action, incident.isolate, incident.refund) == (Action.DRAIN_AND_RESET, True, True)
    assert (incident.uuid, incident.owner.run) == (uuid(4), "r")
    assert {(victim.pci_bus_id, victim.pid) for victim in incident.victims} >= {(address(4), None), (address(4), 8)}


def test_a_fatal_switch_error_without_a_gpu_that_felt_it_isolates_nothing() -> None:
    """The switch names the port, not the cause: it is shown, and waits for a GPU's word."""
    rig = FaultRig()
    rig.sxid(20034, LINK_UP_FAULT)

    assert (rig.only.fault, rig.only.isolate) == ("sxid_20034", False)


def test_a_refused_access_points_to_the_gpu_that_hangs() -> None:
    """SXid 12028, non-fatal, then 45 on a GPU: nothing isolates, and the GPU is named as a victim."""
    rig = FaultRig()
    rig.sxid(12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)")
    rig.xid(45, "pid=8, name=python3, Ch 00000003", gpu=4, after=0.1)

    incident = rig.only

    assert (incident.fault, incident.isolate) == ("sxid_12028", False)
    assert {victim.pci_bus_id for victim in incident.victims} == {address(4)}


def test_notices_of_switches_at_boot_open_nothing() -> None:
    """SXid 22013 comes in bursts while links are brought up."""
    rig = FaultRig()
    for link in range(40):
        rig.sxid(22013, f"Non-fatal, Link {link} Minion Link DLREQ interrupt", after=0.01)
    rig.wait(35)

    assert rig.view.active + rig.view.settling == ()
    assert rig.view.switch_errors is not None
    assert [row.count for row in rig.view.switch_errors] == [40]


def test_a_link_of_a_tray_that_fell_is_one_incident() -> None:
    """149, the verdict at once, 45 that names its cause, the verdict milder: on four GPUs of a tray."""
    rig = FaultRig()
    for gpu in range(4):
        rig.xid(149, LINK_DOWN, gpu=gpu, after=0.001)
        rig.recovery(0, 4, gpu=gpu, after=0.001)
    for gpu in range(4):
        rig.xid(45, f"pid={gpu}, name=python3, Ch 00000001 caused by previous Xid 149", gpu=gpu, after=0.283)
        rig.recovery(4, 1, gpu=gpu, after=0.3)

    incident = rig.only

    assert (incident.fault, incident.uuid) == ("149", uuid(0))
    assert (incident.action, incident.isolate, incident.refund) == (Action.DRAIN_AND_RESET, True, True)
    assert {victim.pci_bus_id for victim in incident.victims} >= {address(1), address(2), address(3)}
    assert pids(rig) == {0, 1, 2, 3}


def test_the_gpu_whose_link_fell_is_the_root_of_a_storm_on_all() -> None:
    """145 on every GPU, 45 that names 145, and 149 on one: that one is to blame."""
    rig = FaultRig()
    for gpu in range(8):
        rig.xid(145, RXPIPE, gpu=gpu, after=0.01)
        rig.xid(45, "pid=7, name=python3, Ch 00000003 caused by previous Xid 145", gpu=gpu, after=0.01)
    rig.xid(149, LINK_DOWN, gpu=5, after=0.5)
    rig.recovery(0, 4, gpu=5, after=0.001)

    incident = rig.only

    assert (incident.fault, incident.uuid, incident.isolate) == ("149", uuid(5), True)
    assert {victim.pci_bus_id for victim in incident.victims} >= {address(gpu) for gpu in range(8) if gpu != 5}


def test_a_peers_refusal_is_software() -> None:
    """145 of the unit RXPIPE with 137: restart the job."""
    rig = FaultRig()
    rig.xid(145, RXPIPE)
    rig.xid(137, "NVLink: PRIV Error", after=0.01)

    incident = rig.only

    assert (incident.blame, incident.action, incident.isolate) == (
        Blame.APPLICATION,
        Action.RESTART_APPLICATION,
        False,
    )


# --- the driver's own verdict -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "action", "isolate"),
    [
        (1, Action.RESET_GPU, True),
        (2, Action.REBOOT_NODE, True),
        (3, Action.RESTART_APPLICATION, False),
        (4, Action.DRAIN_AND_RESET, True),
        (5, Action.RESTART_APPLICATION, False),
        (6, Action.RESET_GPU, True),
        (7, Action.REBOOT_NODE, True),
        (99, Action.NONE, False),
    ],
)
def test_a_verdict_without_a_reason_is_obeyed_and_blames_nobody(code: int, action: Action, isolate: bool) -> None:
    """154 alone: the event was missed, the action stands."""
    rig = FaultRig()
    rig.recovery(0, code)

    incident = rig.only

    assert (incident.fault, incident.blame) == ("recovery_action", Blame.UNKNOWN)
    assert (incident.action, incident.isolate, incident.refund) == (action, isolate, False)


def test_a_verdict_that_is_taken_back_closes_the_incident_and_keeps_the_memory() -> None:
    """154 to 0: recovered; the board's history stays."""
    rig = FaultRig()
    rig.xid(62, "0096(1c54)")
    rig.recovery(0, 1, after=0.1)
    rig.recovery(1, 0, after=600)

    assert rig.active() == ()
    assert rig.view.closed[-1].closed_because == "the driver's recovery action is back to none"
    assert rig.ledger.repeats(uuid(0), rig.now)["62"] == 1


# --- storms and names -------------------------------------------------------------------------------------------------


def test_thousands_of_removed_channels_are_no_fault() -> None:
    """11,760 Xid 45 in a row on a healthy node: counted, and nothing opened."""
    rig = FaultRig()
    for number in range(11_760):
        rig.record += 1
        text = f"NVRM: Xid (PCI:{address(0)[:-2]}): 45, pid={number % 500}, name=python3, Ch 00000003"
        rig.say(text, after=0.01)
    rig.wait(600)

    assert rig.view.active + rig.view.settling + rig.view.closed == ()
    assert rig.count(45) == 11_760
    assert len(rig.ledger.dump()["cases"]) == 0


def test_a_tenants_storm_isolates_and_refunds_nothing() -> None:
    """Thousands of 31, 13, 43 and 45 on every GPU."""
    rig = FaultRig()
    rig.owners = dict.fromkeys(range(8), Owner(project="noisy"))
    for number in range(2_000):
        code = (31, 13, 43, 45, 8, 109, 32, 69)[number % 8]
        rig.xid(code, f"pid={number}, name=python3, Ch 00000003", gpu=number // 8 % 8, after=0.5)
    rig.wait(35)

    assert rig.active() != ()
    assert not any(each.isolate or each.refund for each in rig.active())


def test_a_45_follows_the_cause_that_it_names() -> None:
    """The process of a job that a contained error ended hours ago is removed: part of that incident, not a new one."""
    rig = FaultRig()
    rig.xid(94, CONTAINED)
    rig.wait(35)
    rig.xid(31, MMU.format(pid=9), after=3600)
    rig.wait(35)

    rig.xid(45, "pid=7194, name=python3, Ch 00000003 caused by previous Xid 94", after=1)

    assert [dict(each.counts) for each in rig.active()] == [{"94": 1, "45": 1}, {"31": 1}]


def test_a_cause_that_was_missed_is_named_and_isolates_nothing() -> None:
    """45 caused by 95 whose own line nobody saw: shown as 95, by hearsay."""
    rig = FaultRig()
    rig.xid(45, "pid=1, name=python3, Ch 00000003 caused by previous Xid 95")

    incident = rig.only

    assert (incident.fault, incident.blame, incident.isolate) == ("95", Blame.HARDWARE, False)
