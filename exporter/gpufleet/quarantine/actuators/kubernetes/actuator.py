"""The Actuator for Kubernetes: nodes and pods put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpufleet.quarantine.actuators.kubernetes.api import Api
from gpufleet.quarantine.actuators.kubernetes.node_marks import NodeMarks
from gpufleet.quarantine.actuators.kubernetes.nodes import view
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.policy import Nodes
from gpufleet.quarantine.record import Record, Step
from gpufleet.quarantine.view import View


class Pods(Protocol):
    """What is done for the pods that held a GPU, as in Actuator."""

    def move(self, record: Record) -> tuple[Step, ...]:
        """Move them."""
        ...

    def refund(self, record: Record) -> tuple[Step, ...]:
        """Give their Jobs lost retries back."""
        ...


class KubernetesActuator:
    """As Actuator; ``clock`` gives Unix time."""

    def __init__(self, api: Api, rules: Nodes, audit: Audit, clock: Callable[[], float], pods: Pods) -> None:
        self._api = api
        self._rules = rules
        self._clock = clock
        self._marks = NodeMarks(api, audit, rules, clock)
        self._pods = pods

    def view(self) -> View:
        """As Actuator."""
        return view(self._api, self._rules, self._clock)

    def mark(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._marks.mark(record)

    def move(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._pods.move(record)

    def refund(self, record: Record) -> tuple[Step, ...]:
        """As Actuator."""
        return self._pods.refund(record)

    def release(self, record: Record, *, last: bool) -> tuple[Step, ...]:
        """As Actuator."""
        return self._marks.release(record, last=last)
