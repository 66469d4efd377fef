"""Event sets of the stand-in driver."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import SEVEN_SLICES, T4
from tests.support.nvml_client import Aside, Client

NONE = 0xFFFFFFFF


@pytest.fixture
def client(fake_nvml: FakeNvml) -> Client:
    """A client with the library open on two H100."""
    fake_nvml.set_gpus(2)
    client = Client(fake_nvml)
    assert client.init() == 0
    return client


def registered(client: Client, *gpus: int, types: int = 0x8) -> ctypes.c_void_p:
    """An event set with the GPUs registered."""
    events = client.event_set()
    for gpu in gpus:
        assert client.calls["nvmlDeviceRegisterEvents"](client.handle(gpu), types, events) == 0
    return events


def test_an_xid_reaches_the_set_that_registered(fake_nvml: FakeNvml, client: Client) -> None:
    """The event names the registered handle, the Xid and, outside MIG, no instance."""
    events = registered(client, 0, 1)
    fake_nvml.inject_xid(1, 79)
    fake_nvml.inject_xid(0, 94)

    assert client.wait_event(events, 1000) == (0, (client.handle(1).value, 8, 79, NONE, NONE))
    assert client.wait_event(events, 1000) == (0, (client.handle(0).value, 8, 94, NONE, NONE))
    assert client.wait_event(events, 1)[0] == 10


def test_a_waiter_wakes_at_once(fake_nvml: FakeNvml, client: Client) -> None:
    """An event ends the wait long before its time limit."""
    events = registered(client, 0)
    begun = time.monotonic()
    waiter = Aside(client.wait_event, events, 60_000)
    fake_nvml.wait_until(lambda: fake_nvml.control.out[16] > 0)

    fake_nvml.inject_xid(0, 48)

    assert waiter.done()[1][2] == 48
    assert time.monotonic() - begun < 30


def test_events_of_other_gpus_types_and_times_are_not_delivered(fake_nvml: FakeNvml, client: Client) -> None:
    """What was not registered for, and what happened before, is lost."""
    fake_nvml.inject_xid(0, 13)
    events = registered(client, 0)

    fake_nvml.inject_xid(1, 31)
    fake_nvml.inject_event(0, 0x4)

    assert client.wait_event(events, 1)[0] == 10


def test_an_unsupported_type_registers_nothing(fake_nvml: FakeNvml, client: Client) -> None:
    """One bit that the board does not have loses the whole registration."""
    events = client.event_set()
    supported = (ctypes.c_uint64 * 1)()
    fake_nvml.set_gpus(1, T4)

    assert client.calls["nvmlDeviceGetSupportedEventTypes"](client.handle(0), supported) == 0
    assert not supported[0] & 0x4000
    assert client.calls["nvmlDeviceRegisterEvents"](client.handle(0), 0x4008, events) == 3
    fake_nvml.inject_xid(0, 48)
    assert client.wait_event(events, 1)[0] == 10


def test_events_are_registered_for_whole_gpus_only(fake_nvml: FakeNvml, client: Client) -> None:
    """An instance's handle is refused; an Xid of an instance comes with the parent and the instance's ids."""
    fake_nvml.set_mig(0, SEVEN_SLICES)
    parent = client.handle(0)
    events = registered(client, 0)

    assert client.calls["nvmlDeviceRegisterEvents"](client.instance(parent, 0), 8, events) == 3
    fake_nvml.inject_xid(0, 43, gi=9, ci=0)
    assert client.wait_event(events, 1000) == (0, (parent.value, 8, 43, 9, 0))


def test_a_new_partitioning_is_an_event(fake_nvml: FakeNvml, client: Client) -> None:
    """Who registered for it hears of each change."""
    events = registered(client, 0, types=0x108)

    fake_nvml.set_mig(0, SEVEN_SLICES)

    assert client.wait_event(events, 1000)[1][:3] == (client.handle(0).value, 0x100, 0)


def test_an_event_may_come_with_another_handle(fake_nvml: FakeNvml, client: Client) -> None:
    """The header does not promise the registered handle: the UUID says which GPU it is."""
    events = registered(client, 0, 1)

    fake_nvml.inject_xid(1, 79, alias=True)

    device = client.wait_event(events, 1000)[1][0]
    assert device != client.handle(1).value
    assert client.uuid(ctypes.c_void_p(device)) == fake_nvml.uuid(1)


@pytest.mark.parametrize("code", [15, 999])
def test_a_waiter_gets_the_drivers_error_at_once(fake_nvml: FakeNvml, client: Client, code: int) -> None:
    """A lost GPU ends every wait immediately, time and again."""
    events = registered(client, 0)
    waiter = Aside(client.wait_event, events, 60_000)
    fake_nvml.wait_until(lambda: fake_nvml.control.out[16] > 0)

    fake_nvml.set_return("nvmlEventSetWait_v2", None, code)

    assert waiter.done()[0] == code
    assert client.wait_event(events, 60_000)[0] == code


def test_a_waiter_gets_the_restart_at_once(fake_nvml: FakeNvml, client: Client) -> None:
    """A waiter under a restarted driver does not wait for its time limit."""
    events = registered(client, 0)
    waiter = Aside(client.wait_event, events, 60_000)
    fake_nvml.wait_until(lambda: fake_nvml.control.out[16] > 0)

    fake_nvml.restart_driver(code=15)

    assert waiter.done()[0] == 15
