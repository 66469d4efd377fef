"""GPUs that come and go, from the kernel's own messages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpufleet.sources.errors import SourceError
from gpufleet.sources.udev import Action, GpuEvent, GpuEvents, parse_event
from tests.waiting import until

H100 = {
    "ACTION": "bind",
    "DEVPATH": "/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0",
    "DRIVER": "nvidia",
    "MODALIAS": "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
    "PCI_CLASS": "30200",
    "PCI_ID": "10DE:2330",
    "PCI_SLOT_NAME": "0000:1B:00.0",
    "PCI_SUBSYS_ID": "10DE:16C1",
    "SEQNUM": "12345",
    "SUBSYSTEM": "pci",
}
"""What the kernel sends when the driver takes an H100."""


WITHOUT_LIBUDEV = """
import ctypes.util
ctypes.util.find_library = lambda name: None
from gpufleet.sources.errors import SourceError
from gpufleet.sources.udev import GpuEvents
try:
    GpuEvents()
except SourceError as error:
    print(error)
"""


def without(*names: str) -> dict[str, str]:
    """The H100's message without some of its properties."""
    return {name: text for name, text in H100.items() if name not in names}


@pytest.mark.parametrize("action", ["add", "remove", "bind", "unbind"])
def test_a_gpus_message_is_an_event(action: str) -> None:
    """The address is written as in sysfs."""
    assert parse_event(H100 | {"ACTION": action}) == GpuEvent(Action(action), "0000:1b:00.0", "nvidia")


def test_a_gpu_without_a_driver_says_so() -> None:
    """After an unbind the kernel sends no DRIVER."""
    assert parse_event(without("DRIVER") | {"ACTION": "unbind"}) == GpuEvent(Action.UNBIND, "0000:1b:00.0", None)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        H100 | {"ACTION": "change"},
        H100 | {"ACTION": "missed"},
        H100 | {"SUBSYSTEM": "drm"},
        H100 | {"PCI_ID": "1002:744C"},
        H100 | {"PCI_CLASS": "68000", "PCI_ID": "10DE:22A3"},
        H100 | {"PCI_CLASS": "40300"},
        H100 | {"PCI_CLASS": "gibberish"},
        H100 | {"PCI_ID": ""},
        H100 | {"PCI_SLOT_NAME": ""},
        without("ACTION"),
        without("PCI_CLASS"),
        without("PCI_ID"),
        without("PCI_SLOT_NAME"),
    ],
)
def test_what_does_not_concern_a_gpu_is_no_event(properties: dict[str, str]) -> None:
    """Switches, sound functions, other makers and messages that lack what they should have."""
    assert parse_event(properties) is None


def triggerable() -> Path | None:
    """A PCI device whose last message this process may have sent again."""
    for uevent in sorted(Path("/sys/bus/pci/devices").glob("*/uevent")):
        if os.access(uevent, os.W_OK):
            return uevent
    return None


def test_the_kernels_messages_arrive_and_close_ends_the_iteration() -> None:
    """A message of the real kernel, sent again on request as udevadm trigger does; any PCI device counts as a GPU."""
    uevent = triggerable()
    if uevent is None:
        pytest.skip("needs root, and a PCI device whose uevent file can be written")
    messages: list[Mapping[str, str]] = []

    def parse(properties: Mapping[str, str]) -> GpuEvent:
        messages.append(dict(properties))
        return GpuEvent(Action(properties["ACTION"]), properties["PCI_SLOT_NAME"], properties.get("DRIVER"))

    try:
        events = GpuEvents(parse)
    except SourceError as error:
        pytest.skip(str(error))
    seen: list[GpuEvent] = []
    thread = threading.Thread(target=lambda: seen.extend(events), daemon=True)
    thread.start()
    address = uevent.parent.name
    uevent.write_text("add")
    until(lambda: [m for m in messages if m["PCI_SLOT_NAME"] == address], "the kernel's message")
    events.close()
    events.close()
    thread.join(20)
    assert not thread.is_alive()
    assert GpuEvent(Action.ADD, address, messages[0].get("DRIVER")) in seen
    assert {"ACTION", "PCI_CLASS", "PCI_ID", "PCI_SLOT_NAME", "SUBSYSTEM"} <= messages[0].keys()


def test_lost_messages_are_an_event_and_what_comes_after_them_arrives() -> None:
    """The kernel's buffer is finite; a burst that overruns it leads to a new enumeration, not to a wrong picture."""
    uevent = triggerable()
    if uevent is None:
        pytest.skip("needs root, and a PCI device whose uevent file can be written")
    try:
        events = GpuEvents(lambda properties: GpuEvent(Action.ADD, properties["ACTION"]))
    except SourceError as error:
        pytest.skip(str(error))
    events._monitor.set_receive_buffer_size(1)
    with uevent.open("w") as trigger:
        for _ in range(200):
            trigger.write("change")
            trigger.flush()
    received = iter(events)
    assert next(received) == GpuEvent(Action.MISSED, None)
    assert next(received) == GpuEvent(Action.ADD, "change")
    uevent.write_text("add")
    assert any(event.address == "add" for event in received)
    events.close()
    assert not [event for event in received if event.action is Action.MISSED]


def test_a_missing_libudev_is_a_source_error_with_its_remedy() -> None:
    """A minimal container has none; GPUs are then found by enumeration."""
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT_LIBUDEV,
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.startswith("udev: libudev can't be loaded (")
    assert said.endswith("); install libudev1\n")
