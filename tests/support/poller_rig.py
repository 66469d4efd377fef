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
from typing import Any, Self

from gpufleet.collect.lifecycle import Phase
from gpufleet.collect.numbers import Numbers
from gpufleet.collect.opening import Numbering, Opening
from gpufleet.collect.options import PollerOptions, QuiesceOutcome, World
from gpufleet.collect.poller import Poller
from gpufleet.collect.watched import Activity, Watched
from gpufleet.model.readings import Key, Number, Readings
from gpufleet.model.snapshot import GpuSnapshot, Snapshot
from gpufleet.model.state import GpuState
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import GpuScript
from gpufleet.sources.nvml.calls import TIMEOUT, Driver
from gpufleet.sources.nvml.session import open_library
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import COLUMNS, SYSTEM

PATIENCE_SECONDS = 30.0
"""Real seconds that a condition may take; only a failure takes so long."""
EPOCH = 1_800_000_000.0
"""Unix time at which the hand-moved clock begins."""
OPTIONS = PollerOptions(node="node-1", interval=1.0, deadline=1.0, boot_id="boot")
DOUBLE_BIT_ECC_ERROR = 0x2
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


class Held:
    """What the test holds up in the driver; here: nothing."""

    def gpu(self, _: Watched) -> bool:
        """Whether the call that is out for a GPU is held up."""
        return False

    def opening(self, _: Opening) -> bool:
        """Whether the call that is out for a GPU that is being opened is held up."""
        return False

    def library(self) -> bool:
        """Whether a call that concerns no GPU is held up."""
        return False

    def let_return(self) -> None:
        """Wait until the calls have returned that are not held up any more."""

    def hurry(self, on: bool) -> None:
        """Let waits for events return at once, so that a close does not take the rest of one."""


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


def all_report(snapshot: Snapshot, count: int) -> bool:
    """Whether ``count`` GPUs are well and were read, and no other is known."""
    return len(snapshot.gpus) == count and all(gpu.state is GpuState.OK and gpu.parts for gpu in snapshot.gpus)


@dataclass(slots=True)
class Rig:
    """A running poller and the means to move its time."""

    driver: Callable[[], Driver]
    options: PollerOptions = OPTIONS
    world: World | None = None
    """Replaces the default surroundings; ``open_driver`` and the clock are the rig's own."""
    numbering: Numbering = field(default_factory=lambda: Numbers(None, None))
    held: Held = field(default_factory=Held)
    clock: HandClock = field(default_factory=HandClock)
    history: list[Publication] = field(default_factory=list)
    poller: Poller = field(init=False)
    _published: threading.Condition = field(default_factory=threading.Condition)
    stopped: bool = False
    released: bool = False
    """The driver was let go of at the stop."""

    def __post_init__(self) -> None:
        world = self.world or World(self.driver)
        world = replace(world, open_driver=self.driver, monotonic=self.clock, wall=self.clock.wall)
        self.poller = Poller(self.options, world, self.numbering)
        self.poller.subscribe(self._note)

    def __enter__(self) -> Self:
        self.poller.start()
        self.rest()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.stopped and kind is None:
            assert self.stop(), "the poller could not let go of the driver"

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
                    raise TimeoutError(f"{what}: not with {self.latest.nvml_state} {states(self.latest)}")
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
            self.rest()
            begun = len(self.history)
            self.advance(self.options.interval)
            self.rest(lambda since=begun: any(one.whole for one in self.history[since:]))  # type: ignore[misc]
        return self.latest

    def rest(self, condition: Callable[[], bool] = lambda: True) -> Snapshot:
        """Let all that is under way come to its end, and a condition come true.

        Time passes only as far as the poll thread has to give up calls that the test holds up.
        """
        self.held.let_return()
        limit = time.monotonic() + PATIENCE_SECONDS
        last: object = None
        same = steps = 0
        while (seen := self._look()) != RESTING or not condition():
            assert time.monotonic() < limit, f"it did not come to rest: {seen}"
            same = same + 1 if seen == last else 0
            last = seen
            if seen not in (WORKING, RESTING) and same >= 2:
                # Only time can go on: at first in steps in which the next worker is started beside one that takes long.
                self.advance(self.options.deadline / (50 if steps < 5 else 10))
                same, steps = 0, steps + 1
            with self._published:
                self._published.wait(0.001)
        return self.latest

    def _look(self) -> object:
        """What the poll thread waits for."""
        seen: list[object] = []
        looked = threading.Event()

        def look() -> None:
            seen.append(self._seen_by_poll_thread())
            looked.set()

        self.poller._inbox.put(look)
        assert looked.wait(PATIENCE_SECONDS), "the poll thread does not answer"
        return seen[0]

    def _seen_by_poll_thread(self) -> object:
        rounds, lifecycle, roster = self.poller._rounds, self.poller._lifecycle, self.poller._roster
        ending = False
        self.held.hurry(lifecycle.phase is Phase.ENDING)
        if lifecycle.phase is Phase.ENDING:
            ending = not (rounds.pending or roster.anything_out() or roster.openings)
        if (ending or lifecycle.busy_with is not None) and not self.held.library():
            return WORKING
        if any(not self.held.opening(opening) for opening in roster.openings):
            return WORKING
        if any(gpu.out and not self.held.gpu(gpu) for gpu in roster):
            return WORKING  # its call was let go: the thread is on its way back
        if not rounds.pending:
            return RESTING if self.poller._next_at > self.clock() else WORKING
        try:
            waiting = {gpu for gpu, _ in rounds._relay._waiting}
            read = {gpu for gpu, *_ in rounds._read} | {gpu for gpu, _ in rounds._work.todo}
            sampled = {gpu for gpu, *_ in rounds._work.done}
        except RuntimeError:  # another thread is just changing one of these
            return WORKING
        held = {gpu for gpu in rounds.pending if self.held.gpu(gpu)}
        sampler = rounds._sampler.current
        idle = {Activity.WAITING: waiting, Activity.QUEUED: read, Activity.SAMPLING: sampled}
        if (rounds._work.todo if sampler is None else not self.held.gpu(sampler)) or not (held or sampler):
            return WORKING
        if any(gpu not in held and gpu not in idle.get(gpu.claim.activity, ()) for gpu in rounds.pending):
            return WORKING
        # Everybody waits for a call that the test holds up.
        return sorted((gpu.number, gpu.claim.activity.value) for gpu in rounds.pending)

    # --- commands -----------------------------------------------------------------------------------------------------
    def quiesce(self) -> QuiesceOutcome:
        """``Poller.quiesce``, without the wait for the event thread."""
        outcome: list[QuiesceOutcome] = []
        self._meanwhile(lambda: outcome.append(self.poller.quiesce()))
        return outcome[0]

    def stop(self) -> bool:
        """``Poller.stop``, without the wait for the event thread."""
        self.stopped = True
        outcome: list[bool] = []
        self._meanwhile(lambda: outcome.append(self.poller.stop()))
        self.released = outcome[0]
        return outcome[0]

    def hear(self) -> None:
        """Let a wait for events begin now: it takes real time, and looks overdue to who goes by this clock."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while (events := self.poller._lifecycle.events) is not None and events.is_overdue(self.clock()):
            if self.held.library():
                break
            assert time.monotonic() < limit, "the wait for events does not end"
            self.held.hurry(on=True)
            time.sleep(0.001)
        self.held.hurry(on=False)

    def _meanwhile(self, command: Callable[[], None]) -> None:
        self.hear()
        limit = time.monotonic() + PATIENCE_SECONDS
        thread = threading.Thread(target=command, daemon=True)
        thread.start()
        while thread.is_alive():
            assert time.monotonic() < limit, "the command did not end"
            self.held.hurry(on=True)
            thread.join(0.005)
        self.held.hurry(on=False)


@dataclass(slots=True)
class HeldInFake(Held):
    """What is held up in the stand-in library."""

    fake: FakeNvml
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {self.fake.uuid(place): place for place in range(len(self.fake.gpus))}

    def gpu(self, gpu: Watched) -> bool:
        # Samples are allocated and freed for no GPU in particular.
        sampling = gpu.claim.activity is Activity.SAMPLING
        return self.fake.stuck(self._places[gpu.identity.uuid]) > 0 or (sampling and self.library())

    def opening(self, opening: Opening) -> bool:
        if opening.gpu is not None:
            return self.fake.stuck(self._places[opening.gpu.identity.uuid]) > 0
        return opening.index is not None and self.fake.stuck(self.fake.control.order[opening.index]) > 0

    def library(self) -> bool:
        return self.fake.stuck(None) > 0

    def let_return(self) -> None:
        control = self.fake.control
        if control.hold_all or control.serialize:
            return
        for column in range(COLUMNS):
            if control.stuck[column] and not any(rule.hang or rule.reserved for rule in control.rules[column]):
                self.fake.wait_until(lambda column=column: not control.stuck[column])  # type: ignore[misc]

    def hurry(self, on: bool) -> None:
        self.fake.set_return("nvmlEventSetWait_v2", SYSTEM, TIMEOUT if on else 0)


@contextmanager
def rig_on(
    fake: FakeNvml, options: PollerOptions = OPTIONS, world: World | None = None, numbering: Numbering | None = None
) -> Iterator[Rig]:
    """A poller on the stand-in library. What it does must be free of misuse to the end."""
    # Time stands still here, so the driver must not ask for real time between samples.
    fake.control.gpm_spacing_ms = 0
    with Rig(
        lambda: open_library(str(fake.library)),
        options,
        world or world_of(fake),
        numbering or Numbers(None, None),
        HeldInFake(fake),
    ) as rig:
        yield rig
        fake.release()
        fake.release_all()
        if not rig.stopped:
            rig.rest()
    assert max(fake.control.max_stuck[:SYSTEM]) <= 1, "two threads were stuck on one GPU"
    assert not fake.misuse(), fake.misuse()
    if rig.released:
        assert fake.open_files() == []


@dataclass(slots=True)
class HeldInScript(Held):
    """What is held up in the scripted driver."""

    driver: ScriptedDriver

    def gpu(self, gpu: Watched) -> bool:
        devices = [one for one in self.driver.devices if one.gpu.script.uuid == gpu.identity.uuid]
        return any(hang.entered.is_set() for one in devices for hang in one.hangs)

    def opening(self, opening: Opening) -> bool:
        devices = [one for one in self.driver.devices if opening.index in (None, one.index)]
        return any(hang.entered.is_set() for one in devices for hang in one.hangs)

    def library(self) -> bool:
        return any(hang.entered.is_set() for hang in self.driver._hangs)

    def hurry(self, on: bool) -> None:
        if on and self.driver.devices:
            self.driver.inject_event(0, DOUBLE_BIT_ECC_ERROR)


@dataclass(slots=True)
class ScriptedRig(Rig):
    """A poller on the scripted driver, whose time is the rig's."""

    driver_is: ScriptedDriver = field(kw_only=True)


def rig_on_script(
    scripts: Sequence[GpuScript],
    options: PollerOptions = OPTIONS,
    world: Callable[[World], World] = lambda world: world,
    numbering: Numbering | None = None,
    **driver_options: Any,  # noqa: ANN401 - the driver's own
) -> ScriptedRig:
    """A poller on a scripted driver; ``world`` changes its surroundings."""
    clock = HandClock()
    driver = ScriptedDriver(scripts, clock=clock, started_at=EPOCH, **driver_options)
    return ScriptedRig(
        lambda: driver,
        options,
        world(World(lambda: driver)),
        numbering or Numbers(None, None),
        HeldInScript(driver),
        clock,
        driver_is=driver,
    )


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


def hold_this_one(fake: FakeNvml, function: str, gpu: int = SYSTEM) -> None:
    """Wait until a call hangs, and let those pass that follow it; ``let_go`` releases it."""
    fake.wait_until(lambda: fake.stuck(None if gpu == SYSTEM else gpu) > 0)
    for rule in fake._rules(function, gpu):
        rule.hang, rule.reserved = 0, 1


def let_go(fake: FakeNvml, function: str, gpu: int = SYSTEM) -> None:
    """Let the call return that ``hold_this_one`` holds."""
    for rule in fake._rules(function, gpu):
        rule.released, rule.reserved = rule.released + 1, 0
    fake.wake()
    fake.wait_until(lambda: fake.stuck(None if gpu == SYSTEM else gpu) == 0)
