"""The ledger of faults: events and polls in, incidents and counts out. Pure state: no threads, no input, no output.

Feed it whatever the sources tell, in the order of each source; tell it the time. It answers what to show, and gives
itself as a table for the disk. What was shown before it was on disk could come back under another name after a crash,
so whoever owns it writes ``dump()`` when ``revision`` has moved, and shows ``view()`` only then.

During a replay (the kernel's log is read from its beginning) time is that of the events: what happened and was over
before this process started is folded as if it had been there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpufleet.faults import cures, incidents, showing, sxids, xids
from gpufleet.faults.counts import Counts, Twins
from gpufleet.faults.docket import MOST_CLOSED, Docket, World
from gpufleet.faults.observing import Observer
from gpufleet.faults.state import State, sound
from gpufleet.faults.stored import decode, encode
from gpufleet.faults.verdict import recovery, verdict_of
from gpufleet.faults.viewing import make_view
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import NOBODY, FaultsView, Owner
from gpufleet.model.snapshot import Snapshot

NVML = "nvml"
_FORGET_EVERY = 3600.0
_RECOVERY_XID = 154


def nobody(_uuid: str) -> Owner:
    """Holders are not known."""
    return NOBODY


class Ledger:
    """All that is known of the faults of one node. Not for several threads."""

    def __init__(
        self,
        *,
        node: str,
        boot_id: str | None,
        random_id: Callable[[], str],
        owner_of: Callable[[str], Owner] = nobody,
        has_log: bool = True,
        driver: str | None = None,
        keep_closed: int = MOST_CLOSED,
    ) -> None:
        """``random_id`` gives 16 hexadecimal digits, new ones each time; ``owner_of`` the holder of a GPU now.

        ``driver`` is the version that writes the log, as far as it is known before the first poll.
        With ``has_log`` the kernel's log will be replayed and followed: it alone counts, and the counts are not shown
        until ``replay_ended``.
        """
        self.replaying = has_log
        """The kernel's log is being read from its beginning."""
        self._complete = not has_log
        self._world = World(node, boot_id, random_id, owner_of, driver)
        self._docket = Docket(self._world, keep_closed)
        self._counts = Counts()
        self._twins = Twins()
        self._observer = Observer(self._docket, self._counts)
        self._has_log = has_log
        self._sequence = -1
        self._last_faults: dict[str, float] = {}
        self._left_out = 0
        self._deadline: float | None = None
        self._deadline_of = -1
        self._forgot_at = 0.0
        self._events = 0
        self._view: FaultsView | None = None

    # --- in -----------------------------------------------------------------------------------------------------------

    def feed(self, event: FaultEvent, now: float) -> None:
        """Take one event of any source in. Never raises, whatever the event holds. ``now`` is Unix time.

        An event of the kernel's log that was fed before, by its number, does nothing.
        """
        if event.continues:
            return
        if not 0.0 <= event.at <= now:
            # The future is a clock that was set meanwhile; no number is no time.
            event = replace(event, at=now if event.at > now or event.at != event.at else 0.0)
        if event.sequence is not None:
            if event.sequence <= self._sequence:
                return
            self._sequence = event.sequence
        self._changed()
        self._advance(event.at if self.replaying else now)
        match event.kind:
            case FaultKind.XID:
                self._xid(event, now)
            case FaultKind.SXID:
                self._sxid(event, now)
            case _:
                self._fold(event, now)

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Take a poll in: conditions, recovery actions, proof of resets, and which board is where."""
        before = self._docket.revision, self._docket.changes
        boards = dict(self._world.roster.boards)
        self._observer.observe(snapshot, now)
        if before != (self._docket.revision, self._docket.changes) or boards != self._world.roster.boards:
            self._changed()

    def learn(self, pci_bus_id: str, uuid: str, now: float, gpu: int | None = None) -> None:
        """Somebody names the board at an address, and its number where that is known."""
        self._observer.learn(pci_bus_id, uuid, gpu, now)
        self._changed()

    def device(self, action: str, pci_bus_id: str, now: float) -> None:
        """The kernel says that a GPU was removed or added, or a driver bound or unbound (udev's words)."""
        event = self._observer.device(action, pci_bus_id, now)
        if event is not None:
            self.feed(event, now)

    def log_readable(self, *, readable: bool, now: float) -> None:
        """The kernel's log can be followed, or can not any more. Where it can not the driver's own events count.

        One that can be followed again is replayed: say so when that has ended, with ``replay_ended``.
        """
        if readable and not self._has_log:
            self.replaying = True
        self._has_log = readable
        if not readable:
            self.replay_ended(now)
            self._release(float("inf"), now)

    def replay_ended(self, now: float) -> None:
        """Everything that the kernel's log had at the start was fed: time goes on from here, counts may be shown."""
        if self.replaying:
            self.replaying, self._complete = False, True
            self._docket.revision += 1
            self._changed()
            self.tick(now)

    def tick(self, now: float) -> float | None:
        """Do what is due; when to be called next at the latest, if no event comes before. None for never."""
        if self.replaying:
            return None
        self._release(now, now)
        before = self._docket.revision
        showing.settle(self._docket, now, self._observer.still_true)
        if now - self._forgot_at >= _FORGET_EVERY:
            self._forgot_at = now
            self._world.repeats.forget(now)
        if before != self._docket.revision:
            self._changed()
        self._deadline = showing.deadline(self._docket, self._observer.still_true)
        self._deadline_of = self._docket.changes + self._docket.revision
        return min((at for at in (self._deadline, self._twins.deadline()) if at is not None), default=None)

    def clear(self, incident: str, now: float) -> bool:
        """A person says that an incident is over; false when it is not open."""
        done = cures.cleared(self._docket, incident, now)
        if done:
            self._changed()
        return done

    # --- out ----------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Moves when an incident was opened, shown or closed, or the replay ended: write ``dump()``, then show."""
        return self._docket.revision

    @property
    def events(self) -> int:
        """Moves with whatever changes ``dump()`` or ``view()``, counts included."""
        return self._events

    def view(self) -> FaultsView:
        """Everything to show. The same object until something changed."""
        if self._view is None:
            self._view = make_view(
                self._docket, self._counts, self._last_faults, complete=self._complete, left_out=self._left_out
            )
        return self._view

    def repeats(self, uuid: str, now: float) -> dict[str, int]:
        """Incidents of a board in the last 30 days by what they said, for a person."""
        return self._world.repeats.of(uuid, now)

    def dump(self) -> dict[str, Any]:
        """Everything that has to outlive the process, as JSON can hold it; less than a megabyte."""
        self.view()  # brings the times of the last faults up to date
        docket, world = self._docket, self._world
        kept: dict[str, Any] = encode(
            State(
                boot_id=world.boot_id,
                sequence=self._sequence,
                counts=self._counts,
                twins=self._twins,
                cases=list(docket.open.values()),
                closed=[replace(each, lines=(), victims=()) for each in list(docket.closed)[-MOST_CLOSED:]],
                repeats=world.repeats,
                roster=world.roster,
                polled=self._observer.polled,
                last_faults=self._last_faults,
                left_out=self._left_out + docket.left_out,
            )
        )
        return kept

    def load(self, kept: object, now: float) -> None:
        """Go on from what ``dump`` gave, before anything else was fed; of another boot only what outlives one.

        Raises:
            StoredError: that is not what ``dump`` gives; nothing was taken from it.
        """
        state = decode(State, kept)
        sound(state)
        world, docket = self._world, self._docket
        for case in state.cases:
            docket.keep(case)
        docket.closed = deque(state.closed, maxlen=docket.closed.maxlen)
        world.repeats, world.roster = state.repeats, state.roster
        self._observer.polled = state.polled
        self._last_faults = state.last_faults
        if state.boot_id is not None and state.boot_id == world.boot_id:
            self._sequence = state.sequence
            self._counts, self._twins = state.counts, state.twins
            self._observer.recount(state.counts)
            self._left_out = state.left_out
        else:
            world.roster.start_boot()
            self._observer.start_boot()
            # Without a boot id nobody can tell whether the node was rebooted: that proves nothing.
            if state.boot_id is not None and world.boot_id is not None:
                cures.rebooted(docket, now)
        self._changed()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._events += 1
        self._view = None

    def _advance(self, clock: float) -> None:
        """Do what was due before an event, so that it is folded into what was left then."""
        state = self._docket.changes + self._docket.revision
        if state != self._deadline_of:
            self._deadline = showing.deadline(self._docket, self._observer.still_true)
            self._deadline_of = state
        if self._deadline is not None and clock >= self._deadline:
            showing.settle(self._docket, clock, self._observer.still_true)
            self._deadline_of = -1

    def _xid(self, event: FaultEvent, now: float) -> None:
        if event.code is None:
            return
        if event.source != NVML:
            count = 1 if self._twins.log_tells(event) else 0
            if count:
                self._count(event, event.code)
            self._fold(event, now, count)
        elif not self._has_log:
            self._alone(event, now)
        elif not self._twins.is_told(event):
            held = self._twins.hold(event)
            self._docket.revision += held
            self._left_out += not held

    def _alone(self, event: FaultEvent, now: float) -> None:
        self._twins.counted(event)
        self._count(event, event.code or 0)
        self._fold(event, now)

    def _release(self, clock: float, now: float) -> None:
        for event in self._twins.release(clock):
            self._changed()
            self._alone(event, now)

    def _count(self, event: FaultEvent, code: int) -> None:
        fault_class = xids.xid_class(code, self._world.driver)
        if not self._counts.add(self._counts.xids, event.pci_bus_id or "", code, fault_class):
            self._left_out += 1

    def _sxid(self, event: FaultEvent, now: float) -> None:
        if event.code is None:
            return
        fault_class = sxids.sxid_class(event.code, self._world.driver)
        if not self._counts.add(self._counts.switches, event.pci_bus_id or "", event.code, fault_class):
            self._left_out += 1
        self._fold(event, now)

    def _fold(self, event: FaultEvent, now: float, count: int = 1) -> None:
        docket = self._docket
        if event.kind is not FaultKind.XID or event.code != _RECOVERY_XID:
            incidents.add(docket, event, verdict_of(event, self._world.driver), now, count)
        elif event.recovery_action:
            incidents.ask(docket, event, recovery(event.recovery_action), now, count)
        elif event.recovery_action == 0 and event.recovery_action_before not in cures.NO_RESETS:
            cures.recovered(docket, event.pci_bus_id or "", event.at)
