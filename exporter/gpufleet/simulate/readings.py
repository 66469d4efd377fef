"""Answers that change from moment to moment: fields, utilization, clocks, temperature, power, links."""

from __future__ import annotations

import struct

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device
from gpufleet.simulate.fields import TABLE
from gpufleet.simulate.gpu import uuid_from
from gpufleet.sources.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
)

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_TWO_U32 = struct.Struct("<II")

TEMPERATURE_V1 = 0x0100_000C
MARGIN_V1 = 0x0100_0008
FABRIC_V2 = 0x0200_0024
FABRIC_V3 = 0x0300_0028
"""Version words: the struct's size, and its version in the top byte."""
_FABRIC_V3_SINCE = 580

_FABRIC_COMPLETED = 3
_ALL_WELL = 0b10_10_10_10 | 1 << 8 | 1 << 12 | 1 << 14
"""Fabric health: no to each degradation, configuration right, partition assigned, fabric manager connected."""
_BLACKWELL = 10


def field_values(device: Device, count: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetFieldValues."""
    if count <= 0:
        return INVALID_ARGUMENT
    reading = device.reading()
    TABLE.answer(device.kind, device.gpu, reading, count, buffer, device.timestamp(reading.time))
    return SUCCESS


def utilization(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetUtilizationRates: percent of GPU and of memory controller."""
    if device.gpu.script.mig:
        return NOT_SUPPORTED
    reading = device.reading()
    _TWO_U32.pack_into(buffer, 0, device.gpu.utilization(reading), reading.regime.memory_utilization)
    return SUCCESS


def _engine(device: Device, percent: int, value: Buffer, period: Buffer) -> int:
    if device.gpu.script.mig:
        return NOT_SUPPORTED
    _U32.pack_into(value, 0, percent)
    _U32.pack_into(period, 0, 167_000)
    return SUCCESS


def encoder(device: Device, value: Buffer, period: Buffer) -> int:
    """Answer nvmlDeviceGetEncoderUtilization."""
    return _engine(device, device.reading().regime.encoder_utilization, value, period)


def decoder(device: Device, value: Buffer, period: Buffer) -> int:
    """Answer nvmlDeviceGetDecoderUtilization."""
    return _engine(device, device.reading().regime.decoder_utilization, value, period)


def jpeg(device: Device, value: Buffer, period: Buffer) -> int:
    """Answer nvmlDeviceGetJpgUtilization."""
    share = device.reading().regime.decoder_utilization * 2 // 5 if device.gpu.script.profile.engines.jpeg else 0
    return _engine(device, share, value, period)


def ofa(device: Device, value: Buffer, period: Buffer) -> int:
    """Answer nvmlDeviceGetOfaUtilization: no workload here uses it."""
    return _engine(device, 0, value, period)


def clock(device: Device, kind: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetClockInfo: 0 graphics, 1 SM, 2 memory, 3 video, in MHz."""
    reading = device.reading()
    if kind in (0, 1):
        mhz: int | None = device.gpu.sm_clock(reading)
    elif kind == 2:
        mhz = reading.regime.memory_clock
    elif kind == 3:
        mhz = reading.regime.video_clock
    else:
        return INVALID_ARGUMENT
    if mhz is None:
        return NOT_SUPPORTED
    _U32.pack_into(buffer, 0, mhz)
    return SUCCESS


def reasons(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetCurrentClocksEventReasons."""
    _U64.pack_into(buffer, 0, device.gpu.reasons(device.reading()))
    return SUCCESS


def performance_state(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetPerformanceState."""
    state = device.gpu.script.profile.idle_performance_state if device.reading().regime.idle else 0
    _U32.pack_into(buffer, 0, state)
    return SUCCESS


def temperature_v(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetTemperatureV: sensor 0 is the chip."""
    version, sensor = _TWO_U32.unpack_from(buffer)
    if version != TEMPERATURE_V1:
        return ARGUMENT_VERSION_MISMATCH
    if sensor != 0:
        return INVALID_ARGUMENT
    _I32.pack_into(buffer, 8, device.reading().temperature)
    return SUCCESS


def temperature(device: Device, sensor: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetTemperature."""
    if sensor != 0:
        return INVALID_ARGUMENT
    _U32.pack_into(buffer, 0, device.reading().temperature)
    return SUCCESS


def margin(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetMarginTemperature: degrees left until T.Limit."""
    if _U32.unpack_from(buffer)[0] != MARGIN_V1:
        return ARGUMENT_VERSION_MISMATCH
    offsets = device.gpu.script.profile.temperature.limit_offsets
    if offsets is None:
        return NOT_SUPPORTED
    _I32.pack_into(buffer, 4, offsets.limit - device.reading().temperature)
    return SUCCESS


def power(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetPowerUsage, in mW."""
    _U32.pack_into(buffer, 0, device.reading().power)
    return SUCCESS


def fan_speed(device: Device, fan: int, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetFanSpeed_v2, in percent."""
    if not 0 <= fan < device.gpu.script.profile.fans:
        return NOT_SUPPORTED if device.gpu.script.profile.fans == 0 else INVALID_ARGUMENT
    _U32.pack_into(buffer, 0, max(30, min(100, 2 * device.reading().temperature - 70 + fan)))
    return SUCCESS


def pcie_generation(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetCurrPcieLinkGeneration."""
    pcie = device.gpu.script.profile.pcie
    resting = pcie.idle_generation is not None and device.reading().regime.idle
    _U32.pack_into(buffer, 0, pcie.idle_generation if resting and pcie.idle_generation else pcie.generation)
    return SUCCESS


def pcie_width(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetCurrPcieLinkWidth."""
    _U32.pack_into(buffer, 0, device.gpu.script.profile.pcie.width)
    return SUCCESS


def _fabric_facts(device: Device) -> tuple[bytes, int, int]:
    """Cluster UUID, clique and health mask; a Hopper node answers every health item with "not supported"."""
    cluster = bytes.fromhex(uuid_from("", device.gpu.script.seed >> 32, 0).replace("-", ""))
    newest = device.gpu.script.profile.architecture_code >= _BLACKWELL
    return cluster, 0, _ALL_WELL if newest else 0


def fabric_v(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetGpuFabricInfoV: versions 2 and (driver 580 and later) 3."""
    version = _U32.unpack_from(buffer)[0]
    if version != FABRIC_V2 and not (version == FABRIC_V3 and device.kind.branch >= _FABRIC_V3_SINCE):
        return ARGUMENT_VERSION_MISMATCH
    if not device.gpu.script.profile.fabric:
        return NOT_SUPPORTED
    cluster, clique, mask = _fabric_facts(device)
    # state is one byte: the three after it are padding, which the driver leaves as they were.
    struct.pack_into("<16sIIB", buffer, 4, cluster, SUCCESS, clique, _FABRIC_COMPLETED)
    _U32.pack_into(buffer, 32, mask)
    if version == FABRIC_V3:
        struct.pack_into("<B", buffer, 36, 1 if mask else 0)
    return SUCCESS


def fabric_v1(device: Device, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetGpuFabricInfo."""
    if not device.gpu.script.profile.fabric:
        return NOT_SUPPORTED
    cluster, clique, _ = _fabric_facts(device)
    struct.pack_into("<16sIIB", buffer, 0, cluster, SUCCESS, clique, _FABRIC_COMPLETED)
    return SUCCESS
