"""The owners thread: keeps what the witnesses said last, and works out from it who holds each GPU.

Nothing here is done for a scrape or a poll. A poll hands its snapshot over; when the devices on the node, the processes
on them or an answer changed, holders are worked out anew, at most once a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpufleet.collect.witness import Witness
from gpufleet.model.claims import ContainerDevices, GpuProcess, Pod, ProcessFacts
from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.incident import Owner
from gpufleet.model.owner import NO_OWNERS, OwnersView
from gpufleet.model.snapshot import GpuSnapshot, Snapshot, SourceHealth
from gpufleet.model.state import GpuState
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import devices_of
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.resolve import Identities, resolve
from gpufleet.sources.slurm.files import SlurmReading

log = logging.getLogger(__name__)

FIRST_ANSWER_SECONDS = 10.0
"""After a start nothing is said of holders for so long while a source has not answered yet."""
MOST_PROCESSES = 512
"""Looked at in one refresh."""
SHORTEST_REFRESH_SECONDS = 1.0
LOOK_AFTER_SECONDS = 60.0


class PodSource(Protocol):
    """What is known of this node's pods; see ``sources.pods.watch``."""

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""

    @property
    def health(self) -> SourceHealth:
        """Whether the API server answers."""

    @property
    def synced_at(self) -> float | None:
        """Monotonic time of its last word."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Those who are asked; ``None`` where there is no such source."""

    kubelet: Witness[tuple[ContainerDevices, ...]] | None = None
    pods: PodSource | None = None
    slurm: Witness[SlurmReading] | None = None
    process: Callable[[int], ProcessFacts | None] | None = None
    """Facts of a process; ``None`` for one that is gone."""

    @property
    def allocations(self) -> tuple[Witness[tuple[ContainerDevices, ...]] | Witness[SlurmReading], ...]:
        """Those who say what was given to whom, used or not."""
        return tuple(each for each in (self.kubelet, self.slurm) if each is not None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a poll showed that holders depend on."""

    identity: object
    slices: tuple[SliceIdentity, ...]
    processes: tuple[GpuProcess, ...] | None


class OwnerWatch:
    """Works out holders on a thread of its own. ``view`` may be read from any thread; it is replaced whole."""

    def __init__(
        self,
        config: OwnersConfig,
        *,
        max_age: float,
        interval: float,
        monotonic: Callable[[], float],
        each_minute: Callable[[], None] = lambda: None,
    ) -> None:
        """``each_minute`` is called by the thread now and then, for what else has to be looked after."""
        self.view: OwnersView = NO_OWNERS
        self.ready = False
        """Whether ``view`` says who holds what; false until the sources have answered after a start."""
        self._config = config
        self._witnesses = Witnesses()
        self._max_age = max_age
        self._interval = interval
        self._monotonic = monotonic
        self._each_minute = each_minute
        self._identities = Identities()
        self._conflicts = 0
        self._started_at = monotonic()
        self._gpus: dict[str, GpuSnapshot] = {}
        self._seen: tuple[_Seen, ...] = ()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="owners", daemon=True)

    # --- for other threads --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def use(self, witnesses: Witnesses) -> None:
        """Ask these from now on; they are started by whoever made them."""
        self._witnesses = witnesses
        self._wake.set()

    def stop(self) -> None:
        """End soon."""
        self._ended.set()
        self._wake.set()

    def changed(self) -> None:
        """A witness said something new."""
        self._wake.set()

    def observe(self, snapshot: Snapshot) -> None:
        """Take a poll in. By the poll thread."""
        # A GPU that is down reports neither slices nor processes; whoever held them holds them still.
        for gpu in snapshot.gpus:
            uuid = gpu.identity.uuid
            if gpu.state is GpuState.OK or uuid not in self._gpus:
                self._gpus[uuid] = gpu
        seen = tuple(
            [
                _Seen(gpu.identity, tuple([part.identity for part in gpu.slices]), gpu.processes)
                for gpu in self._gpus.values()
            ]
        )
        if seen != self._seen:
            self._seen = seen
            self._wake.set()

    def owner_of(self, uuid: str) -> Owner:
        """The holder of a GPU as of the last refresh; of several what they have in common."""
        return self.view.owner_of(uuid)

    def health(self) -> tuple[SourceHealth, ...]:
        """Whether each source answers."""
        witnesses = self._witnesses
        found: list[SourceHealth] = []
        if witnesses.kubelet is not None:
            found.append(self._health_of(witnesses.kubelet))
        if witnesses.pods is not None:
            found.append(witnesses.pods.health)
        if witnesses.slurm is not None:
            health = self._health_of(witnesses.slurm)
            answer = witnesses.slurm.answer
            found += answer.value.sources if health.up and answer is not None else (health,)
        return tuple(found)

    def _health_of(self, witness: Witness[tuple[ContainerDevices, ...]] | Witness[SlurmReading]) -> SourceHealth:
        if witness.overdue(self._monotonic(), self._max_age):
            return SourceHealth(witness.source, up=False, reason="has not answered the last question")
        return witness.health

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        looked_at = float("-inf")
        while not self._ended.is_set():
            try:
                self._refresh()
                if self._monotonic() - looked_at >= LOOK_AFTER_SECONDS:
                    looked_at = self._monotonic()
                    self._each_minute()
            except Exception:
                # Whatever somebody's label or file did to it: the next refresh may do better.
                log.exception("holders could not be worked out")
            self._ended.wait(min(SHORTEST_REFRESH_SECONDS, self._interval))
            self._wake.wait(self._interval)
            self._wake.clear()

    def _refresh(self) -> None:
        gpus = tuple(self._gpus.values())
        if not gpus:
            return
        now = self._monotonic()
        if not self._answered(now):
            return
        resolution = resolve(devices_of(gpus), self._evidence(gpus, now), self._config, self._identities)
        self._conflicts += len(resolution.conflicts)
        holdings = resolution.holdings
        before = self.view
        # The same object while nothing changed: whoever derives something from it need not do it again.
        view = OwnersView(
            before.holdings if holdings == before.holdings else holdings, self._conflicts, self._refreshed()
        )
        if view != before:
            self.view = view
        self.ready = True

    def _answered(self, now: float) -> bool:
        waiting = any(each.answer is None for each in self._witnesses.allocations)
        return self.ready or not waiting or now - self._started_at > FIRST_ANSWER_SECONDS

    def _refreshed(self) -> tuple[tuple[str, float], ...]:
        return tuple((each.source, each.answer.at) for each in self._witnesses.allocations if each.answer is not None)

    def _evidence(self, gpus: tuple[GpuSnapshot, ...], now: float) -> Evidence:
        witnesses = self._witnesses
        kubelet, slurm, pods = witnesses.kubelet, witnesses.slurm, witnesses.pods
        containers = None if kubelet is None or not self._is_good(kubelet, now) else kubelet.answer
        jobs = None if slurm is None or not self._is_good(slurm, now) else slurm.answer
        known = pods is not None and pods.synced_at is not None and now - pods.synced_at <= self._max_age
        return Evidence(
            containers=None if containers is None else containers.value,
            pods={} if pods is None else pods.pods,
            pods_known=known,
            jobs=None if jobs is None else jobs.value.devices,
            processes=self._processes(gpus),
            allocations_expected=bool(witnesses.allocations),
            stale=any(not self._is_good(each, now) for each in witnesses.allocations),
        )

    def _is_good(self, witness: Witness[tuple[ContainerDevices, ...]] | Witness[SlurmReading], now: float) -> bool:
        return witness.answer is not None and now - witness.answer.monotonic <= self._max_age

    def _processes(self, gpus: tuple[GpuSnapshot, ...]) -> Mapping[str, tuple[tuple[GpuProcess, ProcessFacts], ...]]:
        process = self._witnesses.process
        if process is None:
            return {}
        looked_up: dict[int, ProcessFacts | None] = {}
        found: dict[str, tuple[tuple[GpuProcess, ProcessFacts], ...]] = {}
        for gpu in gpus:
            rows: list[tuple[GpuProcess, ProcessFacts]] = []
            for each in gpu.processes or ():
                if each.pid not in looked_up:
                    if len(looked_up) >= MOST_PROCESSES:
                        break
                    looked_up[each.pid] = process(each.pid)
                facts = looked_up[each.pid]
                if facts is not None:
                    rows.append((each, facts))
            found[gpu.identity.uuid] = tuple(rows)
        return found
