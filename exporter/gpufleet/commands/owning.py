"""The parts that deal with owners and cost, wired: who is asked, who works holders out, and who bills them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpufleet.collect.accounts import Accounts
from gpufleet.collect.meter_file import MeterFile
from gpufleet.collect.owner_watch import OwnerWatch, PodSource, Witnesses
from gpufleet.collect.witness import Witness
from gpufleet.commands import footprint
from gpufleet.commands.pricing import PriceSource
from gpufleet.cost.meter import Meter
from gpufleet.cost.prices import PriceBook
from gpufleet.model.claims import ContainerDevices, Pod, ProcessFacts
from gpufleet.model.snapshot import SourceHealth
from gpufleet.options import IN_CLUSTER, NO_API_SERVER
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.identity import annotations_read, identify
from gpufleet.settings import Settings
from gpufleet.sources.processes import process_facts
from gpufleet.sources.slurm.files import SlurmFiles, SlurmReading

if TYPE_CHECKING:
    from gpufleet.sources.pods.watch import PodWatch

T = TypeVar("T")

log = logging.getLogger(__name__)

KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SLURM_DIRECTORY = Path("/run/gpufleet/slurm")


@dataclass(frozen=True, slots=True)
class ScriptedOwners:
    """Who holds the GPUs of a scripted node."""

    containers: tuple[ContainerDevices, ...]
    pods: Mapping[tuple[str, str], Pod]


class Owning:
    """Everything about owners and cost in one running exporter."""

    def __init__(
        self,
        settings: Settings,
        boot_id: str | None,
        scripted: ScriptedOwners | None,
        *,
        built_in: PriceBook | None = None,
    ) -> None:
        """``scripted`` are the holders of a scripted node, ``None`` for a real one.

        ``built_in`` are the prices where no file gives any.

        Raises OwnersConfigError and PriceBookError when a file is refused.
        """
        self._settings = settings
        self._scripted = scripted
        self._prices = PriceSource(
            settings.prices_file,
            settings.node_name,
            {label.name: label.value for label in settings.node_label},
            built_in=built_in,
        )
        self._config = _config(settings.owners_config_file)
        self.watch = OwnerWatch(
            self._config,
            max_age=settings.owners_max_age,
            interval=settings.owners_interval,
            monotonic=time.monotonic,
            each_minute=self._each_minute,
        )
        self._meter = Meter(
            interval=settings.poll_interval, utilization=settings.cost_utilization, price_of=self._prices.price_of
        )
        self._file = MeterFile(settings.state_dir, boot_id)
        self._file.load(self._meter)
        self.accounting = Accounts(self.watch, self._meter, self._file)
        self._witnesses = Witnesses()
        self._pod_watch: PodWatch | None = None

    def start(self) -> None:
        """Begin to ask and to work out."""
        self._look_for_witnesses()
        self.watch.start()

    def stop(self) -> None:
        """End, with the totals on disk."""
        self.watch.stop()
        for witness in self._witnesses.allocations:
            witness.stop()
        if self._pod_watch is not None:
            self._pod_watch.stop()
        self._file.stop()

    def health(self) -> tuple[SourceHealth, ...]:
        """Whether each source of owners and prices answers, and whether totals can be kept."""
        return (*self.watch.health(), *self._prices.health(), *self._file.health())

    def pods(self) -> Mapping[tuple[str, str], Pod] | None:
        """This node's pods as they are now; ``None`` while nobody can say."""
        source = self._witnesses.pods
        return source.pods if source is not None and source.health.up else None

    def called(self, pod: Pod) -> tuple[str, str]:
        """Project and run of a pod, whether it holds a GPU or not."""
        workload = identify(pod, "", self._config)
        return workload.project, workload.run

    def _each_minute(self) -> None:
        self._prices.look()
        self._look_for_witnesses()

    # --- who is asked -------------------------------------------------------------------------------------------------
    def _look_for_witnesses(self) -> None:
        """Start those that are there now: a node may get its kubelet, or its first job of Slurm, after its exporter."""
        found = self._witnesses
        settings = self._settings
        if self._scripted is not None:
            if found.kubelet is None:
                found = self._script(self._scripted)
        else:
            if found.kubelet is None:
                found = replace(found, kubelet=self._kubelet())
            if found.kubelet is not None and found.pods is None:
                found = replace(found, pods=self._pods())
            if found.slurm is None:
                found = replace(found, slurm=self._slurm())
            if found.process is None and settings.owners_processes:
                found = replace(found, process=self._process())
        if found != self._witnesses:
            self._witnesses = found
            self.watch.use(found)

    def _kubelet(self) -> Witness[tuple[ContainerDevices, ...]] | None:
        socket = self._settings.podresources_socket
        if socket is None:
            if not KUBELET_SOCKET.parent.is_dir():
                return None
            socket = KUBELET_SOCKET
        from gpufleet.sources.podresources.client import PodResources  # brings h2: nodes without a kubelet don't pay

        resources = PodResources(socket)
        return self._started("podresources", resources.list, _pod_resources_error)

    def _pods(self) -> PodSource | None:
        server = self._settings.kubernetes_api_server
        if server == NO_API_SERVER or (server is None and not os.environ.get("KUBERNETES_SERVICE_HOST")):
            return None
        from gpufleet.sources.pods.api_server import api_server_at, in_cluster  # brings TLS, as above
        from gpufleet.sources.pods.watch import PodWatch

        api = in_cluster(os.environ) if server is None or server == IN_CLUSTER else api_server_at(server)
        self._pod_watch = PodWatch(
            api,
            self._settings.node_name,
            changed=self._pods_changed,
            # Of a list some megabytes were needed for a moment: a pod is mostly what nobody here reads.
            listed=footprint.settle,
            node_labels=self._prices.node_labels,
            annotations=annotations_read(self._config),
        )
        self._pod_watch.start()
        return self._pod_watch

    def _pods_changed(self) -> None:
        # What the kubelet gave out has most likely changed with the pods.
        if self._witnesses.kubelet is not None:
            self._witnesses.kubelet.wake()
        self.watch.changed()

    def _slurm(self) -> Witness[SlurmReading] | None:
        settings = self._settings
        own = settings.slurm_dir or (SLURM_DIRECTORY if SLURM_DIRECTORY.is_dir() else None)
        if own is None and settings.slurm_dcgm_dir is None and settings.slurm_jobstats_dir is None:
            return None
        files = SlurmFiles(
            own=own,
            dcgm=settings.slurm_dcgm_dir,
            jobstats=settings.slurm_jobstats_dir,
            procfs=settings.path_procfs,
            cgroupfs=settings.path_sysfs / "fs" / "cgroup",
        )
        return self._started("slurm", _WhenChanged(files, settings.owners_interval), lambda: OSError, interval=1.0)

    def _process(self) -> Callable[[int], ProcessFacts | None]:
        procfs = self._settings.path_procfs
        return lambda pid: process_facts(pid, procfs)

    def _script(self, scripted: ScriptedOwners) -> Witnesses:
        return Witnesses(
            kubelet=self._started("podresources", lambda: scripted.containers, lambda: OSError),
            pods=_ScriptedPods(scripted.pods),
        )

    def _started(
        self,
        source: str,
        ask: Callable[[], T],
        errors: Callable[[], type[Exception]],
        *,
        interval: float | None = None,
    ) -> Witness[T]:
        witness = Witness(
            source,
            ask,
            errors=errors,
            interval=interval or self._settings.owners_interval,
            answered=self.watch.changed,
            monotonic=time.monotonic,
            wall=time.time,
        )
        witness.start()
        return witness


class _WhenChanged:
    """Reads files of Slurm when one came or went, and once in a while: for those that were left behind."""

    def __init__(self, files: SlurmFiles, interval: float) -> None:
        self._files = files
        self._interval = interval
        self._last: SlurmReading | None = None
        self._read_at = 0.0

    def __call__(self) -> SlurmReading:
        now = time.monotonic()
        if self._last is None or now - self._read_at >= self._interval or self._files.changed():
            self._last, self._read_at = self._files.read(), now
        return self._last


class _ScriptedPods:
    """Pods that are there from the start and stay."""

    def __init__(self, pods: Mapping[tuple[str, str], Pod]) -> None:
        self.pods = pods
        self.health = SourceHealth("pods", up=True)

    @property
    def synced_at(self) -> float | None:
        """Always a moment ago."""
        return time.monotonic()


def _config(file: Path | None) -> OwnersConfig:
    if file is None:
        return OwnersConfig()
    from gpufleet.owners.config import read_owners_config

    return read_owners_config(file)


def _pod_resources_error() -> type[Exception]:
    from gpufleet.sources.podresources.client import PodResourcesError  # loaded already when it is raised

    return PodResourcesError
