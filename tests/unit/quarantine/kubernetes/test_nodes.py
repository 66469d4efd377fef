"""The nodes as the API server has them."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.nodes import view
from gpufleet.quarantine.actuators.kubernetes.places import Place, node
from gpufleet.quarantine.policy import Nodes
from gpufleet.quarantine.view import Mark, Node
from tests.support.fake_kubernetes import FakeCluster, Fault

NOW = 1_700_000_100.0
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
GPUS = {"capacity": {"nvidia.com/gpu": "8"}}


def seen(content: dict[str, Any], name: str = "n") -> Node | None:
    """A node as it is seen."""
    cluster = FakeCluster()
    cluster.put(node(name), content)
    return view(cluster.api(), Nodes(), lambda: NOW).nodes.get(name)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"status": {**READY, **GPUS}}, True),
        ({"status": {**READY, "capacity": {"nvidia.com/gpu": "0"}}}, True),
        ({"status": {**READY, "capacity": {"nvidia.com/mig-1g.10gb": "7"}}}, True),
        ({"status": {**READY, "capacity": {"nvidia.com/gpu.shared": "16"}}}, True),
        ({"status": READY, "metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}, True),
        ({"status": READY, "metadata": {"labels": {"nvidia.com/gpu.present": "false"}}}, False),
        ({"status": {**READY, "capacity": {"cpu": "8", "amd.com/gpu": "1"}}}, False),
        ({}, False),
    ],
)
def test_which_nodes_have_gpus(content: dict[str, Any], expected: bool) -> None:
    """By what they offer, or by a label where the device plugin is down."""
    assert (seen(content) is not None) is expected


@pytest.mark.parametrize(
    ("spec", "ready", "out", "held_out"),
    [
        ({}, "True", False, False),
        ({"unschedulable": True}, "True", True, True),
        ({}, "False", True, False),
        ({}, "Unknown", True, False),
        ({"unschedulable": True}, "False", True, True),
    ],
)
def test_which_nodes_are_out(spec: dict[str, Any], ready: str, out: bool, held_out: bool) -> None:
    """By anyone, and by somebody other than a failing heartbeat."""
    found = seen({"spec": spec, "status": {**GPUS, "conditions": [{"type": "Ready", "status": ready}]}})

    assert found is not None
    assert (found.out, found.held_out) == (out, held_out)


def test_a_node_that_never_reported_is_out() -> None:
    """It has no condition at all."""
    found = seen({"status": GPUS})

    assert found is not None
    assert found.out


def test_labels_give_the_pool_and_say_who_wants_to_be_left_alone() -> None:
    """Both labels are the policy's."""
    labels = {"gpufleet.io/pool": "h100", "gpufleet.io/quarantine": "ignore"}
    found = seen({"metadata": {"labels": labels}, "status": {**GPUS, **READY}})

    assert found == Node("n", "h100", opted_out=True)
    other = seen({"metadata": {"labels": {"gpufleet.io/quarantine": "no"}}, "status": {**GPUS, **READY}})
    assert other == Node("n", "")


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_lone_taint_of_ours_is_a_mark(effect: str) -> None:
    """Somebody has taken the annotation off; a taint of our key with another effect is not what we write."""
    taints = [{"key": "gpufleet.io/quarantine", "value": "xid-79", "effect": effect}]
    found = seen({"spec": {"taints": taints}, "status": {**GPUS, **READY}})

    assert found is not None
    assert found.mark == (Mark("", 0.0, was_cordoned=True) if effect == "NoSchedule" else None)


def test_namespaces_that_opt_out_are_named() -> None:
    """Only those with exactly that value."""
    cluster = FakeCluster()
    for name, value in {"a": "ignore", "b": "yes", "c": "ignore"}.items():
        cluster.put(Place("namespaces", name), {"metadata": {"labels": {"gpufleet.io/quarantine": value}}})
    cluster.put(Place("namespaces", "d"))

    found = view(cluster.api(), Nodes(), lambda: NOW)

    assert found.at == NOW
    assert found.opted_out_namespaces == frozenset({"a", "c"})


@pytest.mark.parametrize("blind", ["nodes", "namespaces"])
def test_half_a_view_is_none(blind: str) -> None:
    """Without the namespaces a pod that opted out could be moved."""
    api = FakeCluster().api(meet=lambda call: Fault.LOST_REQUEST if call.place.resource == blind else Fault.NONE)

    with pytest.raises(UnobservableError, match=f"the cluster cannot be seen: list {blind}"):
        view(api, Nodes(), lambda: NOW)
