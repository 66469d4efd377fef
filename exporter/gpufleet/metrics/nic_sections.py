"""Series of the node's RDMA adapters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import Family
from gpufleet.metrics.labels import pairs
from gpufleet.model.nic import NicIdentity, NicPort
from gpufleet.model.readings import Number

Describe = Callable[..., tuple[str, Sequence[tuple[Family, str]]]]
"""Gives the subject's labels and, for each value, the family and the other labels."""


def nic_rows(
    node: str, ports: Sequence[NicPort]
) -> Iterator[tuple[Describe, tuple[object, ...], tuple[Number | None, ...]]]:
    """A way to describe, its arguments and the values, for each port."""
    for port in ports:
        values: tuple[Number | None, ...] = (
            1,
            port.link_up,
            port.rate,
            port.received,
            port.transmitted,
            *[count for _, count in port.retransmits],
        )
        yield describe_port, (node, port.identity, tuple([kind for kind, _ in port.retransmits])), values


def describe_port(node: str, identity: NicIdentity, kinds: tuple[str, ...]) -> tuple[str, list[tuple[Family, str]]]:
    """All that a port can report."""
    about = (
        ("node", node),
        ("netdev", identity.netdev),
        ("link_layer", identity.link_layer),
        ("pci_bus_id", identity.pci_bus_id),
        ("numa_node", identity.numa_node),
        ("gpu", identity.gpu),
    )
    retransmits = FAMILIES["nic_retransmits_total"]
    return pairs((("nic", identity.nic), ("port", identity.port))), [
        (FAMILIES["nic_info"], pairs(about)),
        (FAMILIES["nic_link_up"], ""),
        (FAMILIES["nic_rate_bytes_per_second"], ""),
        (FAMILIES["nic_receive_bytes_total"], ""),
        (FAMILIES["nic_transmit_bytes_total"], ""),
        *[(retransmits, pairs((("kind", kind),))) for kind in kinds],
    ]
