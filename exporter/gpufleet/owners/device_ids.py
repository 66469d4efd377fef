"""The device that an id means. Ids come from device plugins, from DRA drivers and from prologs of Slurm.

Index-like ids are told apart by who gives them. ``nvidiaN`` (GKE) and ``gpu-N`` (DRA) carry the minor number of
``/dev/nvidiaN``. A bare number (NVIDIA's plugin with ``deviceIDStrategy=index``) and dcgm-exporter's and jobstats'
files count as NVML does, by PCI address. The two differ on some nodes, and neither is the label ``gpu``.

Names of dynamic MIG devices (DRA: ``gpu-0-mig-1g10gb-19-3``) give profile and placement. NVML does not tell where an
existing slice is placed, so among several slices of one profile the id fits any of them (``any_of``).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from gpufleet.owners.devices import Device, Devices

_REPLICA = re.compile(r"(.+)::[0-9]{1,6}")
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/([0-9]{1,4})/([0-9]{1,4})")
_GKE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(/vgpu[0-9]{1,4})?")
_DRA = re.compile(r"gpu-([0-9]{1,4})(?:-mig-(.{1,64})-([0-9]{1,5})-([0-9]{1,4}))?")
_INDEX = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?")
_NUMBERED = re.compile(r"(minor|index):([0-9]{1,4})(?:\.([0-9]{1,4}))?")
_LONGEST = 256
_NOT_GPUS = re.compile(r"rdma|sriov|efa|hca|roce|infiniband|\bib\b|\bcpu\b|hugepages|\bnic\b|mlnx|vfio")


@dataclass(frozen=True, slots=True)
class Target:
    """What an id means: a whole GPU, or slices of it."""

    uuid: str
    mig_uuids: tuple[str, ...] = ()
    """Empty: the whole GPU, with all the slices that it may have."""
    any_of: bool = False
    """One of ``mig_uuids``, it is not told which; otherwise all of them."""
    shared: bool = False
    """The id is a replica: several may have the device."""


@functools.lru_cache(maxsize=128)
def is_of_gpus(resource: str) -> bool:
    """Whether ``resource`` can be one of GPUs; network adapters and processors come in the same lists."""
    return _NOT_GPUS.search(resource.lower()) is None


def find(device_id: str, resource: str, devices: Devices) -> Target | None:
    """The device; None for one that is not on this node, and for ids of no known form. Never raises.

    ``resource`` is empty for files of Slurm. A bare number counts only where the resource is NVIDIA's.
    """
    if len(device_id) > _LONGEST or not is_of_gpus(resource):
        return None
    replica = _REPLICA.fullmatch(device_id)
    if replica is not None:
        device_id = replica[1]
    target = _by_uuid(device_id, devices)
    if target is None:
        target = _by_name(device_id, devices) if resource else _by_number(device_id, devices)
        # Drivers of other makers name their devices gpu-0 as well.
        if resource and "nvidia" not in resource.lower():
            target = None
    if target is not None and replica is not None:
        return Target(target.uuid, target.mig_uuids, target.any_of, shared=True)
    return target


def _by_uuid(device_id: str, devices: Devices) -> Target | None:
    if device_id in devices.by_uuid:
        return Target(device_id)
    parent = devices.by_mig_uuid.get(device_id)
    if parent is not None:
        return Target(parent.uuid, (device_id,))
    if old := _OLD_MIG.fullmatch(device_id):  # drivers before R470
        return _instance(devices.by_uuid.get(old[1]), int(old[2]), int(old[3]))
    return None


def _by_name(device_id: str, devices: Devices) -> Target | None:
    """Names that plugins and drivers give."""
    if gke := _GKE.fullmatch(device_id):
        return _part(devices.by_minor.get(int(gke[1])), gke[2], shared=gke[3] is not None)
    if dra := _DRA.fullmatch(device_id):
        device = devices.by_minor.get(int(dra[1]))
        return _part(device, None) if dra[2] is None else _of_profile(device, dra[2])
    index = _INDEX.fullmatch(device_id)
    if index is None:
        return None
    device = _nth(int(index[1]), devices)
    if index[2] is None or device is None:
        return _part(device, None)
    # "0:1" is the second slice by the driver's index, whose numbers have holes and follow no order that is told.
    return _any_of(device, [part.mig_uuid for part in device.slices])


def _by_number(device_id: str, devices: Devices) -> Target | None:
    """``minor:N`` and ``index:N.G`` of files of Slurm."""
    found = _NUMBERED.fullmatch(device_id)
    if found is None:
        return None
    number = int(found[2])
    return _part(devices.by_minor.get(number) if found[1] == "minor" else _nth(number, devices), found[3])


def _nth(index: int, devices: Devices) -> Device | None:
    return devices.gpus[index] if index < len(devices.gpus) else None


def _part(device: Device | None, gpu_instance: str | None, *, shared: bool = False) -> Target | None:
    if device is None:
        return None
    if gpu_instance is None:
        return Target(device.uuid, shared=shared)
    target = _instance(device, int(gpu_instance), None)
    return None if target is None else Target(target.uuid, target.mig_uuids, shared=shared)


def _instance(device: Device | None, gpu_instance: int, compute_instance: int | None) -> Target | None:
    """The compute instance, or all of those in the GPU instance."""
    if device is None:
        return None
    found = tuple(
        part.mig_uuid
        for part in device.slices
        if part.gpu_instance == gpu_instance and compute_instance in (None, part.compute_instance)
    )
    return Target(device.uuid, found) if found else None


def _of_profile(device: Device | None, profile: str) -> Target | None:
    if device is None:
        return None
    wanted = _plain(profile)
    return _any_of(device, [part.mig_uuid for part in device.slices if _plain(part.profile) == wanted])


def _any_of(device: Device, found: list[str]) -> Target | None:
    return Target(device.uuid, tuple(found), any_of=len(found) > 1) if found else None


def _plain(profile: str) -> str:
    """A profile as it stands in names: ``1g.10gb+me`` is ``1g10gb`` with the attributes in one spelling or another."""
    return re.sub(r"[^a-z0-9]", "", profile.lower())


def slices_of(device: Device, gpu_instance: int | None, compute_instance: int | None) -> Target | None:
    """Where a process runs on a GPU in MIG mode; None when the driver tells an instance that is not there any more."""
    if not device.slices:
        return Target(device.uuid)
    if gpu_instance is None:
        return _any_of(device, [part.mig_uuid for part in device.slices])
    return _instance(device, gpu_instance, compute_instance)
