"""The memory that the stand-in driver shares with the test that scripts it.

ctypes mirrors of tests/abi/driver/control.h, member for member as there; ``tests/abi/test_layout.py`` compares every
size and offset with the compiler's.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import c_char, c_double, c_int32, c_uint8, c_uint32, c_uint64
from pathlib import Path

DRIVER_SOURCES = Path(__file__).resolve().parent.parent / "abi" / "driver"

MAGIC = 0x67706601
MAX_GPUS = 16
SYSTEM = MAX_GPUS
COLUMNS = MAX_GPUS + 1
MAX_FUNCTIONS = 128
MAX_MIG = 8
MAX_FANS = 4
MAX_PROCESSES = 64
FIELD_CELLS = 2048
GPM_METRICS = 480
MIG_GPM_METRICS = 64
EVENT_RING = 256
ALL_LINKS = 255
ABSENT32 = 0xFFFFFFFF
ABSENT64 = 0xFFFFFFFFFFFFFFFF
ABSENT_MARGIN = -(2**31)

FUNCTIONS: tuple[str, ...] = tuple(
    re.findall(r"^FUNCTION\((\w+)\)", (DRIVER_SOURCES / "functions.def").read_text(), re.MULTILINE)
)


class Rule(ctypes.Structure):
    """What the library does for one function on one GPU."""

    _fields_ = (
        ("code", c_int32),
        ("hang", c_uint32),
        ("hang_ms", c_uint32),
        ("released", c_uint32),
        ("latency_us", c_uint32),
        ("reserved", c_uint32),
    )


class FieldCell(ctypes.Structure):
    """One entry of a GPU's field table."""

    _fields_ = (
        ("key", c_uint32),
        ("flags", c_uint32),
        ("code", c_int32),
        ("type", c_uint32),
        ("value", c_uint64),
        ("rate", c_uint32),
        ("wobble", c_uint32),
    )


class GpmCell(ctypes.Structure):
    """One GPM metric of a GPU or an instance."""

    _fields_ = (("value", c_double), ("wobble", c_double), ("code", c_int32), ("reserved", c_uint32))


class ProcessEntry(ctypes.Structure):
    """A process on a GPU."""

    _fields_ = (
        ("used_memory", c_uint64),
        ("pid", c_uint32),
        ("gi", c_uint32),
        ("ci", c_uint32),
        ("client", c_uint32),
    )


class MigInstance(ctypes.Structure):
    """One compute instance of a partitioned GPU."""

    _fields_ = (
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("memory_total", c_uint64),
        ("memory_used", c_uint64),
        ("present", c_uint32),
        ("gi", c_uint32),
        ("ci", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpeg", c_uint32),
        ("ofa", c_uint32),
        ("gi_slices", c_uint32),
        ("ci_slices", c_uint32),
        ("code", c_int32),
        ("gpm", GpmCell * MIG_GPM_METRICS),
    )


class Gpu(ctypes.Structure):
    """One GPU; set its members while the driver runs."""

    _fields_ = (
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("vbios", c_char * 32),
        ("part", c_char * 32),
        ("present", c_uint32),
        ("code", c_int32),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("device", c_uint32),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("minor", c_uint32),
        ("architecture", c_uint32),
        ("brand", c_uint32),
        ("cuda_major", c_uint32),
        ("cuda_minor", c_uint32),
        ("cores", c_uint32),
        ("bus_width", c_uint32),
        ("clock", c_uint32 * 4),
        ("clock_max", c_uint32 * 4),
        ("utilization_gpu", c_uint32),
        ("utilization_memory", c_uint32),
        ("encoder", c_uint32),
        ("decoder", c_uint32),
        ("jpeg", c_uint32),
        ("ofa", c_uint32),
        ("performance_state", c_uint32),
        ("temperature", c_int32),
        ("margin", c_int32),
        ("threshold", c_uint32 * 8),
        ("fan_count", c_uint32),
        ("fan", c_uint32 * MAX_FANS),
        ("fan_rpm", c_uint32),
        ("pcie_generation", c_uint32),
        ("pcie_width", c_uint32),
        ("pcie_generation_max", c_uint32),
        ("pcie_width_max", c_uint32),
        ("pcie_throughput", c_uint32),
        ("persistence", c_uint32),
        ("compute_mode", c_uint32),
        ("display", c_uint32),
        ("ecc_current", c_uint32),
        ("ecc_pending", c_uint32),
        ("sram_threshold_exceeded", c_uint32),
        ("histogram", c_uint32 * 5),
        ("fabric_version", c_uint32),
        ("fabric_state", c_uint32),
        ("fabric_status", c_uint32),
        ("fabric_clique", c_uint32),
        ("fabric_health_mask", c_uint32),
        ("fabric_health_summary", c_uint32),
        ("nvlink_count", c_uint32),
        ("gpm_supported", c_uint32),
        ("process_count", c_uint32),
        ("process_stride", c_uint32),
        ("mig_mode", c_uint32),
        ("mig_mode_pending", c_uint32),
        ("mig_maximum", c_uint32),
        ("mig_generation", c_uint32),
        ("mig_stale_code", c_int32),
        ("mig_parent_memory_code", c_int32),
        ("multiprocessors", c_uint32),
        ("reasons", c_uint64),
        ("reasons_supported", c_uint64),
        ("memory_total", c_uint64),
        ("memory_reserved", c_uint64),
        ("memory_used", c_uint64),
        ("bar1_total", c_uint64),
        ("bar1_used", c_uint64),
        ("events_supported", c_uint64),
        ("ecc_count", c_uint64 * 8 * 2 * 2),
        ("sram", c_uint64 * 11),
        ("fabric_cluster", c_uint8 * 16),
        ("process", ProcessEntry * MAX_PROCESSES),
        ("mig", MigInstance * MAX_MIG),
        ("gpm", GpmCell * GPM_METRICS),
        ("field", FieldCell * FIELD_CELLS),
    )


class Event(ctypes.Structure):
    """One entry of the ring that event sets deliver."""

    _fields_ = (
        ("type", c_uint64),
        ("data", c_uint64),
        ("gpu", c_uint32),
        ("gi", c_uint32),
        ("ci", c_uint32),
        ("alias", c_uint32),
    )


class Misuse(ctypes.Structure):
    """Counters of what a caller must never do."""

    _fields_ = (
        ("uninitialized_call", c_uint64),
        ("unbalanced_shutdown", c_uint64),
        ("stale_handle", c_uint64),
        ("bad_handle", c_uint64),
        ("freed_sample", c_uint64),
        ("mismatched_samples", c_uint64),
        ("sample_in_use", c_uint64),
        ("gpm_parallel", c_uint64),
        ("shutdown_during_call", c_uint64),
        ("samples_left", c_uint64),
        ("event_sets_left", c_uint64),
        ("stale_event_set", c_uint64),
        ("set_freed_during_wait", c_uint64),
        ("buffer_in_use", c_uint64),
        ("wrong_version", c_uint64),
        ("call_while_stuck", c_uint64 * COLUMNS),
    )


class Control(ctypes.Structure):
    """The whole shared memory."""

    _fields_ = (
        ("magic", c_uint32),
        ("size", c_uint32),
        ("wake", c_uint32),
        ("gpu_count", c_uint32),
        ("order", c_uint32 * MAX_GPUS),
        ("hold_all", c_uint32),
        ("serialize", c_uint32),
        ("model_latency", c_uint32),
        ("driver_generation", c_uint32),
        ("restart_code", c_int32),
        ("driver_down", c_uint32),
        ("init_code", c_int32),
        ("library_build", c_uint32),
        ("kernel_build", c_uint32),
        ("cuda_version", c_int32),
        ("gpm_spacing_ms", c_uint32),
        ("sram_version", c_uint32),
        ("temperature_version", c_uint32),
        ("margin_version", c_uint32),
        ("scribble_versions", c_uint32),
        ("reserved", c_uint32),
        ("driver_version", c_char * 80),
        ("nvml_version", c_char * 80),
        ("moving_since_ns", c_uint64),
        ("event_head", c_uint64),
        ("events", Event * EVENT_RING),
        ("latency_us", c_uint32 * MAX_FUNCTIONS),
        ("latency_per_field_us", c_uint32),
        ("open_descriptors", c_uint32),
        ("initialized", c_uint32),
        ("samples_live", c_uint32),
        ("out", c_uint32 * COLUMNS),
        ("max_out", c_uint32 * COLUMNS),
        ("stuck", c_uint32 * COLUMNS),
        ("max_stuck", c_uint32 * COLUMNS),
        ("field_entries", c_uint64),
        ("counts", c_uint64 * MAX_FUNCTIONS * COLUMNS),
        ("misuse", Misuse),
        ("rules", Rule * MAX_FUNCTIONS * COLUMNS),
        ("gpus", Gpu * MAX_GPUS),
    )


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "rule": Rule,
    "field_cell": FieldCell,
    "gpm_cell": GpmCell,
    "process_entry": ProcessEntry,
    "mig_instance": MigInstance,
    "gpu": Gpu,
    "event": Event,
    "misuse": Misuse,
    "control": Control,
}


def field_place(table: ctypes.Array[FieldCell], field_id: int, scope: int) -> FieldCell:
    """The cell of (field id, scope), the first empty one of its chain when there is none yet."""
    if scope == ABSENT32:
        scope = ALL_LINKS
    key = (field_id << 8 | scope) + 1
    place = (key * 2654435761 & 0xFFFFFFFF) >> 21
    for _ in range(FIELD_CELLS):
        cell = table[place]
        if cell.key in {0, key}:
            return cell
        place = (place + 1) % FIELD_CELLS
    raise ValueError("the field table is full")
