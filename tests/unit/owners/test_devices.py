"""Which part of a GPU a slice is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.owners.devices import devices_of
from tests.support.owners_evidence import gpu, gpu_uuid, mig_uuid, node


@pytest.mark.parametrize(
    ("profile", "sevenths"),
    [
        ("1g.10gb", 1),
        ("1g.10gb+me", 1),
        ("1g.24gb+gfx", 1),
        ("1g.10gb+me.all", 1),
        ("2g.20gb.gfx", 2),
        ("3g.40gb", 3),
        ("1c.3g.40gb", 1),
        ("2c.4g.40gb", 2),
        ("7g.80gb", 7),
        ("", 1),
        ("what", 1),
    ],
)
def test_profiles_say_sevenths(profile: str, sevenths: int) -> None:
    """Without multiprocessors told, a profile's compute slices over seven are its part."""
    (device,) = node(gpu(0, profile)).gpus

    assert device.slices[0].fraction == pytest.approx(sevenths / 7)
    assert device.unsliced == pytest.approx(1 - sevenths / 7)


@pytest.mark.parametrize("name", ["NVIDIA A30", "NVIDIA RTX PRO 6000 Blackwell Server Edition"])
def test_gpus_that_are_cut_in_four_say_quarters(name: str) -> None:
    """Their largest profile is 4g."""
    (device,) = node(gpu(0, "1g.6gb", "2g.12gb", name=name)).gpus

    assert [part.fraction for part in device.slices] == [0.25, 0.5]


def test_told_multiprocessors_come_first() -> None:
    """A seventh of the slices is not a seventh of the multiprocessors."""
    (device,) = node(gpu(0, "1g.10gb", fraction=16 / 132)).gpus

    assert device.slices[0].fraction == 16 / 132


@pytest.mark.parametrize("told", [0.0, -1.0, 2.0, float("nan"), float("inf")])
def test_fractions_that_cannot_be_true_are_not_believed(told: float) -> None:
    """The profile is asked then."""
    (device,) = node(gpu(0, "2g.20gb", fraction=told)).gpus

    assert device.slices[0].fraction == pytest.approx(2 / 7)


def test_slices_of_a_gpu_are_never_more_than_the_gpu() -> None:
    """What would sum to more is scaled, each by the same."""
    (device,) = node(gpu(0, "4g.40gb", "4g.40gb", "2g.20gb")).gpus

    assert [part.fraction for part in device.slices] == pytest.approx([0.4, 0.4, 0.2])
    assert device.unsliced == pytest.approx(0.0)


def test_a_gpu_without_slices_is_all_unsliced() -> None:
    """Nothing of it is cut off."""
    (device,) = node(gpu(0)).gpus

    assert (device.slices, device.unsliced) == ((), 1.0)


def test_the_drivers_order_is_that_of_pci_addresses() -> None:
    """The label's number is kept per boot and may be another order."""
    first, second = gpu(0), gpu(1)
    swapped = [replace(second, number=0), replace(first, number=1)]

    assert [device.uuid for device in devices_of(swapped).gpus] == [gpu_uuid(0), gpu_uuid(1)]


def test_readings_make_no_other_devices() -> None:
    """Whoever compares them sees a change only where there is one."""
    before, after = gpu(0, "1g.10gb"), replace(gpu(0, "1g.10gb"), polled_at=5.0, utilization_basis="sm")

    assert node(before) == node(after)
    assert node(before) != node(gpu(0, "1g.10gb", "1g.10gb"))
    assert node(after).by_mig_uuid[mig_uuid(0, 0)].uuid == gpu_uuid(0)
