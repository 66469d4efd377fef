"""PCI addresses as the driver has printed them over the years."""

from __future__ import annotations

import re

# Domain of at least four digits (the driver's %04x is a minimum: VMD and some clouds have wider ones), or none; bus of
# two, or of four where there is no domain (drivers before 180: "0009:00"); function only where a tool or the kernel
# printed the address: the driver's Xid lines have none. (kernel_rc.c, osinit.c of NVIDIA/open-gpu-kernel-modules.)
ADDRESS = r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}|[0-9a-fA-F]{4}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
"""Four groups, in the order of the arguments of ``normalise``."""


def normalise(domain: str | None, bus: str, device: str, function: str | None) -> str | None:
    """``dddd:bb:dd.f`` in lower case, a missing domain or function as 0; None when the bus is no byte."""
    number = int(bus, 16)
    if number > 0xFF:
        return None
    return f"{int(domain or '0', 16):04x}:{number:02x}:{device.lower()}.{function or '0'}"


def of(match: re.Match[str]) -> str | None:
    """Normalise the address that is the first four groups of a match."""
    return normalise(match[1], match[2], match[3], match[4])
