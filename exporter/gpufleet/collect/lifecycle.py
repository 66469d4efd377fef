"""The library's life: opened, watched, closed and opened again. Used by the poll thread alone.

Every call of the session itself runs in one lane, so that a driver that hangs in nvmlInit holds nothing else. The
rules: no nvmlShutdown while any call is out, and a session that failed is closed before the next is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from gpufleet.collect.event_watch import EventWatch
from gpufleet.collect.lanes import Job, Lane
from gpufleet.collect.options import World
from gpufleet.logs import OnChange
from gpufleet.model.state import NOT_ASKED, NvmlState
from gpufleet.sources.nvml.calls import NvmlError
from gpufleet.sources.nvml.device import Device
from gpufleet.sources.nvml.events import DriverEvent, EventSet
from gpufleet.sources.nvml.session import Session, SessionError, Versions

log = logging.getLogger(__name__)

OPEN_DEADLINE_SECONDS = 5.0
"""Without persistence mode the driver takes a second or two a GPU to initialise; longer than this is a hang."""
SURVEY_SECONDS = 10.0
RETRY_SECONDS = 0.5
"""From the beginning of one attempt to open the driver to the next: at an interval of 1 s each poll makes one."""
LONGEST_RETRY_SECONDS = 30.0


class Phase(Enum):
    """Where the session is."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    ENDING = "ending"
    """To be closed as soon as no call is out."""
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that was opened: its devices and its events."""

    session: Session
    count: int
    event_set: EventSet | None
    kernel_gpus: frozenset[str]


class Lifecycle:
    """Opens and closes sessions on behalf of the poll thread, which calls ``tick`` and everything else in here."""

    def __init__(
        self,
        world: World,
        post: Callable[[Job], None],
        deliver: Callable[[DriverEvent], None],
        is_out: Callable[[], bool],
        poll_soon: Callable[[], None] = lambda: None,
    ) -> None:
        """``is_out`` tells whether a device's call is overdue; ``poll_soon`` is called on the poll thread when no
        event can be waited for any more.
        """
        self._is_out = is_out
        self._poll_soon = poll_soon
        self.phase = Phase.CLOSED
        self.state = NvmlState.NO_DRIVER
        self.reason: str | None = NOT_ASKED
        self.versions = Versions(None, None, None)
        self.opened: Opened | None = None
        self.events: EventWatch | None = None
        self.events_hang = False
        """A wait for events is overdue."""
        self.simulated = False
        self.surveyed: tuple[int, frozenset[str]] | None = None
        """Devices that the library counts and addresses that the kernel lists, as of the last survey."""
        self._world = world
        self._post = post
        self._deliver = deliver
        self._lane = Lane("nvml")
        self._since = 0.0
        self._next_open = 0.0
        self._next_survey = 0.0
        self.surveying = False
        """A call that looks for GPUs is out."""
        self._was_loaded: bool | None = None
        self._let_go = False
        self._said = OnChange(log)

    # --- opening ------------------------------------------------------------------------------------------------------
    def open(self, now: float, on_opened: Callable[[Opened], None]) -> None:
        """Start opening a session; ``on_opened`` is called on the poll thread when that succeeded."""
        self.phase, self._since = Phase.OPENING, now
        self._lane.submit(partial(self._open_job, on_opened))

    def due(self, now: float) -> bool:
        """Whether a session should be opened now."""
        return self.phase is Phase.CLOSED and now >= self._next_open

    def _open_job(self, on_opened: Callable[[Opened], None]) -> None:
        try:
            opened = self._open_now()
        except SessionError as error:
            self._post(partial(self._not_opened, error))
        except Exception as error:
            log.exception("the driver could not be opened")
            self._post(partial(self._not_opened, SessionError(NvmlState.NO_DRIVER, f"can't be opened: {error!r}")))
        else:
            self._post(partial(self._is_open, opened, on_opened))

    def _open_now(self) -> Opened:
        self._refuse_unloaded()
        session = Session(self._world.open_driver(), self._world.can_open_devices)
        try:
            count, kernel_gpus = session.count(), self._world.kernel_gpus()
            self._was_loaded = self._world.driver_loaded()
        except NvmlError as error:
            session.close()
            raise SessionError(NvmlState.NO_DRIVER, str(error)) from error
        except Exception:
            session.close()
            raise
        return Opened(session, count, _event_set(session), kernel_gpus)

    def _refuse_unloaded(self) -> None:
        # nvmlInit may have the module loaded again, against an administrator who is just unloading it.
        if self._was_loaded and self._world.driver_loaded() is False:
            raise SessionError(NvmlState.NO_DRIVER, "the kernel module nvidia was unloaded")

    def _not_opened(self, error: SessionError) -> None:
        self.phase = Phase.CLOSED
        self._set(error.state, error.reason)
        self._next_open = self._since + RETRY_SECONDS

    def _is_open(self, opened: Opened, on_opened: Callable[[Opened], None]) -> None:
        self.phase = Phase.OPEN
        self.opened = opened
        self.versions = opened.session.versions
        self.simulated = opened.session.calls.simulated
        self.surveyed = (opened.count, opened.kernel_gpus)
        self._next_survey = self._world.monotonic() + SURVEY_SECONDS
        if opened.event_set is not None:
            self.events = self._watch(opened.event_set)
        if opened.count == 0:
            self._set(NvmlState.NO_GPU, "the driver is loaded and lists no GPU")
        else:
            self._set(NvmlState.OK, None)
        log.info(
            "the driver is open",
            extra={"driver_version": self.versions.driver, "nvml_version": self.versions.nvml, "gpus": opened.count},
        )
        if self._let_go:
            self.let_go()
        else:
            on_opened(opened)

    def _set(self, state: NvmlState, reason: str | None) -> None:
        self.state, self.reason = state, reason
        if reason is None:
            self._said.over("nvml", "the driver answers", driver_version=self.versions.driver)
        elif state is NvmlState.OK:
            log.info("the driver is closed", extra={"reason": reason})
        else:
            self._said.failed("nvml", "the driver can't be used", reason, state=state.value)

    # --- ending -------------------------------------------------------------------------------------------------------
    def end(self, state: NvmlState, reason: str, *, retry_after: float = 0.0) -> None:
        """Close the session as soon as no call is out; ``retry_after`` seconds from now a new one may be opened."""
        if self.phase is not Phase.OPEN:
            return
        self.phase = Phase.ENDING
        if self._let_go:
            self.reason = reason
        else:
            self._set(state, reason)
        self._next_open = self._world.monotonic() + retry_after
        if self.events is not None:
            self.events.end()

    def let_go(self) -> None:
        """Close, without anything being wrong: whoever asks for it says when to open again."""
        self._let_go = True
        if self.phase is Phase.OPEN:
            self.end(self.state, "quiesced: every handle of the driver is released")

    def stay(self) -> None:
        """Take ``let_go`` back: a call is out, so nothing can be closed."""
        self._let_go = False
        if self.phase is Phase.ENDING:
            self.phase, self.reason = Phase.OPEN, None
            if self.events is not None:
                self.events.go_on()

    def open_soon(self) -> None:
        """Let the next tick open a session."""
        self._let_go = False
        self._next_open = 0.0

    def end_threads(self) -> None:
        """Let the lane's thread end."""
        self._lane.end()

    def _watch(self, event_set: EventSet) -> EventWatch:
        wake, poll = partial(self._post, lambda: None), partial(self._post, self._poll_soon)
        return EventWatch(event_set, self._deliver, wake, self._world.monotonic, poll)

    @property
    def events_ended(self) -> bool:
        """Whether nobody waits for events."""
        return self.events is None or self.events.ended

    def close(self, devices: Sequence[Device], on_closed: Callable[[], None]) -> None:
        """Give everything back to the driver. Only in ``ENDING``, with no call out and ``events_ended``."""
        opened, self.opened, self.events = self.opened, None, None
        self.phase, self._since = Phase.CLOSING, self._world.monotonic()
        self._lane.submit(partial(self._close_job, opened, tuple(devices), on_closed))

    def _close_job(self, opened: Opened | None, devices: tuple[Device, ...], on_closed: Callable[[], None]) -> None:
        for device in devices:
            device.close()
        if opened is not None:
            if opened.event_set is not None:
                opened.event_set.free()
            opened.session.close()
        self._post(partial(self._is_closed, on_closed))

    def _is_closed(self, on_closed: Callable[[], None]) -> None:
        self.phase = Phase.CLOSED
        if self.state is NvmlState.HUNG:
            self._set(NvmlState.OK, None)
        on_closed()

    # --- watching -----------------------------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Notice what hangs, and look for GPUs that came or went."""
        self._keep_events(now)
        if self._lane_hangs(now):
            self._set(NvmlState.HUNG, f"a call of the library itself has not returned ({self._doing()})")
        elif self.phase is Phase.OPEN and not self.surveying and now >= self._next_survey:
            self.surveying, self._since = True, now
            self._lane.submit(partial(self._survey_job, self.opened))

    def _lane_hangs(self, now: float) -> bool:
        return self.busy_with is not None and now - self._since > OPEN_DEADLINE_SECONDS

    def _keep_events(self, now: float) -> None:
        events = self.events
        if events is None or self.phase is not Phase.OPEN:
            return
        self.events_hang = events.is_overdue(now)
        if self.events_hang:
            self._said.failed("events", "the driver's events are not received", "nvmlEventSetWait_v2 has not returned")
        else:
            self._said.over("events", "the driver's events are received again")
        if events.ended and events.error is None:
            # It was asked to end and to go on again, and had already made up its mind.
            self.events = self._watch(events.event_set)

    def overdue(self, now: float) -> str | None:
        """A call of the library itself that should have returned by now: one that nobody needs to wait for."""
        if self._lane_hangs(now):
            return self._doing()
        return "nvmlEventSetWait_v2" if self.events is not None and self.events.is_overdue(now) else None

    def _doing(self) -> str:
        return {Phase.OPENING: "nvmlInit", Phase.CLOSING: "nvmlShutdown"}.get(self.phase, "nvmlDeviceGetCount")

    def survey_now(self) -> None:
        """Look at the next tick: the kernel said that a device came or went."""
        self._next_survey = 0.0

    def _survey_job(self, opened: Opened | None) -> None:
        found: tuple[int, frozenset[str]] | NvmlError
        try:
            found = (opened.session.count() if opened is not None else 0, self._world.kernel_gpus())
        except NvmlError as error:
            found = error
        except Exception:
            log.exception("GPUs that came or went could not be looked for")
            found = self.surveyed or (0, frozenset())
        self._post(partial(self._survey_done, opened, found))

    def _survey_done(self, opened: Opened | None, found: tuple[int, frozenset[str]] | NvmlError) -> None:
        self.surveying = False
        self._next_survey = self._world.monotonic() + SURVEY_SECONDS
        if self.phase is not Phase.OPEN or opened is not self.opened:
            return
        if self.state is NvmlState.HUNG:
            self._set(NvmlState.OK, None)
        if isinstance(found, NvmlError):
            self.end(NvmlState.NO_DRIVER, str(found))
        elif found != self.surveyed and not self._is_out():
            # With a call out nothing can be closed, and ending would only stop the polls of the GPUs that answer.
            self.surveyed = found
            # NVML lists the GPUs as of nvmlInit: only a new session sees one that came.
            self.end(NvmlState.OK, "GPUs came or went: the driver is opened anew")

    @property
    def busy_with(self) -> str | None:
        """The library call that is out now, if any."""
        if self.phase in (Phase.OPENING, Phase.CLOSING) or self.surveying:
            return self._doing()
        return None


def _event_set(session: Session) -> EventSet | None:
    try:
        return EventSet(session.calls)
    except NvmlError:
        # WSL2 and some guests have no events; the kernel log and the polled signals remain.
        return None
