"""A record of /dev/kmsg: what the kernel itself vouches for, apart from what the text says."""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNEL = 0
"""Facility of the kernel's own messages. Whoever writes to /dev/kmsg gets another: the kernel sees to it."""

# Numbers of at most 64 bits; what follows the flags may grow.
_RECORD = re.compile(rb"([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,20})(?:,([^,;\n]{0,16})[^;\n]{0,256})?;([^\n]*)")
_PIECE = frozenset({b"c", b"+"})
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One message of the kernel log."""

    facility: int
    """0 is the kernel."""
    level: int
    """0 (emergency) to 7 (debug)."""
    sequence: int
    """Counts up by one a record within a boot."""
    microseconds: int
    """Since boot, by a clock that stops while the machine is suspended."""
    text: str
    """The message, escapes undone; a message of several lines keeps its line ends."""
    fragment: bool
    """Part of a line that the kernel put out in pieces."""


def parse_record(raw: bytes) -> KmsgRecord | None:
    r"""What one read of /dev/kmsg returned; None when it is no record, as the key-value lines after one are none.

    The form is ``priority,sequence,microseconds,flags[,more…];text``, then lines of ``KEY=value`` that start with a
    blank (Documentation/ABI/testing/dev-kmsg). Bytes below 0x20, above 0x7e and the backslash come as ``\xNN``.
    """
    match = _RECORD.match(raw)
    if match is None:
        return None
    number, sequence, microseconds, flags, body = match.groups()
    if b"\\x" in body:
        body = _ESCAPE.sub(_byte, body)
    priority = int(number)
    return KmsgRecord(
        priority >> 3,
        priority & 7,
        int(sequence),
        int(microseconds),
        body.decode("utf-8", "replace"),
        # "c" marks a piece; kernels before commit 5aa068ea4082 marked every piece but the first "+".
        flags in _PIECE,
    )


def believable(record: KmsgRecord, *, accept_userspace: bool = False) -> bool:
    """Whether the kernel wrote the text from its start, so that a driver's prefix there is the driver's.

    A piece of a line is not believed: the kernel prints the bare name of a cgroup in pieces (``pr_cont_cgroup_name``),
    and a tenant chooses that name. The driver puts out whole lines. ``accept_userspace`` takes everything, for tests.
    """
    return accept_userspace or (record.facility == KERNEL and not record.fragment)


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes((int(escape[1], 16),))
