"""Scenario files: which nodes there are, what runs on them, and what happens to them.

The YAML is strict: a key that is not known, a name that is not there or a time that can't be is refused with its path.
Times are written as elsewhere (``90s``, ``1h30m``) and count from the start of the simulation.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class Duration(int):
    """Milliseconds, written like ``1m30s``."""


class ScenarioError(ValueError):
    """The scenario can't be used; the message names file, key, problem and remedy."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all parts of a scenario."""


class Mig(_Section, frozen=True):
    """Cuts GPUs of a node into MIG instances."""

    layout: dict[str, Annotated[int, msgspec.Meta(ge=1, le=7)]]
    """How many instances of each MIG profile: ``{1g.10gb: 7}``."""
    gpus: tuple[int, ...] | None = None
    """Which GPUs, by number from 0; all of the node if left out."""


Count = Annotated[int, msgspec.Meta(ge=1, le=64)]


class Node(_Section, frozen=True):
    """One machine."""

    name: str
    profile: str | None = None
    """Kind of all its GPUs; left out where ``gpus`` names several kinds."""
    gpus: Count | dict[str, Count] = 8
    """How many, or how many of each kind: ``{h100-80gb-hbm3: 4, t4: 1}``."""
    mig: tuple[Mig, ...] = ()
    driver_version: str | None = None


Pattern = Literal["train", "inference", "data_bound", "evals", "sandbox"]
Server = Literal["vllm", "sglang"]


class Run(_Section, frozen=True):
    """Something that runs on GPUs; MIG GPUs run it in each of their slices."""

    name: str
    pattern: Pattern
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] | None = None
    """Which GPUs of each node, by number from 0; all if left out."""
    project: str = ""
    phase: Duration | None = None
    """How far into its rhythm (of checkpoints, of the day) it is at the start; chosen by the seed if left out."""
    step: Duration = Duration(4000)
    communicate: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.18
    """Share of a training step in which GPUs exchange gradients."""
    checkpoint_every: Duration = Duration(900_000)
    checkpoint_takes: Duration = Duration(25_000)
    day: Duration = Duration(86_400_000)
    """Length of the day of an inference run."""
    server: Server | None = None
    """What serves an inference run, with metrics of its own: a replica on each GPU, one address a node."""
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] = "meta-llama/Llama-3.1-8B-Instruct"
    """What an inference run serves."""


Celsius = Annotated[int, msgspec.Meta(ge=20, le=110)]
Speed = Annotated[float, msgspec.Meta(gt=0, le=1)]
Errors = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
GpuNumber = Annotated[int, msgspec.Meta(ge=0)]


class _Event(_Section, frozen=True, tag_field="kind"):
    node: str
    at: Duration


class Heat(_Event, frozen=True, tag="heat"):
    """A GPU gets too hot and slows down; the rest of its training run waits for it."""

    gpu: GpuNumber
    lasts: Duration = msgspec.field(name="for")
    celsius: Celsius = 86
    speed: Speed = 0.62
    """Share of the SM clock that is left in the end."""


class PowerBrake(_Event, frozen=True, tag="power_brake"):
    """The power supply tells the GPUs of a node to slow down at once."""

    lasts: Duration = msgspec.field(name="for")
    speed: Speed = 0.5
    gpus: tuple[int, ...] | None = None


class Xid(_Event, frozen=True, tag="xid"):
    """The driver reports an Xid; with ``lost`` the GPU is gone after it."""

    gpu: GpuNumber
    code: Annotated[int, msgspec.Meta(ge=1, le=999)]
    lost: bool = False
    lasts: Duration | None = msgspec.field(name="for", default=None)
    """How long it is lost or asks for recovery; until the end if left out."""
    recovery: Literal["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"] = "none"


class Loss(_Event, frozen=True, tag="loss"):
    """A GPU falls off the bus without a word."""

    gpu: GpuNumber
    lasts: Duration | None = msgspec.field(name="for", default=None)


class Hang(_Event, frozen=True, tag="hang"):
    """Calls on a GPU do not return: all of them, or one function."""

    gpu: GpuNumber
    lasts: Duration = msgspec.field(name="for")
    function: str | None = None


class DriverRestart(_Event, frozen=True, tag="driver_restart"):
    """The kernel driver is unloaded and comes back."""

    lasts: Duration = msgspec.field(name="for", default=Duration(20_000))


class Ecc(_Event, frozen=True, tag="ecc"):
    """Memory errors, and what the GPU makes of them."""

    gpu: GpuNumber
    location: Literal["dram", "sram"] = "dram"
    lasts: Duration | None = msgspec.field(name="for", default=None)
    correctable_per_hour: Errors = 0
    uncorrectable: Errors = 0
    """So many at once, at the start."""
    remapped_rows: Annotated[int, msgspec.Meta(ge=0, le=512)] = 0
    """Rows remapped for uncorrectable errors (pages retired, on parts that do that)."""
    remap_pending: bool = False
    remap_failed: bool = False
    threshold_exceeded: bool = False


class Nvlink(_Event, frozen=True, tag="nvlink"):
    """Errors on one NVLink, or links that are down."""

    gpu: GpuNumber
    error: str = "replay"
    link: GpuNumber = 0
    per_hour: Errors = 0
    once: Errors = 0
    links_down: Annotated[int, msgspec.Meta(ge=0, le=36)] = 0
    lasts: Duration | None = msgspec.field(name="for", default=None)


class Nic(_Event, frozen=True, tag="nic"):
    """Packets that a network adapter has to send again, or a link that goes down and comes back."""

    nic: GpuNumber
    lasts: Duration = msgspec.field(name="for")
    retransmits_per_hour: Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000)] = 0
    flaps: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """How often the link goes down, evenly over the time."""
    down: Duration = Duration(20_000)
    """For how long each time."""


class Overload(_Event, frozen=True, tag="overload"):
    """More requests than the servers of a node have room for: they queue, and answers take long."""

    lasts: Duration = msgspec.field(name="for")
    factor: Annotated[float, msgspec.Meta(gt=1, le=100)] = 2.5
    """Requests over those of an ordinary day."""


Event = Heat | PowerBrake | Xid | Loss | Hang | DriverRestart | Ecc | Nvlink | Nic | Overload


class Scenario(_Section, frozen=True):
    """A whole scenario file."""

    nodes: Annotated[tuple[Node, ...], msgspec.Meta(min_length=1, max_length=65_536)]
    name: str = "scenario"
    repeat: Duration | None = None
    """After this time everything starts again (counters go on)."""
    driver_version: str = "580.95.05"
    quarantine: bool = False
    """Whether a quarantine service is served beside the nodes; it takes them out for the scenario's faults."""
    runs: tuple[Run, ...] = ()
    events: tuple[Event, ...] = ()
