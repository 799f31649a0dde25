"""The flavors that the pool offers, and the choice among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from forebay_spawner.errors import FlavorRefused, PoolUnavailable

OPTION = "flavor"
"""Name of the choice in a server's user options."""

NANO = 10**9
SECONDS_PER_HOUR = 3600


class Offer(BaseModel):
    """One entry of the pool's ``GET api/flavors``. Fields that a newer pool adds are not ours to judge."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    memory_bytes: int
    servable: bool
    reason: str | None = None
    price_nano_per_second: int | None = None
    currency: str | None = None

    @property
    def rate(self) -> str:
        """What an hour of computing costs, for example ``0.36 USD``; "free" where nobody bills."""
        if self.price_nano_per_second is None:
            return "free"
        hourly = Decimal(self.price_nano_per_second * SECONDS_PER_HOUR) / NANO
        cents = hourly.quantize(Decimal("0.01"))
        shown = cents if cents == hourly else hourly.normalize()
        return f"{shown:f} {self.currency}"

    @property
    def memory(self) -> str:
        """The size in GiB."""
        return f"{Decimal(self.memory_bytes) / 2**30:.4g} GiB"


_OFFERS = TypeAdapter(list[Offer])


def read_offers(body: bytes) -> list[Offer]:
    """The pool's answer. Raises PoolUnavailable for anything else."""
    try:
        return _OFFERS.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "answer"
        raise PoolUnavailable(f"its answer is not a list of flavors: {where}: {first['msg']}") from None


def preferred(offers: Sequence[Offer], last: str | None, default: str) -> str | None:
    """What to preselect: the last choice, else the default, else the first; None where nothing can be served."""
    servable = [offer.name for offer in offers if offer.servable]
    for name in (last, default):
        if name in servable:
            return name
    return servable[0] if servable else None


def requested(options: Mapping[str, Any]) -> str | None:
    """The flavor in user options, which may come raw from a REST request. None: not chosen. Raises FlavorRefused."""
    flavor = options.get(OPTION)
    if flavor is None or (isinstance(flavor, str) and flavor):
        return flavor
    raise FlavorRefused(f'A flavor is chosen by its name, as in {{"{OPTION}": "small.64gb"}}, not by {flavor!r:.80}.')


def admit(offers: Sequence[Offer], flavor: str) -> Offer:
    """The offer of that name. Raises FlavorRefused for a flavor that is unknown, or cannot be served here."""
    by_name = {offer.name: offer for offer in offers}
    offer = by_name.get(flavor)
    servable = ", ".join(name for name, each in by_name.items() if each.servable) or "none at the moment"
    if offer is None:
        raise FlavorRefused(f"There is no flavor {flavor!r:.80}. This installation can serve: {servable}.")
    if not offer.servable:
        raise FlavorRefused(f"Flavor {flavor} cannot be served here: {offer.reason or 'no device fits it'}. Choose one of: {servable}.")
    return offer
