"""GPUs that come and go, as the kernel announces them.

Listens to the kernel's own messages, not to those of the udev daemon: containers have none, and a daemon's rules add
nothing that is needed here. The kernel sends them to the host's network namespace only.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpufleet.sources.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NVIDIA = 0x10DE
_DISPLAY_CLASS = 0x03
_BUFFER_BYTES = 1 << 20
"""Loading the driver on a node of sixteen GPUs sends hundreds of messages; what does not fit, the kernel drops."""


class Action(StrEnum):
    """What happened to a GPU."""

    ADD = "add"
    REMOVE = "remove"
    BIND = "bind"
    """A kernel driver took it."""
    UNBIND = "unbind"
    MISSED = "missed"
    """Messages were lost: enumerate anew."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """A change of one GPU on the PCI bus."""

    action: Action
    address: str | None
    """``dddd:bb:dd.f``, lower case; None with ``missed``."""
    driver: str | None = None
    """Kernel driver that has it at that moment."""


_MISSED = GpuEvent(Action.MISSED, None)
_ACTIONS = {action.value: action for action in Action if action is not Action.MISSED}


def parse_event(properties: Mapping[str, str], vendor: int = NVIDIA) -> GpuEvent | None:
    """The change that a kernel message tells of; None when it is not about a display device of ``vendor``.

    ``properties`` are the message's own: ACTION, SUBSYSTEM, PCI_CLASS (hexadecimal, without leading zeros), PCI_ID
    (``10DE:2330``), PCI_SLOT_NAME, and DRIVER while a driver has the device.
    """
    action = _ACTIONS.get(properties.get("ACTION", ""))
    address = properties.get("PCI_SLOT_NAME", "")
    if action is None or properties.get("SUBSYSTEM") != "pci" or not address:
        return None
    try:
        maker = int(properties.get("PCI_ID", "").partition(":")[0], 16)
        device_class = int(properties.get("PCI_CLASS", ""), 16)
    except ValueError:
        return None
    if maker != vendor or device_class >> 16 != _DISPLAY_CLASS:
        return None
    return GpuEvent(action, address.lower(), properties.get("DRIVER") or None)


class GpuEvents:
    """Events from the moment of construction on. Iterate in one thread; ``close`` ends the iteration from another."""

    def __init__(self, parse: Callable[[Mapping[str, str]], GpuEvent | None] = parse_event) -> None:
        """Start to listen; ``parse`` decides which messages about PCI devices are events.

        Raises:
            SourceError: there is no libudev, or the kernel gives no netlink socket (some sandboxes).
        """
        self._parse = parse
        try:
            # Imported here: it loads libudev, and starts a program to find it.
            import pyudev

            self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            self._monitor.filter_by("pci")
            self._monitor.set_receive_buffer_size(_BUFFER_BYTES)
            self._monitor.start()
        except ImportError as error:
            raise SourceError("udev", f"libudev can't be loaded ({error}); install libudev1") from error
        except OSError as error:
            raise SourceError("udev", f"the kernel's device messages can't be received ({error})") from error
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[GpuEvent]:
        """Block until something happens to a GPU and yield it; end after ``close``.

        Raises:
            SourceError: the socket failed.
        """
        waiting = select.poll()
        waiting.register(self._stop, select.POLLIN)
        waiting.register(self._monitor.fileno(), select.POLLIN)
        try:
            while True:
                ready = dict(waiting.poll())
                if self._stop in ready:
                    return
                lost = ready[self._monitor.fileno()] & select.POLLERR
                event = self._after_error() if lost else self._next()
                if event is not None:
                    yield event
        finally:
            with self._lock:
                self._ended = True
                os.close(self._stop)

    def _next(self) -> GpuEvent | None:
        try:
            device = self._monitor.poll(timeout=0)
        except OSError as error:
            raise SourceError("udev", f"the kernel's device messages can't be received any more ({error})") from error
        return None if device is None else self._parse(device.properties)

    def _after_error(self) -> GpuEvent:
        # Reading SO_ERROR clears it. pyudev refuses to read from a socket in error, and nothing else would clear it.
        with socket.socket(fileno=os.dup(self._monitor.fileno())) as same:
            code = same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # 0: an error that the read before met and cleared already.
        if code in {0, errno.ENOBUFS}:
            return _MISSED
        raise SourceError("udev", f"the kernel's device messages can't be received any more ({os.strerror(code)})")

    def close(self) -> None:
        """End the iteration; may be called from any thread and more than once."""
        with self._lock:
            if not self._ended:  # the number may be another file's by now
                os.eventfd_write(self._stop, 1)
