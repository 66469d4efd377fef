"""What a node's labels say of how it is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CAPACITY_TYPES = ("on_demand", "spot", "reserved", "owned")

_INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_CAPACITY_TYPE = (
    "gpufleet.io/capacity-type",  # says it where no cloud does
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "cloud.google.com/gke-provisioning",
    "kubernetes.azure.com/scalesetpriority",
)
_SWITCHES = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
_WORDS = {
    "on_demand": "on_demand",
    "standard": "on_demand",  # Google
    "regular": "on_demand",  # Azure
    "spot": "spot",
    "preemptible": "spot",  # Google's name before
    "reserved": "reserved",
    "reservation": "reserved",
    "capacity_block": "reserved",  # Amazon
    "owned": "owned",
}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The machine that GPUs are in, as far as prices depend on it."""

    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    instance_type: str | None = None
    capacity_type: str | None = None
    """One of CAPACITY_TYPES."""


def node_facts(node: str, labels: Mapping[str, str]) -> NodeFacts:
    """Facts of a node from its name and its labels, those that Kubernetes and the clouds set included."""
    instance = next((labels[name] for name in _INSTANCE_TYPE if labels.get(name)), None)
    return NodeFacts(node, dict(labels), instance, _capacity(labels))


def _capacity(labels: Mapping[str, str]) -> str | None:
    for name in _CAPACITY_TYPE:
        word = labels.get(name, "").lower().replace("-", "_")
        if word in _WORDS:
            return _WORDS[word]
    return "spot" if any(labels.get(name) == "true" for name in _SWITCHES) else None
