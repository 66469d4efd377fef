"""Listen addresses."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from gpufleet.web.addresses import ListenAddress, ListenError, listen, parse_listen_address, peer_name, peer_process


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9837", "", 9837),
        ("127.0.0.1:9837", "127.0.0.1", 9837),
        ("localhost:0", "localhost", 0),
        ("[::1]:9837", "::1", 9837),
        ("[::]:65535", "::", 65535),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_addresses_are_read_and_written_back(text: str, host: str, port: int) -> None:
    """Host and port, brackets around IPv6."""
    address = parse_listen_address(text)

    assert address == ListenAddress(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "9837", "localhost", "localhost:", ":x", ":-1", ":65536", "::1:9837", "[::1]", "a/b:1", "vsock://:1", "[]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The message repeats the text and says how one is written."""
    with pytest.raises(ListenError, match="is no listen address") as refused:
        parse_listen_address(text)

    assert repr(text) in str(refused.value)


def test_brackets_are_for_ipv6() -> None:
    """A bracketed name is a mistake that gets its own remedy."""
    with pytest.raises(ListenError, match="brackets are for IPv6"):
        parse_listen_address("[localhost]:1")


def test_a_taken_port_is_named_with_a_remedy() -> None:
    """The error says which of several addresses it was and what to do."""
    with listen(ListenAddress("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError) as refused:
            listen(ListenAddress("127.0.0.1", port))

    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port}: address already in use; "
        "stop the program that has it or choose another port"
    )


def test_an_address_of_another_machine_is_named() -> None:
    """192.0.2.1 is kept for documentation: no machine has it."""
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0: .*this machine has no such address"):
        listen(ListenAddress("192.0.2.1", 0))


def test_an_unknown_host_is_named() -> None:
    """The reserved top-level domain .invalid never resolves."""
    with pytest.raises(ListenError, match=r"cannot listen on gpu\.invalid:1: the host is not known"):
        listen(ListenAddress("gpu.invalid", 1))


def test_no_host_means_every_address_of_both_families() -> None:
    """One socket answers IPv4 and IPv6."""
    with listen(ListenAddress("", 0)) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()


def test_a_machine_without_ipv6_is_served_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with IPv6 switched off refuses the family; ":port" then means every IPv4 address."""

    class NoIpv6(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, kind)

    monkeypatch.setattr(socket, "socket", NoIpv6)
    with listen(ListenAddress("", 0)) as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "0.0.0.0"
    with pytest.raises(ListenError, match=r"cannot listen on \[::\]:0: address family not supported"):
        listen(ListenAddress("::", 0))


@pytest.mark.parametrize(("host", "others"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_an_address_means_itself_only(host: str, others: str) -> None:
    """What listens on one family's loopback cannot be reached by the other's."""
    with listen(ListenAddress(host, 0)) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((others, port), timeout=5)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        ("", ""),
    ],
)
def test_a_peer_is_named_by_its_address(address: object, name: str) -> None:
    """An IPv4 client of a dual-stack socket is the same client as on an IPv4 one."""
    assert peer_name(address) == name


def test_a_unix_socket_is_named_by_its_path(tmp_path: Path) -> None:
    """It takes the place of one that nobody listens on any more, and of no other."""
    path = tmp_path / "faults.sock"
    address = parse_listen_address(f"unix:{path}")
    assert str(address) == f"unix:{path}"
    with listen(address):
        assert path.stat().st_mode & 0o777 == 0o666
        with pytest.raises(ListenError, match="choose another path"):
            listen(address)
    with listen(address), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert peer_process(client) == f"pid:{os.getpid()}"
    path.unlink()
    path.write_text("a file of somebody's")
    with pytest.raises(ListenError, match="choose another path"):
        listen(address)
    assert path.read_text() == "a file of somebody's"


@pytest.mark.parametrize("text", ["unix:", "unix:faults.sock", f"unix:/{'x' * 108}", "unix:/a\0b"])
def test_a_path_that_cannot_be_a_sockets_is_refused(text: str) -> None:
    """Relative, too long for the kernel, or none."""
    with pytest.raises(ListenError, match="an absolute path of at most 107 bytes"):
        parse_listen_address(text)


def test_a_unix_socket_without_its_directory_says_what_to_do() -> None:
    """The directory is somebody else's to make."""
    with pytest.raises(ListenError, match="make its directory"):
        listen(parse_listen_address("unix:/no/such/directory/faults.sock"))
