"""A kubelet's PodResources service on a unix socket, by grpcio; messages are made from a description, not by protoc.

A test says what the kubelet lists (``list_pods``), or how it fails: ``refuse``, ``hang``, ``stop``, ``kill``.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
DRIVER = "gpu.nvidia.com"
_LIMIT_SECONDS = 60.0
_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_NUMBER = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
# Message -> (number, name, type or message's name, repeated); after k8s.io/kubelet pkg/apis/podresources/v1/api.proto
_MESSAGES: dict[str, tuple[tuple[int, str, int | str, bool], ...]] = {
    "ListPodResourcesResponse": ((1, "pod_resources", "PodResources", True),),
    "PodResources": (
        (1, "name", _TEXT, False),
        (2, "namespace", _TEXT, False),
        (3, "containers", "ContainerResources", True),
        (4, "cpu_ids", _NUMBER, True),
        (5, "memory", "ContainerMemory", True),
    ),
    "ContainerResources": (
        (1, "name", _TEXT, False),
        (2, "devices", "ContainerDevices", True),
        (3, "cpu_ids", _NUMBER, True),
        (4, "memory", "ContainerMemory", True),
        (5, "dynamic_resources", "DynamicResource", True),
    ),
    "ContainerMemory": (
        (1, "memory_type", _TEXT, False),
        (2, "size", _NUMBER, False),
        (3, "topology", "TopologyInfo", False),
    ),
    "ContainerDevices": (
        (1, "resource_name", _TEXT, False),
        (2, "device_ids", _TEXT, True),
        (3, "topology", "TopologyInfo", False),
    ),
    "TopologyInfo": ((1, "nodes", "NUMANode", True),),
    "NUMANode": ((1, "ID", _NUMBER, False),),
    "DynamicResource": (
        (2, "claim_name", _TEXT, False),
        (3, "claim_namespace", _TEXT, False),
        (4, "claim_resources", "ClaimResource", True),
    ),
    "ClaimResource": (
        (1, "cdi_devices", "CDIDevice", True),
        (2, "driver_name", _TEXT, False),
        (3, "pool_name", _TEXT, False),
        (4, "device_name", _TEXT, False),
        (5, "share_id", _TEXT, False),
    ),
    "CDIDevice": ((1, "name", _TEXT, False),),
}


@dataclass(frozen=True, slots=True)
class Container:
    """A container and what the kubelet gave to it."""

    name: str
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(resource, device ids), as often as the kubelet lists them."""
    claimed: tuple[str, ...] = ()
    """Devices of NVIDIA's DRA driver, such as ``gpu-0``."""
    cpus: int = 0
    """How many CPUs the static CPU manager gave to it; there is memory listed with them."""


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A pod as PodResources lists it: without UID, labels and phase."""

    namespace: str
    name: str
    containers: tuple[Container, ...]


def pod_with(namespace: str, name: str, *ids: str, resource: str = GPU, container: str = "main") -> PodOnNode:
    """A pod whose one container has these devices; without any it has a container all the same."""
    return PodOnNode(namespace, name, (Container(container, ((resource, ids),) if ids else ()),))


def busy_node(pods: int = 250, gpus: int = 8, slices: int = 7) -> tuple[PodOnNode, ...]:
    """A full node: each slice in a pod of its own, the other pods without devices; two containers each."""
    held = [f"MIG-{gpu:08x}-{number:04x}-5000-8000-000000000000" for gpu in range(gpus) for number in range(slices)]
    return tuple(
        PodOnNode(
            f"team-{number % 17}",
            f"training-{number:04}-worker-{number % 8}-7c9d8f6b5d-x{number:04}",
            (
                Container("main", ((SLICE, (held[number],)),) if number < len(held) else (), cpus=16),
                Container("log-shipper", cpus=0),
            ),
        )
        for number in range(pods)
    )


def serialised(pods: Sequence[PodOnNode]) -> bytes:
    """The reply that lists these pods."""
    reply = _classes()["v1.ListPodResourcesResponse"]()
    for each in pods:
        listed = reply.pod_resources.add(name=each.name, namespace=each.namespace)
        for container in each.containers:
            _add(listed.containers.add(name=container.name), container, each.namespace)
    data: bytes = reply.SerializeToString()
    return data


def _add(listed: Any, container: Container, namespace: str) -> None:  # noqa: ANN401 - a class made at run time
    for resource, ids in container.devices:
        devices = listed.devices.add(resource_name=resource, device_ids=ids)
        devices.topology.nodes.add(ID=1)
    for device in container.claimed:
        claim = listed.dynamic_resources.add(claim_name=f"claim-{device}", claim_namespace=namespace)
        claimed = claim.claim_resources.add(driver_name=DRIVER, pool_name="node-1", device_name=device)
        claimed.cdi_devices.add(name=f"k8s.{DRIVER}/claim=0d1f7a52-{device}")
    if container.cpus:
        listed.cpu_ids.extend(range(container.cpus))
        listed.memory.add(memory_type="memory", size=64 << 30).topology.nodes.add(ID=1)


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, name, kind, repeated in fields:
            field = described.field.add(
                name=name,
                number=number,
                type=_MESSAGE if isinstance(kind, str) else descriptor_pb2.FieldDescriptorProto.Type.ValueType(kind),
                label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            )
            if isinstance(kind, str):
                field.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return found


class Kubelet:
    """The service at ``directory/kubelet.sock``. It starts without pods; as a context manager it starts and stops."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "kubelet.sock"
        self.calls = 0
        """How often it was asked, since it was made."""
        self._reply = b""
        self._refusal: tuple[grpc.StatusCode, str] | None = None
        self._answers = threading.Event()
        self._answers.set()
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def list_pods(self, pods: Sequence[PodOnNode]) -> None:
        """List these from now on; it answers again if it refused or hung."""
        self.reply_with(serialised(pods))

    def reply_with(self, message: bytes) -> None:
        """As ``list_pods``, with any bytes for the message."""
        self._reply = message
        self._refusal = None
        self._answers.set()

    def refuse(self, code: grpc.StatusCode, message: str) -> None:
        """Answer with an error from now on."""
        self._refusal = (code, message)
        self._answers.set()

    def hang(self) -> None:
        """Accept calls and leave them without an answer, until ``list_pods`` or another of these."""
        self._answers.clear()

    def start(self) -> None:
        """Serve, at a new socket in place of any that is there."""
        assert self._server is None, "it runs"
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(max_workers=4, thread_name_prefix="kubelet"))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._list)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """End; calls that are under way are broken off, and the socket is gone."""
        server, self._server = self._server, None
        if server is None:
            return
        hung = not self._answers.is_set()
        ended = server.stop(None)
        self._answers.set()  # after the calls are broken off, so that none is answered; a handler keeps its thread
        ended.wait(_LIMIT_SECONDS)
        self.socket.unlink(missing_ok=True)
        if hung:
            self._answers.clear()

    def kill(self) -> None:
        """End as by SIGKILL: the socket stays, and nobody listens at it."""
        self.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self.socket))

    def _list(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self._answers.wait(_LIMIT_SECONDS)
        if self._refusal is not None:
            context.abort(*self._refusal)
        return self._reply
