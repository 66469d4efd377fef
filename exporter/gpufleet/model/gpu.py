"""Who a GPU and a MIG slice are: what stays the same from one poll to the next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Static description of one GPU, as the driver gave it when it was opened."""

    uuid: str
    """``GPU-`` and 36 characters."""
    name: str
    pci_bus_id: str
    """``dddd:bb:dd.f`` in lower case, as in sysfs (the driver itself writes an eight-digit domain)."""
    serial: str | None = None
    architecture: str | None = None
    """Lower case: ``hopper``, ``ampere``, ..."""
    vbios_version: str | None = None
    minor: int | None = None
    """N of ``/dev/nvidiaN``; neither the driver's index nor ``number``."""


@dataclass(frozen=True, slots=True)
class SliceIdentity:
    """One MIG compute instance."""

    mig_uuid: str
    profile: str
    """Such as ``1g.10gb`` or ``1c.3g.40gb``."""
    gpu_instance: int
    compute_instance: int
    compute_fraction: float | None = None
    """Multiprocessors of this slice over those of the whole GPU."""
    memory_bytes: int | None = None
    carries_instance: bool = True
    """True for one compute instance of each GPU instance: it alone shows what the GPU instance shares (memory,
    activity).
    """
