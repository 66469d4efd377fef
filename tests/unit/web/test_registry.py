"""The open connections: who may be given up for whom, and what a stop waits for."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from gpufleet.web.registry import Link, Phase, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair:
    """A registered connection and its client's end."""

    def __init__(self, registry: Registry, phase: Phase, since: float) -> None:
        server, self.client = socket.socketpair()
        self.client.settimeout(10)
        self.link = Link(server, "peer")
        assert registry.add(self.link)
        self.link.phase = phase
        self.link.since += since

    def was_hung_up(self) -> bool:
        """Whether the client sees the end."""
        self.client.settimeout(0)
        try:
            return self.client.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry whose sockets are closed in the end."""
    registry = Registry()
    yield registry
    for link in list(registry._links):
        registry.remove(link)


def test_the_connection_idle_the_longest_yields_first(registry: Registry) -> None:
    """Before one that owes us bytes for longer, and never one being answered."""
    busy = Pair(registry, Phase.BUSY, -100)
    waiting = Pair(registry, Phase.WAITING, -50)
    young = Pair(registry, Phase.IDLE, -1)
    old = Pair(registry, Phase.IDLE, -10)

    order = []
    while registry.evict_one():
        order.append(next(p for p in (busy, waiting, young, old) if p.link.evicted and p not in order))
    assert order == [old, young, waiting]
    assert [pair.was_hung_up() for pair in (busy, waiting, young, old)] == [False, True, True, True]
    assert len(registry) == 1
    for pair in (busy, waiting, young, old):
        pair.client.close()


def test_a_newcomer_is_given_a_moment(registry: Registry) -> None:
    """A connection that only just began to owe us bytes is not slow yet."""
    pair = Pair(registry, Phase.WAITING, 0)

    assert not registry.evict_one()
    pair.client.close()


def test_an_evicted_connection_learns_it_when_it_moves_on(registry: Registry) -> None:
    """A request that arrives at the very moment of eviction is not answered into a dead socket."""
    pair = Pair(registry, Phase.IDLE, -1)
    assert registry.evict_one()

    assert not registry.enter(pair.link, Phase.BUSY)
    registry.remove(pair.link)
    assert len(registry) == 0
    pair.client.close()


def test_a_stop_hangs_up_on_the_idle_and_waits_for_the_busy(registry: Registry) -> None:
    """The response in progress ends by itself, and then stop returns."""
    busy = Pair(registry, Phase.BUSY, 0)
    idle = Pair(registry, Phase.IDLE, 0)
    results: list[bool] = []
    stopping = threading.Thread(target=lambda: results.append(registry.stop(20)), daemon=True)
    stopping.start()
    assert idle.client.recv(1) == b""
    registry.remove(idle.link)

    assert not busy.was_hung_up()
    assert stopping.is_alive()
    assert registry.stopping
    registry.remove(busy.link)
    stopping.join(20)
    assert results == [True]
    busy.client.close()
    idle.client.close()


def test_a_stop_cuts_off_what_outlasts_the_grace(registry: Registry) -> None:
    """It says that it did, and takes nothing in afterwards."""
    busy = Pair(registry, Phase.BUSY, 0)

    assert not registry.stop(0.01)
    assert busy.was_hung_up()
    assert not registry.enter(busy.link, Phase.IDLE)
    server, client = socket.socketpair()
    assert not registry.add(Link(server, "late"))
    for sock in (server, client, busy.client):
        sock.close()


def test_a_connection_may_be_handed_back(registry: Registry) -> None:
    """Forgotten is not closed: who could not serve it may still say so."""
    pair = Pair(registry, Phase.WAITING, 0)
    registry.forget(pair.link)

    assert len(registry) == 0
    pair.link.sock.send(b"x")
    assert pair.client.recv(1) == b"x"
    pair.link.sock.close()
    pair.client.close()
