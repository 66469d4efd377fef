"""One open session with the driver, from init to the last shutdown: its handles, GPM samples and event sets.

Nothing of it is good in the next session: a handle that is kept over a re-init is refused, as the real driver may do
(or worse).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from gpufleet.simulate import events
from gpufleet.simulate.buffers import Buffer, Handle
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.gpm import Sample, Sampled, metrics_between
from gpufleet.simulate.timeline import Totals
from gpufleet.sources.nvml.calls import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
)

_BASE = 0x7F3A_0000_0000
"""Handles are pointers above 32 bits, as the real ones: whoever cuts them finds out."""
_SPAN = 0x1000_0000
_GPU_SPAN = 0x1_0000
_SAMPLES = 0x800_0000
_SETS = 0xC00_0000


class Session:
    """Opened at ``opened_at`` (a moment of the script) with the GPUs that were there then."""

    def __init__(
        self,
        number: int,
        devices: Sequence[Device],
        moment: Callable[[], int],
        real_seconds: Callable[[int], float],
    ) -> None:
        base = _BASE + number * _SPAN
        self.opened_at = moment()
        self.references = 1
        self.ended = False
        """The driver was unloaded under it."""
        self.objects: dict[int, Device | Slice] = {}
        self.sets = events.EventSets(base + _SETS, moment, real_seconds)
        self._order = [device for device in devices if device.present]
        self._samples: dict[int, Sample] = {}
        self._next_sample = base + _SAMPLES
        self._slices_made = 0
        for i, device in enumerate(self._order):
            device.handle = base + (i + 1) * _GPU_SPAN
            self.objects[device.handle] = device
            self.place_slices(device)

    def place_slices(self, device: Device) -> None:
        """Give the GPU's slices handles; those that it had before are good for nothing from now on."""
        for old in device.slices:
            self.objects.pop(old.handle, None)
        device.slices = []
        for instance in device.gpu.script.instances:
            for compute in instance.computes:
                self._slices_made = self._slices_made % 0xFFE + 1
                part = Slice(device, instance, compute, device.handle + 0x10 * self._slices_made)
                device.slices.append(part)
                self.objects[part.handle] = part

    def count(self, buffer: Buffer) -> int:
        """Answer nvmlDeviceGetCount_v2."""
        struct.pack_into("<I", buffer, 0, len(self._order))
        return SUCCESS

    def by_index(self, index: int, buffer: Buffer) -> int:
        """Answer nvmlDeviceGetHandleByIndex_v2."""
        if not 0 <= index < len(self._order):
            return INVALID_ARGUMENT
        return self._give(self._order[index], buffer)

    def by_uuid(self, uuid: bytes, buffer: Buffer) -> int:
        """Answer nvmlDeviceGetHandleByUUID, of a GPU or a MIG slice."""
        wanted = uuid.decode(errors="replace")
        for device in self._order:
            if device.gpu.script.uuid == wanted:
                return self._give(device, buffer)
            for part in device.slices:
                if part.compute.uuid == wanted:
                    struct.pack_into("<Q", buffer, 0, part.handle)
                    return SUCCESS
        return NOT_FOUND

    @staticmethod
    def _give(device: Device, buffer: Buffer) -> int:
        if device.is_lost():
            return GPU_IS_LOST
        if device.down:
            return device.down
        struct.pack_into("<Q", buffer, 0, device.handle)
        return SUCCESS

    # GPM

    def alloc_sample(self, buffer: Buffer) -> int:
        """Answer nvmlGpmSampleAlloc."""
        handle, self._next_sample = self._next_sample, self._next_sample + 0x40
        self._samples[handle] = Sample()
        struct.pack_into("<Q", buffer, 0, handle)
        return SUCCESS

    def free_sample(self, sample: Handle) -> int:
        """Answer nvmlGpmSampleFree."""
        return SUCCESS if self._samples.pop(sample.value or 0, None) is not None else INVALID_ARGUMENT

    def take_sample(self, target: Device | Slice, sample: Handle) -> int:
        """Answer nvmlGpmSampleGet, of a GPU or of the GPU instance that a slice belongs to."""
        instance = target.instance.identifier if isinstance(target, Slice) else None
        return self._sample(target.device, instance, sample)

    def take_instance_sample(self, target: Device | Slice, instance: int, sample: Handle) -> int:
        """Answer nvmlGpmMigSampleGet: by the parent and the id of the GPU instance."""
        if not isinstance(target, Device):
            return INVALID_ARGUMENT
        return self._sample(target, instance, sample)

    def _sample(self, device: Device, instance: int | None, sample: Handle) -> int:
        script = device.gpu.script
        if not script.profile.gpm:
            return NOT_SUPPORTED
        held = self._samples.get(sample.value or 0)
        if held is None:
            return INVALID_ARGUMENT
        reading = device.reading()
        totals: Totals = reading.totals
        if instance is not None:
            found = [each for each in script.instances if each.identifier == instance]
            if not found:
                return INVALID_ARGUMENT
            totals = found[0].timeline.totals(reading.time)
        held.content = Sampled(device.gpu, device.kind, instance, reading.time, totals, reading.noise)
        return SUCCESS

    def metrics(self, buffer: Buffer) -> int:
        """Answer nvmlGpmMetricsGet."""
        return metrics_between(self._samples, buffer)

    # Events

    def event_types(self, target: Device | Slice, buffer: Buffer) -> int:
        """Answer nvmlDeviceGetSupportedEventTypes; only a whole GPU has any."""
        if not isinstance(target, Device):
            return NOT_SUPPORTED
        struct.pack_into("<Q", buffer, 0, events.supported(target))
        return SUCCESS

    def register(self, target: Device | Slice, mask: int, event_set: Handle) -> int:
        """Answer nvmlDeviceRegisterEvents."""
        if not isinstance(target, Device):
            return NOT_SUPPORTED
        return self.sets.register(target, mask, event_set.value or 0)

    def create_set(self, buffer: Buffer) -> int:
        """Answer nvmlEventSetCreate."""
        return self.sets.create(buffer)

    def free_set(self, event_set: Handle) -> int:
        """Answer nvmlEventSetFree."""
        return self.sets.free(event_set.value or 0)

    def wait(self, event_set: Handle, buffer: Buffer, timeout_ms: int) -> int:
        """Answer nvmlEventSetWait_v2."""
        return self.sets.wait(event_set.value or 0, buffer, timeout_ms)

    def close(self) -> None:
        """Every handle is void from now on, and whoever waits for an event returns."""
        self.ended = True
        self.objects.clear()
        self.sets.close()


class NoSession(Session):
    """Before the first init and after the last shutdown: everything is UNINITIALIZED."""

    def __init__(self) -> None:
        super().__init__(0, (), lambda: 0, lambda _: 0.0)
        self.references = 0
        self.ended = True
