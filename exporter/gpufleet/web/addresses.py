"""Listen addresses: the text of ``--web.listen-address`` to listening sockets; and what a peer is called."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from dataclasses import dataclass

# Connections that wait between two turns of the accept loop: more than scrapers that come at once, as after a restart.
_BACKLOG = 512
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^\[\]:/]*)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65_535
_UNIX = "unix:"
_LONGEST_PATH = 107  # sizeof(sun_path) less its end, unix(7)
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred, unix(7)
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


class ListenError(Exception):
    """An address that cannot be listened on; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host ("" for every address of the machine) and a port (0 for one that the kernel chooses), or a path."""

    host: str
    port: int
    path: str = ""
    """Of a unix socket, which has neither host nor port."""

    def __str__(self) -> str:
        """Return the address as one writes it."""
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Parse ``:9837``, ``127.0.0.1:9837``, ``localhost:9837``, ``[::1]:9837`` or ``unix:/run/gpufleet/faults.sock``.

    Raises:
        ListenError: anything else.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > _LONGEST_PATH:
            raise ListenError(
                f"{text!r} is no listen address: write unix: and an absolute path of at most {_LONGEST_PATH} bytes"
            )
        return ListenAddress("", 0, path)
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _HIGHEST_PORT:
        raise ListenError(
            f"{text!r} is no listen address: write HOST:PORT, :PORT or [IPV6]:PORT, with a port up to 65535"
        )
    if found["v6"] is not None and ":" not in found["v6"]:
        raise ListenError(f"{text!r} is no listen address: brackets are for IPv6 addresses, such as [::1]:9837")
    return ListenAddress(found["v6"] or found["host"] or "", int(found["port"]))


def listen(address: ListenAddress) -> socket.socket:
    """Return a non-blocking listening socket on address; a host of "" or "::" serves IPv6 and IPv4 with one socket.

    Raises:
        ListenError: the host has no address, or the port is taken, privileged or not on this machine.
    """
    if address.path:
        return _listen_at(address)
    if address.host in {"", "::"}:
        try:
            return _bound(socket.AF_INET6, ("::", address.port), dual_stack=True)
        except OSError as error:
            # A kernel booted with ipv6.disable=1 has no AF_INET6; one with the sysctl disable_ipv6 has no "::".
            if address.host or error.errno not in _NO_IPV6:
                raise _listen_error(address, error) from error
        address = ListenAddress("0.0.0.0", address.port)
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"cannot listen on {address}: the host is not known; check the name or use an address"
        ) from error
    # A name with both, such as localhost, means IPv4 to most who write it, and to the Go programs beside us.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    try:
        return _bound(family, where, dual_stack=False)
    except OSError as error:
        raise _listen_error(address, error) from error


def _listen_at(address: ListenAddress) -> socket.socket:
    """A unix socket that everybody may connect to, in the place of one that nobody listens on any more."""
    from pathlib import Path  # brings urllib, which an endpoint on a port alone does not pay for

    path = Path(address.path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                try:
                    asking.settimeout(0)
                    asking.connect(address.path)
                except ConnectionRefusedError:
                    path.unlink()
        listener.bind(address.path)
        # Who may have an answer is decided by the credentials that the kernel vouches for, not by the file.
        path.chmod(0o666)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise _listen_error(address, error) from error
    return listener


def _bound(family: int, where: tuple[object, ...], *, dual_stack: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart fails for a minute while the old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_error(address: ListenAddress, error: OSError) -> ListenError:
    remedies = {
        errno.ENOENT: "make its directory",
        errno.EADDRINUSE: f"stop the program that has it or choose another {'path' if address.path else 'port'}",
        errno.EACCES: "choose a directory that this user may write to"
        if address.path
        else "choose a port from 1024 up or grant CAP_NET_BIND_SERVICE",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    remedy = remedies.get(error.errno or 0)
    return ListenError(f"cannot listen on {address}: {reason}" + (f"; {remedy}" if remedy else ""))


def peer_name(address: object) -> str:
    """Return a peer's address without its port; an IPv4 client of a dual-stack socket as IPv4."""
    if not isinstance(address, tuple) or not address:
        return ""
    host = str(address[0])
    return host.removeprefix("::ffff:") if "." in host else host


def peer_process(sock: socket.socket) -> str:
    """Return ``pid:N`` of the process behind a unix socket as it was when it connected, "" where we cannot see it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return f"{PROCESS}{pid}" if pid > 0 else ""


PROCESS = "pid:"
"""What the peer of a request on a unix socket begins with."""
