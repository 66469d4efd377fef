"""MIG slices. Their families are apart from the GPU's, so that a sum never counts a slice twice."""

from __future__ import annotations

from gpufleet.metrics.family import SLICE, Group, gauge, gpu_gauge, slice_counter, slice_gauge

_GPM = "Hopper and newer; on Ampere a slice has no activity readings"

SLICES = Group(
    "MIG slices",
    "One series a compute instance. What compute instances of one GPU instance share (memory, activity) is shown once, "
    "on one of them. Activity is relative to the slice: times `gpu_mig_compute_fraction` it is relative to the GPU.",
    (
        gpu_gauge("gpu_mig_enabled", "1 if MIG is enabled, else 0.", reported_by="GPUs that can do MIG", core=True),
        gauge(
            "gpu_mig_info",
            "Identity of a slice, always 1; gi and ci are its GPU instance and compute instance.",
            (*SLICE, "profile", "gi", "ci"),
            core=True,
        ),
        slice_gauge("gpu_mig_compute_fraction", "Multiprocessors of the slice over those of the whole GPU.", core=True),
        slice_gauge(
            "gpu_mig_graphics_active_ratio",
            "Fraction of time in which the slice's compute engine was active.",
            reported_by=_GPM,
        ),
        slice_gauge(
            "gpu_mig_sm_active_ratio",
            "Fraction of time in which a multiprocessor had at least one warp, averaged over the slice.",
            reported_by=_GPM,
            core=True,
        ),
        slice_gauge(
            "gpu_mig_sm_occupancy_ratio",
            "Resident warps over the most that the slice's multiprocessors can hold.",
            reported_by=_GPM,
        ),
        slice_gauge(
            "gpu_mig_tensor_active_ratio",
            "Fraction of cycles in which the slice's tensor cores were active.",
            reported_by=_GPM,
            core=True,
        ),
        slice_gauge(
            "gpu_mig_dram_active_ratio",
            "Device memory bandwidth used over the peak.",
            reported_by=_GPM,
        ),
        slice_gauge(
            "gpu_mig_pipe_active_ratio",
            "Fraction of cycles in which this arithmetic pipe was active.",
            "pipe",
            members=("int", "fp16", "fp32", "fp64", "tensor_half", "tensor_int8", "tensor_fp64"),
            reported_by=_GPM,
        ),
        slice_counter(
            "gpu_mig_sm_active_seconds_total",
            "Time integral of gpu_mig_sm_active_ratio.",
            reported_by=_GPM,
            core=True,
        ),
        slice_counter(
            "gpu_mig_tensor_active_seconds_total",
            "Time integral of gpu_mig_tensor_active_ratio.",
            reported_by=_GPM,
            core=True,
        ),
        slice_gauge("gpu_mig_memory_used_bytes", "Device memory allocated in the slice.", core=True),
        slice_gauge("gpu_mig_memory_free_bytes", "Device memory that can be allocated in the slice."),
        slice_gauge("gpu_mig_memory_total_bytes", "Device memory of the slice.", core=True),
    ),
)
