"""Prices as exact decimals: what they come to for an hour, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

PLACES = Decimal("0.000001")
"""A millionth of the currency's unit: no price list is finer, and no GPU's hour is worth less."""
MOST = Decimal(1_000_000)
HOURS_OF_A_YEAR = Decimal(8760)
HOURS_OF_A_MONTH = HOURS_OF_A_YEAR / 12
_WATTS_OF_A_KILOWATT = Decimal(1000)


@dataclass(frozen=True, slots=True)
class Owned:
    """What an own machine costs. All amounts are of the same number of GPUs, ``gpus``."""

    purchase_price: Decimal
    hours: Decimal
    """Over which the purchase is written off."""
    in_service: Decimal = Decimal(1)
    """Fraction of those hours in which it can be used."""
    power_watts: Decimal = Decimal(0)
    tariff_per_kwh: Decimal = Decimal(0)
    pue: Decimal = Decimal(1)
    """Power of the whole data centre over that of its machines."""
    gpus: Decimal = Decimal(1)

    @property
    def per_hour(self) -> Decimal:
        """Of one GPU: purchase over hours of service, and power."""
        power = self.power_watts / _WATTS_OF_A_KILOWATT * self.tariff_per_kwh * self.pue
        return (self.purchase_price / (self.hours * self.in_service) + power) / self.gpus


def rounded(amount: Decimal) -> Decimal:
    """The amount to a millionth."""
    return amount.quantize(PLACES, ROUND_HALF_EVEN)


def canonical(amount: Decimal) -> str:
    """The shortest decimal without an exponent: ``4.8``, ``12``, ``0.000001``."""
    text = f"{amount:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text
