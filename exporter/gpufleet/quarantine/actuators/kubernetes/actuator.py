"""The Actuator for Kubernetes: nodes and pods put together."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api
from gpufleet.quarantine.actuators.kubernetes.moving import Moving
from gpufleet.quarantine.actuators.kubernetes.node_marks import NodeMarks
from gpufleet.quarantine.actuators.kubernetes.nodes import view
from gpufleet.quarantine.actuators.kubernetes.refunding import Refunding
from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.policy import Nodes, Retries
from gpufleet.quarantine.record import Record, Step
from gpufleet.quarantine.view import View


class KubernetesActuator:
    """As Actuator; ``clock`` gives Unix time."""

    def __init__(self, api: Api, rules: Nodes, retries: Retries, audit: Audit, clock: Callable[[], float]) -> None:
        self._api = api
        self._rules = rules
        self._clock = clock
        self._marks = NodeMarks(api, audit, rules, clock)
        self._moving = Moving(api, audit, retries)
        self._refunding = Refunding(api, audit, retries)
        self._opted_out: frozenset[str] | None = None

    def view(self) -> View:
        """As Actuator."""
        seen = view(self._api, self._rules, self._clock)
        self._opted_out = seen.opted_out_namespaces
        return seen

    def mark(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._marks.mark(record)

    def move(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._moving.move(record, self._namespaces())

    def refund(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._refunding.refund(record, self._moving.chosen(record, self._namespaces()).pods)

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """As Actuator; a pod that was to be evicted and is not yet gets its finalizer back."""
        return (*self._moving.restore(record, self._namespaces()), *self._marks.release(record, last=last))

    def pods_on(self, name: str) -> tuple[str, ...]:
        """``NAMESPACE/NAME`` of the pods on a node that hold a GPU. Raises UnobservableError."""
        try:
            found = [each for each in self._moving.on_node(name) if each.asks_for_gpus]
        except ApiError as error:
            raise UnobservableError(f"the pods of node {name} cannot be seen: {error}") from error
        return tuple(sorted(f"{each.metadata.namespace}/{each.metadata.name}" for each in found))

    def _namespaces(self) -> frozenset[str]:
        """Namespaces that are left alone, as they were last seen."""
        return self.view().opted_out_namespaces if self._opted_out is None else self._opted_out
