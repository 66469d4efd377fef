"""The parts that deal with faults, wired: the ledger, the thread that owns it, and the direct path to Alertmanager."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.collect.fault_watch import FaultOptions, FaultWatch
from gpufleet.faults.ledger import Ledger
from gpufleet.model.incident import FaultsView, Owner
from gpufleet.model.snapshot import SourceHealth
from gpufleet.settings import Settings

if TYPE_CHECKING:
    from gpufleet.metrics.selfmetrics import SelfMetrics
    from gpufleet.notify.alertmanager import Poster
    from gpufleet.sources.udev import GpuEvent

_POSTER_SECONDS = 1.0
"""A post that is under way when the process ends is waited for so long."""


class Faults:
    """Everything about faults in one running exporter."""

    def __init__(
        self, settings: Settings, boot_id: str | None, kmsg: Path | None, owner_of: Callable[[str], Owner]
    ) -> None:
        """``kmsg`` is the kernel's log, ``None`` for a scripted node; ``owner_of`` the holder of a GPU now.

        Raises ClientConfigError when the configuration of the direct path is refused.
        """
        self._external = tuple((label.name, label.value) for label in settings.alertmanager_label)
        self._poster = _poster(settings)
        self._has_log = kmsg is not None
        ledger = Ledger(
            node=settings.node_name,
            boot_id=boot_id,
            random_id=lambda: os.urandom(8).hex(),
            owner_of=owner_of,
            has_log=self._has_log,
        )
        options = FaultOptions(kmsg, settings.kmsg_accept_userspace, settings.state_dir)
        self.watch = FaultWatch(ledger, options, wall=time.time, monotonic=time.monotonic, show=self._show)
        self.watch.load()

    def expose(self, metrics: SelfMetrics) -> None:
        """Have it shown what became of the posts."""
        if self._poster is not None:
            from gpufleet.notify.collector import NotificationMetrics  # nodes without a direct path don't pay for it

            metrics.register("alertmanager", NotificationMetrics(self._poster.statuses))

    def start(self) -> None:
        """Begin to follow and to post."""
        if self._poster is not None:
            self._poster.start()
        self.watch.start()

    def stop(self) -> None:
        """Keep what is known and end. Open alerts stay open: the next process goes on with them."""
        self.watch.stop()
        if self._poster is not None:
            self._poster.stop(_POSTER_SECONDS)

    def health(self) -> tuple[SourceHealth, ...]:
        """Whether the kernel's log is followed, where there is one."""
        return (self.watch.health,) if self._has_log else ()

    def device_event(self, event: GpuEvent) -> None:
        """Take the kernel's word on a device in."""
        if event.address is not None:
            self.watch.device(event.action.value, event.address)

    def _show(self, view: FaultsView) -> None:
        if self._poster is not None:
            from gpufleet.notify.alert import hardware_incident

            isolating = [incident for incident in view.active if incident.isolate]
            self._poster.update([hardware_incident(incident, self._external) for incident in isolating])


def _poster(settings: Settings) -> Poster | None:
    if not settings.alertmanager_url:
        return None
    from gpufleet.notify.alertmanager import open_poster  # brings requests: only those who configured it pay for it

    return open_poster(settings.alertmanager_url, settings.alertmanager_config_file)


def client_config_error() -> type[Exception]:
    """The error of a refused configuration, of a module that is loaded already when it is raised."""
    from gpufleet.notify.client_config import ClientConfigError

    return ClientConfigError
