"""Messages that are no faults and yet tell something: who a GPU is, and what was not printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.sources.kmsg_lines.address import ADDRESS, of

# Printed once a GPU before its first Xid; older drivers without "PCI:" (krcLogUuidOnce of kernel_rc.c).
_IDENTITY = re.compile(rf"NVRM: GPU at (?:PCI:)?{ADDRESS}: (GPU(?:-[0-9a-fA-F]{{4,12}}){{5}})(?![-0-9a-fA-F])")
# kernel_gsp.c: after three timeouts of the GPU's system processor only one in so many is printed.
_GSP_TIMEOUTS = re.compile(
    rf"NVRM: Rate limiting GSP RPC error prints for GPU at (?:PCI:)?{ADDRESS} \(printing 1 of every ([0-9]{{1,6}})\)"
)
# lib/ratelimit.c of the kernel, and its printk of before.
_CALLBACKS = re.compile(r"([\w.]{1,64}): ([0-9]{1,10}) (?:callbacks|messages) suppressed")


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Somebody prints less than happens."""

    by: str
    """Function of the kernel, or ``gsp`` for the driver's timeouts of the GPU's system processor (Xid 119)."""
    lines: int | None
    """How many were held back until now; None when it is said for what is to come."""
    one_in: int | None
    """Of how many only one is printed from now on."""
    pci_bus_id: str | None
    """The GPU it is about."""


def harvest_identity(text: str) -> tuple[str, str] | None:
    """PCI address and UUID of a GPU, from a message that begins with the driver's prefix.

    After a GPU was exchanged the same address comes with another UUID. For saved lines pass ``saved.driver_text``.
    """
    match = _IDENTITY.match(text)
    address = of(match) if match else None
    return (address, "GPU-" + match[5][4:].lower()) if match and address else None


def held_back(text: str) -> HeldBack | None:
    """What a notice of rate limiting says; None when the message is none. It is no fault."""
    if match := _GSP_TIMEOUTS.match(text):
        return HeldBack("gsp", None, int(match[5]), of(match))
    if match := _CALLBACKS.match(text):
        return HeldBack(match[1], int(match[2]), None, None)
    return None
