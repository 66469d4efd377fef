"""What an incident is called, and that it keeps its name."""

from __future__ import annotations

import itertools
import re

import pytest

from gpufleet.faults.identity import incident_id
from tests.support.driver_lines import DBE, OFF_THE_BUS, REMAP_FAILED
from tests.support.fault_rig import FaultRig


def name_of(
    boot: str | None = "boot-1",
    pci: str | None = "0000:10:00.0",
    sequence: int | None = 7,
    standing: tuple[str, str] | None = None,
    taken: frozenset[str] = frozenset(),
) -> str:
    """The name of an incident, with a source of randomness that always says the same."""
    return incident_id(
        boot_id=boot, pci_bus_id=pci, sequence=sequence, standing=standing, random_id=lambda: "random", taken=taken
    )


def test_a_name_is_sixteen_hexadecimal_digits() -> None:
    """Short enough for a label, long enough to be unique."""
    assert re.fullmatch(r"[0-9a-f]{16}", name_of())


@pytest.mark.parametrize(
    ("boot", "pci", "sequence"),
    [("boot-2", "0000:10:00.0", 7), ("boot-1", "0000:11:00.0", 7), ("boot-1", "0000:10:00.0", 8)],
)
def test_boot_address_and_record_make_the_name(boot: str, pci: str, sequence: int) -> None:
    """Each of the three makes another incident; the same three the same one."""
    assert name_of(boot, pci, sequence) != name_of()
    assert name_of(boot, pci, sequence) == name_of(boot, pci, sequence)


def test_parts_cannot_run_into_each_other() -> None:
    """Two different triples are never one text."""
    assert name_of("ab", "c") != name_of("a", "bc")


def test_without_a_record_the_name_is_random() -> None:
    """A poll has no place in the log."""
    assert name_of(sequence=None) == "random"


def test_a_random_name_that_is_taken_gives_another_one() -> None:
    """Even a broken source of randomness makes no two incidents of one name."""
    first = name_of(sequence=None, taken=frozenset({"random"}))

    assert first != "random"
    assert name_of(sequence=None, taken=frozenset({"random", first})) not in {"random", first}


def test_a_standing_condition_is_named_without_the_boot() -> None:
    """A failed remap is the same incident after a reboot, on whatever node the board is."""
    standing = ("GPU-1", "row_remap_failure")

    assert name_of("boot-1", standing=standing) == name_of("boot-2", None, None, standing)
    assert name_of(standing=standing) != name_of(standing=("GPU-2", "row_remap_failure"))
    assert name_of(standing=standing) != name_of(standing=("GPU-1", "sram_threshold_exceeded"))


def test_root_class_and_action_are_not_in_the_name() -> None:
    """A case that becomes something worse before it is shown keeps its name."""
    mild, worse = FaultRig(), FaultRig()
    mild.xid(48, DBE)
    name = mild.view.settling[0].id
    worse.xid(48, DBE)
    worse.xid(64, REMAP_FAILED, after=0.1)

    assert worse.active()[0].id == name
    assert mild.only.id == name


def test_reading_the_log_again_gives_the_same_names() -> None:
    """With the state lost and the log still there, receivers see the incident that they know."""
    rig = FaultRig()
    event = rig.xid(79, OFF_THE_BUS, gpu=3)
    name = rig.active()[0].id

    rig.restart(replay=[event], lose_state=True)

    assert [each.id for each in rig.active()] == [name]


def test_names_are_never_used_twice_by_polled_faults() -> None:
    """Each rise of a condition that comes and goes is an incident of its own."""
    rig = FaultRig()
    names = set()
    for round_ in itertools.count(1):
        rig.gpus[0].recovery = "gpu_reset"
        rig.poll(after=10)
        rig.poll(after=10)
        names.add(rig.active()[0].id)
        rig.gpus[0].recovery = "none"
        rig.poll(after=10)
        assert rig.active() == ()
        if round_ == 3:
            break

    assert len(names) == 3
