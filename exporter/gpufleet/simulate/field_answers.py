"""Which field id shows what on which part and driver: one answer, or none where the part lacks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pynvml

from gpufleet.simulate import columns as column
from gpufleet.simulate.columns import column_condition, column_lifetime, column_since_load
from gpufleet.simulate.gpu import Reading, ScriptedGpu
from gpufleet.simulate.profiles import Profile

ALL_LINKS = 0xFFFF_FFFF

_U32 = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
_U64 = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_I32 = pynvml.NVML_VALUE_TYPE_SIGNED_INT


Computed = Callable[[ScriptedGpu, Reading], int]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one entry is answered: from a column, with a constant, or computed."""

    type: int
    column: int | None = None
    constant: int = 0
    computed: Computed | None = None
    of_link_errors: bool = False
    """Computed, and 0 on a GPU whose links have no errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What decides the answers: the part, the driver's branch and minor number, and whether MIG is on.

    There is one object for each, made by :func:`kind_of`, so that looking up a request costs no comparison of profiles.
    """

    profile: Profile
    branch: int
    minor: int
    mig: bool


@cache
def kind_of(profile: Profile, branch: int, minor: int, *, mig: bool) -> Kind:
    """The one object for these facts."""
    return Kind(profile, branch, minor, mig)


def old_slowdown_ids(branch: int, minor: int) -> bool:
    """Whether the driver has the slowdown counters at 251 to 253, where others have power smoothing."""
    return branch == 575 or (branch == 580 and minor < 82)


_ECC_COLUMNS: dict[int, tuple[int, ...]] = {
    3: (column_since_load("ecc_correctable_dram"), column_since_load("ecc_correctable_sram")),
    4: (column_since_load("ecc_uncorrectable_dram"), column_since_load("ecc_uncorrectable_sram")),
    5: (column_lifetime("ecc_correctable_dram"), column_lifetime("ecc_correctable_sram")),
    6: (column_lifetime("ecc_uncorrectable_dram"), column_lifetime("ecc_uncorrectable_sram")),
    11: (column_since_load("ecc_correctable_dram"),),
    12: (column_since_load("ecc_uncorrectable_dram"),),
    22: (column_lifetime("ecc_correctable_dram"),),
    23: (column_lifetime("ecc_uncorrectable_dram"),),
}

_EVERYWHERE: dict[int, tuple[int, int]] = {
    74: (column.POWER_CAP_NS, _U64),
    75: (column.SW_THERMAL_NS, _U64),
    81: (column.BELOW_BASE_NS, _U64),
    83: (column.ENERGY_MILLIJOULES, _U64),
    191: (column.ENERGY_MILLIJOULES, _U64),
    94: (column_since_load("pcie_replay"), _U32),
    186: (column.POWER_INSTANT, _U32),
}
_ZERO_EVERYWHERE = {76: _U64, 77: _U64, 78: _U64, 79: _U64, 95: _U32, 169: _U32}
_REMAPPING = {
    142: column_lifetime("remap_correctable"),
    143: column_lifetime("remap_uncorrectable"),
    144: column_condition("remap_pending"),
    145: column_condition("remap_failure"),
}
_RETIREMENT = {
    29: column_lifetime("retired_single"),
    30: column_lifetime("retired_double"),
    31: column_condition("retired_pending"),
}
_POWER_LIMITS = {187: "min", 188: "max", 189: "limit", 190: "limit", 192: "limit"}
_OFFSETS = {193: "shutdown", 194: "slowdown", 195: "memory_max", 196: "gpu_max"}

# Errors of NVLink up to Hopper: id -> kind; the totals over links have ids of their own.
_LINK_ERRORS = {161: "nvlink_replay", 162: "nvlink_recovery", 163: "nvlink_crc"}
_LINK_ERROR_TOTALS = {
    38: "nvlink_crc",
    45: "nvlink_crc_data",
    52: "nvlink_replay",
    59: "nvlink_recovery",
    160: "nvlink_ecc",
}
_LINK5_ERRORS = {
    206: "nvlink_malformed_packet",
    207: "nvlink_buffer_overrun",
    208: "nvlink_receive",
    209: "nvlink_receive_remote",
    210: "nvlink_receive_general",
    211: "nvlink_local_integrity",
    212: "nvlink_transmit_discard",
    213: "nvlink_recovery_successful",
    214: "nvlink_recovery_failed",
    215: "nvlink_recovery_total",
    219: "nvlink_effective",
    221: "nvlink_symbol",
}
NVLINK_ERROR_KINDS = frozenset((*_LINK_ERRORS.values(), *_LINK_ERROR_TOTALS.values()))
NVLINK5_ERROR_KINDS = frozenset(_LINK5_ERRORS.values())
_LINK_TRAFFIC_KIB = {138: column.NVLINK_TRANSMIT_BYTES, 139: column.NVLINK_RECEIVE_BYTES}
_LINK5_TRAFFIC = {202: column.NVLINK_TRANSMIT_BYTES, 204: column.NVLINK_RECEIVE_BYTES}


def answer_for(kind: Kind, field: int, scope: int) -> Answer | None:
    """How a part answers one field; ``None`` for NOT_SUPPORTED."""
    profile = kind.profile
    if field in _EVERYWHERE and (scope == 0 or field != 186):
        at, value_type = _EVERYWHERE[field]
        return Answer(value_type, column=at)
    if field in _ZERO_EVERYWHERE:
        return Answer(_ZERO_EVERYWHERE[field])
    for part in (_ecc, _thermal_and_power, _slowdowns, _memory_health, _links, _pcie):
        answer = part(kind, profile, field, scope)
        if answer is not None:
            return answer
    return None


def _ecc(_: Kind, profile: Profile, field: int, __: int) -> Answer | None:
    if not profile.ecc:
        return None
    if field in (1, 2):
        return Answer(_U32, constant=1)
    columns = _ECC_COLUMNS.get(field)
    if columns is None:
        return None
    if len(columns) == 1:
        return Answer(_U64, column=columns[0])
    return Answer(_U64, computed=lambda _, reading: sum(reading.values[at] for at in columns))


def _thermal_and_power(kind: Kind, profile: Profile, field: int, scope: int) -> Answer | None:
    power = profile.power
    if field == 82 and profile.temperature.memory_above is not None:
        return Answer(_U32, column=column.MEMORY_TEMPERATURE)
    if field == 185:
        if scope == 0 and power.average:
            return Answer(_U32, column=column.POWER_AVERAGE)
        if scope == 2 and power.memory and kind.branch >= 570:
            return Answer(_U32, column=column.MEMORY_POWER)
        return None
    if field in _POWER_LIMITS and power.limits_shown and scope == 0:
        watts = getattr(power, _POWER_LIMITS[field])
        return None if watts is None else Answer(_U32, constant=watts * 1000)
    if field in _OFFSETS and profile.temperature.limit_offsets is not None:
        degrees = getattr(profile.temperature.limit_offsets, _OFFSETS[field])
        # The driver writes a signed 32-bit member of the union and leaves the upper half alone.
        return None if degrees is None else Answer(_I32, constant=degrees & 0xFFFF_FFFF)
    return None


def _slowdowns(kind: Kind, _: Profile, field: int, __: int) -> Answer | None:
    first = 251 if old_slowdown_ids(kind.branch, kind.minor) else 269
    if kind.branch < 575 or not first <= field < first + 3:
        return None
    return Answer(_U64, column=(column.SW_THERMAL_NS, column.HW_THERMAL_NS, column.POWER_BRAKE_NS)[field - first])


def _memory_health(kind: Kind, profile: Profile, field: int, _: int) -> Answer | None:
    if field in _REMAPPING and profile.row_remapping and not kind.mig:
        return Answer(_U32, column=_REMAPPING[field])
    if field in _RETIREMENT and profile.page_retirement:
        return Answer(_U32, column=_RETIREMENT[field])
    if field == 230 and kind.branch >= 570:
        return Answer(_U32, column=column_condition("recovery_action"))
    return None


def _pcie(_: Kind, profile: Profile, field: int, __: int) -> Answer | None:
    if field == 173:
        return Answer(_U32, column=column_since_load("pcie_correctable"))
    if 174 <= field <= 183 and profile.nvlink is not None:
        return Answer(_U32)
    return None


def _links(kind: Kind, profile: Profile, field: int, scope: int) -> Answer | None:
    nvlink = profile.nvlink
    if nvlink is None:
        return Answer(_U32) if field == 91 else None
    if field in (91, 147):
        return Answer(_U32, constant=nvlink.links if field == 91 or profile.fabric else 0)
    # The driver answers no question about links while MIG is on (nvml.h, section NvLink).
    if kind.mig or (scope >= nvlink.links and scope != ALL_LINKS):
        return None
    newest = nvlink.version >= 5
    if field in (164, 165, 166) and scope != ALL_LINKS:
        if field == 165:
            return Answer(_U32, computed=lambda _, reading: int(scope >= reading.values[_LINKS_DOWN]))
        return Answer(_U32, constant=nvlink.link_mbps if field == 164 else nvlink.version)
    traffic = _LINK5_TRAFFIC if newest else _LINK_TRAFFIC_KIB
    if field in traffic:
        return _traffic(traffic[field], nvlink.links, scope, 1 if newest else 1024)
    errors = _LINK5_ERRORS if newest else _LINK_ERRORS
    link = None if scope == ALL_LINKS else scope
    if field in errors and (newest or link is not None):
        return _link_errors(errors[field], link)
    if not newest and field in _LINK_ERROR_TOTALS:
        return _link_errors(_LINK_ERROR_TOTALS[field], None)
    return None


_LINKS_DOWN = column_condition("links_down")


def _traffic(at: int, links: int, scope: int, unit: int) -> Answer:
    if scope == ALL_LINKS:
        if unit == 1:
            return Answer(_U64, column=at)
        return Answer(_U64, computed=lambda _, reading: reading.values[at] // unit)
    # Shares add up to the whole and none ever goes down.
    return Answer(_U64, computed=lambda _, reading: (reading.values[at] // unit + links - 1 - scope) // links)


def _link_errors(kind: str, link: int | None) -> Answer:
    return Answer(_U64, computed=lambda gpu, reading: gpu.link_errors(kind, link, reading.time), of_link_errors=True)
