"""The whole poller on a stand-in driver, at a quick pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import PollerOptions, World
from gpufleet.collect.poller import Poller
from gpufleet.model.snapshot import GpuSnapshot, Snapshot
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.session import open_library
from tests.abi.opened import Values, values
from tests.support.fake_nvml import FakeNvml

INTERVAL = 0.3
# A deadline that a loaded test machine does not miss by itself.
DEADLINE = 0.3


class Polled:
    """A running poller and its snapshots."""

    def __init__(self, fake: FakeNvml, *, quiesce_max: float = 900.0) -> None:
        self.fake = fake
        options = PollerOptions(
            "node-1",
            interval=INTERVAL,
            medium_seconds=2 * INTERVAL,
            slow_seconds=4 * INTERVAL,
            deadline=DEADLINE,
            quiesce_max=quiesce_max,
        )
        world = World(
            open_driver=lambda: open_library(str(fake.library)),
            open_device_files=lambda: tuple(fake.open_files()),
            driver_loaded=lambda: not fake.control.driver_down,
        )
        self.poller = Poller(options, world, Numbers(None, None))
        self._published = threading.Condition()
        self.poller.subscribe(self._note)

    def _note(self, _: Snapshot) -> None:
        with self._published:
            self._published.notify_all()

    def until(self, condition: Callable[[Snapshot], object], what: str, seconds: float = 15.0) -> Snapshot:
        """The first snapshot that fulfils a condition."""
        end = time.monotonic() + seconds
        with self._published:
            while not condition(snapshot := self.poller.latest):
                left = end - time.monotonic()
                assert left > 0, f"{what}: not within {seconds:g} s; {describe(snapshot)}"
                self._published.wait(min(left, 0.1))
        return snapshot

    def all_ok(self) -> Snapshot:
        """Wait until every GPU has been read by a poll from now on."""
        now = time.time()
        return self.until(
            lambda s: len(s.gpus) == self.fake.control.gpu_count and all(fresh(gpu, now) for gpu in s.gpus),
            "every GPU answers",
        )

    def state(self, number: int, state: GpuState) -> Snapshot:
        """Wait for a GPU's state."""
        return self.until(
            lambda s: any(gpu.number == number and gpu.state is state for gpu in s.gpus), f"GPU {number} is {state}"
        )


def fresh(gpu: GpuSnapshot, since: float) -> bool:
    """Whether a GPU is fine and was read at or after a moment."""
    return gpu.state is GpuState.OK and gpu.polled_at is not None and gpu.polled_at >= since


def describe(snapshot: Snapshot) -> str:
    """A snapshot in a line, for a failed wait."""
    gpus = ", ".join(f"{gpu.number} {gpu.state} {gpu.reason or ''}".strip() for gpu in snapshot.gpus)
    return f"{snapshot.nvml_state} {snapshot.reason or ''} [{gpus}]"


def read(gpu: GpuSnapshot) -> Values:
    """What a GPU reports."""
    return values(*gpu.parts)


@contextmanager
def polled(fake: FakeNvml, *, stops: bool = True, quiesce_max: float = 900.0) -> Iterator[Polled]:
    """A poller from its start to its stop; nothing that it did may be misuse. ``stops``: it has to stop cleanly."""
    running = Polled(fake, quiesce_max=quiesce_max)
    running.poller.start()
    try:
        yield running
    except BaseException:
        fake.release()
        fake.release_all()
        running.poller.stop()
        raise
    if stops:
        assert running.poller.stop()
        assert fake.open_files() == []
    assert not fake.misuse(), fake.misuse()
    assert max(fake.control.max_stuck) <= 1
