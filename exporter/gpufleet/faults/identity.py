"""What an incident is called: fixed when it is opened, the same after a restart, never used twice."""

from __future__ import annotations

from collections.abc import Callable, Container

try:
    # The interpreter's own: hashlib would load libcrypto, four megabytes that nothing else in the exporter needs.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

DIGITS = 16


def incident_id(
    *,
    boot_id: str | None,
    pci_bus_id: str | None,
    sequence: int | None,
    standing: tuple[str, str] | None,
    random_id: Callable[[], str],
    taken: Container[str] = (),
) -> str:
    """The name of the incident that an event opens.

    ``standing`` is (UUID, condition) for what outlives the boot: it has the same name on every node and in every boot,
    so that it is the same incident after a reboot and with the state lost. An event of the kernel's log has its place
    in this boot's log for a name, so that reading the log again gives the same one. What has neither gets a random
    name, and another one when that is ``taken``.
    """
    if standing is not None:
        return _digest("standing", *standing)
    if sequence is not None:
        return _digest("event", boot_id or "", pci_bus_id or "", str(sequence))
    name = random_id()
    while name in taken:
        name = _digest("again", name)
    return name


def _digest(*parts: str) -> str:
    # Joined by what none of the parts can hold, so that two different tuples never are the same text.
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=DIGITS // 2).hexdigest()
