"""What became of the posts, as self-metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpufleet.metrics.catalog import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from gpufleet.notify.alertmanager import Status


class NotificationMetrics:
    """A collector of gpufleet_alertmanager_*."""

    def __init__(self, statuses: Callable[[], Iterable[Status]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        up = FAMILIES["gpufleet_alertmanager_up"]
        posted = FAMILIES["gpufleet_alertmanager_notifications_total"]
        gauge = GaugeMetricFamily(up.name, up.help, labels=up.labels)
        counter = CounterMetricFamily(posted.openmetrics_name, posted.help, labels=posted.labels)
        for status in self._statuses():
            if status.up is not None:
                gauge.add_metric([status.alertmanager], int(status.up))
            for outcome, count in status.alerts:
                counter.add_metric([status.alertmanager, outcome], count)
        return gauge, counter
