"""A poller under a clock that stands still until a test moves it, over a driver that a test makes misbehave.

Nothing here depends on how fast the machine is: a call that is not held up always returns in time, however long the
machine takes for it, and one that is held up is overdue as soon as the test says so. Threads and queues are the real
ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import PollerOptions, QuiesceOutcome, World
from gpufleet.collect.poller import Poller
from gpufleet.collect.roster import Numbering
from gpufleet.collect.watched import Activity, Watched
from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.readings import Key, Number, Readings
from gpufleet.model.snapshot import GpuSnapshot, Snapshot
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.calls import Driver
from gpufleet.sources.nvml.session import open_library
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import SYSTEM

PATIENCE_SECONDS = 30.0
"""Real seconds that a condition may take; only a failure takes so long."""
EPOCH = 1_800_000_000.0
"""Unix time at which the hand-moved clock begins."""
OPTIONS = PollerOptions(node="node-1", interval=1.0, deadline=1.0, boot_id="boot")
WAKING_EVENT = 0x400
"""An event type that the exporter registers for and makes nothing of."""
WORKING, RESTING = "working", "resting"


class HandClock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """The same moment as Unix time."""
        return EPOCH + self.now


@dataclass(frozen=True, slots=True)
class Publication:
    """A snapshot as it was published."""

    snapshot: Snapshot
    whole: bool
    """Nothing more was waited for."""


def values(parts: Sequence[Readings]) -> dict[Key, Number]:
    """What was reported; a key that comes twice is an error of the exporter."""
    found: dict[Key, Number] = {}
    for part in parts:
        for key, value in zip(part.keys, part.values, strict=True):
            assert key not in found, f"{key} is reported twice"
            if value is not None:
                found[key] = value
    return found


def keys(gpu: GpuSnapshot) -> set[Key]:
    """Everything that a GPU and its slices report."""
    return set(values(gpu.parts)).union(*(values(one.parts) for one in gpu.slices))


def states(snapshot: Snapshot) -> list[str]:
    """The state of every GPU by number."""
    return [str(gpu.state) for gpu in snapshot.gpus]


def slice_identities(gpu: GpuSnapshot) -> list[SliceIdentity]:
    """Who a GPU's slices are."""
    return [one.identity for one in gpu.slices]


@dataclass(slots=True)
class Rig:
    """A running poller and the means to move its time."""

    driver: Callable[[], Driver]
    options: PollerOptions = OPTIONS
    world: World | None = None
    """Replaces the default surroundings; ``open_driver`` and the clock are the rig's own."""
    numbering: Numbering = field(default_factory=lambda: Numbers(None, None))
    is_stuck: Callable[[Watched], bool] = lambda _: False
    """Whether the call that is out for a GPU is one that the test holds up."""
    clock: HandClock = field(default_factory=HandClock)
    history: list[Publication] = field(default_factory=list)
    nudge_events: Callable[[], None] = lambda: None
    """Wakes whoever waits for events, so that a close does not take the rest of their wait."""
    events_are_held: Callable[[], bool] = lambda: False
    """Whether the test holds up the wait for events."""
    poller: Poller = field(init=False)
    _published: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False

    def __post_init__(self) -> None:
        world = self.world or World(self.driver)
        world = replace(world, open_driver=self.driver, monotonic=self.clock, wall=self.clock.wall)
        self.poller = Poller(self.options, world, self.numbering)
        self.poller.subscribe(self._note)

    def __enter__(self) -> Self:
        self.poller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stopped:
            stopped = self.stop()
            if kind is None:
                assert stopped, "the poller could not let go of the driver"

    # --- publications -------------------------------------------------------------------------------------------------
    def _note(self, snapshot: Snapshot) -> None:
        """On the poll thread."""
        with self._published:
            self.history.append(Publication(snapshot, whole=not self.poller._rounds.pending))
            self._published.notify_all()

    @property
    def latest(self) -> Snapshot:
        """The newest snapshot."""
        return self.poller.latest

    def until(self, condition: Callable[[Snapshot], object], what: str) -> Snapshot:
        """Wait, without moving the clock, until a snapshot fulfils a condition; TimeoutError names ``what``."""
        limit = time.monotonic() + PATIENCE_SECONDS
        with self._published:
            while not condition(self.latest):
                if time.monotonic() > limit:
                    raise TimeoutError(f"{what}: not in {states(self.latest)}, {self.latest}")
                self._published.wait(0.05)
            return self.latest

    # --- time ---------------------------------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        """Let time pass, and the poll thread notice."""
        self.clock.now += seconds
        self.poller._inbox.put(lambda: None)

    def poll(self, times: int = 1) -> Snapshot:
        """Let an interval pass, and then as much more as the poll needs to come to its end."""
        for _ in range(times):
            self._poll()
        return self.latest

    def _poll(self) -> None:
        self.rest()
        begun = len(self.history)
        self.advance(self.options.interval)
        self.rest(lambda: any(publication.whole for publication in self.history[begun:]))

    def rest(self, condition: Callable[[], bool] = lambda: True) -> None:
        """Let the poll that is under way, if any, come to its end, and a condition come true.

        Time passes only as far as the poll thread has to give up calls that the test holds up.
        """
        limit = time.monotonic() + PATIENCE_SECONDS
        last: object = None
        same = 0
        while (seen := self._look()) != RESTING or not condition():
            assert time.monotonic() < limit, f"the poll did not end: {last}"
            same = same + 1 if seen == last else 0
            last = seen
            if seen not in (WORKING, RESTING) and same >= 3:
                # Everybody waits for a call that the test holds up: only time can go on.
                self.advance(self.options.deadline / 20)
                same = 0
            with self._published:
                self._published.wait(0.001)

    def _look(self) -> object:
        """What the poll thread waits for."""
        seen: list[object] = []
        looked = threading.Event()

        def look() -> None:
            rounds = self.poller._rounds
            pending, sampled = rounds.pending, rounds._sampler.current
            reading = [gpu for gpu in pending if gpu.claim.activity is Activity.READING]
            sampling = [sampled] if sampled is not None else []
            if any(not self.is_stuck(gpu) for gpu in (*reading, *sampling)) or (rounds._work.todo and not sampling):
                seen.append(WORKING)
            elif pending:
                seen.append(sorted((gpu.number, gpu.claim.activity.value) for gpu in pending))
            else:
                seen.append(RESTING if self.poller._next_at > self.clock() else WORKING)
            looked.set()

        self.poller._inbox.put(look)
        assert looked.wait(PATIENCE_SECONDS), "the poll thread does not answer"
        return seen[0]

    # --- commands -----------------------------------------------------------------------------------------------------
    def quiesce(self) -> QuiesceOutcome:
        """``Poller.quiesce``, without the wait for the event thread."""
        outcome: list[QuiesceOutcome] = []
        self._meanwhile(lambda: outcome.append(self.poller.quiesce()))
        return outcome[0]

    def stop(self) -> bool:
        """``Poller.stop``, without the wait for the event thread."""
        self._stopped = True
        outcome: list[bool] = []
        self._meanwhile(lambda: outcome.append(self.poller.stop()))
        return outcome[0]

    def _meanwhile(self, command: Callable[[], None]) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        # A wait for events takes real time, and may look overdue to who goes by the hand-moved clock.
        while (events := self.poller._lifecycle.events) is not None and events.is_overdue(self.clock()):
            if self.events_are_held():
                break
            assert time.monotonic() < limit, "the wait for events does not end"
            self.nudge_events()
            time.sleep(0.001)
        thread = threading.Thread(target=command, daemon=True)
        thread.start()
        while thread.is_alive():
            assert time.monotonic() < limit, "the command did not end"
            self.nudge_events()
            thread.join(0.005)


def all_report(snapshot: Snapshot, count: int) -> bool:
    """Whether every one of ``count`` GPUs is well and was read."""
    return len(snapshot.gpus) == count and all(gpu.state is GpuState.OK and gpu.parts for gpu in snapshot.gpus)


@contextmanager
def rig_on(fake: FakeNvml, options: PollerOptions = OPTIONS, world: World | None = None) -> Iterator[Rig]:
    """A poller on the stand-in library. What it does must be free of misuse to the end."""
    # Time stands still here, so the driver must not ask for real time between samples.
    fake.control.gpm_spacing_ms = 0
    index_of = {fake.uuid(index): index for index in range(len(fake.gpus))}

    def is_stuck(gpu: Watched) -> bool:
        # Samples are allocated and freed for no GPU in particular.
        return fake.stuck(index_of[gpu.identity.uuid]) > 0 or (
            gpu.claim.activity is Activity.SAMPLING and fake.stuck(None) > 0
        )

    with Rig(
        lambda: open_library(str(fake.library)),
        options,
        world or world_of(fake),
        is_stuck=is_stuck,
        nudge_events=lambda: fake.inject_event(0, WAKING_EVENT),
        events_are_held=lambda: fake.stuck(None) > 0,
    ) as rig:
        yield rig
        fake.release()
        fake.release_all()
    assert not fake.misuse(), fake.misuse()


def world_of(fake: FakeNvml) -> World:
    """What the kernel says of the stand-in's GPUs."""
    return World(
        lambda: open_library(str(fake.library)),
        kernel_gpus=lambda: frozenset(
            f"{fake.gpus[place].domain:04x}:{fake.gpus[place].bus:02x}:00.0"
            for place in fake.control.order[: fake.control.gpu_count]
        ),
        driver_loaded=lambda: not fake.control.driver_down,
        open_device_files=lambda: tuple(fake.open_files()),
    )


def hang_once(fake: FakeNvml, function: str, gpu: int = SYSTEM) -> None:
    """Hold up the next call of a function, and none after it, until it is released."""
    fake.hang(function, gpu)
    fake.wait_until(lambda: fake.stuck(None if gpu == SYSTEM else gpu) > 0)
    for rule in fake._rules(function, gpu):
        rule.hang = 0
