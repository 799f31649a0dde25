"""What billing says usage costs: flavors and models of devices in each currency, and which of these each tenant is billed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_pool.model.types import Price, Surcharges

Prices = Mapping[tuple[str, str], int]
"""What an hour of a flavor costs, in nano-units, by flavor and currency."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """All of it as it was told last; without anything in it nobody bills."""

    prices: Prices = field(default_factory=dict)
    surcharges: Surcharges = field(default_factory=dict)
    currency: str | None = None
    """What tenants are billed in that ``currencies`` does not name; None where nobody bills."""
    currencies: Mapping[str, str] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    """What a GiB costs in an hour in which it is parked, or in an image, in nano-units, by currency; nothing where there is none."""

    def price_of(self, flavor: str, tenant: str) -> Price | None:
        """What the tenant pays for an hour of the flavor; None where nobody bills."""
        currency = self.currencies.get(tenant, self.currency)
        return None if currency is None else Price(self.prices.get((flavor, currency)), currency)

    def parked_price_of(self, tenant: str) -> int | None:
        """What the tenant pays for an hour of a GiB that is parked, or in an image; None where nobody bills."""
        return None if self.currency is None else self.parked.get(self.currencies.get(tenant, self.currency), 0)

    def surcharge_of(self, model: str, tenant: str) -> int:
        """What the tenant pays for an hour of a whole device beside the flavor's price, in nano-units of its currency."""
        if self.currency is None or not self.surcharges:
            return 0
        return self.surcharges.get((model, self.currencies.get(tenant, self.currency)), 0)
