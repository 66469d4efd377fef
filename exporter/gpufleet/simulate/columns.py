"""The columns of a reading: which place of ``Reading.values`` holds what; ``field_answers`` says what shows which."""

from __future__ import annotations

ENERGY_MILLIJOULES, POWER_AVERAGE, POWER_INSTANT, MEMORY_POWER, MEMORY_TEMPERATURE = range(5)
NVLINK_TRANSMIT_BYTES, NVLINK_RECEIVE_BYTES = 5, 6
POWER_CAP_NS, SW_THERMAL_NS, HW_THERMAL_NS, POWER_BRAKE_NS, BELOW_BASE_NS = range(7, 12)
FIRST_HEALTH = 12
VOLATILE = (
    "ecc_correctable_dram",
    "ecc_uncorrectable_dram",
    "ecc_correctable_sram",
    "ecc_uncorrectable_sram",
    "pcie_replay",
    "pcie_correctable",
)
"""Counted since the driver was loaded; the ECC ones have a lifetime count beside."""
LIFETIME = (
    "ecc_correctable_dram",
    "ecc_uncorrectable_dram",
    "ecc_correctable_sram",
    "ecc_uncorrectable_sram",
    "remap_correctable",
    "remap_uncorrectable",
    "retired_single",
    "retired_double",
)
CONDITIONS = ("remap_pending", "remap_failure", "retired_pending", "recovery_action", "sram_threshold", "links_down")
COLUMNS = FIRST_HEALTH + len(VOLATILE) + len(LIFETIME) + len(CONDITIONS)


def column_since_load(kind: str) -> int:
    """Column of a count since the driver was loaded."""
    return FIRST_HEALTH + VOLATILE.index(kind)


def column_lifetime(kind: str) -> int:
    """Column of a lifetime count."""
    return FIRST_HEALTH + len(VOLATILE) + LIFETIME.index(kind)


def column_condition(kind: str) -> int:
    """Column of a flag or code."""
    return FIRST_HEALTH + len(VOLATILE) + len(LIFETIME) + CONDITIONS.index(kind)
