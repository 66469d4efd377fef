"""What systemd is told: the sd_notify protocol, one datagram a message, without libsystemd."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Supervisor:
    """The service manager that started this process; silent where there is none."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_seconds = _watchdog_seconds(environ, pid) if self._address else None
        """Within this time ``alive`` has to be called again and again; None: no watchdog."""

    def ready(self) -> None:
        """The endpoint answers. Whether there is a driver is no matter of starting up."""
        self._tell("READY=1")

    def alive(self) -> None:
        """The process still does its work."""
        if self.watchdog_seconds is not None:
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The process is about to end because it was asked to."""
        self._tell("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._tell(f"STATUS={text}")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        # "@" stands for the zero byte of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # A manager that is restarted has no socket for a moment; its word is not worth ours.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(message.encode(errors="replace"), address)


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    # Set for the main process only; a child inherits the variables and must not speak for it.
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    microseconds = environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdigit() and int(microseconds) else None
