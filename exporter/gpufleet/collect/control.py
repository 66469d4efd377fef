"""The control socket: how ``gpufleet quiesce`` and ``resume`` reach the exporter on the same node.

A unix stream socket of mode 0600: the kernel lets only the exporter's own user and root connect. A client sends one
line, ``{"command": "quiesce"}`` with arguments beside the command where it takes any, and gets one line,
``{"ok": true, …}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Request = Mapping[str, object]
    Reply = Mapping[str, object]
    Handler = Callable[[], Reply]
    RequestHandler = Callable[[Request], Reply]

log = logging.getLogger(__name__)

MAX_LINE = 4096
MAX_ANSWER = 4 << 20
"""Everything that is known of a node's faults is less than a megabyte."""
_ONLY_ASK = frozenset({"status", "check", "faults"})
"""Commands that change nothing: schedulers send them every few minutes, so nobody wants a line of the log for each."""
_CLIENT_SECONDS = 2.0
"""A client that connects and says nothing holds up the next one for so long."""
_PAUSE_SECONDS = 1.0
_PIECE_BYTES = 65_536
_LONGEST_PATH = 107
"""Bytes of ``sun_path`` in struct sockaddr_un, less the terminating zero."""
_CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid in struct ucred."""


_RUNTIME_SOCKET = Path("/run/gpufleet/control.sock")


def socket_paths(chosen: Path | None, state_directory: Path) -> tuple[Path, ...]:
    """Where the socket is looked for and made, best first: the ``chosen`` path alone, or the usual places.

    A process without root may not make /run/gpufleet; its state directory is its own.
    """
    return (chosen,) if chosen is not None else (_RUNTIME_SOCKET, state_directory / "control.sock")


class ControlError(Exception):
    """The socket can't be had or reached, or the answer is none; the message says why, with the remedy."""


class ControlSocket:
    """Serves commands in a thread of its own, one client after the other."""

    def __init__(
        self, path: Path, handlers: Mapping[str, Handler], with_arguments: Mapping[str, RequestHandler] | None = None
    ) -> None:
        """Listen on ``path``; a socket that an ended process left there is replaced.

        ``with_arguments`` has the commands that look at the rest of the client's line.

        Raises:
            ControlError: another process listens there, the path is something else, or it can't be made.
        """
        self.path = path
        self._handlers: dict[str, RequestHandler] = {
            **{command: _without_arguments(handler) for command, handler in handlers.items()},
            **(with_arguments or {}),
        }
        self._flaws = OnChange(log)
        self._socket = _listen(path)
        self._inode = path.stat().st_ino
        self._stopped = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and remove the socket, once; a command that is being carried out is not waited for."""
        if self._stopped:
            return
        self._stopped = True
        os.eventfd_write(self._stop, 1)
        # Only if it is still ours: a new exporter may have taken the path over already.
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._stop, select.POLLIN)
        waiting.register(self._socket, select.POLLIN)
        with self._socket:
            while self._stop not in {descriptor for descriptor, _ in waiting.poll()}:
                try:
                    client, _ = self._socket.accept()
                except OSError as error:
                    self._flaws.failed("accept", "the control socket can't accept a client", str(error))
                    # Out of descriptors: the client stays in the backlog, and an immediate retry would spin.
                    select.select([self._stop], [], [], _PAUSE_SECONDS)
                    continue
                self._flaws.over("accept", "the control socket accepts clients again")
                with client:
                    self._answer(client)
        os.close(self._stop)

    def _answer(self, client: socket.socket) -> None:
        pid, uid, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            reply = self._carry_out(_read_line(client, _CLIENT_SECONDS), pid, uid)
        except OSError:  # it left, or said nothing for too long
            return
        # What is left of the time for the line would cut a long answer short.
        client.settimeout(_CLIENT_SECONDS)
        with contextlib.suppress(OSError):
            client.sendall(json.dumps(reply).encode() + b"\n")

    def _carry_out(self, line: bytes, pid: int, uid: int) -> Mapping[str, object]:
        request = parse_request(line)
        command = None if request is None else str(request["command"])
        handler = None if command is None else self._handlers.get(command)
        if handler is None or request is None:
            return {"ok": False, "error": f'send one line such as {{"command": "{next(iter(self._handlers), "")}"}}'}
        if command not in _ONLY_ASK:
            log.info("command received", extra={"command": command, "by_pid": pid, "by_uid": uid})
        try:
            return handler(request)
        except Exception as error:  # noqa: BLE001 - the thread answers the next command whatever this one ran into
            self._flaws.failed(command or "", "a command failed", repr(error), level=logging.ERROR, exc_info=error)
            return {"ok": False, "error": f"the command failed: {error!r}; the exporter's log says more"}


def parse_request(line: bytes) -> Request | None:
    """A client's line: ``command``, a text, and its arguments; None when it is no such line."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) and isinstance(request.get("command"), str) else None


def _without_arguments(handler: Handler) -> RequestHandler:
    return lambda _request: handler()


def ask(path: Path, command: str, *, seconds: float, **arguments: str) -> Reply:
    """Send ``command`` and its arguments to the exporter that listens on ``path`` and return its answer.

    Raises:
        ControlError: nobody listens, this user may not connect, or no answer came within ``seconds``.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.settimeout(seconds)
        try:
            client.connect(os.fspath(path))
            client.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            line = _read_line(client, seconds, MAX_ANSWER)
        except FileNotFoundError as error:
            raise ControlError(f"{path}: is not there") from error
        except ConnectionRefusedError as error:
            raise ControlError(f"{path}: nobody listens; the exporter that made it has ended") from error
        except PermissionError as error:
            raise ControlError(f"{path}: may be used by the exporter's own user and root only") from error
        except TimeoutError as error:
            raise ControlError(f"{path}: no answer within {seconds:g} seconds; is the exporter stopped?") from error
        except OSError as error:
            raise ControlError(f"{path}: {error.strerror or error}") from error
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"{path}: the answer is not an exporter's; another program listens there") from error
    if not isinstance(reply, dict):
        raise ControlError(f"{path}: the answer is not an exporter's; another program listens there")
    return reply


def _read_line(peer: socket.socket, seconds: float, most: int = MAX_LINE) -> bytes:
    """What the peer sends up to a line feed, its end or ``most`` bytes; TimeoutError when it takes longer."""
    received = bytearray()
    until = time.monotonic() + seconds
    while len(received) < most:
        # A limit on each recv would let a peer that sends a byte at a time stay for hours.
        peer.settimeout(max(until - time.monotonic(), 0.001))
        piece = peer.recv(min(most - len(received), _PIECE_BYTES))
        received += piece
        if not piece or b"\n" in piece:
            break
    return bytes(received).partition(b"\n")[0]


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ControlError(
            f"{path}: is longer than the {_LONGEST_PATH} bytes that a socket's path can have; shorten it"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Linux makes the socket's file with the mode of the descriptor, so that it is never open to others, and no
        # umask has to be changed under the feet of other threads.
        os.fchmod(listener.fileno(), 0o600)
        _make_room(path)
        listener.bind(os.fspath(path))
        listener.listen(8)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise ControlError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ControlError:
        listener.close()
        raise
    return listener


def _make_room(path: Path) -> None:
    """Make the directory, and remove the socket of a process that has ended."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path}: is there and is no socket; move it away or name another with --control.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_CLIENT_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise ControlError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    raise ControlError(f"{path}: another exporter listens there; give this one its own with --control.socket")
