"""What the doctor finds: checks of the node, and what each GPU reports."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Nothing to be done: something is less here than elsewhere, or not as one would expect."""
    MISSING = "missing"
    """Something that the exporter needs is not there; the remedy says what to do."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    subject: str
    status: Status
    detail: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Families of one subject, by what a GPU reports of them."""

    title: str
    reported: tuple[str, ...]
    absent: tuple[tuple[str, str], ...]
    """(family, why it is not reported)."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU of the node, as the driver lists it."""

    index: int
    """The driver's; in metrics a GPU keeps its number, see ``gpu_info``."""
    state: str
    """``ok``, ``hung``, or NVML's word for what it returned."""
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    reason: str | None = None
    slices: int = 0
    """MIG compute instances."""
    groups: tuple[GroupReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

    version: str
    node: str
    checks: tuple[Check, ...]
    gpus: tuple[GpuReport, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing and every GPU answers."""
        return not any(check.status is Status.MISSING for check in self.checks) and all(
            gpu.state == "ok" for gpu in self.gpus
        )


def gpus_in_words(count: int) -> str:
    """``no GPU``, ``1 GPU``, ``8 GPUs``."""
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


class Overdue(Exception):
    """A call did not return in its time; its thread is left behind."""


class Attempt:
    """A function that runs in a thread of its own, so that one that never returns holds nobody but that thread."""

    def __init__(self, function: Callable[[], None], name: str) -> None:
        """Start it."""
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised again by wait
            self._error = error

    def wait(self, seconds: float) -> None:
        """Wait until it has returned; raises what it raised, or Overdue."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Overdue
        if self._error is not None:
            raise self._error

    @property
    def is_out(self) -> bool:
        """Whether it has not returned yet."""
        return self._thread.is_alive()


def within(seconds: float, function: Callable[[], T], name: str) -> T:
    """What ``function`` returns; raises what it raises, or Overdue after ``seconds``."""
    result: list[T] = []
    Attempt(lambda: result.append(function()), name).wait(seconds)
    return result[0]
