"""What a GPU costs for an hour, by the rules of a price book: the first that is for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpufleet.cost.amounts import canonical
from gpufleet.cost.price_book import PriceBookError, parse_price_book, read_price_book
from gpufleet.cost.price_rule import Rule, Subject
from gpufleet.model.meter import Price

__all__ = ["PriceBook", "PriceBookError", "PriceMatch", "Subject", "Tried"]


@dataclass(frozen=True, slots=True)
class Tried:
    """A rule that was looked at for one GPU."""

    rule: Rule
    mismatch: str | None
    """Why it is not for that GPU; ``None``: it is."""


@dataclass(frozen=True, slots=True)
class PriceMatch:
    """The price of one GPU and where it comes from."""

    price: Price
    rule: Rule
    why: str
    """How the price was worked out, for a person."""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Rules in their order."""

    rules: tuple[Rule, ...]
    name: str
    """The file, as messages call it."""
    warnings: tuple[str, ...] = ()
    """What is most likely a mistake, with file, line and remedy."""

    @classmethod
    def load(cls, file: Path) -> Self:
        """The price book in ``file``. Raises PriceBookError, whose text names file, line, key and remedy."""
        return cls.parse(read_price_book(file), str(file))

    @classmethod
    def parse(cls, content: bytes, name: str) -> Self:
        """The price book of a YAML document; ``name`` is what messages call it. Raises PriceBookError."""
        rules = parse_price_book(content, name)
        return cls(rules, name, tuple(_shadowed(rules, name)))

    def price(self, subject: Subject, at: float) -> PriceMatch | None:
        """The price of ``subject`` at the Unix time ``at``; ``None`` when no rule is for it."""
        for rule in self.rules:
            if rule.mismatch(subject, at) is None:
                price = Price(
                    subject.uuid, float(rule.per_hour), rule.currency, canonical(rule.per_hour), rule=rule.name
                )
                return PriceMatch(price, rule, rule.how)
        return None

    def explain(self, subject: Subject, at: float) -> tuple[Tried, ...]:
        """The rules in their order, up to the one that is for ``subject``, and why those before are not."""
        tried = []
        for rule in self.rules:
            tried.append(Tried(rule, rule.mismatch(subject, at)))
            if tried[-1].mismatch is None:
                break
        return tuple(tried)


def _shadowed(rules: tuple[Rule, ...], name: str) -> list[str]:
    found = []
    for at, rule in enumerate(rules):
        before = next((each for each in rules[:at] if each.covers(rule)), None)
        if before is not None:
            found.append(
                f"{name}:{rule.line}: {rule.name}: is never reached: {before.name} in line {before.line} is for the "
                "same GPUs and comes first; move it up, or remove one of them"
            )
    return found
