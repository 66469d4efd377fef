"""Series of faults: incidents, which have a series each while they are open, and the counts of switches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import Family
from gpufleet.metrics.labels import pairs
from gpufleet.model.incident import FaultLabels, FaultsView

Describe = Callable[..., tuple[str, Sequence[tuple[Family, str, str]]]]
"""Gives the subject's labels and, for each value, the family, the other labels and what they are ordered by."""

MOST_INCIDENTS = 256
"""Shown at once; a node that has more has one cause, and the first of them say so."""


def fault_rows(faults: FaultsView) -> Iterator[tuple[Describe, tuple[object, ...], tuple[int, ...]]]:
    """A way to describe, its arguments and the values, for each group of series that come and go together."""
    for incident in faults.active[:MOST_INCIDENTS]:
        yield describe_incident, (incident.labels(),), (1,)
    rows = tuple((row.pci_bus_id or "", row.code, row.fault_class) for row in faults.switch_errors or ())
    if rows:
        yield describe_switches, (rows,), tuple(row.count for row in faults.switch_errors or ())


def describe_incident(labels: FaultLabels) -> tuple[str, list[tuple[Family, str, str]]]:
    """One open incident, by the alert contract: a label that is not known is left out, as Alertmanager does it."""
    family = FAMILIES["gpu_fault_active"]
    known = [(name, value) for name, value in zip(family.labels, astuple(labels), strict=True) if value]
    return "", [(family, pairs(known), labels.incident)]


def describe_switches(
    rows: tuple[tuple[str, int | None, str], ...],
) -> tuple[str, list[tuple[Family, str, str]]]:
    """Errors of switches by address and code."""
    family = FAMILIES["nvswitch_errors_total"]
    described = []
    for address, number, fault_class in rows:
        code = "other" if number is None else str(number)
        labels = (("pci_bus_id", address), ("sxid", code), ("class", fault_class))
        described.append((family, pairs([(name, value) for name, value in labels if value]), f"{address} {code}"))
    return "", described
