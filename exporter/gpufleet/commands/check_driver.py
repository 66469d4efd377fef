"""The facts without an exporter: one look through the driver, and the incidents that an exporter left on disk.

Every call may hang, so each GPU is asked by a thread of its own, and nobody waits beyond the limit. Nothing is written:
the state is the exporter's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpufleet.collect.fault_file import NAME as FAULTS_FILE
from gpufleet.collect.known import KnownGpus
from gpufleet.collect.numbers import Numbers, assign
from gpufleet.collect.roster import state_of
from gpufleet.collect.state_file import StateError, read_state
from gpufleet.commands.check_facts import Facts, facts_of
from gpufleet.commands.diagnosis import Attempt, Overdue, within
from gpufleet.commands.driver import DriverLibrary, can_open_control_device
from gpufleet.faults.ledger import Ledger
from gpufleet.faults.stored import StoredError
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.incident import FaultsView
from gpufleet.model.readings import Readings
from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, Snapshot
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.settings import Settings
from gpufleet.sources import node
from gpufleet.sources.nvml.calls import NvmlError, Trace
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, SessionError

T = TypeVar("T")

_SETTLED_SECONDS = 31.0
"""What this look sees for the first time is judged as it will be when it has lasted: nobody looks again."""
_NOBODY = GpuIdentity(uuid="", name="", pci_bus_id="")


@dataclass(frozen=True, slots=True)
class Look:
    """What was found."""

    facts: Facts
    notes: tuple[str, ...]
    is_stuck: bool
    """A call has not returned: the process has to be ended without waiting for it."""


@dataclass(slots=True)
class _Asked:
    """A GPU that is being asked."""

    index: int
    trace: Trace = field(default_factory=Trace)
    device: Device | None = None
    parts: tuple[Readings, ...] = ()
    state: GpuState = GpuState.OK
    reason: str | None = None

    def identity(self, known: Mapping[str, GpuIdentity]) -> GpuIdentity:
        if self.device is not None:
            return self.device.identity
        uuid = self.trace.uuid or ""
        return known.get(uuid, replace(_NOBODY, uuid=uuid))


@dataclass(slots=True)
class _Answers:
    """What the driver said."""

    state: NvmlState = NvmlState.OK
    reason: str | None = None
    version: str | None = None
    gpus: list[_Asked] = field(default_factory=list)
    is_stuck: bool = False


def look(settings: Settings, library: DriverLibrary, seconds: float) -> Look:
    """Look now, for at most ``seconds``."""
    until = time.monotonic() + seconds
    boot_id = node.read_boot_id(settings.path_procfs)
    known = {gpu.uuid: gpu for gpu in KnownGpus(settings.state_dir, boot_id).recall()}
    answers = _ask_driver(library, until)
    gpus = _gpus(answers, known, Numbers(settings.state_dir, boot_id).recall())
    now, monotonic = time.time(), time.monotonic()
    snapshot = Snapshot(
        sequence=0,
        at=now,
        monotonic=monotonic,
        node=NodeIdentity(settings.node_name, boot_id, answers.version),
        nvml_state=answers.state,
        gpus=tuple(gpus),
        gpus_expected=max(len(node.read_driver_gpus(settings.path_procfs)), len(gpus)) or None,
        gpus_visible=sum(gpu.state is GpuState.OK for gpu in gpus),
        reason=answers.reason,
    )
    faults, flaws, notes = kept_faults(settings.state_dir / FAULTS_FILE, snapshot, now)
    facts = replace(facts_of(snapshot, faults, now=monotonic, interval=0.0), flaws=flaws)
    return Look(facts, notes, answers.is_stuck)


def kept_faults(file: Path, snapshot: Snapshot, now: float) -> tuple[FaultsView, tuple[str, ...], tuple[str, ...]]:
    """The incidents that an exporter kept, with what a look of now adds to them or proves to be over.

    Beside them what is wrong with the file, and what is good to know about it.
    """
    ledger = Ledger(
        node=snapshot.node.node, boot_id=snapshot.node.boot_id, random_id=lambda: os.urandom(8).hex(), has_log=False
    )
    flaws: tuple[str, ...] = ()
    notes: tuple[str, ...] = (f"incidents are those that were kept in {file}",)
    try:
        content = read_state(file)
        if content is None:
            notes = (f"no exporter has kept incidents in {file.parent}; what the kernel's log says is not known",)
        else:
            ledger.load(json.loads(content), now)
    except (StateError, StoredError, ValueError, RecursionError) as error:
        flaws = (f"kept incidents can't be used: {file}: {error}",)
        notes = ()
    named = tuple(gpu for gpu in snapshot.gpus if gpu.identity.uuid)
    ledger.observe(replace(snapshot, gpus=named), now)
    ledger.tick(now + _SETTLED_SECONDS)
    return ledger.view(), flaws, notes


def _gpus(answers: _Answers, known: Mapping[str, GpuIdentity], numbers: Mapping[str, int]) -> Sequence[GpuSnapshot]:
    """GPUs that were asked and those that were seen before in this boot."""
    asked = [(gpu, gpu.identity(known)) for gpu in answers.gpus]
    given = assign(numbers, [(identity.uuid, gpu.index) for gpu, identity in asked if identity.uuid])
    found = [
        GpuSnapshot(given.get(identity.uuid, gpu.index), identity, gpu.state, None, gpu.parts, reason=gpu.reason)
        for gpu, identity in asked
    ]
    seen = {identity.uuid for _, identity in asked}
    absent = [identity for uuid, identity in known.items() if uuid not in seen]
    nameless = [gpu for gpu in found if not gpu.identity.uuid]
    if len(nameless) <= len(absent):
        # A GPU that fell off the bus does not tell its name any more: these are the ones that are absent.
        found = [gpu for gpu in found if gpu.identity.uuid]
    state = GpuState.DRIVER_BLOCKED if answers.state is NvmlState.HUNG else GpuState.GONE
    reason = nameless[0].reason if nameless else answers.reason
    found += [
        GpuSnapshot(assign(numbers, [(identity.uuid, None)])[identity.uuid], identity, state, None, reason=reason)
        for identity in absent
    ]
    return sorted(found, key=lambda gpu: gpu.number)


# --- the driver -------------------------------------------------------------------------------------------------------
def _ask_driver(library: DriverLibrary, until: float) -> _Answers:
    answers = _Answers()
    try:
        driver = _before(until, library.open, "loading the library")
        session = _before(until, lambda: Session(driver, can_open_control_device), "nvmlInit")
        count = _before(until, session.count, "nvmlDeviceGetCount")
    except SessionError as error:
        answers.state, answers.reason = error.state, error.reason
        return answers
    except NvmlError as error:
        answers.state, answers.reason = NvmlState.NO_DRIVER, str(error)
        return answers
    except _LateError as error:
        answers.state, answers.reason, answers.is_stuck = NvmlState.HUNG, str(error), True
        return answers
    answers.version = session.versions.driver
    if count == 0:
        answers.state, answers.reason = NvmlState.NO_GPU, "the driver is loaded and lists no GPU"
    answers.gpus = [_Asked(index) for index in range(count)]
    answers.is_stuck = _ask_all(answers.gpus, session, until)
    if not answers.is_stuck:
        answers.is_stuck = not _close(answers.gpus, session, until)
    return answers


class _LateError(Exception):
    """A call that has not returned; the message names it."""


def _before(until: float, function: Callable[[], T], call: str) -> T:
    try:
        return within(max(until - time.monotonic(), 0.01), function, call)
    except Overdue:
        raise _LateError(
            f"{call} has not returned; without persistence mode a driver takes seconds to start: give it --timeout"
            if call == "nvmlInit"
            else f"{call} has not returned"
        ) from None


def _ask_all(gpus: Sequence[_Asked], session: Session, until: float) -> bool:
    """Ask each GPU in a thread of its own; returns whether a call is still out."""
    attempts = [(gpu, Attempt(partial(_ask, gpu, session), f"gpu {gpu.index}")) for gpu in gpus]
    for gpu, attempt in attempts:
        try:
            attempt.wait(max(until - time.monotonic(), 0.01))
        except Overdue:
            gpu.state, gpu.reason = GpuState.HUNG, f"{gpu.trace.last} has not returned"
        except NvmlError as error:
            gpu.state, gpu.reason = state_of(error), str(error)
    return any(attempt.is_out for _, attempt in attempts)


def _ask(gpu: _Asked, session: Session) -> None:
    gpu.trace.last = "nvmlDeviceGetHandleByIndex_v2"
    handle = session.handle(gpu.index)
    now = time.monotonic()
    device = Device(
        session.calls, handle, DeviceOptions(Pace(1.0), driver_version=session.versions.driver), now, gpu.trace
    )
    gpu.device = device
    gpu.parts = device.read(now).parts


def _close(gpus: Iterable[_Asked], session: Session, until: float) -> bool:
    """Give everything back; returns whether that came to an end in its time."""

    def close() -> None:
        for gpu in gpus:
            if gpu.device is not None:
                gpu.device.close()
        session.close()

    try:
        _before(until, close, "nvmlShutdown")
    except _LateError:
        return False
    return True
