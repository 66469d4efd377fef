"""The nodes as an actuator sees them: facts only, at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mark:
    """What we wrote on a node, read back from it."""

    incident: str
    """``str(Key)`` of the incident that it was first made for."""
    since: float
    """Unix time."""
    was_cordoned: bool
    """The node was out before, by somebody else."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node with GPUs."""

    name: str
    pool: str
    """The value of the policy's pool label; empty where it has none."""
    out: bool = False
    """It takes no work: cordoned, drained, down or not ready, whoever did it."""
    held_out: bool = False
    """A person or program other than a failing heartbeat took it out (cordon, drain)."""
    mark: Mark | None = None
    """Ours, complete or in part."""
    opted_out: bool = False
    """A label on it says that we must leave it alone."""
    has_gpus: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """All nodes with GPUs, by name."""

    at: float
    """Unix time of the reading."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    opted_out_namespaces: frozenset[str] = frozenset()
    """Namespaces with a label that says that we must leave their pods alone."""
