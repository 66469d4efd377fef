"""The GPUs of this node as prices see them: model and slices, one look through the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpufleet.commands.diagnosis import Overdue, within
from gpufleet.commands.driver import DriverLibrary
from gpufleet.sources.nvml.calls import NvmlError, Trace
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, SessionError

T = TypeVar("T")

_SECONDS = 10.0
"""Without persistence mode the driver takes a second or two a GPU to initialise."""


class NoGpusError(Exception):
    """No GPU can be asked here; the message says why."""

    def __init__(self, reason: str, *, is_stuck: bool = False) -> None:
        super().__init__(reason)
        self.is_stuck = is_stuck
        """A call has not returned: the process has to be ended without waiting for it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as the driver lists it."""

    index: int
    uuid: str
    name: str
    profiles: tuple[str, ...]
    """Of its MIG slices."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the driver said."""

    gpus: tuple[Gpu, ...]
    is_stuck: bool = False
    """See NoGpusError."""


def gpus_here(library: DriverLibrary) -> Asked:
    """Every GPU that answers. Raises NoGpusError when none does."""
    driver = _asked(library.open, "loading the library")
    session = _asked(lambda: Session(driver), "nvmlInit")
    gpus: list[Gpu] = []
    reason = "the driver lists no GPU"
    is_stuck = False
    for index in range(_asked(session.count, "nvmlDeviceGetCount")):
        try:
            gpus.append(_asked(partial(_gpu, session, index), f"asking gpu {index}"))
        except NoGpusError as error:
            reason, is_stuck = str(error), is_stuck or error.is_stuck
    if not gpus:
        raise NoGpusError(reason, is_stuck=is_stuck)
    return Asked(tuple(gpus), is_stuck)


def _gpu(session: Session, index: int) -> Gpu:
    options = DeviceOptions(Pace(1.0), driver_version=session.versions.driver)
    device = Device(session.calls, session.handle(index), options, time.monotonic(), Trace())
    profiles = tuple([reader.identity.profile for reader in device.slices])
    found = Gpu(index, device.identity.uuid, device.identity.name, profiles)
    device.close()
    return found


def _asked(function: Callable[[], T], name: str) -> T:
    try:
        return within(_SECONDS, function, name)
    except SessionError as error:
        raise NoGpusError(error.reason) from error
    except NvmlError as error:
        raise NoGpusError(str(error)) from error
    except Overdue:
        raise NoGpusError(f"{name} does not return", is_stuck=True) from None
