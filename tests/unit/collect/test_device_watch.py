"""The thread that hears of GPUs that come and go."""

from __future__ import annotations

import logging
from queue import SimpleQueue
from typing import TYPE_CHECKING

from gpufleet.collect.device_watch import DeviceWatch
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.errors import SourceError
from gpufleet.sources.udev import Action, GpuEvent
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

BIND = GpuEvent(Action.BIND, "0000:1b:00.0", "nvidia")


class Announced:
    """Events that a test announces; SourceError among them is raised."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[GpuEvent | SourceError | None] = SimpleQueue()

    def __iter__(self) -> Iterator[GpuEvent]:
        while (event := self.queue.get()) is not None:
            if isinstance(event, SourceError):
                raise event
            yield event

    def close(self) -> None:
        self.queue.put(None)


def test_each_event_asks_for_a_look_at_the_devices() -> None:
    """One at the start for what happened before anybody listened, then one for each."""
    events = Announced()
    looks: list[int] = []
    watch = DeviceWatch(lambda: looks.append(1), lambda: events)
    watch.start()
    until(lambda: len(looks) == 1, "the first look")
    assert watch.health == SourceHealth("udev", up=True)
    events.queue.put(BIND)
    events.queue.put(GpuEvent(Action.MISSED, None))
    until(lambda: len(looks) == 3, "a look for each event")
    watch.stop()


def test_without_the_kernels_messages_the_reason_is_said_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A container without libudev or host network is found by enumeration, and one can see that it is so."""

    def refuse() -> Announced:
        raise SourceError("udev", "libudev can't be loaded")

    watch = DeviceWatch(lambda: None, refuse)
    watch.start()
    until(lambda: watch.health.reason == "libudev can't be loaded", "the reason")
    assert not watch.health.up
    until(lambda: caplog.records, "the log line")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_socket_that_fails_later_is_a_source_that_is_down() -> None:
    """The health follows; the process goes on."""
    events = Announced()
    watch = DeviceWatch(lambda: None, lambda: events)
    watch.start()
    until(lambda: watch.health.up, "listening")
    events.queue.put(SourceError("udev", "broken"))
    until(lambda: not watch.health.up, "down")
    assert watch.health.reason == "broken"


def test_a_watch_that_is_stopped_before_it_listens_ends() -> None:
    """Stop and start may cross."""
    looks: list[int] = []
    watch = DeviceWatch(lambda: looks.append(1), Announced)
    watch.stop()
    watch.start()
    until(lambda: not watch._thread.is_alive(), "the thread's end")
    assert not looks
