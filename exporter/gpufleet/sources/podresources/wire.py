"""``ListPodResourcesResponse`` in protobuf's wire format, read without the generated classes. Pure.

Only what names a device is decoded: CPUs, memory and topology are stepped over, which is most of what a kubelet with
static managers sends. Field numbers are those of k8s.io/kubelet, pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.model.claims import ContainerDevices

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_NAME = 253
"""Bytes of a namespace's, a pod's or a container's name: Kubernetes allows no more (DNS subdomain)."""
LONGEST_RESOURCE = 317
"""Bytes of a resource's or driver's name: a DNS subdomain, a slash and 63 more."""
LONGEST_ID = 256
"""Bytes of a device's id. The longest that names a GPU is far shorter; a longer one is some other plugin's."""
MOST_FIELDS = 400_000
"""More than the kubelet's own limit of 16 MiB holds of real ids; tiny fields could cost seconds instead."""

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5

# ListPodResourcesResponse
_POD = 1
# PodResources
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINER = 1, 2, 3
# ContainerResources
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 1, 2, 5
# ContainerDevices
_RESOURCE, _DEVICE_ID = 1, 2
# DynamicResource, ClaimResource
_CLAIM_RESOURCE = 4
_DRIVER, _DEVICE = 2, 4


class WireError(ValueError):
    """These bytes are not such a message; says what is wrong where."""


def decode_list(message: bytes) -> tuple[ContainerDevices, ...]:
    """The devices of each container that has any, in the order of the message.

    One entry per container and resource, and per container and driver of its claims: the kubelet lists a resource once
    for each NUMA node. An id that is listed twice is there once. Ids longer than ``LONGEST_ID`` and resources longer
    than ``LONGEST_RESOURCE`` are left out: they are no GPU's, and their container may have one besides.

    Raises:
        WireError: it breaks off, is no protobuf, or has a name that Kubernetes does not allow.
    """
    reader = _Reader(message)
    found: list[ContainerDevices] = []
    for number, at, end in reader.fields(0, len(message)):
        if number == _POD:
            _read_pod(reader, at, end, found)
    return tuple(found)


def _read_pod(reader: _Reader, at: int, end: int, found: list[ContainerDevices]) -> None:
    name = namespace = (0, 0)
    held: list[tuple[str, dict[tuple[str, bool], dict[str, None]]]] = []
    for number, start, stop in reader.fields(at, end):
        if number == _POD_CONTAINER:
            container = _read_container(reader, start, stop)
            if container is not None:
                held.append(container)
        elif number == _POD_NAME:
            name = (start, stop)
        elif number == _POD_NAMESPACE:
            namespace = (start, stop)
    if not held:  # most pods: their names are not even decoded
        return
    pod_text, namespace_text = reader.name(*name), reader.name(*namespace)
    for container_text, devices in held:
        for (resource, is_claim), ids in devices.items():
            found.append(ContainerDevices(namespace_text, pod_text, container_text, resource, tuple(ids), is_claim))


def _read_container(reader: _Reader, at: int, end: int) -> tuple[str, dict[tuple[str, bool], dict[str, None]]] | None:
    """Name and (resource, is a claim) -> ids, or ``None`` for a container without devices."""
    name = (0, 0)
    devices: dict[tuple[str, bool], dict[str, None]] = {}
    for number, start, stop in reader.fields(at, end):
        if number == _CONTAINER_NAME:
            name = (start, stop)
        elif number == _CONTAINER_DEVICES:
            _read_devices(reader, start, stop, devices)
        elif number == _CONTAINER_DYNAMIC:
            for claimed, claim_at, claim_end in reader.fields(start, stop):
                if claimed == _CLAIM_RESOURCE:
                    _read_claim(reader, claim_at, claim_end, devices)
    return (reader.name(*name), devices) if devices else None


def _read_devices(reader: _Reader, at: int, end: int, devices: dict[tuple[str, bool], dict[str, None]]) -> None:
    resource = (0, 0)
    ids: list[str] = []
    for number, start, stop in reader.fields(at, end):
        if number == _DEVICE_ID:
            if stop - start <= LONGEST_ID:
                ids.append(reader.text(start, stop))
        elif number == _RESOURCE:
            resource = (start, stop)
    if ids and resource[1] - resource[0] <= LONGEST_RESOURCE:
        devices.setdefault((reader.text(*resource), False), {}).update(dict.fromkeys(ids))


def _read_claim(reader: _Reader, at: int, end: int, devices: dict[tuple[str, bool], dict[str, None]]) -> None:
    driver = device = (0, 0)
    for number, start, stop in reader.fields(at, end):
        if number == _DRIVER:
            driver = (start, stop)
        elif number == _DEVICE:
            device = (start, stop)
    # Kubelets older than the fields for driver and device name CDI devices alone: nothing there can be looked up.
    if driver[0] < driver[1] <= driver[0] + LONGEST_RESOURCE and device[0] < device[1] <= device[0] + LONGEST_ID:
        devices.setdefault((reader.text(*driver), True), {})[reader.text(*device)] = None


class _Reader:
    """A message of which at most ``MOST_FIELDS`` fields are looked at, nested ones included."""

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MOST_FIELDS

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end of each length-delimited field in between; any other kind has nothing that we read."""
        data = self._data
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise WireError(f"more than {MOST_FIELDS} fields")
            begin = at
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = self._varint(begin, end)
            if tag < 1 << 3:
                raise WireError(f"a field without a number at byte {begin}")
            kind = tag & 7
            if kind == _DELIMITED:
                # Nearly every length is a single byte: calling a function for each would double the time.
                if at < end and data[at] <= 0x7F:
                    size = data[at]
                    at += 1
                else:
                    size, at = self._varint(at, end)
                stop = at + size
                if stop > end:
                    raise WireError(f"the field at byte {begin} is longer than what it is in")
                yield tag >> 3, at, stop
                at = stop
            elif kind == _VARINT:
                _, at = self._varint(at, end)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
                if at > end:
                    raise WireError(f"the field at byte {begin} is longer than what it is in")
            else:
                raise WireError(f"a field of kind {kind} at byte {begin}")

    def name(self, at: int, end: int) -> str:
        """Text of a name of Kubernetes'."""
        if end - at > LONGEST_NAME:
            raise WireError(f"a name of {end - at} bytes at byte {at}: Kubernetes allows {LONGEST_NAME}")
        return self.text(at, end)

    def text(self, at: int, end: int) -> str:
        """Text in between."""
        try:
            return self._data[at:end].decode()
        except UnicodeDecodeError as error:
            raise WireError(f"a text that is no UTF-8 at byte {at}") from error

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        for position in range(at, min(end, at + 10)):
            byte = self._data[position]
            value |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return value, position + 1
            shift += 7
        raise WireError(f"a number at byte {at} that does not end")
