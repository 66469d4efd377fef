"""When an incident may be shown, and when what comes later makes another one of it.

A fault is a chain of lines, and the first is not always the worst. What can be nothing but a fault of this GPU is shown
at once; what may be repaired within the next lines waits for those; what may be the echo of another GPU's fault waits
until that GPU has spoken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.model.fault import FaultKind

if TYPE_CHECKING:
    from gpufleet.faults.entry import Entry
    from gpufleet.model.fault import FaultEvent

PROPAGATION_SECONDS = 5.0
"""Lines of one root follow each other within this time; the weightiest of them is the root. (arXiv 2503.11901.)"""
CHAIN_SECONDS = 30.0
"""Timeouts are repeated every 6 s, and a fabric reports a lost GPU up to 12 s late: until then it is one chain."""
BURST_SECONDS = 180.0
"""Silence that ends a burst of lines. (NVIDIA Fleet Intelligence, NVSentinel.)"""
STICKY_SECONDS = 3 * 3600.0
"""… of a fault whose echoes come for hours: every program that tries the GPU adds a line."""
QUIET_SECONDS = 3 * 3600.0
"""Silence that closes an incident which needs no cure."""

_AT_ONCE, _AFTER_REPAIR, _AFTER_PEERS = 0.0, 5.0, 30.0
_DELAYS = {
    **dict.fromkeys((79, 64, 95, 119, 62, 143), _AT_ONCE),
    **dict.fromkeys((48, 63, 94, 140), _AFTER_REPAIR),
    **dict.fromkeys((74, 149), _AFTER_PEERS),
}
# Xids of links, which a fault elsewhere can cause: NVLink 5's units, training, access to peers.
LINK_XIDS = frozenset({74, 108, 136, 137, 155, *range(144, 151)})


def delay_of(event: FaultEvent, entry: Entry) -> float:
    """Seconds to wait after this event before an incident that rests on it is shown."""
    match event.kind:
        case FaultKind.GPU_LOST:
            return _AT_ONCE
        case FaultKind.SXID | FaultKind.NVLINK:
            return _AFTER_PEERS
        case FaultKind.XID if event.code in _DELAYS:
            return _DELAYS[event.code]
    # What the design does not name: a dead GPU soon, a link or a program's fault when its peers have spoken.
    return _AFTER_REPAIR if entry.isolates and event.code not in LINK_XIDS else _AFTER_PEERS
