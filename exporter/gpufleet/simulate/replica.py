"""A replica of a model server at one moment: what the pages of servers are made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.simulate.requests import Lots

MOST_AT_ONCE = 64
"""Requests that a replica's cache has room for."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica at one moment."""

    model: str
    number: int
    """Among the replicas of its server."""
    lots: Lots
    """Requests since its process began: after a loss of its GPU a replica counts from zero."""
    running: int
    waiting: int
    per_second: float
    """Requests that it answers."""

    @property
    def cache_usage(self) -> float:
        """Share of the KV cache that is in use."""
        return round(min(0.99, self.running / MOST_AT_ONCE), 4)
