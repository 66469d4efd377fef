"""The exporter's own reading of a stand-in driver, without the poller: a session, and a device polled step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.device import Device, DeviceOptions, DeviceReading
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, open_library
from tests.support.fake_nvml import FakeNvml

Values = dict[Key, Number]


def values(*parts: Readings) -> Values:
    """What was reported; a key that comes twice is an error of the exporter."""
    found: Values = {}
    for part in parts:
        for key, value in zip(part.keys, part.values, strict=True):
            assert key not in found, f"{key} is reported twice"
            if value is not None:
                found[key] = value
    return found


@contextmanager
def session(fake: FakeNvml) -> Iterator[Session]:
    """An open library. What the exporter does must be free of misuse to the end."""
    opened = Session(open_library(str(fake.library)))
    yield opened
    opened.close()
    assert not fake.misuse(), fake.misuse()


class Watched:
    """One device with a clock of its own: each ``poll`` is one second later."""

    def __init__(self, opened: Session, index: int, pace: Pace, *, each_link: bool) -> None:
        self.now = 1000.0
        self.interval = pace.interval
        options = DeviceOptions(pace, each_link, opened.versions.driver)
        self.device = Device(opened.calls, opened.handle(index), options, self.now)

    def poll(self) -> DeviceReading:
        """One poll of the device's worker."""
        self.now += self.interval
        return self.device.read(self.now)

    def after(self, seconds: float) -> Values:
        """What the last poll reports when time has gone by and every tier had its turns."""
        end = self.now + seconds
        while self.now + self.interval < end:
            self.poll()
        return self.values()

    def values(self) -> Values:
        """What one poll reports of the whole GPU."""
        return values(*self.poll().parts)

    def activity(self) -> Values:
        """What GPM reports of the whole GPU between two samples."""
        self.device.sample(self.now)
        self.now += self.interval
        own = self.device.sample(self.now).own
        return {} if own is None else values(own[0])


@contextmanager
def device(
    fake: FakeNvml,
    index: int = 0,
    *,
    each_link: bool = False,
    pace: Pace = Pace(1.0),  # noqa: B008 - immutable
) -> Iterator[Watched]:
    """One device of an open library, closed in the order that the driver asks for."""
    # Samples may follow each other at once here; that they may not in earnest has a test of its own.
    fake.control.gpm_spacing_ms = 0
    with session(fake) as opened:
        watched = Watched(opened, index, pace, each_link=each_link)
        yield watched
        watched.device.close()
