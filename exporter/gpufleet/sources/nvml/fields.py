"""Readings that have a field id: the rows of ``nvmlDeviceGetFieldValues`` batches.

Facts are from nvml.h (26 releases compared) and from open drivers' sources; where rows share a key, the first that the
device supports is used. Ids are named by pynvml, except where a driver release moved them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from gpufleet.model.readings import Key
from gpufleet.sources.nvml.units import (
    BYTE,
    CELSIUS,
    COUNT,
    FLAG,
    KIBIBYTE,
    MEMORY_ERRORS,
    MILLIJOULE,
    MILLIWATT,
    NANOSECOND,
    PARTS,
    Unit,
)

RECOVERY_ACTIONS: tuple[str, ...] = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)
"""In the driver's order; a code past the end is shown as ``unknown``, not dropped."""

ALL_LINKS = 0xFFFF_FFFF
"""scopeId that asks for the sum over links; scope 0 would be link 0 alone."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a batch."""

    id: int
    key: Key
    unit: Unit
    scope: int = 0
    members: tuple[str, ...] = ()
    """For a code: the state that each value stands for, in the driver's order. Shown as a state set with
    ``unknown``.
    """
    only_if_written: bool = False
    """ECC entries are left untouched, return code 0 included, when ECC is off: a timestamp of 0 means "not
    supported".
    """


def _event_seconds(reason: str, field_id: int) -> Field:
    return Field(field_id, Key("clock_event_seconds", (reason,)), NANOSECOND)


def slowdown_fields(driver_version: str | None) -> tuple[int, int, int] | None:
    """Ids of the three slowdown counters (SW thermal, HW thermal, HW power brake) for a driver, e.g. ``"580.65.06"``.

    575 and 580 before .82 have them at 251-253, which every other driver gives to power smoothing; asking a driver by
    the wrong ids returns plausible numbers with no error. Below 575 they don't exist. An unknown version asks for none.
    """
    branch, _, rest = (driver_version or "").partition(".")
    if not branch.isdigit() or int(branch) < 575:
        return None
    minor = rest.partition(".")[0]
    if int(branch) == 575 or (int(branch) == 580 and (not minor.isdigit() or int(minor) < 82)):
        return (251, 252, 253)
    return (269, 270, 271)


def fast_fields(driver_version: str | None) -> tuple[Field, ...]:
    """The batch of every poll."""
    moved = slowdown_fields(driver_version)
    slowdown: tuple[Field, ...] = ()
    if moved is not None:
        reasons = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        slowdown = tuple(_event_seconds(reason, field_id) for reason, field_id in zip(reasons, moved, strict=True))
    return (
        # The driver's own one-second mean first: it is what nvidia-smi calls power draw from Ampere on.
        Field(pynvml.NVML_FI_DEV_POWER_AVERAGE, Key("power_watts"), MILLIWATT),
        Field(pynvml.NVML_FI_DEV_POWER_INSTANT, Key("power_watts"), MILLIWATT),
        Field(pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, Key("power_limit_watts", ("enforced",)), MILLIWATT),
        Field(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, Key("energy_joules"), MILLIJOULE),
        Field(pynvml.NVML_FI_DEV_MEMORY_TEMP, Key("memory_temperature_celsius"), CELSIUS),
        *slowdown,
        _event_seconds("sw_power_cap", pynvml.NVML_FI_DEV_PERF_POLICY_POWER),
        _event_seconds("sw_thermal_slowdown", pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL),
        _event_seconds("sync_boost", pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
        _event_seconds("board_limit", pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT),
        _event_seconds("low_utilization", pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION),
        _event_seconds("reliability", pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY),
        _event_seconds("below_base_clock", pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS),
        _ecc("ecc_errors", "correctable", "dram", pynvml.NVML_FI_DEV_ECC_SBE_VOL_DEV),
        _ecc("ecc_errors", "uncorrectable", "dram", pynvml.NVML_FI_DEV_ECC_DBE_VOL_DEV),
        Field(pynvml.NVML_FI_DEV_REMAPPED_COR, Key("remapped_rows", ("correctable",)), PARTS),
        Field(pynvml.NVML_FI_DEV_REMAPPED_UNC, Key("remapped_rows", ("uncorrectable",)), PARTS),
        Field(pynvml.NVML_FI_DEV_REMAPPED_PENDING, Key("row_remap_pending"), FLAG),
        Field(pynvml.NVML_FI_DEV_REMAPPED_FAILURE, Key("row_remap_failure"), FLAG),
        Field(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, Key("pcie_replays"), COUNT),
        Field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, Key("recovery_action"), COUNT, members=RECOVERY_ACTIONS),
        # Blackwell counts bytes under new ids; up to Hopper the old ids count KiB.
        Field(pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, Key("nvlink_transmit_bytes"), BYTE, ALL_LINKS),
        Field(pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, Key("nvlink_receive_bytes"), BYTE, ALL_LINKS),
        Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, Key("nvlink_transmit_bytes"), KIBIBYTE, ALL_LINKS),
        Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, Key("nvlink_receive_bytes"), KIBIBYTE, ALL_LINKS),
    )


def _ecc(name: str, kind: str, location: str, field_id: int) -> Field:
    return Field(field_id, Key(name, (kind, location)), MEMORY_ERRORS, only_if_written=True)


def _ecc_rows(location: str, ids: tuple[int, int, int, int]) -> tuple[Field, ...]:
    volatile_corrected, volatile_uncorrected, lifetime_corrected, lifetime_uncorrected = ids
    return (
        _ecc("ecc_errors", "correctable", location, volatile_corrected),
        _ecc("ecc_errors", "uncorrectable", location, volatile_uncorrected),
        _ecc("ecc_aggregate_errors", "correctable", location, lifetime_corrected),
        _ecc("ecc_aggregate_errors", "uncorrectable", location, lifetime_uncorrected),
    )


SLOW_FIELDS: tuple[Field, ...] = (
    Field(pynvml.NVML_FI_DEV_ECC_CURRENT, Key("ecc_enabled"), FLAG),
    Field(pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT, Key("power_limit_watts", ("requested",)), MILLIWATT),
    Field(pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT, Key("power_limit_watts", ("default",)), MILLIWATT),
    Field(pynvml.NVML_FI_DEV_POWER_MIN_LIMIT, Key("power_limit_watts", ("min",)), MILLIWATT),
    Field(pynvml.NVML_FI_DEV_POWER_MAX_LIMIT, Key("power_limit_watts", ("max",)), MILLIWATT),
    _ecc("ecc_aggregate_errors", "correctable", "dram", pynvml.NVML_FI_DEV_ECC_SBE_AGG_DEV),
    _ecc("ecc_aggregate_errors", "uncorrectable", "dram", pynvml.NVML_FI_DEV_ECC_DBE_AGG_DEV),
    # Volta and older name the places inside the chip; from Turing on they are one SRAM figure that has no field id.
    *_ecc_rows("l1", (7, 8, 18, 19)),
    *_ecc_rows("l2", (9, 10, 20, 21)),
    *_ecc_rows("register_file", (13, 14, 24, 25)),
    *_ecc_rows("texture", (15, 16, 26, 27)),
    _ecc("ecc_errors", "uncorrectable", "cbu", pynvml.NVML_FI_DEV_ECC_DBE_VOL_CBU),
    _ecc("ecc_aggregate_errors", "uncorrectable", "cbu", pynvml.NVML_FI_DEV_ECC_DBE_AGG_CBU),
    Field(pynvml.NVML_FI_DEV_RETIRED_SBE, Key("retired_pages", ("single_bit",)), PARTS),
    Field(pynvml.NVML_FI_DEV_RETIRED_DBE, Key("retired_pages", ("double_bit",)), PARTS),
)

ECC_TOTALS: tuple[Field, ...] = _ecc_rows("total", (3, 4, 5, 6))
"""Used only where a device names no location at all: a sum over locations would count them twice."""

MARGIN_THRESHOLDS: tuple[tuple[str, int], ...] = (
    ("shutdown", pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT),
    ("slowdown", pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
    ("memory_max", pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT),
    ("gpu_max", pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT),
)
"""Offsets from T.Limit in signed degrees; parts that have them (Hopper, data-centre Ada) lack absolute thresholds."""

LINK_COUNT = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
LINK_STATE = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
LINK_STATES: tuple[str, ...] = ("inactive", "active", "sleep")

LINK_ERRORS: tuple[tuple[str, int], ...] = (
    # Up to Hopper. The per-link ids _L0 to _L11 of older headers cover 12 links only; these take the link as scope.
    ("replay", pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY),
    ("recovery", pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
    ("crc", pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
    # Blackwell.
    ("malformed_packet", pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS),
    ("buffer_overrun", pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS),
    ("receive", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS),
    ("receive_remote", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS),
    ("receive_general", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS),
    ("local_integrity", pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS),
    ("transmit_discard", pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS),
    ("recovery_failed", pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
    ("recovery_total", pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS),
    ("effective", pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS),
    ("symbol", pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
)
MADE_BEHIND_THE_LINK = frozenset(
    {"malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general", "transmit_discard"}
)
"""By a peer, a switch or too much traffic: which link has most of them says nothing of its cable. What a cable does to
packets that are received is in ``local_integrity``, ``symbol`` and ``effective``, too.
"""
LINK_BYTES: tuple[tuple[str, int, Unit], ...] = (
    ("nvlink_transmit_bytes", pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, BYTE),
    ("nvlink_receive_bytes", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, BYTE),
    ("nvlink_transmit_bytes", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KIBIBYTE),
    ("nvlink_receive_bytes", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KIBIBYTE),
)
