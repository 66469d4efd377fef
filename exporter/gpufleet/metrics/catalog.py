"""Every metric name, once. The order here is the order of the exposition and of docs/metrics.md.

A metric name is a contract: queries, rules and dashboards of other people depend on it. The entries themselves are in
``families``, by subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.metrics.families.activity import CLOCKS, IDENTITY, UTILIZATION
from gpufleet.metrics.families.faults import FAULTS
from gpufleet.metrics.families.hardware import MEMORY, MEMORY_ERRORS, POWER, TEMPERATURE
from gpufleet.metrics.families.links import NETWORK, NVLINK, PCIE
from gpufleet.metrics.families.node import NODE, QUARANTINE, SELF
from gpufleet.metrics.families.ownership import COST, OWNERS
from gpufleet.metrics.families.slices import SLICES
from gpufleet.metrics.families.training import TRAINING

if TYPE_CHECKING:
    from gpufleet.metrics.family import Family, Group

CATALOG: tuple[Group, ...] = (
    IDENTITY,
    UTILIZATION,
    CLOCKS,
    TEMPERATURE,
    POWER,
    MEMORY,
    MEMORY_ERRORS,
    PCIE,
    NVLINK,
    FAULTS,
    SLICES,
    OWNERS,
    COST,
    NODE,
    NETWORK,
    TRAINING,
    SELF,
    QUARANTINE,
)

FAMILIES: dict[str, Family] = {family.name: family for group in CATALOG for family in group.families}
"""By name, in the order of the exposition."""

ORDER: dict[str, int] = {name: position for position, name in enumerate(FAMILIES)}

READINGS: dict[str, Family] = {family.reading: family for family in FAMILIES.values() if family.reading is not None}
"""By the name of the reading that fills it."""
