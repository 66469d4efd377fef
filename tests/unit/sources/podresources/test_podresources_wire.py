"""The list of pods as bytes: what is taken from it, what is stepped over, and what is refused."""

from __future__ import annotations

import pytest

from gpufleet.model.claims import ContainerDevices
from gpufleet.sources.podresources.wire import LONGEST_ID, LONGEST_NAME, MOST_FIELDS, WireError, decode_list
from tests.support.kubelet import DRIVER, GPU, SLICE, Container, PodOnNode, busy_node, pod_with, serialised
from tests.support.protobuf import delimited, varint

WHOLE = serialised([pod_with("ml", "train-0", "GPU-1", "GPU-2")])
POD = delimited(1, b"train-0") + delimited(2, b"ml")


def listed(container: bytes) -> bytes:
    """A reply with one pod of one container."""
    return delimited(1, POD + delimited(3, container))


def test_a_container_is_listed_with_its_devices() -> None:
    """Namespace, pod, container, resource and ids come as the kubelet has them."""
    assert decode_list(WHOLE) == (ContainerDevices("ml", "train-0", "main", GPU, ("GPU-1", "GPU-2")),)


def test_no_pods_are_an_empty_message() -> None:
    """A node without pods answers with no bytes at all."""
    assert decode_list(b"") == ()


def test_pods_without_devices_are_left_out() -> None:
    """Of a full node only those that have a device are of interest."""
    found = decode_list(serialised(busy_node(pods=250, gpus=8, slices=7)))

    assert len(found) == 56
    assert {each.resource for each in found} == {SLICE}


def test_a_resource_that_is_listed_per_numa_node_is_one() -> None:
    """The kubelet repeats a resource for each NUMA node, and a plugin may repeat an id."""
    pod = PodOnNode("ml", "train-0", (Container("main", ((GPU, ("a", "b")), ("x/y", ("z",)), (GPU, ("c", "a")))),))

    assert decode_list(serialised([pod])) == (
        ContainerDevices("ml", "train-0", "main", GPU, ("a", "b", "c")),
        ContainerDevices("ml", "train-0", "main", "x/y", ("z",)),
    )


def test_claims_are_listed_by_their_driver() -> None:
    """Devices of a resource claim have no resource name: the driver's stands in its place."""
    pod = PodOnNode("ml", "train-0", (Container("main", ((GPU, ("a",)),), claimed=("gpu-0", "gpu-1")),))

    assert decode_list(serialised([pod])) == (
        ContainerDevices("ml", "train-0", "main", GPU, ("a",)),
        ContainerDevices("ml", "train-0", "main", DRIVER, ("gpu-0", "gpu-1"), is_claim=True),
    )


def test_a_driver_named_like_a_resource_stays_a_claim() -> None:
    """Ids of a plugin and names of claimed devices are looked up in different ways: they are not mixed."""
    claim = delimited(4, delimited(2, b"same") + delimited(4, b"gpu-0"))
    container = delimited(1, b"main") + delimited(2, delimited(1, b"same") + delimited(2, b"id")) + delimited(5, claim)

    assert decode_list(listed(container)) == (
        ContainerDevices("ml", "train-0", "main", "same", ("id",)),
        ContainerDevices("ml", "train-0", "main", "same", ("gpu-0",), is_claim=True),
    )


def test_claims_without_a_device_name_are_left_out() -> None:
    """Kubelets of the first alpha name CDI devices alone, which nothing can be looked up by."""
    claim = delimited(4, delimited(1, delimited(1, b"k8s.gpu.nvidia.com/claim=0d1f-gpu-0")))

    assert decode_list(listed(delimited(1, b"main") + delimited(5, claim))) == ()


def test_names_may_follow_what_they_name() -> None:
    """Protobuf orders no fields."""
    container = delimited(2, delimited(2, b"a") + delimited(1, b"r")) + delimited(1, b"main")

    assert decode_list(delimited(1, delimited(3, container) + POD)) == (
        ContainerDevices("ml", "train-0", "main", "r", ("a",)),
    )


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(delimited(77, b"what a later release adds"), id="text"),
        pytest.param(varint(77 << 3) + varint(2**64 - 1), id="number"),
        pytest.param(varint(77 << 3 | 1) + bytes(8), id="eight bytes"),
        pytest.param(varint(77 << 3 | 5) + bytes(4), id="four bytes"),
        pytest.param(varint(1 << 3) + varint(5), id="known number of another kind"),
    ],
)
def test_unknown_fields_are_stepped_over(unknown: bytes) -> None:
    """A later kubelet may say more, at each level."""
    devices = unknown + delimited(1, b"r") + unknown + delimited(2, b"a") + unknown
    container = unknown + delimited(1, b"main") + delimited(2, devices) + unknown

    assert decode_list(unknown + delimited(1, unknown + POD + delimited(3, container) + unknown) + unknown) == (
        ContainerDevices("ml", "train-0", "main", "r", ("a",)),
    )


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_a_message_that_breaks_off_is_refused(size: int) -> None:
    """There is one pod: wherever the message ends before its end, a field is cut."""
    with pytest.raises(WireError):
        decode_list(WHOLE[:size])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", "longer than what it is in", id="length of 4 GiB"),
        pytest.param(b"\x0a" + b"\xff" * 9 + b"\x01", "longer than what it is in", id="length of 2**64"),
        pytest.param(b"\x0a" + b"\xff" * 11, "does not end", id="number of eleven bytes"),
        pytest.param(b"\xff" * 200, "does not end", id="tag of many bytes"),
        pytest.param(b"\x0a", "does not end", id="no length"),
        pytest.param(b"\x02\x00", "without a number", id="field 0"),
        pytest.param(b"\x0b\x0c", "kind 3", id="group"),
        pytest.param(b"\x0e", "kind 6", id="kind that does not exist"),
        pytest.param(b"\x09\x00", "longer than what it is in", id="cut eight bytes"),
        pytest.param(b"\x0d\x00", "longer than what it is in", id="cut four bytes"),
        pytest.param(listed(delimited(2, delimited(2, b"\xff\xfe"))), "no UTF-8", id="id that is no UTF-8"),
        pytest.param(
            listed(delimited(1, b"m" * (LONGEST_NAME + 1)) + delimited(2, delimited(2, b"a"))),
            f"Kubernetes allows {LONGEST_NAME}",
            id="overlong name",
        ),
    ],
)
def test_what_is_no_list_of_pods_is_refused(message: bytes, says: str) -> None:
    """Each with what is wrong."""
    with pytest.raises(WireError, match=says):
        decode_list(message)


def test_an_overlong_id_costs_itself_only() -> None:
    """It is no GPU's, and its container may have one besides."""
    pod = pod_with("ml", "train-0", "x" * (LONGEST_ID + 1), "GPU-1", "y" * LONGEST_ID)

    (found,) = decode_list(serialised([pod]))

    assert found.device_ids == ("GPU-1", "y" * LONGEST_ID)


def test_overlong_resources_and_drivers_are_left_out() -> None:
    """No resource of Kubernetes' has such a name."""
    long = b"r" * 1000
    devices = delimited(2, delimited(1, long) + delimited(2, b"a"))
    claim = delimited(5, delimited(4, delimited(2, long) + delimited(4, b"gpu-0")))

    assert decode_list(listed(devices + claim)) == ()


def test_millions_of_tiny_fields_are_refused() -> None:
    """They would cost seconds; the number of fields is bounded at whatever level they stand."""
    empty_pods = b"\x0a\x00" * (MOST_FIELDS + 1)
    empty_containers = delimited(1, b"\x1a\x00" * (MOST_FIELDS + 1))

    for message in (empty_pods, empty_containers):
        with pytest.raises(WireError, match=f"more than {MOST_FIELDS} fields"):
            decode_list(message)


def test_nesting_without_end_ends_where_the_message_does() -> None:
    """A message inside itself a thousand times is an unknown text at the depth at which nothing is known."""
    nested = b""
    for _ in range(1000):
        nested = delimited(3, nested)

    assert decode_list(delimited(1, nested)) == ()


def test_ten_megabytes_that_are_not_needed_are_stepped_over() -> None:
    """What is not read is not looked at, however long."""
    assert decode_list(delimited(1, POD + delimited(5, bytes(10 << 20)))) == ()
