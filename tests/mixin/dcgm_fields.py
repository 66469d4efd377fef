"""What dcgm-exporter can report, made from its lists of fields: before 4.9, and since, with DCGM 4.7's names and units.

Nothing here was captured from an exporter; tests/captures has what was. Each name of old with the new one for the same
reading, the factor from the old unit to the new one, and whether the default list of fields has it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One reading in both generations; ``factor`` times the old value is the new one."""

    old: str
    new: str
    factor: float = 1.0
    default: bool = False


def _field(old: str, new: str | None = None, factor: float = 1.0, *, default: bool = False) -> Field:
    return Field(f"DCGM_{old}", f"DCGM_{new or old}", factor, default)


MIB = 1024.0 * 1024.0

FIELDS = (
    _field("FI_DEV_SM_CLOCK", "FI_DEV_SM_CLOCK_HERTZ", 1e6, default=True),
    _field("FI_DEV_MEM_CLOCK", "FI_DEV_MEMORY_CLOCK_HERTZ", 1e6, default=True),
    _field("FI_DEV_MAX_SM_CLOCK", "FI_DEV_SM_MAX_CLOCK_HERTZ", 1e6),
    _field("FI_DEV_MEMORY_TEMP", "FI_DEV_MEMORY_TEMP_CELSIUS", default=True),
    _field("FI_DEV_GPU_TEMP", "FI_DEV_GPU_TEMP_CELSIUS", default=True),
    _field("FI_DEV_GPU_TEMP_LIMIT", "FI_DEV_GPU_TEMP_MARGIN_CELSIUS"),
    _field("FI_DEV_POWER_USAGE", "FI_DEV_BOARD_POWER_WATTS", default=True),
    _field("FI_DEV_ENFORCED_POWER_LIMIT", "FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    _field("FI_DEV_TOTAL_ENERGY_CONSUMPTION", "FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1e-3, default=True),
    _field("FI_DEV_FAN_SPEED", "FI_DEV_FAN_SPEED_RATIO", 1e-2),
    _field("FI_DEV_PSTATE", "FI_DEV_GPU_PSTATE"),
    _field("FI_DEV_GPU_UTIL", "FI_DEV_GPU_UTIL_RATIO", 1e-2, default=True),
    _field("FI_DEV_MEM_COPY_UTIL", "FI_DEV_MEMORY_UTIL_RATIO", 1e-2, default=True),
    _field("FI_DEV_ENC_UTIL", "FI_DEV_ENC_UTIL_RATIO", 1e-2, default=True),
    _field("FI_DEV_DEC_UTIL", "FI_DEV_DEC_UTIL_RATIO", 1e-2, default=True),
    _field("FI_DEV_XID_ERRORS", "FI_DEV_XID_ERROR", default=True),
    _field("EXP_XID_ERRORS_TOTAL"),
    _field("FI_DEV_FB_TOTAL", "FI_DEV_FB_CAPACITY_BYTES", MIB),
    _field("FI_DEV_FB_FREE", "FI_DEV_FB_FREE_BYTES", MIB, default=True),
    _field("FI_DEV_FB_USED", "FI_DEV_FB_USED_BYTES", MIB, default=True),
    _field("FI_DEV_FB_RESERVED", "FI_DEV_FB_RESERVED_BYTES", MIB, default=True),
    _field("FI_DEV_ECC_SBE_VOL_TOTAL"),
    _field("FI_DEV_ECC_DBE_VOL_TOTAL"),
    _field("FI_DEV_ECC_DBE_AGG_TOTAL"),
    _field("FI_DEV_THRESHOLD_SRM", "FI_DEV_SRAM_EXCEEDED"),
    _field("FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", default=True),
    _field("FI_DEV_CORRECTABLE_REMAPPED_ROWS", "FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", default=True),
    _field("FI_DEV_ROW_REMAP_FAILURE", "FI_DEV_ROW_REMAP_FAILED", default=True),
    _field("FI_DEV_ROW_REMAP_PENDING"),
    _field("FI_DEV_POWER_VIOLATION", "FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", 1e-9),
    _field("FI_DEV_THERMAL_VIOLATION", "FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", 1e-9),
    _field("FI_DEV_PCIE_REPLAY_COUNTER", "FI_DEV_PCIE_REPLAY_TOTAL", default=True),
    _field("FI_DEV_PCIE_LINK_GEN"),
    _field("FI_DEV_PCIE_MAX_LINK_GEN"),
    _field("FI_DEV_PCIE_LINK_WIDTH"),
    _field("FI_DEV_PCIE_MAX_LINK_WIDTH"),
    _field("FI_DEV_NVLINK_BANDWIDTH_TOTAL", "FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 1e6, default=True),
    _field("FI_PROF_GR_ENGINE_ACTIVE", "FI_PROF_GR_ENGINE_UTIL_RATIO", default=True),
    _field("FI_PROF_SM_ACTIVE", "FI_PROF_SM_UTIL_RATIO"),
    _field("FI_PROF_SM_OCCUPANCY", "FI_PROF_SM_OCCUPANCY_RATIO"),
    _field("FI_PROF_PIPE_TENSOR_ACTIVE", "FI_PROF_TENSOR_UTIL_RATIO", default=True),
    _field("FI_PROF_DRAM_ACTIVE", "FI_PROF_DRAM_UTIL_RATIO", default=True),
    _field("FI_PROF_PCIE_TX_BYTES", default=True),
    _field("FI_PROF_PCIE_RX_BYTES", default=True),
    _field("FI_PROF_NVLINK_TX_BYTES"),
    _field("FI_PROF_NVLINK_RX_BYTES"),
)

LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "hostname",
    "DCGM_FI_DRIVER_VERSION",
    "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "container",
    "namespace",
    "pod",
    "hpc_job",
    "xid",
)
"""Of either generation; ``Hostname`` until 4.8.2, ``hostname`` since."""


def series(reading: Field, value: float, *, new: bool, labels: dict[str, str]) -> tuple[str, float]:
    """A series as either generation shows it, and its value; ``value`` is in the new one's unit."""
    names = {"Hostname" if key == "hostname" and not new else key: text for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in names.items())
    return f"{reading.new if new else reading.old}{{{inside}}}", value if new else value / reading.factor
