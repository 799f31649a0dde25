"""What a month's usage would have cost at other prices and plans. Pure; nothing is posted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay_billing.model.types import PARKED, priced_model
from forebay_billing.rules.parked import parked_grains
from forebay_billing.rules.plans import Adjustment, Terms, Usage, adjustments, list_grains
from forebay_billing.rules.rating import surcharge_rate


@dataclass(frozen=True)
class Rated:
    """How long a tenant held a flavor in a month at one price and surcharge, on so much of so many devices of a model.

    It is below zero where corrections outweigh the rest.
    """

    tenant: str
    flavor: str
    currency: str
    price_nano_per_hour: int
    surcharge_nano_per_hour: int
    duration_ns: int
    model: str
    devices: int
    share_milli: int


@dataclass(frozen=True)
class RatedBytes:
    """What a tenant parked in a month, in bytes times nanoseconds, and what that cost; less than nothing where corrections outweigh."""

    tenant: str
    currency: str
    byte_ns: int
    cost_grains: int


@dataclass(frozen=True)
class Cost:
    """A month at the list price, and what the plan changes of it."""

    list_grains: int
    adjustments: tuple[Adjustment, ...]

    @property
    def total_grains(self) -> int:
        return self.list_grains + sum(one.amount_grains for one in self.adjustments)


@dataclass(frozen=True)
class Row:
    """A tenant's month in one currency, as it is and as it would be."""

    tenant: str
    currency: str
    present: Cost
    proposed: Cost


def preview(
    rated: Iterable[Rated],
    parked: Iterable[RatedBytes],
    prices: Mapping[tuple[str, str], int],
    present_terms: Mapping[str, Terms],
    proposed_terms: Mapping[str, Terms],
) -> list[Row]:
    """A row for each tenant and currency that has usage or a plan, by tenant.

    ``prices`` are the proposed ones for all of the month, by flavor and currency, in nano-units per hour; of models by
    :func:`priced_model`, and of parked bytes by PARKED, per GiB and hour. What is not among them keeps what it was rated at.
    Tenants without terms pay the list price.
    """
    now: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    then: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    bytes_now: dict[tuple[str, str], int] = defaultdict(int)
    bytes_then: dict[tuple[str, str], int] = defaultdict(int)
    for tenant, terms in (*present_terms.items(), *proposed_terms.items()):
        now[tenant, terms.currency] = []
    for one in rated:
        key, surcharge = (one.tenant, one.currency), one.surcharge_nano_per_hour
        of_model = prices.get((priced_model(one.model), one.currency))
        then_surcharge = surcharge if of_model is None else surcharge_rate(of_model, one.devices, one.share_milli)
        price = prices.get((one.flavor, one.currency), one.price_nano_per_hour)
        now[key].append(Usage(one.flavor, one.currency, one.price_nano_per_hour + surcharge, one.duration_ns))
        then[key].append(Usage(one.flavor, one.currency, price + then_surcharge, one.duration_ns))
    for of in parked:
        key, per_gib_hour = (of.tenant, of.currency), prices.get((PARKED, of.currency))
        bytes_now[key] += of.cost_grains
        bytes_then[key] += of.cost_grains if per_gib_hour is None else parked_grains(of.byte_ns, per_gib_hour)
    return [
        Row(*key, _cost(key, now[key], bytes_now[key], present_terms), _cost(key, then[key], bytes_then[key], proposed_terms))
        for key in sorted({*now, *bytes_now})
    ]  # fmt: skip


def _cost(key: tuple[str, str], usages: list[Usage], parked_grains: int, terms_of: Mapping[str, Terms]) -> Cost:
    tenant, currency = key
    terms = terms_of.get(tenant)
    changed = () if terms is None or terms.currency != currency else adjustments(terms, usages, parked_grains)
    return Cost(list_grains(usages, currency) + parked_grains, changed)
