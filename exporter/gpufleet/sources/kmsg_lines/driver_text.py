"""What the driver says in one message: an Xid, an SXid, a lost GPU, a GPU that does not start, a stuck link.

The forms are those of NVIDIA/open-gpu-kernel-modules (kernel_rc.c, osinit.c, common_nvswitch.h, nv-tracepoint.h; tags
515 to 595) and of older drivers as reports show them. Every search is bounded, so that no text takes long.
"""

from __future__ import annotations

import re

from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.sources.kmsg_lines import details
from gpufleet.sources.kmsg_lines.address import ADDRESS, of

NVRM = "NVRM: "
NVSWITCH = "nvidia-nvswitch"

# The driver prints no function, tools that inject test lines do; MIG instances are decimal. The code ends at a comma,
# a blank or the end: "Xid (43, pid: 5678)" and "Xid 74:" are no form of the driver's.
_XID = re.compile(
    rf"Xid \((?:PCI:)?{ADDRESS}(?: GPU-I:([0-9]{{1,3}}))?(?: GPU-CI:([0-9]{{1,3}}))?\): ([0-9]{{1,5}})(?=[,\s]|\Z)"
)
_SXID = re.compile(rf"nvidia-nvswitch[0-9]{{1,3}}: SXid \((?:PCI:)?{ADDRESS}\): ([0-9]{{1,6}})(?=[,\s]|\Z)(?:, ?)?")
_SXID_TEXT = re.compile(r"(?:(Fatal|Non-fatal|Nonfatal)(?:, |\Z))?(?:Link (-?[0-9]{1,3})(?: |\Z))?", re.IGNORECASE)
# The second and third line of one SXid: "Severity 0 Engine instance 44 …" and "Data {0x0000002c, …}".
_SXID_FURTHER = ("Severity ", "Data {")

_LOST = re.compile(rf"GPU (?:at )?(?:PCI:)?{ADDRESS}(?:: GPU)? has fallen off the bus")
# At probe: three lines that are one message, which some loggers join with blanks.
_LOST_AT_PROBE = re.compile(rf"The NVIDIA GPU {ADDRESS}\s(?s:.{{0,160}}?)fallen off the bus and is not responding")
# pci_power_up of the kernel: the configuration space answers with all ones.
_INACCESSIBLE = re.compile(
    rf"nvidia {ADDRESS}: Unable to change power state from \w{{1,10}} to \w{{1,10}}, device inaccessible"
)
# Printed for every attempt to open the GPU, and then once more as "rm_init_adapter failed", which adds nothing.
_INIT_FAILED = re.compile(rf"(?:GPU {ADDRESS}: )?RmInitAdapter failed!(?: \([0-9a-fA-Fx:]{{1,40}}\))?")
# Peers are asked for their links over and over without an answer: calls into the driver hang. The line names no GPU.
_LINK_DISCOVERY = re.compile(
    r"(?:GPU[0-9]{1,3} )?knvlink\w{1,60}: (?:Getting peer[0-9]{1,3}(?:'s)? postRxDetLinkMask failed"
    r"|Failed to update Rx Detect Link mask)"
)


def parse_driver_text(text: str, *, at: float, source: str, sequence: int | None = None) -> FaultEvent | None:
    """The fault that a live message tells of; None when it tells of none.

    ``text`` must begin with the driver's own prefix: a process or a cgroup can get its name into the middle of a
    message, not to its beginning (for messages that ``believable`` lets through). ``at`` is Unix time. Takes any text,
    never raises, and takes time in proportion to the length at most.
    """
    if not text.startswith((NVRM, "nvidia")):
        return None
    return event_at(text, 0, at=at, source=source, sequence=sequence)


def event_at(line: str, start: int, *, at: float, source: str, sequence: int | None = None) -> FaultEvent | None:
    """The fault told by the driver's text that begins at ``start`` with a prefix of the driver's."""
    if line.startswith(NVRM, start):
        return _nvrm(line, start + len(NVRM), at, source, sequence)
    if line.startswith(NVSWITCH, start):
        return _sxid(line, start, at, source, sequence)
    lost = _INACCESSIBLE.match(line, start)
    return _lost(lost, at, source, sequence) if lost else None


def xid_at(line: str, start: int, *, at: float, source: str, sequence: int | None = None) -> FaultEvent | None:
    """The Xid that begins at ``start`` with the word itself."""
    match = _XID.match(line, start)
    if match is None:
        return None
    address = of(match)
    if address is None:
        return None
    code = int(match[7])
    told = details.read(code, line[match.end() :])
    return FaultEvent(
        kind=FaultKind.XID,
        at=at,
        source=source,
        pci_bus_id=address,
        code=code,
        gpu_instance=int(match[5]) if match[5] else None,
        compute_instance=int(match[6]) if match[6] else None,
        sequence=sequence,
        **told._asdict(),
    )


def _nvrm(line: str, start: int, at: float, source: str, sequence: int | None) -> FaultEvent | None:
    if line.startswith("Xid (", start):
        return xid_at(line, start, at=at, source=source, sequence=sequence)
    if line.startswith("GPU ", start) and (lost := _LOST.match(line, start)):
        return _lost(lost, at, source, sequence)
    if line.startswith("The NVIDIA GPU ", start) and (lost := _LOST_AT_PROBE.match(line, start)):
        return _lost(lost, at, source, sequence)
    if line.startswith(("GPU ", "RmInitAdapter "), start) and (failed := _INIT_FAILED.match(line, start)):
        address = of(failed) if failed[2] else None  # old drivers name no GPU
        return _plain(FaultKind.RM_INIT_FAILED, address, failed[0], at, source, sequence)
    if line.startswith(("GPU", "knvlink"), start) and (stuck := _LINK_DISCOVERY.match(line, start)):
        return _plain(FaultKind.NVLINK, None, stuck[0], at, source, sequence)
    return None


def _sxid(line: str, start: int, at: float, source: str, sequence: int | None) -> FaultEvent | None:
    match = _SXID.match(line, start)
    address = of(match) if match else None
    if match is None or address is None:
        return None
    rest = line[match.end() : match.end() + details.LONGEST_TEXT].partition("\n")[0].strip()
    word = _SXID_TEXT.match(rest)
    severity, link = (word[1], word[2]) if word else (None, None)
    return FaultEvent(
        kind=FaultKind.SXID,
        at=at,
        source=source,
        pci_bus_id=address,
        code=int(match[5]),
        text=rest,
        sequence=sequence,
        fatal=severity.lower() == "fatal" if severity else None,
        link=int(link) if link and link[0] != "-" else None,
        continues=rest.startswith(_SXID_FURTHER),
    )


def _lost(match: re.Match[str], at: float, source: str, sequence: int | None) -> FaultEvent | None:
    address = of(match)
    return _plain(FaultKind.GPU_LOST, address, match[0], at, source, sequence) if address else None


def _plain(kind: FaultKind, address: str | None, text: str, at: float, source: str, sequence: int | None) -> FaultEvent:
    return FaultEvent(
        kind=kind, at=at, source=source, pci_bus_id=address, text=" ".join(text.split()), sequence=sequence
    )
