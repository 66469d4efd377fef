"""Who a GPU is, how it is, and what it does: identity, state, utilization, clocks."""

from __future__ import annotations

from gpufleet.metrics.family import GPU, Group, gauge, gpu_counter, gpu_gauge
from gpufleet.model.state import GpuState

_GPM = "Hopper and newer"
_UTILIZATION = "all; while MIG is enabled, Hopper and newer"
_NOT_MIG = "all; not while MIG is enabled"
_NEW_ENGINES = "Turing and newer, driver 535 or newer; not while MIG is enabled"

# The driver's own bits, in its order, then the two that it counts in time only.
_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
_TIMED_REASONS = (*_REASONS, "low_utilization", "below_base_clock")
# What slows a busy GPU and what somebody can do something about: the reasons worth their series on the largest fleets.
_CORE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)

IDENTITY = Group(
    "Identity and state",
    "Value series carry `gpu` and `uuid` only; join them with `gpu_info` on `uuid` for the rest. `gpu` is the number "
    "that this GPU keeps for as long as the node is up. While a GPU is not `ok` its driver readings are absent, "
    "neither zero nor the last good ones; its identity stays.",
    (
        gauge(
            "gpu_info",
            "Identity of the GPU, always 1. Labels that its driver or the configuration does not give are left out.",
            (
                *GPU,
                "node",
                "name",
                "pci_bus_id",
                "serial",
                "architecture",
                "driver_version",
                "vbios_version",
                "cost_per_hour",
                "currency",
                "utilization_basis",
            ),
            core=True,
        ),
        gauge(
            "gpu_up",
            "1 if the GPU answered its last poll, 0 if it did not. Absent while the exporter is quiesced.",
            GPU,
            core=True,
        ),
        gauge(
            "gpu_state",
            "1 for the state that the GPU is in and 0 for the others. Absent when it is not known.",
            (*GPU, "state"),
            members=tuple(GpuState),
            core=True,
        ),
        gauge(
            "gpufleet_last_poll_timestamp_seconds",
            "Unix time of the last poll that this GPU answered.",
            GPU,
            core=True,
        ),
    ),
)

UTILIZATION = Group(
    "Utilization",
    "Ratios run from 0 to 1. `gpu_utilization_ratio` says that *something* ran, not how much of the GPU it used: one "
    "small kernel is enough for 1. `gpu_sm_active_ratio` and `gpu_tensor_active_ratio` say how much. The counters in "
    "seconds are the same ratios integrated at every poll, so that `rate()` gives the true mean over any window, "
    "however seldom you scrape.",
    (
        gpu_gauge(
            "gpu_utilization_ratio",
            "Fraction of time in which at least one kernel ran, as the driver averages it.",
            reported_by=_UTILIZATION,
            core=True,
        ),
        gpu_gauge(
            "gpu_memory_utilization_ratio",
            "Fraction of time in which device memory was read or written, as the driver averages it.",
            reported_by=_NOT_MIG,
        ),
        gpu_gauge("gpu_encoder_utilization_ratio", "Use of the video encoders.", reported_by=_NOT_MIG),
        gpu_gauge("gpu_decoder_utilization_ratio", "Use of the video decoders.", reported_by=_NOT_MIG),
        gpu_gauge("gpu_jpeg_utilization_ratio", "Use of the JPEG decoders.", reported_by=_NEW_ENGINES),
        gpu_gauge("gpu_ofa_utilization_ratio", "Use of the optical flow accelerator.", reported_by=_NEW_ENGINES),
        gpu_gauge(
            "gpu_sm_active_ratio",
            "Fraction of time in which a multiprocessor had at least one warp, averaged over all multiprocessors.",
            reported_by=_GPM,
            core=True,
        ),
        gpu_gauge(
            "gpu_sm_occupancy_ratio",
            "Resident warps over the most that the multiprocessors can hold.",
            reported_by=_GPM,
        ),
        gpu_gauge(
            "gpu_tensor_active_ratio",
            "Fraction of cycles in which the tensor cores were active.",
            reported_by=_GPM,
            core=True,
        ),
        gpu_gauge(
            "gpu_dram_active_ratio",
            "Device memory bandwidth used over the peak.",
            reported_by=_GPM,
            core=True,
        ),
        gpu_gauge(
            "gpu_pipe_active_ratio",
            "Fraction of cycles in which this arithmetic pipe was active.",
            "pipe",
            members=("int", "fp16", "fp32", "fp64", "tensor_half", "tensor_int8", "tensor_fp64"),
            reported_by=_GPM,
        ),
        gpu_counter(
            "gpu_busy_seconds_total",
            "Time integral of gpu_utilization_ratio.",
            reported_by=_UTILIZATION,
            core=True,
        ),
        gpu_counter(
            "gpu_sm_active_seconds_total", "Time integral of gpu_sm_active_ratio.", reported_by=_GPM, core=True
        ),
        gpu_counter(
            "gpu_tensor_active_seconds_total",
            "Time integral of gpu_tensor_active_ratio.",
            reported_by=_GPM,
            core=True,
        ),
        gpu_gauge(
            "gpu_processes",
            "Processes that hold a context on the GPU.",
            reported_by="all; with MIG it needs privileges",
        ),
    ),
)

CLOCKS = Group(
    "Clocks",
    "Reasons are the driver's clock event reasons (once called throttle reasons). Several hold at once, so take the "
    "max over reasons, never the sum. Only reasons that the GPU can have are shown.",
    (
        gpu_gauge("gpu_sm_clock_hertz", "Present clock of the multiprocessors.", core=True),
        gpu_gauge("gpu_graphics_clock_hertz", "Present graphics clock."),
        gpu_gauge("gpu_memory_clock_hertz", "Present memory clock."),
        gpu_gauge("gpu_video_clock_hertz", "Present clock of the video engines."),
        gpu_gauge("gpu_sm_clock_max_hertz", "Highest clock of the multiprocessors.", core=True),
        gpu_gauge("gpu_memory_clock_max_hertz", "Highest memory clock."),
        gpu_gauge(
            "gpu_clock_event_active",
            "1 if this reason holds the clocks back now, else 0.",
            "reason",
            members=_REASONS,
        ),
        gpu_counter(
            "gpu_clock_event_seconds_total",
            "Time for which this reason held the clocks back, as the driver counts it; integrated where it does not.",
            "reason",
            members=_TIMED_REASONS,
            core=True,
            core_members=_CORE_REASONS,
        ),
        gpu_gauge("gpu_performance_state", "Performance state: 0 is the fastest, 15 the slowest."),
    ),
)
