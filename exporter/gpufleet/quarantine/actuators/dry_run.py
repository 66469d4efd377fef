"""In place of any actuator: looks at everything, writes nothing, and says what would have been written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpufleet.quarantine.actuators import Actuator
from gpufleet.quarantine.incident import Scope
from gpufleet.quarantine.policy import Platform
from gpufleet.quarantine.record import Outcome, Record, Step
from gpufleet.quarantine.view import View

PodsOn = Callable[[str], Iterable[str]]
"""``NAMESPACE/NAME`` of the pods on a node that hold a GPU. Raises UnobservableError."""


def _no_pods(_: str) -> tuple[str, ...]:
    return ()


class DryRun:
    """An Actuator that shows another's nodes, and plans; ``pods_on`` names the pods that a fault of a node takes."""

    def __init__(self, actuator: Actuator, platform: Platform, pods_on: PodsOn = _no_pods) -> None:
        self._actuator = actuator
        self._platform = platform
        self._pods_on = pods_on

    def view(self) -> View:
        """As Actuator."""
        return self._actuator.view()

    def mark(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        if self._platform is Platform.SLURM:
            return (_planned("drain", f"node/{record.node}", "the jobs on it run to their end"),)
        return (
            _planned("cordon", f"node/{record.node}", "with our taint and annotation"),
            _planned("condition", f"node/{record.node}"),
            _planned("event", f"node/{record.node}"),
            *(_planned("event", f"pod/{pod}") for pod in _holders(record)),
        )

    def move(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        if self._platform is Platform.SLURM:
            runs = sorted({holder.run for holder in record.incident.holders if holder.run})
            return tuple(
                _planned("requeue", f"slurm-job/{run}", "while its restart count is the fault's") for run in runs
            )
        pods = set(_holders(record))
        if record.scope is Scope.NODE:
            pods.update(self._pods_on(record.node))
        return tuple(_planned("evict", f"pod/{pod}", "unless a rule of ours forbids it") for pod in sorted(pods))

    def refund(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        if self._platform is Platform.SLURM or not record.incident.refund:
            return ()
        detail = "if it has failed already, and its Job counts that"
        return tuple(_planned("refund", f"pod/{pod}", detail) for pod in sorted(_holders(record)))

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """As Actuator."""
        if not last:
            return ()
        action = "resume" if self._platform is Platform.SLURM else "uncordon"
        detail = "stays out: somebody else had taken it out before" if record.was_cordoned else ""
        return (_planned(action, f"node/{record.node}", detail),)


def _holders(record: Record) -> tuple[str, ...]:
    return tuple(f"{holder.namespace}/{holder.pod}" for holder in record.incident.holders if holder.is_pod)


def _planned(action: str, target: str, detail: str = "") -> Step:
    return Step(action, target, Outcome.PLANNED, detail)
