"""The GPUs and slices of the node, and which part of a GPU a slice is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.snapshot import GpuSnapshot

_SEVENTHS = 7
_QUARTERS = 4
_CUT_IN_FOUR = re.compile(r"\bA30X?\b|\bRTX PRO\b")
"""Products whose largest profile is 4g; that of all others is 7g (NVIDIA MIG User Guide, supported profiles)."""
_PROFILE = re.compile(r"(?:([1-9][0-9]?)c\.)?([1-9][0-9]?)g\b")
"""``1c.3g.40gb`` is one of three compute slices of its GPU instance; what follows (``+me``, ``.gfx``) is no compute."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A compute instance."""

    mig_uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    fraction: float
    """Of the whole GPU's compute; those of one GPU sum to at most 1."""


@dataclass(frozen=True, slots=True)
class Device:
    """A physical GPU."""

    uuid: str
    number: int
    """Value of the label ``gpu``; not the driver's index."""
    minor: int | None
    pci_bus_id: str
    slices: tuple[Slice, ...] = ()
    """Sorted by GPU instance and compute instance."""

    @property
    def unsliced(self) -> float:
        """The part of a GPU in MIG mode that no slice covers; 1 for a GPU without slices."""
        return max(0.0, 1.0 - math.fsum(each.fraction for each in self.slices))


@dataclass(frozen=True, slots=True)
class Devices:
    """What is on the node."""

    gpus: tuple[Device, ...] = ()
    """In NVML's order, which is that of PCI addresses: the position is the driver's index."""
    by_uuid: Mapping[str, Device] = field(init=False, repr=False, compare=False)
    by_minor: Mapping[int, Device] = field(init=False, repr=False, compare=False)
    by_mig_uuid: Mapping[str, Device] = field(init=False, repr=False, compare=False)
    """The GPU that a slice is part of."""

    def __post_init__(self) -> None:
        """Make the ways to look a device up."""
        object.__setattr__(self, "by_uuid", {gpu.uuid: gpu for gpu in self.gpus})
        object.__setattr__(self, "by_minor", {gpu.minor: gpu for gpu in self.gpus if gpu.minor is not None})
        object.__setattr__(self, "by_mig_uuid", {part.mig_uuid: gpu for gpu in self.gpus for part in gpu.slices})


def devices_of(gpus: Sequence[GpuSnapshot]) -> Devices:
    """The devices of a snapshot; equal for equal identities and slices, whatever was read from them."""
    found = [_device(gpu.number, gpu.identity, [part.identity for part in gpu.slices]) for gpu in gpus]
    return Devices(tuple(sorted(found, key=lambda gpu: (gpu.pci_bus_id, gpu.uuid))))


def _device(number: int, identity: GpuIdentity, slices: Sequence[SliceIdentity]) -> Device:
    whole = _QUARTERS if _CUT_IN_FOUR.search(identity.name) else _SEVENTHS
    ordered = sorted(slices, key=lambda part: (part.gpu_instance, part.compute_instance, part.mig_uuid))
    fractions = [_fraction(part, whole) for part in ordered]
    total = math.fsum(fractions)
    # Fractions that were told and those taken from profiles differ: multiprocessors are not cut in sevenths exactly.
    scale = 1.0 / total if total > 1.0 else 1.0
    return Device(
        identity.uuid,
        number,
        identity.minor,
        identity.pci_bus_id,
        tuple(
            Slice(part.mig_uuid, part.profile, part.gpu_instance, part.compute_instance, fraction * scale)
            for part, fraction in zip(ordered, fractions, strict=True)
        ),
    )


def _fraction(part: SliceIdentity, whole: int) -> float:
    told = part.compute_fraction
    if told is not None and 0.0 < told <= 1.0:
        return told
    match = _PROFILE.search(part.profile)
    # Of a profile that says nothing the smallest slice is assumed: the rest is shown as unsliced, not as held.
    return min(1.0, int(match[1] or match[2]) / whole) if match else 1.0 / whole
