"""Cuts a GPU into MIG instances, and answers the calls that concern them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpufleet.simulate.activities import IDLE, regime
from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.gpu import Compute, GpuScript, Instance, uuid_from
from gpufleet.simulate.health import Troubles
from gpufleet.simulate.profiles import Profile
from gpufleet.simulate.timeline import Blend, Timeline
from gpufleet.sources.nvml.calls import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS

COMPUTE_SLICES = 7
MEMORY_SLICES = 8
MOST_SLICES = 7
_FIRST_IDENTIFIER = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
"""GPU instance ids by size, as the driver numbers them: sparse, and apart for each size."""
_PROFILE_NUMBERS = {0: (1, 1), 1: (2, 2), 2: (3, 4), 3: (4, 4), 4: (7, 8), 9: (1, 2)}
"""NVML_GPU_INSTANCE_PROFILE_*: compute and memory slices of those that some part here has."""


class MigLayoutError(ValueError):
    """Instances that the GPU has no room for, or profiles that it does not know."""


def partition(
    profile: Profile, names: Sequence[str], timelines: Sequence[Timeline], seed: int, *, generation: int = 0
) -> tuple[Instance, ...]:
    """GPU instances of the named MIG profiles, one timeline each; MigLayoutError when the part can't be cut so.

    Partial compute instances are written ``1c.3g.40gb+2c.3g.40gb``: one GPU instance that is shared by two of them.
    ``generation`` makes other UUIDs of the same layout, as a re-partitioning does.
    """
    instances: list[Instance] = []
    compute = memory = number = 0
    taken: set[int] = set()
    for name, timeline in zip(names, timelines, strict=True):
        parts = [_split(part) for part in name.split("+")]
        gpu_profile = parts[0][1]
        try:
            mig_profile = profile.mig_profile(gpu_profile)
        except KeyError:
            known = ", ".join(each.profile for each in profile.mig) or "none: it has no MIG"
            raise MigLayoutError(f"{profile.key} has no MIG profile {gpu_profile!r}; it has {known}") from None
        shares = [share or mig_profile.slices for share, _ in parts]
        if any(part != gpu_profile for _, part in parts) or sum(shares) > mig_profile.slices:
            raise MigLayoutError(f"{name!r} does not fit into one GPU instance of {gpu_profile}")
        compute += mig_profile.slices
        memory += mig_profile.memory_slices
        identifier = _FIRST_IDENTIFIER[mig_profile.slices]
        while identifier in taken:
            identifier += 1
        taken.add(identifier)
        computes = []
        for i, share in enumerate(shares):
            computes.append(Compute(i, share, uuid_from("MIG-", seed ^ 0x4D49_47, number + 64 * generation)))
            number += 1
        instances.append(Instance(identifier, mig_profile, timeline, tuple(computes)))
    if compute > COMPUTE_SLICES or memory > MEMORY_SLICES:
        raise MigLayoutError(
            f"{' + '.join(names)} needs {compute} of {COMPUTE_SLICES} compute slices and {memory} of "
            f"{MEMORY_SLICES} memory slices; leave some out"
        )
    return tuple(instances)


def layout_names(layout: Mapping[str, int]) -> list[str]:
    """``{3g.40gb: 1, 1g.10gb: 4}`` as one name for each instance."""
    return [name for name, count in layout.items() for _ in range(count)]


def _split(name: str) -> tuple[int, str]:
    """Compute slices (0: all) and GPU instance profile of ``1c.3g.40gb`` or ``3g.40gb``."""
    head, _, rest = name.partition(".")
    return (int(head[:-1]), rest) if head.endswith("c") and head[:-1].isdigit() else (0, name)


def blend(profile: Profile, instances: Sequence[Instance]) -> Timeline:
    """What the whole GPU does when its instances do what they do."""
    shares = [(instance.timeline, instance.profile.multiprocessors) for instance in instances]
    return Blend(regime(profile, IDLE), shares, profile.multiprocessors)


def cut(script: GpuScript, instances: tuple[Instance, ...], troubles: Troubles | None = None) -> GpuScript:
    """The script of a GPU that has these instances from the start."""
    return replace(
        script,
        mig=True,
        instances=instances,
        timeline=blend(script.profile, instances),
        troubles=script.troubles if troubles is None else troubles,
    )


_U32 = struct.Struct("<I")
_ATTRIBUTES = struct.Struct("<8IQ")


def mig_mode(device: Device, current: Buffer, pending: Buffer) -> int:
    """Answer nvmlDeviceGetMigMode."""
    if not device.gpu.script.profile.mig:
        return NOT_SUPPORTED
    enabled = int(device.gpu.script.mig)
    _U32.pack_into(current, 0, enabled)
    _U32.pack_into(pending, 0, enabled)
    return SUCCESS


def profile_info(device: Device, number: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetGpuInstanceProfileInfo: what one kind of GPU instance has, MIG on or not."""
    shape = _PROFILE_NUMBERS.get(number)
    for profile in device.gpu.script.profile.mig:
        if (profile.slices, profile.memory_slices) == shape:
            struct.pack_into(
                "<10I",
                buffer,
                0,
                number,
                0,
                profile.slices,
                min(COMPUTE_SLICES // profile.slices, MEMORY_SLICES // profile.memory_slices),
                profile.multiprocessors,
                profile.slices,
                profile.decoders,
                0,
                profile.jpeg,
                0,
            )
            struct.pack_into("<Q", buffer, 40, profile.memory_mib)
            return SUCCESS
    return NOT_SUPPORTED


def most_slices(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMaxMigDeviceCount."""
    _U32.pack_into(buffer, 0, MOST_SLICES if device.gpu.script.profile.mig else 0)
    return SUCCESS


def slice_by_index(device: Device, index: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMigDeviceHandleByIndex; NOT_FOUND for an index that no slice has."""
    if not device.gpu.script.profile.mig:
        return NOT_SUPPORTED
    if not 0 <= index < MOST_SLICES:
        return INVALID_ARGUMENT
    if index >= len(device.slices):
        return NOT_FOUND
    struct.pack_into("<Q", buffer, 0, device.slices[index].handle)
    return SUCCESS


def gpu_instance(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetGpuInstanceId."""
    _U32.pack_into(buffer, 0, target.instance.identifier)
    return SUCCESS


def compute_instance(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetComputeInstanceId."""
    _U32.pack_into(buffer, 0, target.compute.identifier)
    return SUCCESS


def attributes(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetAttributes_v2."""
    profile = target.instance.profile
    _ATTRIBUTES.pack_into(
        buffer,
        0,
        target.multiprocessors,
        profile.slices,
        profile.decoders,
        0,
        profile.jpeg,
        0,
        profile.slices,
        target.compute.slices,
        profile.memory_mib,
    )
    return SUCCESS
