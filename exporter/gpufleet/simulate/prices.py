"""What scripted GPUs cost: a price book that comes with gpufleet, so that a demonstration shows money."""

from __future__ import annotations

from importlib import resources

from gpufleet.cost.prices import PriceBook


def scripted_prices() -> PriceBook:
    """The price book of scripted nodes."""
    name = "prices.yaml"
    return PriceBook.parse(resources.files(__package__).joinpath("data", name).read_bytes(), name)
