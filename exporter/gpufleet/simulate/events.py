"""Event sets: what happens to a GPU is told to whoever waits for it, once, and only if it registered before."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device
from gpufleet.sources.nvml.calls import GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, TIMEOUT, UNINITIALIZED

XID = 0x8
MIG_CHANGE = 0x100
RECOVERY_ACTION_CHANGE = 0x8000
SUPPORTED = 0x1 | 0x2 | 0x4 | XID | MIG_CHANGE
SUPPORTED_SINCE_570 = 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | RECOVERY_ACTION_CHANGE

_EVENT = struct.Struct("<QQQII")
NO_INSTANCE = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one GPU."""

    device: Device
    type: int
    data: int = 0
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


@dataclass(slots=True, eq=False)
class _Set:
    masks: dict[Device, int] = field(default_factory=dict)
    queue: deque[Event] = field(default_factory=deque)
    told: dict[tuple[Device, int], int] = field(default_factory=dict)
    """By GPU and number of a scheduled Xid: the moment of the last one that was told, or of the registration."""


def supported(device: Device) -> int:
    """The event types that a GPU can report, as bits."""
    return SUPPORTED | (SUPPORTED_SINCE_570 if device.kind.branch >= 570 else 0)


class EventSets:
    """All event sets of one open session; handles count up from ``first``."""

    def __init__(self, first: int, moment: Callable[[], int], seconds: Callable[[int], float]) -> None:
        self._next = first
        self._moment = moment
        self._seconds = seconds
        """Real seconds until a moment of the script."""
        self._sets: dict[int, _Set] = {}
        self._changed = threading.Condition()
        self._closed = False

    def create(self, buffer: Buffer) -> int:
        """Answer nvmlEventSetCreate."""
        with self._changed:
            handle, self._next = self._next, self._next + 0x40
            self._sets[handle] = _Set()
        struct.pack_into("<Q", buffer, 0, handle)
        return SUCCESS

    def free(self, handle: int) -> int:
        """Answer nvmlEventSetFree."""
        with self._changed:
            freed = self._sets.pop(handle, None)
            self._changed.notify_all()
        return INVALID_ARGUMENT if freed is None else SUCCESS

    def register(self, device: Device, mask: int, handle: int) -> int:
        """Answer nvmlDeviceRegisterEvents; a mask with a type that the GPU lacks is refused as a whole."""
        if mask & ~supported(device):
            return NOT_SUPPORTED
        with self._changed:
            events = self._sets.get(handle)
            if events is None:
                return INVALID_ARGUMENT
            events.masks[device] = events.masks.get(device, 0) | mask
            now = self._moment()
            for i, _ in enumerate(device.gpu.script.troubles.xids):
                events.told.setdefault((device, i), now)
            self._changed.notify_all()
        return SUCCESS

    def put(self, event: Event) -> None:
        """Tell every set in which the GPU is registered for this type."""
        with self._changed:
            for events in self._sets.values():
                if events.masks.get(event.device, 0) & event.type:
                    events.queue.append(event)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiters look again: a GPU was lost, or a clock that is not the real one has moved."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """The session ends: waiters return UNINITIALIZED."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, handle: int, buffer: Buffer, timeout_ms: int) -> int:
        """Answer nvmlEventSetWait_v2; a lost GPU makes it return at once and every time, as the driver does."""
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while True:
                if self._closed:
                    return UNINITIALIZED
                events = self._sets.get(handle)
                if events is None:
                    return INVALID_ARGUMENT
                next_due = self._due(events)
                if events.queue:
                    event = events.queue.popleft()
                    _EVENT.pack_into(
                        buffer,
                        0,
                        event.device.handle,
                        event.type,
                        event.data,
                        event.gpu_instance,
                        event.compute_instance,
                    )
                    return SUCCESS
                if any(device.is_lost() for device in events.masks):
                    return GPU_IS_LOST
                left = deadline - time.monotonic()
                if left <= 0:
                    return TIMEOUT
                if next_due is not None:
                    left = min(left, max(0.001, self._seconds(next_due)))
                self._changed.wait(left)

    def _due(self, events: _Set) -> int | None:
        """Queue the scheduled Xids whose time has come; returns the moment of the next change, if any is to come."""
        now = self._moment()
        upcoming: list[int] = []
        for device, mask in events.masks.items():
            troubles = device.gpu.script.troubles
            for i, xid in enumerate(troubles.xids):
                latest = xid.latest(now)
                if latest is not None and latest > events.told.get((device, i), now):
                    events.told[device, i] = latest
                    if mask & XID:
                        events.queue.append(Event(device, XID, xid.code))
                following = xid.following(now)
                if following is not None:
                    upcoming.append(following)
            starts = (window.next_start(now) for window in troubles.losses)
            upcoming += [start for start in starts if start is not None]
        return min(upcoming, default=None)
