"""The scripted driver, and everything that can be done to it: in tests, and while a demo runs."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.simulate import events
from gpufleet.simulate.answering import AnsweringDriver
from gpufleet.simulate.devices import Hanging
from gpufleet.simulate.gpu import Instance
from gpufleet.simulate.mig import blend
from gpufleet.simulate.timeline import Story, Timeline


class ScriptedDriver(AnsweringDriver):
    """A driver without hardware, whose GPUs can be made to fail. GPUs are meant by their number from 0."""

    def set_return(self, function: str, code: int | None, gpu: int | None = None) -> None:
        """Make a function return ``code`` (``None``: behave again), for one GPU or for all."""
        forced = self._forced if gpu is None else self.devices[gpu].forced
        if code is None:
            forced.pop(function, None)
        else:
            forced[function] = code
        self._guard_again()

    def set_down(self, gpu: int, code: int) -> None:
        """Make every call on a GPU return ``code``, such as RESET_REQUIRED; 0 ends it."""
        self.devices[gpu].down = code
        self._guard_again()

    def hang(self, gpu: int | None = None, function: str | None = None) -> Hanging:
        """Let calls block until the returned object's ``released`` is set: on one GPU or all, one function or all."""
        hanging = Hanging(function)
        (self._hangs if gpu is None else self.devices[gpu].hangs).append(hanging)
        self._guard_again()
        return hanging

    def unhang(self, hanging: Hanging) -> None:
        """Let go whoever is in the hang, and no longer hold anybody."""
        for hangs in (self._hangs, *(device.hangs for device in self.devices)):
            if hanging in hangs:
                hangs.remove(hanging)
        self._guard_again()
        hanging.released.set()

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus."""
        self.devices[gpu].lost = True
        self._guard_again()
        self._session.sets.wake()

    def recover(self, gpu: int) -> None:
        """A lost GPU was reset and counts anew."""
        device = self.devices[gpu]
        device.lost = False
        device.load(self.moment())
        self._guard_again()

    def remove(self, gpu: int) -> None:
        """Take a GPU out: its handle is lost now, and the next session does not find it."""
        self.devices[gpu].present = False
        self._guard_again()
        self._session.sets.wake()

    def add(self, gpu: int) -> None:
        """Put a removed GPU back: the next session finds it."""
        device = self.devices[gpu]
        device.load(self.moment())
        device.present = True
        self._guard_again()

    def unload(self) -> None:
        """The kernel module goes: every call answers DRIVER_NOT_LOADED until :meth:`load`."""
        with self._lock:
            self._loaded = False
            self._session.close()

    def load(self) -> None:
        """The kernel module comes back; sessions from before are void, and every volatile count starts anew."""
        for device in self.devices:
            device.load(self.moment())
        self._loaded = True

    def restart(self) -> None:
        """Unload and load the driver."""
        self.unload()
        self.load()

    def inject_xid(self, gpu: int, xid: int, *, gpu_instance: int | None = None) -> None:
        """Report an Xid to whoever waits for events of the GPU."""
        instance = events.NO_INSTANCE if gpu_instance is None else gpu_instance
        self.inject_event(gpu, events.XID, xid, gpu_instance=instance)

    def inject_event(self, gpu: int, kind: int, data: int = 0, *, gpu_instance: int = events.NO_INSTANCE) -> None:
        """Report any event type."""
        self._session.sets.put(events.Event(self.devices[gpu], kind, data, gpu_instance))

    def repartition(self, gpu: int, instances: tuple[Instance, ...] | None, timeline: Timeline | None = None) -> None:
        """Cut a GPU into other MIG instances (``None``: MIG off, with what it does then) and say so by an event.

        Its counters go on; the handles of the old slices are refused from now on.
        """
        device = self.devices[gpu]
        script = device.gpu.script
        if timeline is None:
            timeline = script.timeline if instances is None else blend(script.profile, instances)
        now = self.moment()
        story = Story(((0, script.timeline), (max(1, now), timeline)))
        device.rescript(replace(script, mig=instances is not None, instances=instances or (), timeline=story))
        if self._session.references:
            self._session.place_slices(device)
        self._guard_again()
        self.inject_event(gpu, events.MIG_CHANGE)
