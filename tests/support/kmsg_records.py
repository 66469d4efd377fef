"""Records of the kernel's log as /dev/kmsg gives them, with the driver's texts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

KERNEL, USER = 0, 1
"""Facilities: who wrote the record."""

XIDS = {
    62: "3ac8(2a28) 00000000 00000000",
    64: "Row Remapper Error: (0x00000002eebc4100) - All reserved rows for bank are remapped",
    79: "pid=1234, name=python3, GPU has fallen off the bus.",
    95: "pid=7062, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    119: "pid=1234, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! "
    "Expected function 76 (GSP_RM_CONTROL) (0x1 0x8).",
    143: "GPU Initialization Error: 0x00000062",
}
"""What the driver says after the number."""


def record(
    sequence: int, text: str, *, at: float | None = None, facility: int = KERNEL, level: int = 2, flags: str = "-"
) -> bytes:
    """One record and its line end; ``at`` is on the scale of CLOCK_MONOTONIC, now unless given."""
    stamp = time.monotonic() if at is None else at
    return f"{facility << 3 | level},{sequence},{int(stamp * 1e6)},{flags};{text}\n".encode()


def xid(code: int, pci_bus_id: str, text: str | None = None) -> str:
    """An Xid as the driver prints it; it leaves the function out."""
    said = XIDS.get(code, "") if text is None else text
    return f"NVRM: Xid (PCI:{pci_bus_id.rpartition('.')[0]}): {code}{', ' if said else ''}{said}"


def sxid(code: int, pci_bus_id: str, text: str = "Non-fatal, Link 46 Minion Link NETIR error") -> str:
    """An SXid of a switch."""
    return f"nvidia-nvswitch0: SXid (PCI:{pci_bus_id}): {code}, {text}"


class RecordFile:
    """A regular file of records, which is read from its beginning after every start, as the kernel's log is."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path = path
        self.next = first
        """Number of the next record."""
        path.touch()

    def say(self, text: str, *, at: float | None = None, facility: int = KERNEL, flags: str = "-") -> int:
        """Append a record by one write; its number."""
        self.next += 1
        self._write(record(self.next - 1, text, at=at, facility=facility, flags=flags))
        return self.next - 1

    def _write(self, content: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def scroll(self) -> None:
        """Begin a new file with nothing in it, as the ring does when other messages have overwritten everything."""
        self.path.unlink()
        self.path.write_bytes(record(self.next, "eth0: link is up"))
        self.next += 1

    def lines(self) -> Iterator[bytes]:
        """Every record that is in it."""
        yield from self.path.read_bytes().splitlines()
