"""Says in a sentence what will happen to a node, for whoever looks on. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.durations import format_duration
from gpufleet.simulate.scenario import (
    DriverRestart,
    Duration,
    Ecc,
    Event,
    Hang,
    Heat,
    Loss,
    Nic,
    Nvlink,
    Overload,
    PowerBrake,
    Run,
    Scenario,
    Xid,
)


def runs_on(scenario: Scenario, node: str) -> list[Run]:
    """The runs that have GPUs of the node."""
    return [run for run in scenario.runs if node in run.nodes]


def what_happens(scenario: Scenario, node: str) -> Iterator[str]:
    """One line for each event that can be seen on the node, in the order of time."""
    peers = {peer for run in runs_on(scenario, node) if run.pattern == "train" for peer in run.nodes}
    for event in sorted(scenario.events, key=lambda each: each.at):
        if event.node == node:
            yield f"{_when(event)}: {_what(event)}"
        elif event.node in peers and isinstance(event, (Heat, PowerBrake, Xid, Loss)):
            yield f"{_when(event)}: {event.node}, {_what(event)}; this node's GPUs wait for it"
    if scenario.repeat is not None:
        yield f"after {_written(scenario.repeat)} it starts again"


def _written(duration: Duration) -> str:
    return format_duration(duration / 1000)


def _when(event: Event) -> str:
    lasts = getattr(event, "lasts", None)
    return f"at {_written(event.at)}" + (f" for {_written(lasts)}" if lasts else "")


def _what(event: Event) -> str:
    if isinstance(event, Heat):
        return f"GPU {event.gpu} gets to {event.celsius} °C and down to {event.speed:.0%} of its clock"
    if isinstance(event, PowerBrake):
        return f"the power brake takes GPUs down to {event.speed:.0%} of their clock"
    if isinstance(event, Xid):
        return f"GPU {event.gpu} reports Xid {event.code}" + (" and is lost" if event.lost else "")
    if isinstance(event, Loss):
        return f"GPU {event.gpu} falls off the bus"
    if isinstance(event, Hang):
        return f"calls on GPU {event.gpu} hang"
    if isinstance(event, DriverRestart):
        return "the driver is unloaded and comes back"
    if isinstance(event, Ecc):
        return f"GPU {event.gpu} has memory errors"
    if isinstance(event, Overload):
        return f"{event.factor:g} times the usual requests come in"
    return _adapter(event) if isinstance(event, Nic) else _links(event)


def _adapter(event: Nic) -> str:
    if event.flaps:
        return f"the link of network adapter {event.nic} goes down {event.flaps} times"
    return f"network adapter {event.nic} sends packets again"


def _links(event: Nvlink) -> str:
    if event.links_down:
        return f"GPU {event.gpu} has {event.links_down} NVLinks down"
    return f"GPU {event.gpu} has {event.error} errors on NVLink {event.link}"
