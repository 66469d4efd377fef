"""A device that is being opened, and what the roster asks of those who remember the GPUs of this boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpufleet.collect.lanes import Lane
from gpufleet.collect.watched import Watched
from gpufleet.model.gpu import GpuIdentity
from gpufleet.sources.nvml.calls import Trace


class Numbering(Protocol):
    """Keeps the number of each UUID for the boot (``collect.numbers``)."""

    def assign(self, present: Sequence[tuple[str, int | None]]) -> Mapping[str, int]:
        """Number of each UUID; ``present`` has pairs of UUID and the driver's index."""


class Memory(Protocol):
    """Remembers who was seen in this boot (``collect.known``)."""

    def recall(self) -> tuple[GpuIdentity, ...]:
        """Every GPU that was seen in this boot."""

    def remember(self, gpus: Iterable[GpuIdentity]) -> None:
        """Take these as seen."""


@dataclass(slots=True)
class Opening:
    """A device that is being opened by a thread of its own."""

    index: int | None
    """The driver's index, or ``None`` when a known GPU is opened by its UUID."""
    gpu: Watched | None
    lane: Lane
    since: float
    trace: Trace = field(default_factory=Trace)
    out: bool = False

    @property
    def uuid(self) -> str | None:
        """Whom it has, as soon as that is known."""
        return self.trace.uuid if self.gpu is None else self.gpu.identity.uuid
