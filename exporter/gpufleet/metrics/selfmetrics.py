"""What the process says of itself: build, memory, CPU and file descriptors, through prometheus-client's collectors.

Each collector is asked by itself. One that raises, or that says something twice, costs its own series and is counted;
the client library's own exposition would turn the whole scrape into an error.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gpufleet import __version__
from gpufleet.metrics.catalog import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)
_OPENMETRICS_END = b"# EOF\n"


class DuplicateSeriesError(Exception):
    """A collector gave a family or a series that is there already."""


class SelfMetrics:
    """Collectors of a registry of our own, and how often each of them failed.

    Not safe for use by several threads at once.
    """

    def __init__(self, *, procfs: str = "/proc") -> None:
        # The library's global registry comes with collectors of its own choice, and any import may add to it.
        self._registry = CollectorRegistry(auto_describe=True)
        self._collectors: dict[str, Collector] = {}
        self._failures: dict[str, int] = {}
        self._failing: dict[str, str] = {}
        self.register("build", _BuildInfo())
        self.register("process", ProcessCollector(proc=procfs, registry=None))

    def register(self, name: str, collector: Collector) -> None:
        """Add a collector; its failures are counted under ``name``.

        Raises ``ValueError`` when the name or one of its families is taken.
        """
        if name in self._collectors:
            raise ValueError(f"there is a collector {name} already")
        self._registry.register(collector)
        self._collectors[name] = collector
        self._failures.setdefault(name, 0)

    def failed(self, name: str, error: Exception) -> None:
        """Count a failure, of a collector or of another part of the exposition; log it if it is not the one before."""
        self._failures[name] = self._failures.get(name, 0) + 1
        told = f"{type(error).__name__}: {error}"
        if self._failing.get(name) != told:
            self._failing[name] = told
            _log.error("a part of the exposition is left out", exc_info=error, extra={"collector": name})

    def worked(self, name: str) -> None:
        """Note that a part of the exposition was made."""
        self._failures.setdefault(name, 0)
        if self._failing.pop(name, None) is not None:
            _log.info("a part of the exposition is back", extra={"collector": name})

    def text(self) -> bytes:
        """Return all families in the text format 0.0.4."""
        return self._exposed(openmetrics=False)

    def openmetrics(self) -> bytes:
        """Return all families in OpenMetrics 1.0, without the closing ``# EOF``."""
        return self._exposed(openmetrics=True)

    def _exposed(self, *, openmetrics: bool) -> bytes:
        parts: list[bytes] = []
        taken: set[str] = set()
        for name, collector in self._collectors.items():
            try:
                families = list(collector.collect())
                text = _text_of(families, openmetrics=openmetrics)
                taken |= _names_of(families, taken)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the scrape
                self.failed(name, error)
            else:
                parts.append(text)
                self.worked(name)
        parts.append(_text_of([self._failure_counts()], openmetrics=openmetrics))
        return b"".join(parts)

    def _failure_counts(self) -> Metric:
        declared = FAMILIES["gpufleet_collector_errors_total"]
        family = CounterMetricFamily(declared.openmetrics_name, declared.help, labels=declared.labels)
        for name, count in self._failures.items():
            family.add_metric([name], count)
        return family


class _BuildInfo:
    """Collector of ``gpufleet_build_info``."""

    def collect(self) -> Iterable[Metric]:
        declared = FAMILIES["gpufleet_build_info"]
        family = GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
        family.add_metric([__version__, ".".join([str(part) for part in sys.version_info[:3]])], 1)
        yield family


class _Collected:
    """Families that were collected already, as the library's exposition wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text_of(families: list[Metric], *, openmetrics: bool) -> bytes:
    if openmetrics:
        text: bytes = generate_openmetrics(_Collected(families))
        return text.removesuffix(_OPENMETRICS_END)
    return generate_latest(_Collected(families))


def _names_of(families: list[Metric], taken: set[str]) -> set[str]:
    """Return the names of the families; raise ``DuplicateSeriesError`` for what would make the exposition invalid."""
    names: set[str] = set()
    for family in families:
        if family.name in taken or family.name in names:
            raise DuplicateSeriesError(f"family {family.name} is there already")
        names.add(family.name)
        series = {(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples}
        if len(series) != len(family.samples):
            raise DuplicateSeriesError(f"family {family.name} has a series twice")
    return names
