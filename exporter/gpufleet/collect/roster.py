"""The GPUs of this boot: opened, given their numbers, lost and found again. Used by the poll thread alone.

Each device is opened by a thread of its own, since a GPU that hangs while it is opened must not hold the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from math import inf

from gpufleet.collect.lanes import Job, Lane
from gpufleet.collect.opening import Memory, Numbering, Opening
from gpufleet.collect.watched import Activity, Watched
from gpufleet.logs import OnChange
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.state import GpuState
from gpufleet.sources.nvml.calls import (
    GPU_IS_LOST,
    LIBRARY_DOWN,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNKNOWN,
    NvmlError,
)
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.session import Session

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""Between attempts to open a GPU that is lost or was refused: each may cost the driver seconds."""
_TRIED_AGAIN = (GpuState.LOST, GpuState.RESET_REQUIRED, GpuState.NO_PERMISSION)
_STATES = {GPU_IS_LOST: GpuState.LOST, RESET_REQUIRED: GpuState.RESET_REQUIRED, NO_PERMISSION: GpuState.NO_PERMISSION}


Opened = Device | NvmlError


class Roster:
    """Every GPU that was seen in this boot, by UUID, and the devices that are being opened."""

    def __init__(
        self,
        numbering: Numbering,
        memory: Memory,
        post: Callable[[Job], None],
        clock: Callable[[], float],
        interval: float,
    ) -> None:
        self.gpus: dict[str, Watched] = {}
        self.openings: list[Opening] = []
        self.by_handle: dict[int, Watched] = {}
        self.failure: NvmlError | None = None
        """While a device was opened the library as a whole turned out to be down."""
        self._ordered: list[Watched] = []
        self._index_of: dict[str, int] = {}
        self._refused_at: dict[int, tuple[float, NvmlError]] = {}
        """Index of a GPU that could not be opened and never had a name -> when that was, and why."""
        self._to_recall = False
        self._arrived: list[tuple[Opening, Device]] = []
        self._numbering = numbering
        self._memory = memory
        self._post = post
        self._clock = clock
        self._interval = interval
        self._spare: list[Lane] = []
        """Lanes that no device has: a GPU gives its own up with its device."""
        self._orphans: list[Device] = []
        """Devices of lost GPUs: what was allocated for them is freed with the session."""
        self._said = OnChange(log)

    def __iter__(self) -> Iterator[Watched]:
        """By number."""
        return iter(self._ordered)

    def open_all(self, session: Session, count: int, options: DeviceOptions) -> None:
        """Start opening every device of a session."""
        self._to_recall = True
        for index in range(count):
            self._open_index(index, session, options)

    def _open_index(self, index: int, session: Session, options: DeviceOptions) -> None:
        opening = Opening(index, None, self._lane(), self._clock())
        self._start(opening, session, options, partial(session.handle, index))

    def open_again(self, session: Session, options: DeviceOptions, now: float) -> None:
        """Start opening the GPUs that could not be read or opened some time ago: by UUID where it is known."""
        in_hand = {opening.uuid for opening in self.openings} | {device.uuid for _, device in self._arrived}
        opened_before = set(self.by_handle.values())
        for gpu in self.gpus.values():
            uuid, wanted = gpu.identity.uuid, gpu.device is None and gpu.state in _TRIED_AGAIN
            # An opening that does not know yet whom it has may have any GPU that this session has not seen.
            taken = uuid in in_hand or (None in in_hand and gpu not in opened_before)
            if wanted and now >= gpu.retry_at and not taken:
                opening = Opening(None, gpu, self._lane(), self._clock())
                self._start(opening, session, options, partial(session.handle_of, gpu.identity.uuid))
        for index, (refused_at, _) in tuple(self._refused_at.items()):
            if now >= refused_at + RETRY_SECONDS:
                del self._refused_at[index]
                self._open_index(index, session, options)

    def _start(self, opening: Opening, session: Session, options: DeviceOptions, find: Callable[[], object]) -> None:
        self.openings.append(opening)

        def job() -> None:
            outcome: Opened
            try:
                opening.trace.last = (
                    "nvmlDeviceGetHandleByIndex_v2" if opening.gpu is None else "nvmlDeviceGetHandleByUUID"
                )
                handle = find()
                outcome = Device(session.calls, handle, options, self._clock(), opening.trace)  # type: ignore[arg-type]
            except NvmlError as error:
                outcome = error
            except Exception:
                log.exception("a GPU could not be opened", extra={"index": opening.index})
                outcome = NvmlError(opening.trace.last, UNKNOWN)
            self._post(partial(self.opened, opening, outcome))

        opening.lane.submit(job)

    def _lane(self) -> Lane:
        return self._spare.pop() if self._spare else Lane("gpu")

    def opened(self, opening: Opening, outcome: Opened) -> None:
        """An opening returned. Late ones are as good as others: what was asked is static."""
        self.openings.remove(opening)
        if isinstance(outcome, NvmlError):
            self._spare.append(opening.lane)
            self._refused(opening, outcome)
        else:
            self._arrived.append((opening, outcome))

    def _refused(self, opening: Opening, error: NvmlError) -> None:
        if error.code in LIBRARY_DOWN:
            self.failure = error
            return
        gpu = self._whose(opening)
        name = "unknown" if gpu is None else gpu.identity.uuid
        self._said.failed(
            f"open {opening.index} {name}", "a GPU can't be opened", str(error), index=opening.index, uuid=name
        )
        if gpu is not None:
            gpu.failed(error.code)
            gpu.down(state_of(error), str(error))
            gpu.retry_at = self._clock() + RETRY_SECONDS
        elif opening.index is not None:
            self._refused_at[opening.index] = (self._clock(), error)

    def _whose(self, opening: Opening) -> Watched | None:
        if opening.uuid is not None:
            return self.gpus.get(opening.uuid)
        return self._last_at(opening.index)

    def _last_at(self, index: int | None) -> Watched | None:
        """The GPU that had this index in the session before, if it has not turned up elsewhere in this one."""
        for uuid, last in self._index_of.items():
            if last == index and self.gpus[uuid].device is None:
                return self.gpus[uuid]
        return None

    def settle(self, *, even_if_waiting: bool) -> bool:
        """Adopt what arrived, all at once so that numbers follow the driver's order; true when there was something.

        Waits for openings that are still out unless told not to.
        """
        if not self._arrived or (self.openings and not even_if_waiting):
            return False
        arrived = sorted(self._arrived, key=lambda pair: -1 if pair[0].index is None else pair[0].index)
        self._arrived = []
        numbers = self._numbering.assign([(device.uuid, opening.index) for opening, device in arrived])
        for opening, device in arrived:
            self._adopt(opening, device, numbers[device.uuid])
        return True

    def _adopt(self, opening: Opening, device: Device, number: int) -> None:
        known = self.gpus.get(device.uuid)
        if known is None:
            known = self.gpus[device.uuid] = Watched(number, device.identity, opening.lane, self._interval)
            self._ordered = sorted(self.gpus.values(), key=lambda gpu: gpu.number)
        elif known.device is not None:
            self._orphans.append(known.device)
            self._spare.append(known.lane)
        known.adopt(device, opening.lane)
        if opening.index is not None:
            self._index_of[device.uuid] = opening.index
        if device.handle.value is not None:
            self.by_handle[device.handle.value] = known
        self._said.over(f"open {opening.index} {device.uuid}", "the GPU could be opened", uuid=device.uuid)

    def overdue(self, now: float, deadline: float) -> None:
        """Mark openings that hang, and say so of the GPU where it is known which one it is."""
        for opening in self.openings:
            if opening.out or now - opening.since < deadline:
                continue
            opening.out = True
            gpu = self._whose(opening)
            reason = f"{opening.trace.last} has not returned while the GPU was opened"
            log.warning("a GPU hangs", extra={"index": opening.index, "call": opening.trace.last})
            if gpu is not None:
                gpu.down(GpuState.HUNG, reason)

    def absent(self) -> None:
        """After all were opened: who has no device and no reason of its own is gone, and so is who was seen earlier.

        Does nothing while an opening may still bring the missing one.
        """
        if self._arrived or any(not opening.out for opening in self.openings):
            return
        if self._to_recall:
            self._to_recall = False
            self._memory.remember(gpu.identity for gpu in self.gpus.values())
            self._recall([gpu for gpu in self._memory.recall() if gpu.uuid not in self.gpus])
        for gpu in self.gpus.values():
            if gpu.device is None and gpu.state is GpuState.OK:
                gpu.down(GpuState.GONE, "the driver does not list it any more")

    def _recall(self, missing: list[GpuIdentity]) -> None:
        numbers = self._numbering.assign([(gpu.uuid, None) for gpu in missing])
        # One GPU is missing and one index was refused, or hangs: that is the one.
        refused = [(index, error) for index, (_, error) in self._refused_at.items()]
        only = refused[0] if len(missing) == len(refused) == 1 and not self.openings else None
        hangs = len(missing) == len(self.openings) == 1 and not refused
        for identity in missing:
            gpu = self.gpus[identity.uuid] = Watched(numbers[identity.uuid], identity, Lane("gpu"), self._interval)
            gpu.retry_at = self._clock() + RETRY_SECONDS
            if only is not None:
                index, error = only
                gpu.down(state_of(error), str(error))
                # It is tried by its index first, and by its name once that was refused again: never by both at once.
                self._index_of[identity.uuid] = index
                gpu.retry_at = inf
            elif hangs:
                gpu.down(GpuState.HUNG, f"{self.openings[0].trace.last} has not returned while the GPU was opened")
            else:
                gpu.down(GpuState.GONE, "seen earlier in this boot; the driver does not list it any more")
        self._ordered = sorted(self.gpus.values(), key=lambda gpu: gpu.number)

    def unread(self, reason: str) -> None:
        """No poll is made at present: what the GPUs said last is not shown as if they said it now."""
        for gpu in self.gpus.values():
            if gpu.state is GpuState.OK:
                gpu.down(GpuState.GONE, reason)

    def leave(self, reason: str, *, driver_is_well: bool) -> list[Device]:
        """The session ends: give up every device; returns them, to be closed.

        A GPU that was lost keeps saying so while the driver itself is well.
        """
        devices, self._orphans = self._orphans, []
        for gpu in self.gpus.values():
            if gpu.device is not None:
                devices.append(gpu.device)
                self._spare.append(gpu.lane)
            if gpu.state is GpuState.OK or not driver_is_well:
                gpu.down(GpuState.GONE, reason)
            gpu.forget_device()
        for opening, device in self._arrived:
            devices.append(device)
            self._spare.append(opening.lane)
        self._arrived = []
        self._refused_at.clear()
        self.by_handle.clear()
        self.failure = None
        return devices

    def end_threads(self) -> None:
        """Let the threads of all lanes end that are not in the driver."""
        for lane in (*self._spare, *(gpu.lane for gpu in self.gpus.values() if gpu.device is not None)):
            lane.end()

    def lost(self, gpu: Watched, error: NvmlError) -> None:
        """The GPU does not answer any more: it is opened anew, by UUID, after a while."""
        gpu.down(state_of(error), str(error))
        if gpu.device is not None:
            self._orphans.append(gpu.device)
            self._spare.append(gpu.lane)
            gpu.forget_device()
        gpu.retry_at = self._clock() + RETRY_SECONDS

    def anything_out(self) -> bool:
        """Whether a call on any GPU is overdue."""
        return any(gpu.out for gpu in self) or any(opening.out for opening in self.openings)

    def calls_out(self) -> list[str]:
        """Every call that is in the driver now, with its GPU, for a person."""
        in_driver = (Activity.READING, Activity.SAMPLING)
        calls = [
            f"{gpu.call} on GPU {gpu.number} ({gpu.identity.uuid})"
            for gpu in self
            if gpu.out or gpu.claim.activity in in_driver
        ]
        calls += [f"{opening.trace.last} on the GPU with index {opening.index}" for opening in self.openings]
        return calls


def state_of(error: NvmlError) -> GpuState:
    """The state that a device's error stands for; one that is not special means that the GPU does not answer."""
    return _STATES.get(error.code, GpuState.LOST)
