"""The thread that waits for the driver's events, and what they add up to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gpufleet.logs import OnChange
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.gpu import GpuIdentity
from gpufleet.sources.nvml.calls import LIBRARY_DOWN, NvmlError
from gpufleet.sources.nvml.events import DriverEvent, EventSet

log = logging.getLogger(__name__)

WAIT_MILLISECONDS = 500
"""A wait can't be interrupted, so this is how long a quiesce or a re-opening waits for it."""
OVERDUE_SECONDS = 2.0
"""A wait that comes back so much later than it was asked to is one that hangs."""
PAUSE_SECONDS = 1.0
"""After an error, which comes back at once for as long as a GPU is lost: without a pause this would be a busy loop."""


class EventWatch:
    """Waits on one event set until told to end; hands each event to ``deliver`` on its own thread."""

    def __init__(
        self,
        event_set: EventSet,
        deliver: Callable[[DriverEvent], None],
        on_end: Callable[[], None],
        clock: Callable[[], float],
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        """All but ``clock`` are called by the waiting thread; ``on_error`` when waits begin to fail, or fail anew."""
        self.event_set = event_set
        self.error: NvmlError | None = None
        """The last wait's error; ``None`` while waits succeed."""
        self._clock = clock
        self._waiting_since: float | None = None
        self._deliver = deliver
        self._on_end = on_end
        self._on_error = on_error
        self._end = threading.Event()
        self.ended = False
        """No wait is out and none will come."""
        self._said = OnChange(log)
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end. Does not wait: see ``ended``."""
        self._end.set()

    def go_on(self) -> None:
        """Take ``end`` back, as long as the thread has not ended."""
        self._end.clear()

    def is_overdue(self, now: float) -> bool:
        """Whether a wait is out for longer than it was asked to take."""
        since = self._waiting_since
        return since is not None and now - since > WAIT_MILLISECONDS / 1000 + OVERDUE_SECONDS

    def _run(self) -> None:
        try:
            self._wait()
        finally:
            self._waiting_since = None
            self.ended = True
            self._on_end()

    def _wait(self) -> None:
        while not self._end.is_set():
            self._waiting_since = self._clock()
            try:
                event = self.event_set.wait(WAIT_MILLISECONDS)
            except NvmlError as error:
                self._waiting_since = None
                is_new = self.error is None or self.error.code != error.code
                self.error = error
                if is_new:
                    self._on_error()
                self._said.failed("wait", "the driver's events can't be waited for", str(error))
                if error.code in LIBRARY_DOWN:
                    return
                # The others' events still come in between when one GPU is lost.
                self._end.wait(PAUSE_SECONDS)
                continue
            if self.error is not None:
                self.error = None
                self._said.over("wait", "the driver's events are waited for again")
            if event is not None:
                self._deliver(event)


def fault_of(event: DriverEvent, gpu: GpuIdentity, at: float) -> FaultEvent:
    """An Xid as the driver's library told it at ``at`` (Unix time): a number and no text."""
    return FaultEvent(
        FaultKind.XID,
        at,
        "nvml",
        gpu.pci_bus_id,
        code=event.data,
        gpu_instance=event.gpu_instance,
        compute_instance=event.compute_instance,
    )
