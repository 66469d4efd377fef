"""The thread that listens for GPUs that come and go, where the kernel's messages can be had."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from gpufleet.logs import OnChange
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.errors import SourceError
from gpufleet.sources.udev import GpuEvent, GpuEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

SOURCE = "udev"


class Events(Protocol):
    """An iteration over what happens to GPUs, that another thread can end."""

    def __iter__(self) -> Iterator[GpuEvent]: ...

    def close(self) -> None:
        """End the iteration."""


class DeviceWatch:
    """Calls ``changed`` for each event; without events, GPUs are found by enumeration alone, and ``health`` says so."""

    def __init__(
        self,
        changed: Callable[[], None],
        listen: Callable[[], Events] = GpuEvents,
        *,
        told: Callable[[GpuEvent], None] = lambda _: None,
    ) -> None:
        """``told`` gets the event itself; both are called by the watch's own thread, and so is ``listen``.

        ``listen`` is called by the watch's own thread: finding libudev may start a program.
        """
        self._changed = changed
        self._told = told
        self._listen = listen
        self._events: Events | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._said = OnChange(log)
        self.health = SourceHealth(SOURCE, up=False, reason="not started")
        """Whether the kernel's messages are received."""
        self._thread = threading.Thread(target=self._run, name="udev", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; does not wait for it."""
        with self._lock:
            self._stopped = True
            if self._events is not None:
                self._events.close()

    def _run(self) -> None:
        try:
            events = self._listen()
            with self._lock:
                if self._stopped:
                    return
                self._events = events
            self.health = SourceHealth(SOURCE, up=True)
            # What happened while nobody listened yet.
            self._changed()
            for event in events:
                log.info("a GPU changed", extra={"action": event.action.value, "pci_bus_id": event.address})
                self._told(event)
                self._changed()
        except SourceError as error:
            self.health = SourceHealth(SOURCE, up=False, reason=error.reason)
            self._said.failed(SOURCE, "GPUs that come or go are found by enumeration only", error.reason)
