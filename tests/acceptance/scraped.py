"""A node as Prometheus sees it: the poller on the stand-in driver, read through the exposition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.collect.options import PollerOptions, World
from gpufleet.commands.health import Health, Verdict
from gpufleet.metrics.exposition import Exposition
from gpufleet.metrics.family import Level
from gpufleet.metrics.selfmetrics import SelfMetrics
from tests.support.fake_nvml import FakeNvml
from tests.support.poller_rig import OPTIONS, Rig, rig_on

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]


@dataclass(slots=True)
class Scraped:
    """A running node, and what a scrape of it says."""

    rig: Rig
    fake: FakeNvml
    self_metrics: SelfMetrics = field(default_factory=SelfMetrics)
    exposition: Exposition = field(init=False)
    health: Health = field(init=False)

    def __post_init__(self) -> None:
        interval = self.rig.options.interval
        self.exposition = Exposition(
            self.rig.poller, self.self_metrics, interval=interval, level=Level.STANDARD, clock=self.rig.clock
        )
        self.health = Health(interval)
        self.rig.poller.subscribe(self.health.observe)

    def poll(self, times: int = 1) -> None:
        """Let polls go by."""
        self.rig.poll(times)

    def families(self) -> list[Metric]:
        """The families of one scrape, as the official parser understands them."""
        return list(parse_text(self.exposition.body().decode()))

    def openmetrics(self) -> list[Metric]:
        """The same in OpenMetrics."""
        return list(parse_openmetrics(self.exposition.body(openmetrics=True).decode()))

    def scrape(self) -> Series:
        """Every series of one scrape; the parser takes each line, and none may come twice."""
        found: Series = {}
        for family in self.families():
            for sample in family.samples:
                series = (sample.name, tuple(sorted(sample.labels.items())))
                assert series not in found, f"{series} is exposed twice"
                found[series] = sample.value
        return found

    def value(self, metric: str, **labels: str) -> float | None:
        """One series; its labels include these."""
        found = self.values(metric, **labels)
        assert len(found) <= 1, found
        return found[0] if found else None

    def values(self, metric: str, **labels: str) -> list[float]:
        """All series of a metric whose labels include these."""
        return [
            value
            for (name, present), value in self.scrape().items()
            if name == metric and set(labels.items()) <= set(present)
        ]

    def names_of(self, gpu: int) -> set[tuple[str, Labels]]:
        """Which driver readings a GPU shows."""
        return {(name, labels) for name, labels in self.scrape() if ("uuid", self.fake.uuid(gpu)) in labels}

    def state(self, metric: str, **labels: str) -> str | None:
        """The member of a state set that is 1."""
        states = [
            dict(present)["state"]
            for (name, present), value in self.scrape().items()
            if name == metric and value == 1 and set(labels.items()) <= set(present)
        ]
        assert len(states) <= 1, states
        return states[0] if states else None

    def ready(self) -> Verdict:
        """What /-/ready answers."""
        return self.health.ready(self.rig.latest, self.rig.clock())

    def healthy(self) -> Verdict:
        """What /-/healthy answers."""
        return self.health.healthy(self.rig.latest, self.rig.clock())


@contextmanager
def scraped(fake: FakeNvml, options: PollerOptions = OPTIONS, world: World | None = None) -> Iterator[Scraped]:
    """A node on the stand-in driver, a few polls old."""
    with rig_on(fake, options, world) as rig:
        node = Scraped(rig, fake)
        rig.poll(3)
        yield node
