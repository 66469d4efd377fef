"""Answers about memory: how much there is and is used, its errors, and the rows that were replaced."""

from __future__ import annotations

import struct

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.columns import column_condition, column_lifetime, column_since_load
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.profiles import MIB
from gpufleet.sources.nvml.calls import ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_THREE_U64 = struct.Struct("<3Q")
_FOUR_U64 = struct.Struct("<4Q")

MEMORY_V2 = 0x0200_0028
SRAM_V1 = 0x0100_0068
"""Version words: the struct's size, and its version in the top byte."""
_DRAM, _SRAM = 2, 7
"""nvmlMemoryLocation_t."""


def memory_v2(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryInfo_v2; ``used`` leaves the reserve out."""
    if _U32.unpack_from(buffer)[0] != MEMORY_V2:
        return ARGUMENT_VERSION_MISMATCH
    memory = device.gpu.script.profile.memory
    if memory is None:
        return NOT_SUPPORTED
    used = device.gpu.memory_used(device.reading())
    total, reserved = memory.total_mib * MIB, memory.reserved_mib * MIB
    _FOUR_U64.pack_into(buffer, 8, total, reserved, total - reserved - used, used)
    return SUCCESS


def memory_v1(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryInfo; ``used`` has the reserve in it."""
    memory = device.gpu.script.profile.memory
    if memory is None:
        return NOT_SUPPORTED
    total = memory.total_mib * MIB
    used = device.gpu.memory_used(device.reading()) + memory.reserved_mib * MIB
    _THREE_U64.pack_into(buffer, 0, total, total - used, used)
    return SUCCESS


def bar1(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetBAR1MemoryInfo."""
    memory = device.gpu.script.profile.memory
    if memory is None:
        return NOT_SUPPORTED
    used = MIB * (1 if device.reading().regime.idle else 7)
    total = memory.bar1_mib * MIB
    _THREE_U64.pack_into(buffer, 0, total, total - used, used)
    return SUCCESS


def slice_memory_v2(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryInfo_v2 of a MIG slice: its GPU instance's memory, nothing reserved."""
    if _U32.unpack_from(buffer)[0] != MEMORY_V2:
        return ARGUMENT_VERSION_MISMATCH
    total = target.instance.profile.memory_mib * MIB
    used = target.device.gpu.instance_memory_used(target.instance, target.device.reading())
    _FOUR_U64.pack_into(buffer, 8, total, 0, total - used, used)
    return SUCCESS


def slice_memory_v1(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryInfo of a MIG slice."""
    total = target.instance.profile.memory_mib * MIB
    used = target.device.gpu.instance_memory_used(target.instance, target.device.reading())
    _THREE_U64.pack_into(buffer, 0, total, total - used, used)
    return SUCCESS


def slice_bar1(target: Slice, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetBAR1MemoryInfo of a MIG slice."""
    total = target.instance.profile.bar1_mib * MIB
    _THREE_U64.pack_into(buffer, 0, total, total - MIB, MIB)
    return SUCCESS


def ecc_mode(device: Device, current: Buffer, pending: Buffer) -> int:
    """Answer nvmlDeviceGetEccMode."""
    if not device.gpu.script.profile.ecc:
        return NOT_SUPPORTED
    _U32.pack_into(current, 0, 1)
    _U32.pack_into(pending, 0, 1)
    return SUCCESS


def memory_errors(device: Device, severity: int, span: int, location: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryErrorCounter: severity 0 corrected, 1 not; span 0 since load, 1 lifetime."""
    if severity not in (0, 1) or span not in (0, 1):
        return INVALID_ARGUMENT
    if not device.gpu.script.profile.ecc or location not in (_DRAM, _SRAM):
        return NOT_SUPPORTED
    kind = f"ecc_{'uncorrectable' if severity else 'correctable'}_{'sram' if location == _SRAM else 'dram'}"
    at = column_lifetime(kind) if span else column_since_load(kind)
    _U64.pack_into(buffer, 0, device.reading().values[at])
    return SUCCESS


def slice_memory_errors(target: Slice, severity: int, span: int, location: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMemoryErrorCounter of a MIG slice: uncorrectable SRAM errors since load, and nothing else."""
    if (severity, span, location) != (1, 0, _SRAM):
        return NOT_SUPPORTED
    return memory_errors(target.device, severity, span, location, buffer)


def sram_errors(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetSramEccErrorStatus."""
    if _U32.unpack_from(buffer)[0] != SRAM_V1:
        return ARGUMENT_VERSION_MISMATCH
    profile = device.gpu.script.profile
    if not profile.ecc or not profile.sram_status:
        return NOT_SUPPORTED
    values = device.reading().values
    lifetime = values[column_lifetime("ecc_uncorrectable_sram")]
    lifetime_corrected = values[column_lifetime("ecc_correctable_sram")]
    volatile = values[column_since_load("ecc_uncorrectable_sram")]
    volatile_corrected = values[column_since_load("ecc_correctable_sram")]
    # Uncorrectable errors are parity or SEC-DED errors, and each of them falls into one of five places.
    struct.pack_into(
        "<11QI",
        buffer,
        8,
        lifetime // 2,
        lifetime - lifetime // 2,
        lifetime_corrected,
        volatile // 2,
        volatile - volatile // 2,
        volatile_corrected,
        lifetime,
        0,
        0,
        0,
        0,
        values[column_condition("sram_threshold")],
    )
    return SUCCESS


def remap_histogram(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetRowRemapperHistogram: memory banks by how many spare rows they have left."""
    profile = device.gpu.script.profile
    if not profile.row_remapping or device.gpu.script.mig:
        return NOT_SUPPORTED
    values = device.reading().values
    used = values[column_lifetime("remap_correctable")] + values[column_lifetime("remap_uncorrectable")]
    failed = values[column_condition("remap_failure")]
    high = min(used, profile.row_banks - failed)
    struct.pack_into("<5I", buffer, 0, profile.row_banks - high - failed, high, 0, 0, failed)
    return SUCCESS
