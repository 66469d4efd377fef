"""The few readings of a GPU that tell of faults, taken out of a poll's hundreds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpufleet.model.readings import Key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.model.readings import Number, Readings

FABRIC_ISSUES = (
    "degraded_bandwidth",
    "route_recovery",
    "route_unhealthy",
    "access_timeout_recovery",
    "incorrect_configuration",
)
RECOVERY_MEMBERS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)
"""In the order of the driver's codes."""
UNKNOWN_RECOVERY = 255
"""Stands for a code that the poll itself did not know."""

_RECOVERY = {Key("recovery_action", (member,)): code for code, member in enumerate(RECOVERY_MEMBERS)}
_RECOVERY[Key("recovery_action", ("unknown",))] = UNKNOWN_RECOVERY
_FABRIC = {Key("fabric_health", (issue,)): issue for issue in FABRIC_ISSUES}
_SINGLE = {
    Key("row_remap_pending"): "pending",
    Key("row_remap_failure"): "failure",
    Key("ecc_sram_threshold_exceeded"): "threshold",
    Key("energy_joules"): "energy",
    Key("ecc_errors", ("uncorrectable", "sram")): "sram",
    Key("ecc_errors", ("uncorrectable", "dram")): "dram",
    Key("ecc_errors", ("uncorrectable", "total")): "total",
}
_MOST_PLANS = 64


@dataclass(frozen=True, slots=True)
class Readout:
    """``None`` is not reported this time."""

    recovery: int | None = None
    """Code of the driver's recovery action."""
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    sram_threshold: bool | None = None
    energy: float | None = None
    """Joules since the driver was loaded."""
    sram: float | None = None
    """Uncorrectable errors of the caches since the driver was loaded."""
    uncorrectable: float | None = None
    """Uncorrectable errors of the device memory since the driver was loaded; of all memories where it says no more."""
    fabric: tuple[tuple[str, bool], ...] = ()


class Readouts:
    """Finds the readings by position: a tuple of keys is the same object until the call plan changes."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[tuple[Key, ...], _Plan]] = {}

    def read(self, parts: Iterable[Readings]) -> Readout:
        """What the parts of one GPU's poll say."""
        recovery: int | None = None
        fabric: list[tuple[str, bool]] = []
        single: dict[str, Number] = {}
        for part in parts:
            plan, values = self._plan(part.keys), part.values
            for index, name in plan.single:
                value = values[index] if index < len(values) else None
                if value is not None:
                    single[name] = value
            for index, code in plan.recovery:
                if index < len(values) and values[index]:
                    recovery = code
            for index, issue in plan.fabric:
                value = values[index] if index < len(values) else None
                if value is not None:
                    fabric.append((issue, bool(value)))
        return Readout(
            recovery=recovery,
            remap_pending=_flag(single, "pending"),
            remap_failure=_flag(single, "failure"),
            sram_threshold=_flag(single, "threshold"),
            energy=single.get("energy"),
            sram=single.get("sram"),
            uncorrectable=single.get("dram", single.get("total")),
            fabric=tuple(fabric),
        )

    def _plan(self, keys: tuple[Key, ...]) -> _Plan:
        known = self._plans.get(id(keys))
        # The tuple is kept beside its plan, so that its id can't be another's meanwhile.
        if known is not None and known[0] is keys:
            return known[1]
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        plan = _Plan(
            [(index, _SINGLE[key]) for index, key in enumerate(keys) if key in _SINGLE],
            [(index, _RECOVERY[key]) for index, key in enumerate(keys) if key in _RECOVERY],
            [(index, _FABRIC[key]) for index, key in enumerate(keys) if key in _FABRIC],
        )
        self._plans[id(keys)] = (keys, plan)
        return plan


class _Plan(NamedTuple):
    """Where in the values is what; worked out once, since a key takes longer to look up than its value to read."""

    single: list[tuple[int, str]]
    recovery: list[tuple[int, int]]
    fabric: list[tuple[int, str]]


def _flag(values: dict[str, Number], name: str) -> bool | None:
    value = values.get(name)
    return None if value is None else bool(value)
