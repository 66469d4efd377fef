"""Prices of one node's GPUs, asked for at each poll and worked out when something has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.cost.node_facts import NodeFacts
from gpufleet.cost.price_rule import Subject
from gpufleet.cost.prices import PriceBook
from gpufleet.model.meter import Price
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState

FRESH_SECONDS = 10.0
"""A rule that begins or ends does so within this time of its day."""


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    slices: int
    profiles: tuple[str, ...]
    price: Price | None
    good_until: float


class Pricer:
    """One price book for one node. A new book or new facts of the node make a new pricer."""

    def __init__(self, book: PriceBook, node: NodeFacts, now: Callable[[], float]) -> None:
        """``now`` gives Unix time."""
        self._book = book
        self._node = node
        self._now = now
        self._known: dict[str, _Known] = {}

    def price_of(self, gpu: GpuSnapshot) -> Price | None:
        """Price of a GPU, the same object until it changes; ``None`` when no rule is for it."""
        identity = gpu.identity
        known = self._known.get(identity.uuid)
        at = self._now()
        if (
            known is not None
            and at < known.good_until <= at + FRESH_SECONDS
            and known.name == identity.name
            and (known.slices == len(gpu.slices) or gpu.state is not GpuState.OK)
        ):
            return known.price
        profiles = tuple([each.identity.profile for each in gpu.slices])
        if gpu.state is not GpuState.OK and known is not None:
            # A GPU that is down shows no slices; it is still cut as it was, and costs what it did.
            profiles = known.profiles
        found = self._book.price(Subject(identity.name, identity.uuid, profiles, self._node), at)
        price = None if found is None else found.price
        if known is not None and price == known.price:
            price = known.price
        self._known[identity.uuid] = _Known(identity.name, len(profiles), profiles, price, at + FRESH_SECONDS)
        return price
