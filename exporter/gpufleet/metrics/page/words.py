"""What states, reasons and numbers are called on the landing page: plain words for the person who looks at it. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpufleet.model.readings import Number, Readings

GIB = 1 << 30

QUIET, WARN, BAD = "", "warn", "bad"
"""Tones. Words say the same, so that nobody has to see colours."""

GPU_STATES = {
    GpuState.OK: ("ok", "ok"),
    GpuState.HUNG: ("hung", BAD),
    GpuState.DRIVER_BLOCKED: ("driver blocked", BAD),
    GpuState.LOST: ("lost", BAD),
    GpuState.RESET_REQUIRED: ("reset required", BAD),
    GpuState.NO_PERMISSION: ("no permission", WARN),
    GpuState.GONE: ("gone", WARN),
}
GPU_STATE_MEANINGS = {
    GpuState.HUNG: "A driver call on this GPU has not come back.",
    GpuState.DRIVER_BLOCKED: "The driver answers for no GPU: something holds its lock.",
    GpuState.LOST: "The GPU has fallen off the bus.",
    GpuState.RESET_REQUIRED: "The driver will not use this GPU before it is reset.",
    GpuState.NO_PERMISSION: "The driver does not let this process read the GPU.",
    GpuState.GONE: "The GPU was there earlier and is not any more.",
}
NVML_STATES = {
    NvmlState.NO_LIBRARY: "The driver library is not installed",
    NvmlState.NO_DRIVER: "The driver is not loaded",
    NvmlState.MISMATCH: "Driver library and kernel module are of different versions",
    NvmlState.NO_PERMISSION: "The driver refuses this process",
    NvmlState.NO_GPU: "The driver knows no GPU",
    NvmlState.HUNG: "The driver does not answer",
}
REASONS = {
    "gpu_idle": ("idle", QUIET),
    "applications_clocks_setting": ("clocks set by user", QUIET),
    "display_clock_setting": ("display clocks", QUIET),
    "sw_power_cap": ("power limit", WARN),
    "sync_boost": ("sync boost", WARN),
    "board_limit": ("board limit", WARN),
    "reliability": ("voltage limit", WARN),
    "sw_thermal_slowdown": ("too hot: slowed by the driver", BAD),
    "hw_thermal_slowdown": ("too hot: slowed by the hardware", BAD),
    "hw_power_brake_slowdown": ("power brake", BAD),
    "hw_slowdown": ("hardware slowdown", BAD),
}
RECOVERY_ACTIONS = {
    "gpu_reset": "reset the GPU",
    "node_reboot": "reboot the node",
    "drain_p2p": "drain peer-to-peer work",
    "drain_and_reset": "drain and reset",
    "recover_imex": "recover the IMEX domain",
    "bus_reset": "reset the bus",
    "system_reboot": "reboot the system",
    "unknown": "needs an action unknown to this version",
}


class Chip(NamedTuple):
    """A short note on a GPU."""

    text: str
    tone: str


class Values:
    """Readings by name and members."""

    def __init__(self, parts: Iterable[Readings]) -> None:
        self._values = {
            (key.name, key.members): value
            for part in parts
            for key, value in zip(part.keys, part.values, strict=False)
            if value is not None and math.isfinite(value)
        }

    def __call__(self, name: str, *members: str) -> Number | None:
        """Return a value, or None when it is not reported."""
        return self._values.get((name, members))

    def members(self, name: str) -> dict[str, Number]:
        """Return the values of all readings of a name by their first member."""
        return {key[1][0]: value for key, value in self._values.items() if key[0] == name and key[1]}

    def uncorrectable_errors(self) -> Number:
        """Return the uncorrectable ECC errors: the driver's own sum where it gives one."""
        found = {
            members[1]: value
            for (name, members), value in self._values.items()
            if name == "ecc_errors" and members[0] == "uncorrectable"
        }
        return found.get("total", sum(found.values()))


def chips(values: Values, standing: Values) -> list[Chip]:
    """Return what a person should know of a GPU beside its numbers, gravest first."""
    notes = [*_health(values), *_clocks(values), *_links(values)]
    notes += [
        Chip(f"Xid {code} \N{MULTIPLICATION SIGN} {count}", WARN)
        for code, count in sorted(standing.members("xid_errors").items())
    ]
    if values("mig_enabled"):
        notes.append(Chip("MIG", QUIET))
    return sorted(notes, key=lambda chip: (BAD, WARN, QUIET).index(chip.tone))


def _health(values: Values) -> Iterator[Chip]:
    for action, wanted in values.members("recovery_action").items():
        if wanted and action in RECOVERY_ACTIONS:
            yield Chip(RECOVERY_ACTIONS[action], BAD)
    if values("row_remap_failure"):
        yield Chip("memory row not replaceable: replace the board", BAD)
    if values("ecc_sram_threshold_exceeded"):
        yield Chip("too many SRAM errors: replace the board", BAD)
    if values("row_remap_pending"):
        yield Chip("memory row replaced at the next reset", WARN)
    errors = values.uncorrectable_errors()
    if errors:
        yield Chip(f"{errors:,} uncorrectable ECC error{plural(errors)}", WARN)


def _clocks(values: Values) -> Iterator[Chip]:
    active = [reason for reason, holds in values.members("clock_event_active").items() if holds]
    for reason in active:
        # The driver sets the umbrella bit with each of the others.
        if reason == "hw_slowdown" and {"hw_thermal_slowdown", "hw_power_brake_slowdown"}.intersection(active):
            continue
        words, tone = REASONS.get(reason, (reason.replace("_", " "), WARN))
        yield Chip(words, tone)


def _links(values: Values) -> Iterator[Chip]:
    # With no link active the board is simply not wired up; that is no fault.
    down = values("nvlink_links", "inactive")
    if down and values("nvlink_links", "active"):
        yield Chip(f"{down} NVLink{plural(down)} down", WARN)
    width, widest = values("pcie_link_width", "current"), values("pcie_link_width", "max")
    if width and widest and width < widest:
        yield Chip(f"PCIe \N{MULTIPLICATION SIGN} {width} of {widest}", WARN)


def present(values: Iterable[Number | None]) -> list[Number]:
    """Return the values that are reported."""
    return [value for value in values if value is not None]


def plural(count: Number) -> str:
    """Return the ending of a noun."""
    return "" if count == 1 else "s"


def percent(ratio: Number) -> str:
    """Return a ratio as whole percent, but something as nothing only when it is nothing."""
    return "<1 %" if 0 < ratio < 0.005 else f"{100 * ratio:.0f} %"


def gibibytes(count: Number) -> str:
    """Return bytes as GiB with three figures."""
    size = count / GIB
    return f"{size:.0f}" if size >= 100 else f"{size:.1f}"


def gigahertz(hertz: Number) -> str:
    """Return a frequency in GHz."""
    return f"{hertz / 1e9:.2f}"


def age(seconds: float) -> str:
    """Return how long ago something was."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
