"""The doctor's look through the driver: what each GPU reports, and why not the rest.

Every call may hang, so each GPU is asked by a thread of its own and none is waited for beyond a limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gpufleet.collect.integrals import RATIOS
from gpufleet.commands.diagnosis import Attempt, Check, GpuReport, GroupReport, Overdue, Status, gpus_in_words, within
from gpufleet.metrics.catalog import CATALOG
from gpufleet.metrics.family import SLICE
from gpufleet.sources import node
from gpufleet.sources.nvml.calls import NvmlError, Trace, return_name
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.events import EventSet
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, SessionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gpufleet.commands.driver import DriverLibrary
    from gpufleet.model.readings import Key, Readings

_OPEN_SECONDS = 10.0
"""Without persistence mode the driver takes a second or two a GPU to initialise."""
_GPU_SECONDS = 10.0
_GPM_WINDOW_SECONDS = 0.25
"""Activity needs two samples at least 100 ms apart."""
_WORDS = {
    "not_supported": "not on this GPU, driver or mode",
    "function_not_found": "a newer driver has it",
    "no_permission": "not for this user",
    "argument_version_mismatch": "a newer driver has it",
    "invalid_argument": "not known to this driver",
}


@dataclass(slots=True)
class _Asked:
    """A GPU that is being asked."""

    index: int
    trace: Trace = field(default_factory=Trace)
    device: Device | None = None
    present: set[str] = field(default_factory=set)
    """Names of readings that it gave."""
    error: str | None = None
    state: str = "ok"


@dataclass(frozen=True, slots=True)
class DriverReport:
    """What was found through the driver."""

    checks: tuple[Check, ...]
    gpus: tuple[GpuReport, ...]
    is_stuck: bool = False
    """A call has not returned: the process has to be ended without waiting for it."""


def driver_report(library: DriverLibrary, procfs: Path) -> DriverReport:
    """Load the library, open it, and ask every GPU."""
    try:
        driver = within(_OPEN_SECONDS, library.open, "library")
    except SessionError as error:
        return DriverReport((_missing("library", error.reason),), ())
    except Overdue:
        return DriverReport((_hangs("library", "loading the library"),), (), is_stuck=True)
    found = Check("library", Status.OK, library.path or "loaded")
    versions = version_check(library.path, procfs)
    checks = (found,) if versions is None else (found, versions)
    try:
        session = within(_OPEN_SECONDS, lambda: Session(driver), "nvmlInit")
        count = within(_OPEN_SECONDS, session.count, "nvmlDeviceGetCount")
    except SessionError as error:
        return DriverReport((*checks, _missing("NVML", error.reason)), ())
    except NvmlError as error:
        return DriverReport((*checks, _missing("NVML", str(error))), ())
    except Overdue:
        return DriverReport((*checks, _hangs("NVML", "nvmlInit")), (), is_stuck=True)
    has_events = _events_check(session)
    gpus = [_Asked(index) for index in range(count)]
    is_stuck = _ask_all(gpus, session)
    counted = Check(
        "NVML",
        Status.OK if count else Status.MISSING,
        f"version {session.versions.nvml}, driver {session.versions.driver}, {gpus_in_words(count)}",
        None if count else "the driver lists no GPU: the kernel log may say why (dmesg | grep NVRM)",
    )
    if not is_stuck:
        within(_OPEN_SECONDS, lambda: _close(gpus, session), "nvmlShutdown")
    reports = tuple(_report(gpu, has_events=has_events.status is Status.OK) for gpu in gpus)
    return DriverReport((*checks, counted, has_events), reports, is_stuck)


def version_check(path: str | None, procfs: Path) -> Check | None:
    """Whether library and kernel module are of one release; None where that can't be told."""
    kernel = node.read_kernel_driver(procfs)
    library = node.library_version(path) if path is not None else None
    if kernel is None or library is None:
        return None
    if kernel.version != library:
        return Check(
            "versions",
            Status.MISSING,
            f"the library is of release {library}, the kernel module of {kernel.version}",
            "reload the kernel module or reboot; the exporter then starts itself anew",
        )
    return Check("versions", Status.OK, f"library and kernel module are both {library}")


def _missing(subject: str, reason: str) -> Check:
    detail, _, remedy = reason.partition("; ")
    return Check(subject, Status.MISSING, detail, remedy or None)


def _hangs(subject: str, call: str) -> Check:
    return Check(subject, Status.MISSING, f"{call} does not return", "the kernel log may say why (dmesg | grep NVRM)")


def _events_check(session: Session) -> Check:
    try:
        events = within(_OPEN_SECONDS, lambda: EventSet(session.calls), "nvmlEventSetCreate")
        within(_OPEN_SECONDS, events.free, "nvmlEventSetFree")
    except (NvmlError, Overdue) as error:
        reason = str(error) or "nvmlEventSetCreate does not return"
        return Check("events", Status.NOTE, f"{reason}; Xid errors are not counted from the driver")
    return Check("events", Status.OK, "the driver reports Xid errors as they happen")


def _ask_all(gpus: Sequence[_Asked], session: Session) -> bool:
    """Ask each GPU in a thread of its own, then their activity in one; returns whether a call is stuck."""
    until = time.monotonic() + _GPU_SECONDS
    attempts = [(gpu, Attempt(partial(_ask, gpu, session), f"gpu {gpu.index}")) for gpu in gpus]
    for gpu, attempt in attempts:
        _settle(gpu, attempt, until - time.monotonic())
    answering = [gpu for gpu in gpus if gpu.device is not None and gpu.state == "ok" and gpu.device.samples_gpm]
    # One thread for all: GPM is not safe to call from several.
    current: list[_Asked] = []
    sampling = Attempt(lambda: _sample(answering, current), "gpm")
    try:
        sampling.wait(_GPU_SECONDS)
    except Overdue:
        gpu = current[-1]
        call = gpu.device.gpm_trace.last if gpu.device is not None else "GPM"
        gpu.state, gpu.error = "hung", f"{call} does not return"
    return sampling.is_out or any(attempt.is_out for _, attempt in attempts)


def _settle(gpu: _Asked, attempt: Attempt, seconds: float) -> None:
    try:
        attempt.wait(max(seconds, 0.01))
    except Overdue:
        gpu.state, gpu.error = "hung", f"{gpu.trace.last} does not return"
    except NvmlError as error:
        gpu.state, gpu.error = return_name(error.code), str(error)


def _ask(gpu: _Asked, session: Session) -> None:
    gpu.trace.last = "nvmlDeviceGetHandleByIndex_v2"
    handle = session.handle(gpu.index)
    now = time.monotonic()
    options = DeviceOptions(Pace(1.0), driver_version=session.versions.driver)
    device = Device(session.calls, handle, options, now, gpu.trace)
    gpu.device = device
    reading = device.read(now)
    _note(gpu.present, reading.parts)
    for _, parts in reading.slices:
        _note(gpu.present, parts)


def _sample(gpus: Sequence[_Asked], current: list[_Asked]) -> None:
    for is_last in (False, True):
        for gpu in gpus:
            if gpu.device is None or gpu.state != "ok":
                continue
            current.append(gpu)
            try:
                sample = gpu.device.sample(time.monotonic())
            except NvmlError as error:
                gpu.state, gpu.error = return_name(error.code), str(error)
                continue
            for window in (sample.own, *sample.slices.values()):
                if window is not None:
                    _note(gpu.present, (window[0],))
        if not is_last:
            time.sleep(_GPM_WINDOW_SECONDS)


def _note(present: set[str], parts: Iterable[Readings]) -> None:
    present.update(key.name for part in parts for key in part.keys)


def _close(gpus: Iterable[_Asked], session: Session) -> None:
    for gpu in gpus:
        if gpu.device is not None:
            gpu.device.close()
    session.close()


def _report(gpu: _Asked, *, has_events: bool) -> GpuReport:
    device = gpu.device
    if device is None:
        return GpuReport(gpu.index, gpu.state, reason=gpu.error)
    dropped = {} if gpu.state == "hung" else dict(device.tally.dropped)
    present = gpu.present | ({"xid_errors"} if has_events else set())
    return GpuReport(
        index=gpu.index,
        state=gpu.state,
        uuid=device.identity.uuid,
        name=device.identity.name,
        pci_bus_id=device.identity.pci_bus_id,
        reason=gpu.error,
        slices=len(device.slices),
        groups=group_reports(present, dropped, has_slices=bool(device.slices)) if gpu.state == "ok" else (),
    )


def group_reports(present: set[str], dropped: Mapping[Key, str], *, has_slices: bool) -> tuple[GroupReport, ...]:
    """Families by subject: those that one of the readings ``present`` fills, and why the others are absent."""
    # Sums of what is polled are there as soon as it is.
    sums = {key.name for ratio, key in RATIOS.items() if ratio in present}
    filled = present | sums | ({"clock_event_seconds"} if "clock_event_active" in present else set())
    words = {key.name: word for key, word in dropped.items()}
    groups = []
    for group in CATALOG:
        families = [
            family
            for family in group.families
            if family.reading is not None and family.served and (has_slices or family.labels[: len(SLICE)] != SLICE)
        ]
        reported = tuple(family.name for family in families if family.reading in filled)
        absent = tuple(
            (family.name, _why(words.get(family.reading or ""), family.reported_by))
            for family in families
            if family.reading not in filled
        )
        if reported or absent:
            groups.append(GroupReport(group.title, reported, absent))
    return tuple(groups)


def _why(word: str | None, reported_by: str) -> str:
    if word is not None:
        said = _WORDS.get(word, word.replace("_", " "))
        return f"{said}; reported by {reported_by}" if reported_by else said
    return f"reported by {reported_by}" if reported_by else "no value just now"
