"""Scripts the stand-in driver: a ``libnvidia-ml.so.1`` that any process can load, told from here what to answer.

    with FakeNvml() as fake:
        fake.set_gpus(8, H100)
        subprocess.run([..., "--nvml.library", fake.library])
        fake.hang("nvmlDeviceGetFieldValues", 3)

Each FakeNvml has a directory with a copy of the library of its own (so that several in one process share nothing), the
control file, device files that the library holds open while it is initialised (``dev/``) and the kernel module's
version (``proc/driver/nvidia/version``). A program that loads the library by name finds it with ``environment()``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import fake_nvml_profiles as profiles
from tests.support.fake_nvml_build import LIBRARY_NAME, build
from tests.support.fake_nvml_layout import (
    ABSENT32,
    COLUMNS,
    EVENT_RING,
    FUNCTIONS,
    MAGIC,
    MAX_GPUS,
    MAX_MIG,
    SYSTEM,
    Control,
    Gpu,
    Rule,
    field_place,
)
from tests.support.fake_nvml_profiles import H100, Field, Profile, Slice

XID_EVENT = 0x8
MIG_CONFIG_EVENT = 0x100

# Calls at 5-50 us, those that ask the board (power, clocks) at 50-500 us, PCIe throughput sampled over 20 ms.
LATENCY_US: Mapping[str, int] = {
    "nvmlDeviceGetPcieThroughput": 20_000,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 500,
    "nvmlDeviceGetComputeRunningProcesses_v3": 500,
    "nvmlDeviceGetPowerUsage": 300,
    "nvmlDeviceGetTotalEnergyConsumption": 300,
    "nvmlDeviceGetEnforcedPowerLimit": 100,
    "nvmlDeviceGetPowerManagementLimit": 100,
    "nvmlDeviceGetClockInfo": 150,
    "nvmlDeviceGetMaxClockInfo": 60,
    "nvmlDeviceGetFanSpeed": 137,
    "nvmlDeviceGetFanSpeed_v2": 137,
    "nvmlDeviceGetFieldValues": 400,
    "nvmlDeviceGetTemperature": 60,
    "nvmlDeviceGetTemperatureV": 60,
    "nvmlDeviceGetPerformanceState": 80,
    "nvmlDeviceGetMemoryInfo": 12,
    "nvmlDeviceGetMemoryInfo_v2": 12,
    "nvmlDeviceGetSramEccErrorStatus": 200,
    "nvmlGpmSampleGet": 150,
    "nvmlGpmMigSampleGet": 150,
}
LATENCY_PER_FIELD_US = 15
LATENCY_OTHER_US = 5

SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
FUTEX_WAKE = 1


class FakeNvml:
    """A stand-in driver and its GPUs. A context manager; its directory goes when it ends."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        old: bool = False,
        lacking: frozenset[str] = frozenset(),
        driver_version: str = "595.45.04",
    ) -> None:
        self._built = build(old=old, lacking=lacking)
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="fake-nvml-"))
        self.library = self.directory / LIBRARY_NAME
        self.control_path = self.directory / "control"
        self.devices = self.directory / "dev"
        self.procfs = self.directory / "proc"
        self.devices.mkdir()
        shutil.copyfile(self._built, self.library)
        self.control_path.write_bytes(bytes(ctypes.sizeof(Control)))
        with self.control_path.open("r+b") as file:
            # Shared with the library by the kernel; unmapped when the last view of it goes.
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(Control))
        self.control = Control.from_buffer(self._memory)
        self._profiles: dict[int, Profile] = {}
        self._syscall = ctypes.CDLL(None).syscall
        self._wake_address = ctypes.addressof(self.control) + Control.wake.offset
        control = self.control
        control.size = ctypes.sizeof(Control)
        control.restart_code = 1
        control.library_build = control.kernel_build = control.driver_generation = 1
        control.cuda_version = 13020
        control.gpm_spacing_ms = 100
        control.sram_version, control.temperature_version, control.margin_version = 0x01000068, 0x0100000C, 0x01000008
        control.nvml_version = b"13.595.45.04"
        self.set_driver_version(driver_version)
        for name in FUNCTIONS:
            control.latency_us[FUNCTIONS.index(name)] = LATENCY_US.get(name, LATENCY_OTHER_US)
        control.latency_per_field_us = LATENCY_PER_FIELD_US
        (self.devices / "nvidiactl").touch()
        control.magic = MAGIC

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let every stuck call go and remove the directory."""
        self.release()
        self.release_all()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """For a program that loads ``libnvidia-ml.so.1`` by name."""
        return {
            "LD_LIBRARY_PATH": str(self.directory),
            "GPUFLEET_FAKE_NVML_CONTROL": str(self.control_path),
            "GPUFLEET_FAKE_NVML_DEV": str(self.devices),
        }

    # GPUs and what they read

    @property
    def gpus(self) -> ctypes.Array[Gpu]:
        """The GPUs of the shared memory: set members to change what they read."""
        found: ctypes.Array[Gpu] = self.control.gpus
        return found

    def uuid(self, gpu: int) -> str:
        """A GPU's UUID."""
        return bytes(self.gpus[gpu].uuid).decode()

    def mig_uuids(self, gpu: int) -> list[str]:
        """The UUIDs of a GPU's instances in the order of enumeration."""
        return [bytes(mig.uuid).decode() for mig in self.gpus[gpu].mig if mig.present]

    def set_gpus(self, count: int, profile: Profile | Sequence[Profile] = H100) -> None:
        """Fit ``count`` GPUs. A driver that is open sees them at its next nvmlInit."""
        if not 0 <= count <= MAX_GPUS:
            raise ValueError(f"{count} GPUs: the stand-in driver has room for {MAX_GPUS}")
        for number in range(count):
            chosen = profile if isinstance(profile, Profile) else profile[number]
            self._profiles[number] = chosen
            profiles.apply(chosen, self.gpus[number], number, self.driver_version)
            (self.devices / f"nvidia{self.gpus[number].minor}").touch()
        self.set_order(range(count))

    def set_order(self, order: Iterable[int]) -> None:
        """Which GPU has which enumeration index from the next nvmlInit on."""
        places = list(order)
        self.control.order[: len(places)] = places
        self.control.gpu_count = len(places)

    def remove_gpu(self, gpu: int) -> None:
        """Take a GPU out while the driver is open: its handles say GPU_IS_LOST, the next nvmlInit does not count it."""
        self.gpus[gpu].present = 0
        self.set_order([g for g in self.control.order[: self.control.gpu_count] if g != gpu])

    def set_field(
        self,
        gpu: int,
        field_id: int,
        value: int,
        *,
        scope: int = 0,
        ret: int = 0,
        type: int = profiles.U32,  # noqa: A002 - NVML's word
        rate: int = 0,
        flags: int = 0,
    ) -> None:
        """Set one field; ``scope`` 0xFFFFFFFF is the sum over links, ``flags`` as in fake_nvml_profiles."""
        profiles.put(self.gpus[gpu], Field(field_id, value, type, scope, rate, 0, flags), ret)

    def fail_field(self, gpu: int, field_id: int, code: int, *, scope: int = 0) -> None:
        """The entry answers with a return code."""
        self.set_field(gpu, field_id, 0, scope=scope, ret=code)

    def set_gpm(self, gpu: int, metric: int, value: float, *, code: int = 0, instance: int | None = None) -> None:
        """Set a GPM metric of a GPU, or of the instance at a place of its enumeration."""
        cells = self.gpus[gpu].gpm if instance is None else self.gpus[gpu].mig[instance].gpm
        cells[metric].value, cells[metric].wobble, cells[metric].code = value, 0.0, code

    def move(self, on: bool = True) -> None:
        """Let counters count and gauges wobble, so that no two polls read the same."""
        self.control.moving_since_ns = time.monotonic_ns() if on else 0

    def disable_ecc(self, gpu: int, *, how: int = profiles.UNTOUCHED) -> None:
        """Switch ECC off: the driver leaves the entries of ECC fields unwritten (or all zero with ``how=ZEROED``)."""
        self.gpus[gpu].ecc_current = self.gpus[gpu].ecc_pending = 0
        for field_id in (1, 2):
            self.set_field(gpu, field_id, 0)
        for field_id in range(3, 29):
            self.set_field(gpu, field_id, 0, flags=how)

    # Calls that fail, hang or take their time

    def _rules(self, function: str | None, gpu: int | None) -> list[Rule]:
        functions = range(len(FUNCTIONS)) if function is None else (FUNCTIONS.index(function),)
        columns = range(COLUMNS) if gpu is None else (gpu,)
        return [self.control.rules[column][number] for column in columns for number in functions]

    def set_return(self, function: str | None, gpu: int | None, code: int) -> None:
        """What a function returns for a GPU (None: every one, and calls that concern none); 0 ends it."""
        for rule in self._rules(function, gpu):
            rule.code = code
        self.wake()

    def set_latency(self, *, model: bool = True) -> None:
        """Let calls take as long as on a real board, or no time at all."""
        self.control.model_latency = int(model)

    def delay(self, function: str, gpu: int | None, us: int) -> None:
        """Let one call take longer."""
        for rule in self._rules(function, gpu):
            rule.latency_us = us

    def lose(self, gpu: int, code: int = 15) -> None:
        """Every call on the GPU returns ``code`` (GPU_IS_LOST); 0 brings it back."""
        self.gpus[gpu].code = code
        self.wake()

    def hang(self, function: str | None, gpu: int | None = SYSTEM, *, ms: int | None = None) -> None:
        """Calls do not return for ``ms``, or until released. ``gpu`` SYSTEM: calls that concern no GPU; None: all."""
        for rule in self._rules(function, gpu):
            rule.hang_ms = ms or 0
            rule.hang = 1

    def release(self, function: str | None = None, gpu: int | None = None) -> None:
        """Let calls that hang return, and let later ones pass."""
        for rule in self._rules(function, gpu):
            if rule.hang:
                rule.hang = 0
                rule.released += 1
        self.wake()

    def hold_all(self) -> None:
        """Every call blocks from now on, as when another process sits on the driver's lock."""
        self.control.hold_all = 1

    lock_all = hold_all

    def release_all(self) -> None:
        """End ``hold_all``."""
        self.control.hold_all = 0
        self.wake()

    def serialize(self, on: bool = True) -> None:
        """One driver-wide lock: a call that hangs on one GPU blocks the calls of all others."""
        self.control.serialize = int(on)

    def wake(self) -> None:
        """Make waiting calls look again."""
        self.control.wake = (self.control.wake + 1) & ABSENT32
        self._syscall(
            ctypes.c_long(SYS_FUTEX[platform.machine()]),
            ctypes.c_void_p(self._wake_address),
            ctypes.c_int(FUTEX_WAKE),
            ctypes.c_int(2**31 - 1),
            None,
            None,
            ctypes.c_int(0),
        )

    # The driver itself

    @property
    def driver_version(self) -> str:
        """The version that the driver reports."""
        return bytes(self.control.driver_version).decode()

    def set_driver_version(self, version: str) -> None:
        """Another driver; fields that other versions number otherwise move with it."""
        self.control.driver_version = version.encode()
        for number, profile in self._profiles.items():
            profiles.apply_fields(profile, self.gpus[number], number, version)
        folder = self.procfs / "driver" / "nvidia"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "version").write_text(
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
            "GCC version:  gcc version 12.2.0\n"
        )

    def fail_init(self, code: int) -> None:
        """What nvmlInit returns (18: driver and library do not match); 0 ends it."""
        self.control.init_code = code

    def unload_driver(self, code: int = 1) -> None:
        """Take the driver away: open libraries get ``code`` from every call, nvmlInit DRIVER_NOT_LOADED."""
        self.control.restart_code = code
        self.control.driver_down = 1
        (self.procfs / "driver" / "nvidia" / "version").unlink(missing_ok=True)
        self.wake()

    def load_driver(self) -> None:
        """Bring the driver (back); a library opened before must be shut down and initialised anew."""
        self.control.driver_generation += 1
        self.control.driver_down = 0
        self.set_driver_version(self.driver_version)
        self.wake()

    def restart_driver(self, code: int = 1) -> None:
        """Unload and load at once."""
        self.control.restart_code = code
        self.control.driver_generation += 1
        self.wake()

    def upgrade_library(self) -> None:
        """Install another library beside the loaded kernel module: a process that loads it now gets MISMATCH (18).

        One that had the old library mapped works until ``load_upgraded_module``, and gets 18 from then on.
        """
        self.control.library_build += 1
        replacement = self.library.with_suffix(".new")
        shutil.copyfile(self._built, replacement)
        replacement.replace(self.library)

    def load_upgraded_module(self) -> None:
        """Load the kernel module that belongs to the library on disk."""
        self.control.kernel_build = self.control.library_build
        self.control.restart_code = 18
        self.load_driver()

    # MIG

    def set_mig(
        self, gpu: int, instances: Sequence[Slice | None] | None, *, stale_code: int = 2, notify: bool = True
    ) -> None:
        """Partition a GPU anew; None switches MIG off. ``stale_code`` is what handles to former instances get.

        With ``stale_code=0`` a former handle silently reaches the instance that has its place now. A place in
        ``instances`` is one in the enumeration, None a hole in it.
        """
        target = self.gpus[gpu]
        if instances is not None and len(instances) > MAX_MIG:
            raise ValueError(f"{len(instances)} instances: there is room for {MAX_MIG}")
        for place, mig in enumerate(target.mig):
            mig.present = 0
            wanted = instances[place] if instances is not None and place < len(instances) else None
            if wanted is None:
                continue
            uuid = profiles.mig_uuid(gpu, wanted.gi, wanted.ci, target.mig_generation + 1)
            mig.uuid = uuid.encode()
            mig.name = f"{bytes(target.name).decode()} MIG {wanted.profile}".encode()
            mig.memory_total, mig.memory_used = wanted.memory_total, wanted.memory_used
            mig.gi, mig.ci = wanted.gi, wanted.ci
            mig.gi_slices, mig.ci_slices = wanted.gi_slices, wanted.ci_slices
            mig.multiprocessors = wanted.multiprocessors
            mig.copy_engines = mig.decoders = mig.jpeg = wanted.gi_slices
            mig.encoders = mig.ofa = mig.code = 0
            mig.present = 1
        target.mig_stale_code = stale_code
        target.mig_generation += 1
        target.mig_mode = target.mig_mode_pending = 0 if instances is None else 1
        # Row remapping is not reported while instances exist.
        for field_id in (142, 143, 144, 145):
            cell = field_place(target.field, field_id, 0)
            cell.flags = profiles.NOT_ON_MIG if instances else 0
        if notify:
            self.inject_event(gpu, MIG_CONFIG_EVENT)

    # Events

    def inject_event(
        self, gpu: int, event_type: int, data: int = 0, *, gi: int = ABSENT32, ci: int = ABSENT32, alias: bool = False
    ) -> None:
        """Deliver an event to the sets that have registered for it; ``alias``: with another handle of the same GPU."""
        event = self.control.events[self.control.event_head % EVENT_RING]
        event.type, event.data, event.gpu, event.gi, event.ci = event_type, data, gpu, gi, ci
        event.alias = int(alias)
        self.control.event_head += 1
        self.wake()

    def inject_xid(self, gpu: int, xid: int, *, gi: int = ABSENT32, ci: int = ABSENT32, alias: bool = False) -> None:
        """Deliver an Xid."""
        self.inject_event(gpu, XID_EVENT, xid, gi=gi, ci=ci, alias=alias)

    # What was asked

    def counts(self) -> dict[tuple[str, int | None], int]:
        """Calls since the last reset by function and GPU (None: calls that concern none); none made is absent."""
        return {
            (name, None if column == SYSTEM else column): int(self.control.counts[column][number])
            for column in range(COLUMNS)
            for number, name in enumerate(FUNCTIONS)
            if self.control.counts[column][number]
        }

    def calls_of(self, gpu: int | None) -> int:
        """All calls on a GPU since the last reset."""
        return sum(self.control.counts[SYSTEM if gpu is None else gpu])

    def reset_counts(self) -> None:
        """Start counting anew; misuse and the highest numbers at once too."""
        control = self.control
        for member in ("counts", "misuse", "max_out", "max_stuck"):
            field = getattr(Control, member)
            ctypes.memset(ctypes.addressof(control) + field.offset, 0, field.size)
        control.field_entries = 0

    def misuse(self) -> dict[str, int]:
        """What the caller should not have done, by name; empty when nothing. ``call_while_stuck`` sums over GPUs."""
        found = {
            name: int(getattr(self.control.misuse, name))
            for name, _ in self.control.misuse._fields_[:-1]  # type: ignore[misc, unused-ignore]
        }
        found["call_while_stuck"] = sum(self.control.misuse.call_while_stuck)
        # Stepping down from a struct version that an older driver refuses is how one finds out; it is counted apart.
        del found["wrong_version"]
        return {name: number for name, number in found.items() if number}

    def wrong_versions(self) -> int:
        """Structs handed over with a version word that this driver does not take."""
        return int(self.control.misuse.wrong_version)

    def stuck(self, gpu: int | None) -> int:
        """Calls on a GPU that hang now."""
        return int(self.control.stuck[SYSTEM if gpu is None else gpu])

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition; AssertionError when it does not come."""
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come"
            # A condition in another process's memory cannot be waited for otherwise.
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def wait_until_stuck(self, gpu: int | None, seconds: float = 10.0) -> None:
        """Wait until a call on the GPU hangs."""
        self.wait_until(lambda: self.stuck(gpu) > 0, seconds)

    def open_files(self, pid: int | None = None) -> list[str]:
        """The stand-in's device files that a process (this one) has open, by name."""
        found = []
        for link in Path(f"/proc/{pid or os.getpid()}/fd").iterdir():
            try:
                target = link.readlink()
            except FileNotFoundError:
                continue
            if target.parent == self.devices:
                found.append(target.name)
        return sorted(found)
