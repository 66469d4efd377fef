"""The condition of the board: temperature, power, memory and its errors."""

from __future__ import annotations

from gpufleet.metrics.family import Group, gpu_counter, gpu_gauge

_THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
_ERROR_TYPES = ("correctable", "uncorrectable")
_ECC = "boards with ECC memory, while ECC is on; `sram` on Ampere and newer, the caches one by one before it"
_REMAP = "Ampere and newer with HBM or ECC memory; not while MIG slices exist"

TEMPERATURE = Group(
    "Temperature",
    "A GPU has absolute thresholds or margins, hardly ever both; they have names of their own because a margin counts "
    "downwards.",
    (
        gpu_gauge("gpu_temperature_celsius", "Temperature of the GPU die.", core=True),
        gpu_gauge(
            "gpu_memory_temperature_celsius",
            "Temperature of the device memory.",
            reported_by="boards with HBM",
            core=True,
        ),
        gpu_gauge(
            "gpu_temperature_threshold_celsius",
            "Temperature at which the GPU slows down, shuts down, or reaches the most it is specified for.",
            "threshold",
            members=_THRESHOLDS,
            reported_by="before Ada, and GeForce",
        ),
        gpu_gauge(
            "gpu_temperature_margin_celsius",
            "Degrees left until the GPU reaches its limit.",
            reported_by="Ada and newer data centre boards, driver 570 or newer",
            core=True,
        ),
        gpu_gauge(
            "gpu_temperature_margin_threshold_celsius",
            "Margin at which the GPU acts: zero at the limit, below zero beyond it.",
            "threshold",
            members=_THRESHOLDS,
            reported_by="Ada and newer data centre boards",
        ),
    ),
)

POWER = Group(
    "Power",
    "`rate(gpu_energy_joules_total[5m])` is the exact mean power; `gpu_power_watts` is one sample.",
    (
        gpu_gauge("gpu_power_watts", "Power drawn by the board.", core=True),
        gpu_gauge(
            "gpu_power_limit_watts",
            "Power limit: enforced is the one in effect, requested the one that was set by software.",
            "limit",
            members=("enforced", "requested", "default", "min", "max"),
            core=True,
            core_members=("enforced",),
        ),
        gpu_counter(
            "gpu_energy_joules_total",
            "Energy used since the driver was loaded.",
            reported_by="Volta and newer",
            core=True,
        ),
        gpu_gauge(
            "gpu_fan_speed_ratio",
            "Fan speed over its maximum.",
            "fan",
            reported_by="boards with fans of their own",
        ),
    ),
)

MEMORY = Group(
    "Memory",
    "used + free + reserved = total. Absent where the GPU shares the system's memory (GB10).",
    (
        gpu_gauge("gpu_memory_used_bytes", "Device memory allocated, without what the driver reserves.", core=True),
        gpu_gauge("gpu_memory_free_bytes", "Device memory that can be allocated."),
        gpu_gauge("gpu_memory_reserved_bytes", "Device memory that the driver and firmware keep.", core=True),
        gpu_gauge("gpu_memory_total_bytes", "Device memory in all.", core=True),
        gpu_gauge("gpu_bar1_used_bytes", "Part of the BAR1 window that is mapped."),
        gpu_gauge("gpu_bar1_total_bytes", "Size of the BAR1 window, through which the CPU and peers reach the memory."),
    ),
)

MEMORY_ERRORS = Group(
    "Memory errors",
    "`gpu_ecc_errors_total` starts anew when the driver is loaded or the GPU is reset; `gpu_ecc_aggregate_errors` is "
    "the board's life, kept in its InfoROM. Location `total` is the driver's own sum: do not add it to the others.",
    (
        gpu_gauge("gpu_ecc_enabled", "1 if ECC is on, else 0.", reported_by="boards with ECC memory"),
        gpu_counter(
            "gpu_ecc_errors_total",
            "ECC errors since the driver was loaded.",
            "type",
            "location",
            members=_ERROR_TYPES,
            reported_by=_ECC,
            core=True,
            core_members=("uncorrectable",),
        ),
        gpu_gauge(
            "gpu_ecc_aggregate_errors",
            "ECC errors in the life of the board.",
            "type",
            "location",
            members=_ERROR_TYPES,
            reported_by=_ECC,
        ),
        gpu_gauge(
            "gpu_ecc_sram_threshold_exceeded",
            "1 if the SRAM errors of this board are more than NVIDIA accepts: replace it.",
            reported_by="Ampere and newer, driver 550 or newer; needs root",
            core=True,
        ),
        gpu_gauge(
            "gpu_remapped_rows",
            "Rows of device memory replaced by spare ones, by what they were replaced for.",
            "cause",
            members=_ERROR_TYPES,
            reported_by=_REMAP,
            core=True,
        ),
        gpu_gauge(
            "gpu_row_remap_pending",
            "1 if a row waits to be replaced: it will be when the GPU is reset.",
            reported_by=_REMAP,
            core=True,
        ),
        gpu_gauge(
            "gpu_row_remap_failure",
            "1 if a row could not be replaced: replace the board.",
            reported_by=_REMAP,
            core=True,
        ),
        gpu_gauge(
            "gpu_row_remap_banks",
            "Banks of device memory by how many of their spare rows are left.",
            "availability",
            members=("max", "high", "partial", "low", "none"),
            reported_by=_REMAP,
        ),
        gpu_gauge(
            "gpu_retired_pages",
            "Pages of device memory taken out of use, by what they were retired for.",
            "cause",
            members=("single_bit", "double_bit"),
            reported_by="before Ampere",
        ),
    ),
)
