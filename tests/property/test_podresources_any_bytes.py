"""Whatever the kubelet sends, reading it gives its list or says that it is none; what it lists comes back."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.model.claims import ContainerDevices
from gpufleet.sources.podresources.unary import BrokenCall, RefusedCall, UnaryCall
from gpufleet.sources.podresources.wire import LONGEST_ID, LONGEST_NAME, LONGEST_RESOURCE, WireError, decode_list
from tests.support.kubelet import DRIVER, Container, PodOnNode, busy_node, pod_with, serialised
from tests.support.podresources_peer import HEAD, WELL, data, headers, hello, message, whole_reply
from tests.support.protobuf import delimited, varint

names = st.text(max_size=40)
resources = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "rdma/hca"]) | names
containers = st.builds(
    Container,
    names,
    st.lists(st.tuples(resources, st.lists(names, max_size=4).map(tuple)), max_size=4).map(tuple),
    st.lists(st.text(min_size=1, max_size=20), max_size=3).map(tuple),
    st.integers(0, 3),
)
pods = st.lists(st.builds(PodOnNode, names, names, st.lists(containers, max_size=3).map(tuple)), max_size=4)

REAL = [
    serialised([pod_with("ml", "train-0", "GPU-1", "GPU-2")]),
    serialised([PodOnNode("ml", "a", (Container("main", (("r", ("x",)),), ("gpu-0",), 2),))]),
    serialised(busy_node(pods=5, gpus=1)),
]
unknown = st.one_of(
    st.tuples(st.integers(10, 2**29 - 1), st.binary(max_size=20)).map(lambda each: delimited(*each)),
    st.tuples(st.integers(10, 2**29 - 1), st.integers(0, 2**64 - 1)).map(
        lambda each: varint(each[0] << 3) + varint(each[1])
    ),
)
nested = st.recursive(
    st.binary(max_size=12),
    lambda inner: st.lists(st.tuples(st.integers(0, 6), inner), max_size=4).map(
        lambda fields: b"".join(delimited(*field) for field in fields)
    ),
)
"""Messages in messages that mean something now and then."""
cut = st.tuples(st.sampled_from(REAL), st.integers(0, 90), st.binary(max_size=4), st.integers(0, 90)).map(
    lambda each: each[0][: each[1]] + each[2] + each[0][each[3] :]
)
PIECES = [
    hello(),
    headers(HEAD),
    headers(WELL, end=True),
    headers((*HEAD, ("grpc-status", "14"), ("grpc-message", "%00")), end=True),
    data(message(REAL[0])),
    data(message(REAL[0])[:7]),
    *(bytes.fromhex(f"000000{kind:02x}{flags:02x}00000001") for kind in range(11) for flags in (0, 1, 4, 0x2C)),
    bytes.fromhex("000004080000000000") + bytes(4),
]
frames = st.lists(st.sampled_from(PIECES) | st.binary(max_size=24), max_size=12).map(b"".join)
reply_cut = st.tuples(st.integers(0, 400), st.binary(max_size=6), st.integers(0, 400)).map(
    lambda each: whole_reply(REAL[0])[: each[0]] + each[1] + whole_reply(REAL[0])[each[2] :]
)


def expected(listed: list[PodOnNode]) -> list[ContainerDevices]:
    """What is to be read from these pods."""
    found = []
    for pod in listed:
        for container in pod.containers:
            ids: dict[tuple[str, bool], dict[str, None]] = {}
            for resource, devices in container.devices:
                if devices:
                    ids.setdefault((resource, False), {}).update(dict.fromkeys(devices))
            if container.claimed:
                ids[DRIVER, True] = dict.fromkeys(container.claimed)
            found += [
                ContainerDevices(pod.namespace, pod.name, container.name, resource, tuple(each), is_claim)
                for (resource, is_claim), each in ids.items()
            ]
    return found


@given(pods)
def test_what_is_listed_comes_back(listed: list[PodOnNode]) -> None:
    """Messages of Google's protobuf are read as they were meant."""
    assert sorted(decode_list(serialised(listed)), key=repr) == sorted(expected(listed), key=repr)


@given(names, names, names, names, st.lists(names, min_size=1, max_size=5, unique=True), unknown, unknown)
def test_unknown_fields_change_nothing(
    namespace: str, pod: str, container: str, resource: str, ids: list[str], before: bytes, after: bytes
) -> None:
    """At each level, before and after what is known."""

    def around(number: int, *fields: bytes) -> bytes:
        return delimited(number, before + b"".join(fields) + after)

    devices = around(2, *(delimited(2, each.encode()) for each in ids), delimited(1, resource.encode()))
    told = around(3, devices, delimited(1, container.encode()))

    assert decode_list(before + around(1, told, delimited(2, namespace.encode()), delimited(1, pod.encode()))) == (
        ContainerDevices(namespace, pod, container, resource, tuple(ids)),
    )


@given(st.one_of(st.binary(), nested, cut))
@example(b"\x0a\x03\x1a\x01\x12")
def test_any_bytes_are_a_list_or_none(raw: bytes) -> None:
    """Never another error; what is read is bounded by what came, and each name by Kubernetes' limits."""
    try:
        found = decode_list(raw)
    except WireError as error:
        assert 0 < len(str(error)) < 200  # noqa: PT017 - which of the two it is, is what is not known
        return
    assert sum(len(each.device_ids) for each in found) <= len(raw)
    for each in found:
        assert each.device_ids
        assert all(len(name.encode()) <= LONGEST_NAME for name in (each.namespace, each.pod, each.container))
        assert len(each.resource.encode()) <= LONGEST_RESOURCE
        assert all(len(device.encode()) <= LONGEST_ID for device in each.device_ids)


@given(st.one_of(st.binary(max_size=200), frames, reply_cut), st.sampled_from([1, 5, 1 << 16]))
def test_any_bytes_are_a_reply_or_none(raw: bytes, step: int) -> None:
    """Never another error than the two that say what is wrong, however the bytes are cut."""
    for begin in (b"", hello()):
        call = UnaryCall("/v1.PodResourcesLister/List", timeout=1.0)
        call.opening()
        sent = begin + raw
        try:
            for at in range(0, len(sent), step):
                call.receive(sent[at : at + step])
                if call.reply is not None:
                    break
        except (BrokenCall, RefusedCall) as error:
            assert len(str(error)) < 500  # noqa: PT017 - as above
            assert call.reply is None
