"""Answers that do not change while the driver is loaded: who a GPU is and what it can do."""

from __future__ import annotations

import struct

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.gpu import pci_bus_id
from gpufleet.sources.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
)

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PCI = struct.Struct("<16sIIIII32s")

BOARD_LIMIT_AND_RELIABILITY = 0x600
_NEWER_REASONS_SINCE = 615


def write_text(buffer: Buffer, size: int, text: str) -> int:
    """Write a C string of at most ``size`` bytes, the closing zero included."""
    content = text.encode() + b"\0"
    if len(content) > size:
        return INSUFFICIENT_SIZE
    struct.pack_into(f"{len(content)}s", buffer, 0, content)
    return SUCCESS


def uuid(device: Device, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetUUID."""
    return write_text(buffer, size, device.gpu.script.uuid)


def slice_uuid(target: Slice, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetUUID of a MIG slice."""
    return write_text(buffer, size, target.compute.uuid)


def name(device: Device, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetName."""
    return write_text(buffer, size, device.gpu.script.profile.name)


def slice_name(target: Slice, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetName of a MIG slice."""
    return write_text(buffer, size, f"{target.device.gpu.script.profile.name} MIG {target.profile_name}")


def serial(device: Device, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetSerial."""
    if not device.gpu.script.profile.serial:
        return NOT_SUPPORTED
    return write_text(buffer, size, device.gpu.script.serial)


def vbios(device: Device, buffer: Buffer, size: int) -> int:
    """Answer nvmlDeviceGetVbiosVersion."""
    return write_text(buffer, size, device.gpu.script.profile.vbios)


def pci(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetPciInfo_v3."""
    script = device.gpu.script
    profile = script.profile
    full = pci_bus_id(script.bus)
    legacy = full[4:]
    _PCI.pack_into(
        buffer, 0, legacy.encode(), 0, script.bus, 0, profile.pci_device_id, profile.pci_subsystem_id, full.encode()
    )
    return SUCCESS


def minor(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMinorNumber."""
    _U32.pack_into(buffer, 0, device.gpu.script.minor)
    return SUCCESS


def architecture(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetArchitecture."""
    _U32.pack_into(buffer, 0, device.gpu.script.profile.architecture_code)
    return SUCCESS


def max_clock(device: Device, kind: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMaxClockInfo: 0 graphics, 1 SM, 2 memory, 3 video."""
    clocks = device.gpu.script.profile.clocks
    if not 0 <= kind <= 3:
        return INVALID_ARGUMENT
    mhz = (clocks.sm_max, clocks.sm_max, clocks.memory_max, clocks.video_max)[kind]
    if mhz is None:
        return NOT_SUPPORTED
    _U32.pack_into(buffer, 0, mhz)
    return SUCCESS


def max_pcie_generation(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMaxPcieLinkGeneration."""
    _U32.pack_into(buffer, 0, device.gpu.script.profile.pcie.generation)
    return SUCCESS


def max_pcie_width(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMaxPcieLinkWidth."""
    _U32.pack_into(buffer, 0, device.gpu.script.profile.pcie.width)
    return SUCCESS


def temperature_threshold(device: Device, kind: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetTemperatureThreshold: 0 shutdown, 1 slowdown, 2 memory max, 3 GPU max."""
    thresholds = device.gpu.script.profile.temperature.thresholds
    if not 0 <= kind <= 7:
        return INVALID_ARGUMENT
    if thresholds is None or kind > 3:
        return NOT_SUPPORTED
    celsius = (thresholds.shutdown, thresholds.slowdown, thresholds.memory_max, thresholds.gpu_max)[kind]
    if celsius is None:
        return NOT_SUPPORTED
    _U32.pack_into(buffer, 0, celsius)
    return SUCCESS


def supported_reasons(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetSupportedClocksEventReasons."""
    mask = device.gpu.script.profile.clock_event_mask
    if device.kind.branch >= _NEWER_REASONS_SINCE:
        mask |= BOARD_LIMIT_AND_RELIABILITY
    _U64.pack_into(buffer, 0, mask)
    return SUCCESS


def fans(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetNumFans: 0 for a board that the server's fans cool."""
    _U32.pack_into(buffer, 0, device.gpu.script.profile.fans)
    return SUCCESS


def gpm_support(device: Device, buffer: Buffer) -> int:
    """Answer nvmlGpmQueryDeviceSupport."""
    if _U32.unpack_from(buffer)[0] != 1:
        return ARGUMENT_VERSION_MISMATCH
    _U32.pack_into(buffer, 4, int(device.gpu.script.profile.gpm))
    return SUCCESS
