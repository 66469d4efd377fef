"""Ports of RDMA adapters and what they counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NicIdentity:
    """One port; an empty text is unknown."""

    nic: str
    """The kernel's name of the adapter, such as ``mlx5_0``."""
    port: str
    netdev: str = ""
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet``."""
    pci_bus_id: str = ""
    """``dddd:bb:dd.f`` in lower case."""
    numa_node: str = ""
    gpu: str = ""
    """Number of the GPU nearest by PCIe."""


@dataclass(frozen=True, slots=True)
class NicPort:
    """A port and its readings; ``None`` is what the adapter does not report."""

    identity: NicIdentity
    link_up: bool | None = None
    rate: float | None = None
    """Bytes a second that the link can carry."""
    received: int | None = None
    transmitted: int | None = None
    """Bytes of RDMA since the driver was loaded."""
    retransmits: tuple[tuple[str, int], ...] = ()
    """(what showed the loss, packets)."""
