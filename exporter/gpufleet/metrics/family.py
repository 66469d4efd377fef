"""What a metric family is: the facts that the catalogue states of each one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

# Units a name may end in (before _total): Prometheus' base units and what they combine to. Longest first, because
# gpu_pcie_transmit_bytes_per_second ends in a shorter unit, too.
UNITS = ("bytes_per_second", "seconds", "bytes", "celsius", "hertz", "joules", "watts", "ratio")

GPU = ("gpu", "uuid")
SLICE = ("gpu", "uuid", "mig_uuid")


class Level(StrEnum):
    """How much of the catalogue is shown: at most 70 series a GPU, or at most 160."""

    CORE = "core"
    STANDARD = "standard"


class Kind(StrEnum):
    """Type in the exposition. Info and state sets are gauges: OpenMetrics' own types would rename series or labels."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family: a contract with everyone who wrote a query against it."""

    name: str
    """As it is queried: with ``_total`` where it is a counter."""
    kind: Kind
    help: str
    """One sentence without quotes, backslashes and line breaks, so that it reads the same in both text formats."""
    labels: tuple[str, ...] = ()
    """All labels in order; trailing ones are left out of a series that has no value for them."""
    reported_by: str = ""
    """Which GPUs or set-ups have it, for docs/metrics.md; empty for every one."""
    core: bool = False
    """Shown at level core, too."""
    core_members: tuple[str, ...] = ()
    """At level core only these values of the first label after the subject's; empty for all."""
    members: tuple[str, ...] = ()
    """All values of the first label after the subject's, in the order of the exposition; empty for an open set."""
    from_reading: bool = False
    """Filled from the reading of the same name (see ``reading``)."""
    buckets: tuple[float, ...] = ()
    """Of a histogram: the upper bounds in ascending order, without the infinite one. They never change."""
    served: bool = True
    """False for a name that is promised and that no source fills yet."""
    simulated: bool = False
    """Of one that is not served: ``gpufleet simulate`` shows it, so that rules and dashboards can be tried."""

    @property
    def reading(self) -> str | None:
        """Name of the reading that fills it (``model.readings.Key.name``)."""
        return self.name.removeprefix("gpu_").removesuffix("_total") if self.from_reading else None

    @property
    def openmetrics_name(self) -> str:
        """Name of the family in OpenMetrics, where ``_total`` belongs to the sample alone."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name

    @property
    def unit(self) -> str | None:
        """Unit at the end of the name; None for counts, flags and numbers without one."""
        for unit in UNITS:
            if self.openmetrics_name.endswith(f"_{unit}"):
                return unit
        return None

    def shown_at(self, level: Level, first_member: str | None = None) -> bool:
        """Whether a series is shown; ``first_member`` is its value of the first label after the subject's."""
        if level is Level.STANDARD:
            return True
        return self.core and (not self.core_members or first_member is None or first_member in self.core_members)


@dataclass(frozen=True, slots=True)
class Group:
    """Families of one subject, a section of docs/metrics.md."""

    title: str
    about: str
    """What a reader must know to use them: one paragraph of Markdown."""
    families: tuple[Family, ...]


class Facts(TypedDict, total=False):
    """What may be said of a family beside its name and help."""

    reported_by: str
    core: bool
    core_members: tuple[str, ...]
    members: tuple[str, ...]
    served: bool
    simulated: bool


def le(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """The bounds as both formats write them in the label ``le``, the infinite one last."""
    return (*[repr(float(bound)) for bound in bounds], "+Inf")


def gauge(name: str, meaning: str, labels: tuple[str, ...] = (), **facts: Unpack[Facts]) -> Family:
    """A value that goes up and down, a flag, a member of a state set, or information in labels."""
    return Family(name=name, kind=Kind.GAUGE, help=meaning, labels=labels, **facts)


def counter(name: str, meaning: str, labels: tuple[str, ...] = (), **facts: Unpack[Facts]) -> Family:
    """A total that only rises, except when its source starts anew."""
    return Family(name=name, kind=Kind.COUNTER, help=meaning, labels=labels, **facts)


def histogram(
    name: str, meaning: str, labels: tuple[str, ...], buckets: tuple[float, ...], **facts: Unpack[Facts]
) -> Family:
    """Observations counted by upper bound; the label ``le`` comes behind ``labels``."""
    return Family(name=name, kind=Kind.HISTOGRAM, help=meaning, labels=labels, buckets=buckets, **facts)


def gpu_gauge(name: str, meaning: str, *extra: str, **facts: Unpack[Facts]) -> Family:
    """A gauge filled from a reading of a GPU."""
    return _reading(name, Kind.GAUGE, meaning, (*GPU, *extra), facts)


def gpu_counter(name: str, meaning: str, *extra: str, **facts: Unpack[Facts]) -> Family:
    """A counter filled from a reading of a GPU."""
    return _reading(name, Kind.COUNTER, meaning, (*GPU, *extra), facts)


def slice_gauge(name: str, meaning: str, *extra: str, **facts: Unpack[Facts]) -> Family:
    """A gauge filled from a reading of a MIG slice."""
    return _reading(name, Kind.GAUGE, meaning, (*SLICE, *extra), facts)


def slice_counter(name: str, meaning: str, *extra: str, **facts: Unpack[Facts]) -> Family:
    """A counter filled from a reading of a MIG slice."""
    return _reading(name, Kind.COUNTER, meaning, (*SLICE, *extra), facts)


def _reading(name: str, kind: Kind, meaning: str, labels: tuple[str, ...], facts: Facts) -> Family:
    return Family(name=name, kind=kind, help=meaning, labels=labels, from_reading=True, **facts)
