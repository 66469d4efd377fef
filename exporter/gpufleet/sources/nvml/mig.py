"""MIG: which slices a GPU is cut into, and what each reports.

A MIG handle answers few questions: memory, its own ids and GPM. Instance ids are sparse and used again after the GPU is
cut anew, and a handle may then silently stand for another slice: so slices are known by UUID and the set is checked.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, replace

import pynvml

from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.calls import (
    DEVICE_DOWN,
    LIBRARY_DOWN,
    NEVER_HERE,
    NOT_FOUND,
    SUCCESS,
    Calls,
    NvmlError,
    Trace,
)
from gpufleet.sources.nvml.gpm import SLICE_METRICS, GpmReader
from gpufleet.sources.nvml.identity import read_number, read_text, read_uuid
from gpufleet.sources.nvml.prepared import PreparedQuery, prepare
from gpufleet.sources.nvml.queries import Query, linear
from gpufleet.sources.nvml.tally import Item, Tally, Tier
from gpufleet.sources.nvml.units import BYTE

# nvmlDeviceAttributes_t: multiprocessorCount 0, six other counts, gpuInstanceSliceCount 24, computeInstanceSliceCount
# 28, memorySizeMB (64 bits) 32.
_ATTRIBUTES = struct.Struct("<I20xIIQ")
_MEBIBYTE = 1 << 20
SLICE_GONE = NEVER_HERE | DEVICE_DOWN | {NOT_FOUND}
"""What the handle of a slice that was destroyed is answered with."""
MOST_SLICES = 64
"""No part can be cut into more compute instances; a larger answer is a driver's error."""

_MEMORY_KEYS = (Key("mig_memory_total_bytes"), Key("mig_memory_free_bytes"), Key("mig_memory_used_bytes"))


def _memory_query() -> Query:
    v1 = Query("nvmlDeviceGetMemoryInfo", Tier.FAST, _MEMORY_KEYS, "<QQQ", linear(_MEMORY_KEYS, [BYTE] * 3))
    # A slice reserves nothing of its own, so the reserved figure at 16 is skipped.
    return Query(
        "nvmlDeviceGetMemoryInfo_v2",
        Tier.FAST,
        _MEMORY_KEYS,
        "<8xQ8xQQ",
        v1.decode,
        version=40 | 2 << 24,
        instead=(v1,),
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A slice as discovered: who it is, its handle, and how many multiprocessors it has where the driver says so."""

    identity: SliceIdentity
    handle: ctypes.c_void_p
    multiprocessors: int | None


def mig_mode(calls: Calls, handle: ctypes.c_void_p) -> bool:
    """Whether the device is cut into slices now (not: after the next reset)."""
    current, pending = (ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)()
    code = calls["nvmlDeviceGetMigMode"](handle, current, pending)
    if code in DEVICE_DOWN or code in LIBRARY_DOWN:
        raise NvmlError("nvmlDeviceGetMigMode", code)
    return code == SUCCESS and current[0] == 1


def multiprocessors(calls: Calls, handle: ctypes.c_void_p) -> int | None:
    """Multiprocessors of the whole GPU: those of the profile that takes all of it (7 slices, or 4 on an A30)."""
    # nvmlGpuInstanceProfileInfo_t: instanceCount 12, multiprocessorCount 16, 48 bytes in all.
    for profile in (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE):
        info = (ctypes.c_char * 48)()
        code = calls["nvmlDeviceGetGpuInstanceProfileInfo"](handle, profile, info)
        if code in DEVICE_DOWN or code in LIBRARY_DOWN:
            raise NvmlError("nvmlDeviceGetGpuInstanceProfileInfo", code)
        instances, count = struct.unpack_from("<12xII", info)
        if code == SUCCESS and instances == 1 and count:
            return int(count)
    return None


def discover(calls: Calls, parent: ctypes.c_void_p) -> list[Found]:
    """Every compute instance of a GPU, in the order of (GPU instance, compute instance).

    Index numbers have holes, so all of them are tried. An instance that goes away in between is left out.
    """
    if not mig_mode(calls, parent):
        return []
    most = read_number(calls, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0
    found = []
    for index in range(min(most, MOST_SLICES)):
        handle = (ctypes.c_void_p * 1)()
        code = calls["nvmlDeviceGetMigDeviceHandleByIndex"](parent, index, handle)
        if code in DEVICE_DOWN or code in LIBRARY_DOWN:
            raise NvmlError("nvmlDeviceGetMigDeviceHandleByIndex", code)
        if code == SUCCESS:
            one = _describe(calls, ctypes.c_void_p(handle[0]))
            if one is not None:
                found.append(one)
    found.sort(key=lambda one: (one.identity.gpu_instance, one.identity.compute_instance))
    return _with_shares(found)


def _describe(calls: Calls, handle: ctypes.c_void_p) -> Found | None:
    try:
        uuid = read_uuid(calls, handle)
    except NvmlError as error:
        if error.code in DEVICE_DOWN or error.code in LIBRARY_DOWN:
            raise
        return None
    gpu_instance = read_number(calls, "nvmlDeviceGetGpuInstanceId", handle)
    compute_instance = read_number(calls, "nvmlDeviceGetComputeInstanceId", handle)
    if gpu_instance is None or compute_instance is None:
        return None
    buffer = (ctypes.c_char * 40)()
    has_attributes = calls["nvmlDeviceGetAttributes_v2"](handle, buffer) == SUCCESS
    multiprocessors, gpu_slices, compute_slices, mebibytes = _ATTRIBUTES.unpack_from(buffer)
    name = read_text(calls, "nvmlDeviceGetName", handle) or ""
    # The name ends in "MIG 1g.10gb"; where a driver gives another one it is built from the slice counts.
    _, separator, profile = name.rpartition("MIG ")
    if not separator and has_attributes:
        profile = _profile(gpu_slices, compute_slices, mebibytes)
    return Found(
        SliceIdentity(
            mig_uuid=uuid,
            profile=profile.strip(),
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            memory_bytes=mebibytes * _MEBIBYTE if has_attributes and mebibytes else None,
        ),
        handle,
        multiprocessors if has_attributes and multiprocessors else None,
    )


def _profile(gpu_slices: int, compute_slices: int, mebibytes: int) -> str:
    gigabytes = f"{gpu_slices}g.{round(mebibytes / 1024)}gb"
    return gigabytes if compute_slices == gpu_slices else f"{compute_slices}c.{gigabytes}"


def _with_shares(found: list[Found]) -> list[Found]:
    """Compute instances of one GPU instance share its memory and its GPM sample: the first of them alone carries
    both.
    """
    seen: set[int] = set()
    shared = []
    for one in found:
        instance = one.identity.gpu_instance
        shared.append(replace(one, identity=replace(one.identity, carries_instance=instance not in seen)))
        seen.add(instance)
    return shared


class SliceReader:
    """Reads one slice: memory with the device's worker, activity with the GPM thread."""

    def __init__(
        self,
        calls: Calls,
        parent: ctypes.c_void_p,
        found: Found,
        whole: int | None,
        tally: Tally,
        gpm_trace: Trace | None,
    ) -> None:
        """``whole`` is the number of multiprocessors of the uncut GPU, see ``multiprocessors``; ``gpm_trace`` is that
        of the GPU's GPM readers, ``None`` where it has no GPM.
        """
        # A part that is larger than the whole is none: what is paid and counted goes by this share.
        own = found.multiprocessors
        fraction = own / whole if own and whole and own <= whole else None
        self.identity = replace(found.identity, compute_fraction=fraction)
        self.handle = found.handle
        self.gpm: GpmReader | None = None
        self._items: list[Item] = []
        self._tally = tally
        self._static = _static(fraction)
        if self.identity.carries_instance:
            self._items = prepare(calls, found.handle, [_memory_query()], tally)
            if gpm_trace is not None:
                self.gpm = GpmReader(calls, parent, SLICE_METRICS, tally, gpm_trace, self.identity.gpu_instance)

    def unread(self) -> tuple[Readings, ...]:
        """What never changes."""
        return (self._static,) if self._static.keys else ()

    def read(self) -> tuple[Readings, ...]:
        """Memory and what never changes. Raises NvmlError, with one of ``SLICE_GONE`` when the GPU was cut anew."""
        parts = list(self.unread())
        for item in self._items:
            code = item.run(self._tally)
            if code != SUCCESS:
                raise NvmlError(item.function, code)
            if isinstance(item, PreparedQuery) and None not in item.values:
                parts.append(Readings(item.keys, tuple(item.values)))
        return tuple(parts)


def _static(fraction: float | None) -> Readings:
    values: tuple[Number, ...] = () if fraction is None else (round(fraction, 6),)
    return Readings((Key("mig_compute_fraction"),) if values else (), values)


WATCH_CALLS = 2
WATCH_SECONDS = 10.0


def _name(calls: Calls, handle: ctypes.c_void_p) -> str | None:
    """UUID of a slice, ``None`` of one that does not tell: it could not be shown, so it is none."""
    try:
        return read_uuid(calls, handle)
    except NvmlError:
        return None


class SliceWatch:
    """Looks at one index at a time, so that each is seen every 10 s: an event tells of a new cut at once, but not
    everywhere.
    """

    def __init__(self, calls: Calls, parent: ctypes.c_void_p, slices: tuple[SliceReader, ...]) -> None:
        self._calls = calls
        self._parent = parent
        self._known = {reader.identity.mig_uuid for reader in slices}
        self._most = min(read_number(calls, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0, MOST_SLICES)
        self._seen: set[str] = set()
        self._next = 0
        self._due: float | None = None

    def sees_change(self, now: float) -> bool:
        """Look at the next index if it is due; true when an unknown slice is found or, after a full turn, one is
        missing.
        """
        if not self._most or (self._due is not None and now < self._due):
            return False
        # From when it was due, not from when it was done: polls are seconds apart, and the turn has to keep its time.
        self._due = max((now if self._due is None else self._due) + WATCH_SECONDS / self._most, now)
        handle = (ctypes.c_void_p * 1)()
        code = self._calls["nvmlDeviceGetMigDeviceHandleByIndex"](self._parent, self._next, handle)
        self._next += 1
        if code == SUCCESS:
            uuid = _name(self._calls, ctypes.c_void_p(handle[0]))
            if uuid is not None and uuid not in self._known:
                return True
            if uuid is not None:
                self._seen.add(uuid)
        if self._next < self._most:
            return False
        self._next = 0
        missing = self._seen != self._known
        self._seen = set()
        return missing
