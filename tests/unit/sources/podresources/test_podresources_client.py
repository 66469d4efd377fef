"""Calls over a socket at which something else listens, or nothing: what a person is told."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpufleet.sources.podresources.client import PodResources, PodResourcesError
from tests.support.kubelet import pod_with, serialised
from tests.support.podresources_peer import (
    HEAD,
    WELL,
    Peer,
    data,
    floods,
    headers,
    hello,
    message,
    says,
    says_and_waits,
    whole_reply,
)

if TYPE_CHECKING:
    from tests.support.podresources_peer import Play

REPLY = serialised([pod_with("ml", "train-0", "GPU-1")])
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
NOT_GRPC = "this is not how a kubelet answers"


def told(path: Path, *, timeout: float = 20.0) -> str:
    """What a call at ``path`` says went wrong; it begins with the path."""
    with pytest.raises(PodResourcesError) as failed:
        PodResources(path, timeout=timeout).list()
    text = str(failed.value)
    assert text.startswith(f"{path}: ")
    return text


def open_files() -> int:
    """How many this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def told_by(path: Path, play: Play, *, timeout: float = 20.0) -> str:
    """What a call says that was answered so."""
    with Peer(path, play):
        return told(path, timeout=timeout)


def test_a_reply_is_read(tmp_path: Path) -> None:
    """A peer that says what a kubelet says is one."""
    with Peer(tmp_path / "s", says(whole_reply(REPLY))):
        (found,) = PodResources(tmp_path / "s").list()

    assert found.device_ids == ("GPU-1",)


def test_a_missing_directory_is_to_be_mounted(tmp_path: Path) -> None:
    """In a container the host's directory is not there of itself."""
    assert f"mount {tmp_path / 'none'} of the host" in told(tmp_path / "none" / "kubelet.sock")


def test_a_missing_socket_is_the_kubelets_to_make(tmp_path: Path) -> None:
    """The directory is there, so mounting it is not what is missing."""
    text = told(tmp_path / "kubelet.sock")

    assert "the kubelet makes it" in text
    assert "mount" not in text


def test_a_socket_that_nobody_listens_at_is_an_old_one(tmp_path: Path) -> None:
    """So it is for a moment at a restart, and for ever if the socket itself is mounted."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))

    assert "instead of the socket" in told(path)


def test_a_plain_file_is_no_socket(tmp_path: Path) -> None:
    """What stands there instead is said, and what would have to."""
    (tmp_path / "file").touch()

    assert "is no socket: name the kubelet's" in told(tmp_path / "file")


def test_a_directory_is_no_socket(tmp_path: Path) -> None:
    """Somebody named what was to be mounted, or a mount of a socket that was not there yet made it."""
    text = told(tmp_path)

    assert f"is a directory: name the socket in it, such as {tmp_path}/kubelet.sock" in text
    assert f"mount the directory {tmp_path.parent}" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_socket_of_roots_needs_root(tmp_path: Path) -> None:
    """Whoever may not connect is told as whom it would work."""
    path = tmp_path / "kubelet.sock"
    with Peer(path, says(b"")):
        path.chmod(0o600)
        os.seteuid(65534)
        try:
            text = told(path)
        finally:
            os.seteuid(0)

    assert "run as uid 0" in text


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    """A unix socket's path has room for 107 bytes."""
    assert "107 bytes" in told(tmp_path / ("s" * 120))


def test_a_full_queue_is_told(tmp_path: Path) -> None:
    """A kubelet that is stopped accepts nobody."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))

        assert "queue is full" in told(path)


def test_whoever_accepts_nobody_is_waited_for_no_longer_than_allowed(tmp_path: Path) -> None:
    """Connected but never accepted: the time limit covers it."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)

        assert "no answer within 0.2 s" in told(path, timeout=0.2)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="silent"),
        pytest.param(hello(), id="after settings"),
        pytest.param(hello() + headers(HEAD), id="after headers"),
        pytest.param(hello() + headers(HEAD) + data(message(REPLY)[:9]), id="in the reply"),
        pytest.param(hello() + headers(HEAD) + data(message(REPLY)), id="before the status"),
    ],
)
def test_a_peer_that_falls_silent_is_left(tmp_path: Path, sent: bytes) -> None:
    """At whatever point it stops, the call ends at its time limit."""
    assert "no answer within 0.2 s" in told_by(tmp_path / "s", says_and_waits(sent), timeout=0.2)


def test_a_peer_that_trickles_is_left(tmp_path: Path) -> None:
    """The limit is of the whole call: a byte now and then does not prolong it."""

    def trickle(peer: socket.socket) -> None:
        reply = whole_reply(REPLY)
        while True:
            for at in range(len(reply) - 1):
                peer.sendall(reply[at : at + 1])
                time.sleep(0.01)

    began = time.monotonic()

    assert "within 0.3 s" in told_by(tmp_path / "s", trickle, timeout=0.3)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(whole_reply(REPLY)[:-1], id="all but a byte"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", id="HTTP/1.1"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500), id="TLS"),
        pytest.param(bytes(range(256)) * 400, id="garbage"),
        pytest.param(hello() + headers(HEAD) + data(message(REPLY)[:9]) + headers(WELL, end=True), id="half a reply"),
    ],
)
def test_what_is_no_kubelet_is_told(tmp_path: Path, sent: bytes) -> None:
    """The connection is given up at once, not at the time limit."""
    assert NOT_GRPC in told_by(tmp_path / "s", says(sent))


def test_a_reply_that_lists_no_pods_is_told(tmp_path: Path) -> None:
    """gRPC, but another message."""
    assert "no list of pods" in told_by(tmp_path / "s", says(whole_reply(b"\xff\xff")))


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        pytest.param(hello(), PING, id="pings"),
        pytest.param(hello(), b"\x00\x40\x00\xee\x00\x00\x00\x00\x00" + bytes(16_384), id="unknown frames"),
        pytest.param(hello(), headers([(":status", "103"), ("link", "x" * 4000)]), id="hints"),
        pytest.param(hello() + headers(HEAD), headers([("x", "y" * 4000)]), id="headers"),
        pytest.param(hello() + headers(HEAD), data(b"\x00"), id="zeros"),
        pytest.param(hello() + headers(HEAD) + data(b"\x00\x01\x00\x00\x00"), data(bytes(16_384)), id="a long reply"),
    ],
)
def test_a_flood_ends(tmp_path: Path, begin: bytes, again: bytes) -> None:
    """Whatever comes without end is left, at the latest at the time limit, even if nothing that we send is read."""
    text = told_by(tmp_path / "s", floods(begin, again), timeout=1.0)

    assert NOT_GRPC in text or "no answer within" in text
    assert len(text) < 1000


def test_no_call_leaves_a_connection(tmp_path: Path) -> None:
    """Neither one that went well nor one that failed."""
    with Peer(tmp_path / "s", says(whole_reply(REPLY))), Peer(tmp_path / "t", says(b"")):
        before = open_files()
        for _ in range(20):
            PodResources(tmp_path / "s").list()
            told(tmp_path / "t")

        assert open_files() <= before + 2  # what the peers may not have closed yet
