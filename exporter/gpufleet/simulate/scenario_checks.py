"""What a scenario can get wrong beyond its form: names that are not there, times and numbers that can't be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpufleet.simulate.field_answers import NVLINK5_ERROR_KINDS, NVLINK_ERROR_KINDS
from gpufleet.simulate.mig import MigLayoutError, layout_names, partition
from gpufleet.simulate.patterns import idle
from gpufleet.simulate.profiles import Profile, load_profile, profile_names
from gpufleet.simulate.scenario import (
    Duration,
    Ecc,
    Event,
    Hang,
    Nic,
    Node,
    Nvlink,
    Overload,
    PowerBrake,
    Run,
    Scenario,
    Xid,
)
from gpufleet.simulate.versions import parse_driver_version
from gpufleet.sources.nvml.calls import SIGNATURES

MOST_GPUS = 64
"""A node of more is none, and PCI bus numbers end."""
MOST_ADAPTERS = 8
"""RDMA adapters of a node."""
NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""A host name, since it stands in URLs and labels."""


def kinds_of(node: Node) -> list[str]:
    """Name of the profile of each GPU of a node, by number."""
    if isinstance(node.gpus, int):
        return [node.profile or ""] * node.gpus
    return [kind for kind, count in node.gpus.items() for _ in range(count)]


def problems(scenario: Scenario) -> Iterator[str]:
    """Each problem as ``path: what is wrong; what to do``."""
    sizes: dict[str, list[Profile]] = {}
    for i, node in enumerate(scenario.nodes):
        path = f"nodes[{i}]"
        if node.name in sizes:
            yield f"{path}.name: {node.name!r} is there twice; each node has a name of its own"
        wrong = list(_node(node, path))
        yield from wrong
        sizes[node.name] = [] if wrong else [load_profile(kind) for kind in kinds_of(node)]
        if node.driver_version is not None:
            yield from _version(node.driver_version, f"{path}.driver_version")
    yield from _version(scenario.driver_version, "driver_version")
    if scenario.repeat is not None and scenario.repeat <= 0:
        yield "repeat: is zero; give a time, or leave it out"
    yield from _runs(scenario.runs, sizes)
    served = {node for run in scenario.runs if run.server is not None for node in run.nodes}
    for i, event in enumerate(scenario.events):
        yield from _event(event, f"events[{i}]", sizes, scenario.repeat)
        if isinstance(event, Overload) and event.node in sizes and event.node not in served:
            yield f"events[{i}].node: nothing serves on {event.node!r}; give an inference run there a server"


def _version(version: str, path: str) -> Iterator[str]:
    try:
        parse_driver_version(version)
    except ValueError:
        yield f"{path}: {version!r} is no driver version; write it like 580.95.05"


def _node(node: Node, path: str) -> Iterator[str]:
    if not NODE_NAME.fullmatch(node.name):
        yield f"{path}.name: {node.name!r} is no host name; use letters, digits, dots and dashes"
    if isinstance(node.gpus, int):
        if node.profile is None:
            yield f"{path}.profile: is missing; it is one of {', '.join(profile_names())}"
            return
        key = f"{path}.profile"
    else:
        if node.profile is not None:
            yield f"{path}.profile: the kinds are in gpus already; keep one of the two"
        key = f"{path}.gpus"
    kinds = kinds_of(node)
    unknown = [kind for kind in dict.fromkeys(kinds) if kind not in profile_names()]
    for kind in unknown:
        yield f"{key}: there is no profile {kind!r}; it is one of {', '.join(profile_names())}"
    if not 0 < len(kinds) <= MOST_GPUS:
        yield f"{path}.gpus: {len(kinds)} GPUs; a node has 1 to {MOST_GPUS}"
    if not unknown:
        yield from _mig(node, path, [load_profile(kind) for kind in kinds])


def _mig(node: Node, path: str, profiles: list[Profile]) -> Iterator[str]:
    cut: set[int] = set()
    for i, mig in enumerate(node.mig):
        numbers = range(len(profiles)) if mig.gpus is None else mig.gpus
        yield from _numbers(numbers, len(profiles), f"{path}.mig[{i}].gpus")
        for number in numbers:
            if not 0 <= number < len(profiles):
                continue
            if number in cut:
                yield f"{path}.mig[{i}].gpus: GPU {number} is cut already; name it once"
            cut.add(number)
            names = layout_names(mig.layout)
            profile = profiles[number]
            try:
                partition(profile, names, [idle(profile)] * len(names), 0)
            except MigLayoutError as error:
                yield f"{path}.mig[{i}].layout: {error}"
                break


def _numbers(numbers: range | tuple[int, ...], count: int, path: str) -> Iterator[str]:
    for number in numbers:
        if not 0 <= number < count:
            yield f"{path}: there is no GPU {number}; the node's are 0 to {count - 1}"


def _runs(runs: tuple[Run, ...], sizes: dict[str, list[Profile]]) -> Iterator[str]:
    names: set[str] = set()
    holders: dict[tuple[str, int], str] = {}
    for i, run in enumerate(runs):
        path = f"runs[{i}]"
        if run.name in names:
            yield f"{path}.name: {run.name!r} is there twice; each run has a name of its own"
        names.add(run.name)
        for key in ("step", "day", "checkpoint_every"):
            if getattr(run, key) <= 0:
                yield f"{path}.{key}: is zero; give a time"
        if run.server is not None and run.pattern != "inference":
            yield f"{path}.server: a run of the pattern {run.pattern} serves nothing; take it out"
        if run.server is not None and run.gpus == ():
            yield f"{path}.gpus: is empty, so nothing serves; name GPUs, or leave it out for all of them"
        for j, node in enumerate(run.nodes):
            if node not in sizes:
                yield f"{path}.nodes[{j}]: there is no node {node!r}; add it to nodes, or correct the name"
                continue
            count = len(sizes[node])
            if run.gpus is not None and count:
                yield from _numbers(run.gpus, count, f"{path}.gpus")
            for number in range(count) if run.gpus is None else run.gpus:
                other = holders.setdefault((node, number), run.name)
                if other != run.name:
                    yield f"{path}.gpus: GPU {number} of {node} has the run {other!r} already; give each GPU one run"


def _event(event: Event, path: str, sizes: dict[str, list[Profile]], repeat: Duration | None) -> Iterator[str]:
    if event.node not in sizes:
        yield f"{path}.node: there is no node {event.node!r}; add it to nodes, or correct the name"
        return
    profiles = sizes[event.node]
    if not profiles:
        return
    if isinstance(event, PowerBrake):
        yield from _numbers(event.gpus or (), len(profiles), f"{path}.gpus")
    gpu = getattr(event, "gpu", None)
    if gpu is not None and gpu >= len(profiles):
        yield f"{path}.gpu: there is no GPU {gpu}; the node's are 0 to {len(profiles) - 1}"
        return
    lasts = getattr(event, "lasts", None)
    if lasts is not None and lasts <= 0:
        yield f"{path}.for: is zero; give a time"
    end = event.at + (lasts or 0)
    if repeat is not None and end > repeat:
        yield f"{path}.at: ends after everything has started again (repeat); let it end before"
    if isinstance(event, Hang) and event.function is not None and event.function not in SIGNATURES:
        yield f"{path}.function: gpufleet calls no function {event.function!r}; leave it out for all of them"
    if isinstance(event, Xid) and event.lost and event.recovery != "none":
        yield f"{path}.recovery: a GPU that is lost can't ask for it; leave one of the two out"
    if isinstance(event, Nic):
        yield from _nic(event, path, profiles)
    if isinstance(event, Nvlink) and gpu is not None:
        yield from _nvlink(event, path, profiles[gpu])
    if isinstance(event, Ecc) and gpu is not None and not profiles[gpu].ecc:
        yield f"{path}.gpu: {profiles[gpu].key} has no ECC; choose another GPU"


def _nic(event: Nic, path: str, profiles: list[Profile]) -> Iterator[str]:
    count = len(adapters(profiles))
    if event.nic >= count:
        there = f"they are 0 to {count - 1}" if count else "the node has none"
        yield f"{path}.nic: there is no adapter {event.nic}; {there}"
    if not event.flaps and not event.retransmits_per_hour:
        yield f"{path}.flaps: nothing happens; give flaps, retransmits_per_hour, or both"
    if event.flaps and (event.down <= 0 or event.flaps * event.down > event.lasts):
        yield f"{path}.down: {event.flaps} times do not fit into the time; make it shorter, or longer than zero"


def adapters(profiles: Sequence[Profile]) -> list[int]:
    """Numbers of the GPUs that have a network adapter of their own, at most eight of a node."""
    return [number for number, profile in enumerate(profiles) if profile.network is not None][:MOST_ADAPTERS]


def _nvlink(event: Nvlink, path: str, profile: Profile) -> Iterator[str]:
    nvlink = profile.nvlink
    if nvlink is None:
        yield f"{path}.gpu: {profile.key} has no NVLink; choose another GPU"
        return
    kinds = NVLINK5_ERROR_KINDS if nvlink.version >= 5 else NVLINK_ERROR_KINDS
    if f"nvlink_{event.error}" not in kinds:
        known = ", ".join(sorted(kind.removeprefix("nvlink_") for kind in kinds))
        yield f"{path}.error: {profile.key} counts no {event.error!r}; it is one of {known}"
    if event.link >= nvlink.links:
        yield f"{path}.link: there is no link {event.link}; they are 0 to {nvlink.links - 1}"
    if event.links_down > nvlink.links:
        yield f"{path}.links_down: there are {nvlink.links} links only"
