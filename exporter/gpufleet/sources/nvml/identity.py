"""What is asked once, when a device is opened: who it is, and readings that don't change until it is opened again."""

from __future__ import annotations

import ctypes

import pynvml

from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.batch import FieldRequest
from gpufleet.sources.nvml.calls import DEVICE_DOWN, LIBRARY_DOWN, NO_PERMISSION, SUCCESS, Calls, NvmlError
from gpufleet.sources.nvml.fields import MARGIN_THRESHOLDS
from gpufleet.sources.nvml.tally import UNWRITTEN, Tally
from gpufleet.sources.nvml.units import BLANK, CELSIUS, GENERATION, LANES, MEGAHERTZ, Unit, signed

_TEXT_BYTES = 96
"""NVML's own buffer sizes are 96 or less for every string that is read here."""

_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and isinstance(value, int) and value != 0xFFFF_FFFF
}
_THRESHOLDS = (("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3))


def read_text(calls: Calls, function: str, *before: object) -> str | None:
    """A string that the driver writes, ``None`` where it does not report it; undecodable bytes are replaced."""
    buffer = (ctypes.c_char * _TEXT_BYTES)()
    code = calls[function](*before, buffer, _TEXT_BYTES)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError(function, code)
    return buffer.value.decode("utf-8", "replace").strip() or None if code == SUCCESS else None


def read_number(calls: Calls, function: str, *before: object) -> int | None:
    """An unsigned 32-bit number that the driver writes, ``None`` where it does not report it or says "no value"."""
    number = (ctypes.c_uint32 * 1)()
    code = calls[function](*before, number)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError(function, code)
    return number[0] if code == SUCCESS and number[0] < BLANK else None


def read_mask(calls: Calls, function: str, *before: object) -> int | None:
    """An unsigned 64-bit mask that the driver writes, ``None`` where it does not report it."""
    mask = (ctypes.c_uint64 * 1)()
    code = calls[function](*before, mask)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError(function, code)
    return mask[0] if code == SUCCESS else None


def sysfs_bus_id(bus_id: str) -> str:
    """``00000000:1B:00.0`` (the driver's form) as the kernel writes it: ``0000:1b:00.0``; a wide domain keeps its
    digits.
    """
    domain, _, rest = bus_id.lower().partition(":")
    if not rest:
        return bus_id.lower()
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def read_uuid(calls: Calls, handle: ctypes.c_void_p) -> str:
    """UUID of a device; raises NvmlError where there is none, for nothing can be said of a GPU that has no name."""
    buffer = (ctypes.c_char * _TEXT_BYTES)()
    code = calls["nvmlDeviceGetUUID"](handle, buffer, _TEXT_BYTES)
    if code != SUCCESS:
        raise NvmlError("nvmlDeviceGetUUID", code)
    return buffer.value.decode("ascii", "replace")


def read_identity(calls: Calls, handle: ctypes.c_void_p, uuid: str) -> GpuIdentity:
    """Who the device is. Raises NvmlError when it or the library is down."""
    # nvmlPciInfo_t: 68 bytes, the long bus id is the 32 characters at 36.
    pci = (ctypes.c_char * 68)()
    code = calls["nvmlDeviceGetPciInfo_v3"](handle, pci)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN or code == NO_PERMISSION:
        raise NvmlError("nvmlDeviceGetPciInfo_v3", code)
    bus_id = pci.raw[36:68].partition(b"\0")[0].decode("ascii", "replace") if code == SUCCESS else ""
    architecture = read_number(calls, "nvmlDeviceGetArchitecture", handle)
    return GpuIdentity(
        uuid=uuid,
        name=read_text(calls, "nvmlDeviceGetName", handle) or "",
        pci_bus_id=sysfs_bus_id(bus_id),
        serial=read_text(calls, "nvmlDeviceGetSerial", handle),
        architecture=_ARCHITECTURES.get(architecture) if architecture is not None else None,
        vbios_version=read_text(calls, "nvmlDeviceGetVbiosVersion", handle),
        minor=read_number(calls, "nvmlDeviceGetMinorNumber", handle),
    )


def read_static(calls: Calls, handle: ctypes.c_void_p, tally: Tally) -> Readings:
    """Readings that hold until the device is opened again: maxima and thresholds."""
    found: list[tuple[Key, Number]] = []

    def ask(key: Key, unit: Unit, function: str, *arguments: int) -> None:
        raw = read_number(calls, function, handle, *arguments)
        if raw is None:
            return
        if raw > unit.high:
            tally.impossible(key)
        else:
            found.append((key, raw * unit.times))

    ask(Key("sm_clock_max_hertz"), MEGAHERTZ, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
    ask(Key("memory_clock_max_hertz"), MEGAHERTZ, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM)
    ask(Key("pcie_link_generation", ("max",)), GENERATION, "nvmlDeviceGetMaxPcieLinkGeneration")
    ask(Key("pcie_link_width", ("max",)), LANES, "nvmlDeviceGetMaxPcieLinkWidth")
    offsets = _margin_thresholds(calls, handle)
    found += offsets
    if not offsets:
        for name, number in _THRESHOLDS:
            ask(Key("temperature_threshold_celsius", (name,)), CELSIUS, "nvmlDeviceGetTemperatureThreshold", number)
    return Readings(tuple(key for key, _ in found), tuple(value for _, value in found))


def _margin_thresholds(calls: Calls, handle: ctypes.c_void_p) -> list[tuple[Key, Number]]:
    """Margins at which the part acts. A GPU has either these or absolute thresholds, rarely both: they are not
    mixed.
    """
    request = FieldRequest(calls, handle, [(field, 0) for _, field in MARGIN_THRESHOLDS])
    code = request.send()
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError(request.function, code)
    if code != SUCCESS:
        return []
    reply = request.reply()
    found: list[tuple[Key, Number]] = []
    for i, (name, _) in enumerate(MARGIN_THRESHOLDS):
        entry, degrees = reply[2 * i], signed(reply[2 * i + 1])
        if entry == SUCCESS and entry != UNWRITTEN and -200 <= degrees <= 200:
            found.append((Key("temperature_margin_threshold_celsius", (name,)), degrees))
    return found
