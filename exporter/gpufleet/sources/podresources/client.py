"""Asks the kubelet which container has which devices."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING

from gpufleet.sources.podresources.unary import BrokenCall, RefusedCall, UnaryCall
from gpufleet.sources.podresources.wire import WireError, decode_list

if TYPE_CHECKING:
    from pathlib import Path

    from gpufleet.model.claims import ContainerDevices

_LIST = "/v1.PodResourcesLister/List"
_CHUNK_BYTES = 1 << 16
_STATUS = {  # name and remedy by code, of those that a kubelet or grpc-go's server gives
    1: ("CANCELLED", ""),
    2: ("UNKNOWN", ""),
    4: ("DEADLINE_EXCEEDED", "the kubelet is overloaded or hangs"),
    7: ("PERMISSION_DENIED", ""),
    8: ("RESOURCE_EXHAUSTED", "it limits how often it answers: see what else asks it so often"),
    12: ("UNIMPLEMENTED", "it has no PodResources v1: use Kubernetes 1.20 or newer, and this socket of its kubelet"),
    13: ("INTERNAL", "see the kubelet's log"),
    14: ("UNAVAILABLE", "it is starting or ending; see the kubelet's log if this lasts"),
    16: ("UNAUTHENTICATED", ""),
}


class PodResourcesError(Exception):
    """The kubelet gave no answer; the text, for a person, says why and, where there is one, the remedy."""


class PodResources:
    """The kubelet's PodResources service at ``socket``."""

    def __init__(self, socket: Path, *, timeout: float = 5.0) -> None:
        """``timeout``: seconds that a whole call may take, from connecting to the last byte."""
        self._socket = socket
        self._timeout = timeout

    def list(self) -> tuple[ContainerDevices, ...]:
        """The devices of each container of the node that has any; blocks for at most ``timeout``.

        Each call has a connection of its own: a kubelet that restarts makes a new socket at the same path, and a
        connection to the old one would wait for ever.

        Raises:
            PodResourcesError: there is no answer, or it is none of a kubelet's.
        """
        try:
            return decode_list(self._call(time.monotonic() + self._timeout))
        except TimeoutError as error:
            raise self._error(f"no answer within {self._timeout:g} s: the kubelet is overloaded or hangs") from error
        except RefusedCall as error:
            name, remedy = _STATUS.get(error.status, (f"status {error.status}", ""))
            reason = f"{name}: {error.message}" if error.message else name
            raise self._error(f"the kubelet refuses ({reason})" + (f": {remedy}" if remedy else "")) from error
        except BrokenCall as error:
            raise self._error(f"this is not how a kubelet answers: {error}") from error
        except WireError as error:
            raise self._error(f"the reply is no list of pods: {error}") from error
        except OSError as error:
            raise self._error(_reason(error, self._socket)) from error

    def _call(self, deadline: float) -> bytes:
        call = UnaryCall(_LIST, timeout=self._timeout)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_left(deadline))
            peer.connect(os.fspath(self._socket))
            to_send = call.opening()
            while call.reply is None:
                if to_send:
                    peer.settimeout(_left(deadline))
                    peer.sendall(to_send)
                peer.settimeout(_left(deadline))
                to_send = call.receive(peer.recv(_CHUNK_BYTES))
            return call.reply

    def _error(self, reason: str) -> PodResourcesError:
        return PodResourcesError(f"{self._socket}: {reason}")


def _left(deadline: float) -> float:
    """Seconds until then; never 0, which would mean not to wait at all.

    Raises:
        TimeoutError: there are none.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: OSError, path: Path) -> str:
    """Why one can't talk at that path, and what to do."""
    match error.errno:
        case errno.ENOENT if path.parent.is_dir():
            return "not there: the kubelet makes it when it starts, so it does not run or has another --root-dir"
        case errno.ENOENT:
            return f"not there: in a container, mount {path.parent} of the host (the directory, not the socket)"
        case errno.ECONNREFUSED if path.is_dir():
            return (
                f"is a directory: name the socket in it, such as {path / 'kubelet.sock'}. Where the socket should be, "
                f"a mount made it before the kubelet could: remove it, and mount the directory {path.parent}"
            )
        case errno.ECONNREFUSED if not path.is_socket():
            return "is no socket: name the kubelet's, such as /var/lib/kubelet/pod-resources/kubelet.sock"
        case errno.ECONNREFUSED:
            return (
                "nobody listens: the kubelet has ended or is restarting. If this lasts, mount the directory "
                f"{path.parent} instead of the socket, which each start of the kubelet replaces"
            )
        case errno.EACCES | errno.EPERM:
            return (
                "permission denied: the socket is root's, so run as uid 0 (no capability is needed); mind SELinux too"
            )
        case errno.EAGAIN:  # connect() of a socket with a time limit does not wait for a place in the queue
            return "its queue is full: the kubelet is overloaded or hangs"
        case errno.ECONNRESET | errno.EPIPE:
            return "the kubelet ended the connection before its reply was whole, as at a restart"
        case None if "too long" in str(error):  # Python checks this itself, without a number
            return "the path is longer than the 107 bytes that a unix socket may have: use a shorter one"
        case _:
            return error.strerror or str(error)
