"""The nodes with GPUs, and which namespaces want to be left alone, as the API server has them now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.api import Api
from gpufleet.quarantine.actuators.kubernetes.gpu_resources import is_gpu
from gpufleet.quarantine.actuators.kubernetes.marks import mark_of
from gpufleet.quarantine.actuators.kubernetes.places import NAMESPACES, NODES
from gpufleet.quarantine.actuators.kubernetes.refusals import ApiError
from gpufleet.quarantine.policy import Nodes
from gpufleet.quarantine.view import Node, View

OPTED_OUT = "ignore"
"""The value of the opt-out label that counts."""


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct):
    unschedulable: bool = False
    taints: tuple[dict[str, Any], ...] = ()


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    capacity: dict[str, Any] = {}
    conditions: tuple[_Condition, ...] = ()


class _Node(msgspec.Struct):
    """What is read of a node: the rest, images above all, is most of its size."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Namespace(msgspec.Struct):
    metadata: _Meta


def view(api: Api, rules: Nodes, clock: Callable[[], float]) -> View:
    """What there is; ``clock`` gives Unix time. Raises UnobservableError."""
    at = clock()
    try:
        nodes = {each.metadata.name: _node(each, rules) for each in api.each(NODES, _Node) if _has_gpus(each, rules)}
        asked = f"{rules.opt_out_label}={OPTED_OUT}"
        namespaces = frozenset(each.metadata.name for each in api.each(NAMESPACES, _Namespace, labels=asked))
    except ApiError as error:
        raise UnobservableError(f"the cluster cannot be seen: {error}") from error
    return View(at, nodes, namespaces)


def _has_gpus(node: _Node, rules: Nodes) -> bool:
    offered = any(is_gpu(name) for name in node.status.capacity)
    return offered or node.metadata.labels.get(rules.gpu_label) == "true"


def _node(node: _Node, rules: Nodes) -> Node:
    labels = node.metadata.labels
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    return Node(
        name=node.metadata.name,
        pool=labels.get(rules.pool_label, ""),
        out=node.spec.unschedulable or not ready,
        held_out=node.spec.unschedulable,
        mark=mark_of(node.metadata.annotations, node.spec.taints, rules.taint),
        opted_out=labels.get(rules.opt_out_label) == OPTED_OUT,
    )
