"""Answers that change from moment to moment: utilization, clocks, temperature, memory, errors, links."""

from __future__ import annotations

import struct

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.fields import TABLE
from gpufleet.simulate.gpu import column_condition, column_lifetime, column_since_load, noise, uuid_from
from gpufleet.simulate.profiles import MIB
from gpufleet.sources.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
)

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_TWO_U32 = struct.Struct("<II")
_THREE_U64 = struct.Struct("<3Q")
_FOUR_U64 = struct.Struct("<4Q")
_PROCESS = struct.Struct("<I4xQII")
_NO_INSTANCE = 0xFFFF_FFFF

MEMORY_V2 = 0x0200_0028
TEMPERATURE_V1 = 0x0100_000C
MARGIN_V1 = 0x0100_0008
SRAM_V1 = 0x0100_0068
FABRIC_V2 = 0x0200_0024
FABRIC_V3 = 0x0300_0028
"""Version words: the struct's size, and its version in the top byte."""
_FABRIC_V3_SINCE = 580

_DRAM, _SRAM = 2, 7
"""nvmlMemoryLocation_t."""
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


def _write_processes(entries: list[tuple[int, int, int, int]], count: Buffer, buffer: Buffer) -> int:
    room = _U32.unpack_from(count)[0]
    _U32.pack_into(count, 0, len(entries))
    if room < len(entries):
        return INSUFFICIENT_SIZE
    for i, entry in enumerate(entries):
        _PROCESS.pack_into(buffer, i * _PROCESS.size, *entry)
    return SUCCESS


def _pid(seed: int, number: int) -> int:
    return 10_000 + noise(seed, 77 + number) % 4_000_000


def processes(device: Device, count: Buffer, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetComputeRunningProcesses_v3; too small an array gets the number needed."""
    gpu = device.gpu
    reading = device.reading()
    if gpu.script.mig:
        entries = [entry for part in device.slices for entry in _of_slice(part)]
    elif reading.regime.idle:
        entries = []
    else:
        entries = [(_pid(gpu.script.seed, 0), gpu.memory_used(reading), _NO_INSTANCE, _NO_INSTANCE)]
    return _write_processes(entries, count, buffer)


def _of_slice(target: Slice) -> list[tuple[int, int, int, int]]:
    gpu = target.device.gpu
    reading = target.device.reading()
    if target.instance.timeline.at(reading.time).idle:
        return []
    used = gpu.instance_memory_used(target.instance, reading) // len(target.instance.computes)
    number = 16 * target.instance.identifier + target.compute.identifier
    return [(_pid(gpu.script.seed, number), used, target.instance.identifier, target.compute.identifier)]


def slice_processes(target: Slice, count: Buffer, buffer: Buffer) -> int:
    """Answer nvmlDeviceGetComputeRunningProcesses_v3 of a MIG slice."""
    return _write_processes(_of_slice(target), count, buffer)
