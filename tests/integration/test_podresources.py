"""The kubelet's list from a real gRPC server: large, refused, hanging, restarted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from gpufleet.model.claims import ContainerDevices
from gpufleet.sources.podresources.client import PodResources, PodResourcesError
from gpufleet.sources.podresources.unary import LARGEST_REPLY
from tests.support.kubelet import DRIVER, GPU, Container, Kubelet, PodOnNode, busy_node, pod_with
from tests.support.protobuf import delimited
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENT = 30.0


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """A kubelet without pods."""
    with Kubelet(tmp_path) as kubelet:
        yield kubelet


@pytest.fixture
def resources(kubelet: Kubelet) -> PodResources:
    """Its client."""
    return PodResources(kubelet.socket, timeout=PATIENT)


def told(resources: PodResources) -> str:
    """What a call says went wrong."""
    with pytest.raises(PodResourcesError) as failed:
        resources.list()
    return str(failed.value)


def test_a_node_without_pods_has_no_holders(resources: PodResources) -> None:
    """The reply is empty, which is an answer."""
    assert resources.list() == ()


def test_a_full_node_is_listed(kubelet: Kubelet, resources: PodResources) -> None:
    """250 pods, of which 56 have a slice."""
    kubelet.list_pods(busy_node(250, gpus=8, slices=7))

    found = resources.list()

    assert len({(each.namespace, each.pod) for each in found}) == 56
    assert len({each.device_ids for each in found}) == 56


def test_every_kind_of_holder_is_listed(kubelet: Kubelet, resources: PodResources) -> None:
    """Plugin and claim, two containers of one pod, a device that two share, and one that no GPU has."""
    kubelet.list_pods(
        [
            PodOnNode("ml", "a", (Container("x", ((GPU, ("GPU-1::0",)),)), Container("y", claimed=("gpu-2",)))),
            pod_with("ml", "b", "GPU-1::1"),
            pod_with("hpc", "c", "0000:1a:00.0", resource="rdma/hca"),
            pod_with("web", "d"),
        ]
    )

    assert resources.list() == (
        ContainerDevices("ml", "a", "x", GPU, ("GPU-1::0",)),
        ContainerDevices("ml", "a", "y", DRIVER, ("gpu-2",), is_claim=True),
        ContainerDevices("ml", "b", "main", GPU, ("GPU-1::1",)),
        ContainerDevices("hpc", "c", "main", "rdma/hca", ("0000:1a:00.0",)),
    )


def test_pods_that_are_over_are_listed_as_the_kubelet_does(kubelet: Kubelet, resources: PodResources) -> None:
    """Older kubelets list completed pods: two then have one device, and both are told."""
    kubelet.list_pods(
        [pod_with("ml", "done", "GPU-1"), pod_with("ml", "next", "GPU-1"), pod_with("ml", "next", "GPU-1")]
    )

    assert [each.pod for each in resources.list()] == ["done", "next", "next"]


@pytest.mark.parametrize("size", [65_535, 65_536, 1 << 20, 10 << 20, LARGEST_REPLY - 1000])
def test_a_reply_larger_than_a_window_arrives(kubelet: Kubelet, resources: PodResources, size: int) -> None:
    """A server sends what there is credit for: ours is enough for all at once."""
    pod = delimited(1, delimited(1, b"a") + delimited(3, delimited(2, delimited(1, b"r") + delimited(2, b"x"))))
    kubelet.reply_with(pod + delimited(9, bytes(size)) + pod)

    assert len(resources.list()) == 2


def test_a_reply_larger_than_any_kubelets_is_refused(kubelet: Kubelet, resources: PodResources) -> None:
    """It is given up when its length is known."""
    kubelet.reply_with(bytes(LARGEST_REPLY + 1))

    assert "16 MiB are read at most" in told(resources)


@pytest.mark.parametrize(
    ("code", "message", "says"),
    [
        (grpc.StatusCode.UNAVAILABLE, "server not ready", "UNAVAILABLE: server not ready): it is starting or ending"),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service", "use Kubernetes 1.20 or newer"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit", "rejected by rate limit): it limits how often"),
        (grpc.StatusCode.INTERNAL, "", "refuses (INTERNAL): see the kubelet's log"),
        (grpc.StatusCode.DATA_LOSS, "ä\n\x1b[31m€", "refuses (status 15: ä  [31m€)"),
        (grpc.StatusCode.UNKNOWN, "x" * 5000, "x" * 300 + "…"),
    ],
)
def test_a_refusal_says_why(
    kubelet: Kubelet, resources: PodResources, code: grpc.StatusCode, message: str, says: str
) -> None:
    """Its name, what the kubelet says of it, and the remedy where there is one."""
    kubelet.refuse(code, message)

    assert says in told(resources)
    kubelet.list_pods([pod_with("ml", "a", "GPU-1")])
    assert len(resources.list()) == 1


def test_a_server_without_the_service_is_no_kubelet(tmp_path: Path) -> None:
    """Any other gRPC server, such as a device plugin at its own socket."""
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    server.add_insecure_port(f"unix:{tmp_path / 'other.sock'}")
    server.start()
    try:
        assert "it has no PodResources v1" in told(PodResources(tmp_path / "other.sock", timeout=PATIENT))
    finally:
        server.stop(None).wait(PATIENT)


def test_a_kubelet_that_hangs_costs_the_time_limit(kubelet: Kubelet) -> None:
    """And when it goes on, the next call is answered."""
    kubelet.list_pods([pod_with("ml", "a", "GPU-1")])
    kubelet.hang()

    said = told(PodResources(kubelet.socket, timeout=0.3))

    assert "the kubelet is overloaded or hangs" in said
    kubelet.list_pods([pod_with("ml", "b", "GPU-1")])
    assert [each.pod for each in PodResources(kubelet.socket, timeout=PATIENT).list()] == ["b"]


def test_a_restart_is_followed(kubelet: Kubelet, resources: PodResources) -> None:
    """Killed, the socket stays; started again, it is another one at the same path."""
    kubelet.list_pods([pod_with("ml", "a", "GPU-1")])
    assert len(resources.list()) == 1

    kubelet.kill()
    assert "nobody listens" in told(resources)

    kubelet.start()
    assert len(resources.list()) == 1

    kubelet.stop()
    assert "not there" in told(resources)


def test_a_kubelet_that_ends_within_a_call_breaks_it_off(kubelet: Kubelet, resources: PodResources) -> None:
    """Whoever waits for an answer hears at once that there will be none."""
    kubelet.hang()
    said: list[str] = []
    caller = threading.Thread(target=lambda: said.append(told(resources)))
    caller.start()
    until(lambda: kubelet.calls == 1, "the call is under way")

    kubelet.kill()

    caller.join(PATIENT)
    assert not caller.is_alive()
    assert said
    assert "within" not in said[0]


def test_each_call_is_a_question(kubelet: Kubelet, resources: PodResources) -> None:
    """Nothing is kept from one call to the next."""
    for number in range(5):
        kubelet.list_pods([pod_with("ml", f"pod-{number}", "GPU-1")])
        assert [each.pod for each in resources.list()] == [f"pod-{number}"]

    assert kubelet.calls == 5
