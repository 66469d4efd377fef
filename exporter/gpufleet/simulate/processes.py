"""The processes of scripted runs: each GPU, or each slice of one, has a rank of its own while it is worked on.

A pid is the same whenever it is asked for, as long as the same run has the GPU, and belongs to one GPU of its node: so
whoever plays the node's other witnesses (control groups, process owners) can tell whose it is.
"""

from __future__ import annotations

import struct
from zlib import crc32

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.devices import Device, Slice
from gpufleet.simulate.gpu import GpuScript, noise
from gpufleet.sources.nvml.calls import INSUFFICIENT_SIZE, SUCCESS

_COUNT = struct.Struct("<I")
# nvmlProcessInfo_t: pid, usedGpuMemory (64 bits), gpuInstanceId, computeInstanceId.
_PROCESS = struct.Struct("<I4xQII")
_NO_INSTANCE = 0xFFFF_FFFF
_FIRST_PID = 10_000
_OF_A_GPU = 16_000
"""Pids that a GPU has to itself: 256 buses of them end below the kernel's limit of 4,194,304."""
_PLACES = 257
"""The uncut GPU's, and one for each of 16 compute instances of 16 GPU instances."""

Entry = tuple[int, int, int, int]


def pid_of(script: GpuScript, gpu_instance: int | None = None, compute_instance: int = 0) -> int:
    """Pid of the process that works on a GPU, or on one of its slices."""
    place = 0 if gpu_instance is None else 1 + 16 * (gpu_instance % 16) + compute_instance % 16
    turn = noise(script.seed, 77 + crc32(script.run.encode())) % (_OF_A_GPU // _PLACES)
    return _FIRST_PID + _OF_A_GPU * (script.bus & 0xFF) + _PLACES * turn + place


def processes(device: Device, count: Buffer, buffer: Buffer | None) -> int:
    """Answer nvmlDeviceGetComputeRunningProcesses_v3; too small an array gets the number needed."""
    gpu = device.gpu
    reading = device.reading()
    if gpu.script.mig:
        entries = [entry for part in device.slices for entry in _of_slice(part)]
    elif reading.regime.idle:
        entries = []
    else:
        entries = [(pid_of(gpu.script), gpu.memory_used(reading), _NO_INSTANCE, _NO_INSTANCE)]
    return _write(entries, count, buffer)


def slice_processes(target: Slice, count: Buffer, buffer: Buffer | None) -> int:
    """Answer nvmlDeviceGetComputeRunningProcesses_v3 of a MIG slice."""
    return _write(_of_slice(target), count, buffer)


def no_clients(_: Device, count: Buffer, buffer: Buffer | None) -> int:
    """Answer nvmlDeviceGetMPSComputeRunningProcesses_v3: no run of a scenario goes through an MPS server."""
    return _write([], count, buffer)


def _of_slice(target: Slice) -> list[Entry]:
    gpu = target.device.gpu
    reading = target.device.reading()
    instance, compute = target.instance, target.compute
    if instance.timeline.at(reading.time).idle:
        return []
    used = gpu.instance_memory_used(instance, reading) // len(instance.computes)
    pid = pid_of(gpu.script, instance.identifier, compute.identifier)
    return [(pid, used, instance.identifier, compute.identifier)]


def _write(entries: list[Entry], count: Buffer, buffer: Buffer | None) -> int:
    room = _COUNT.unpack_from(count)[0]
    _COUNT.pack_into(count, 0, len(entries))
    if room < len(entries):
        return INSUFFICIENT_SIZE
    if buffer is not None:
        for i, entry in enumerate(entries):
            _PROCESS.pack_into(buffer, i * _PROCESS.size, *entry)
    return SUCCESS
