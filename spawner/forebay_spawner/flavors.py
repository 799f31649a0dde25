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
WHOLE_MILLI = 1000
"""A whole device, in thousandths."""


class Answer(BaseModel):
    """What a service answers. Fields that a newer one adds are not ours to judge."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Equivalent(Answer):
    """``count`` devices of the model, or ``share_milli`` thousandths of one; ``devices`` of it are here."""

    model: str
    count: int = 1
    share_milli: int = WHOLE_MILLI
    devices: int = 1

    def __str__(self) -> str:
        amount = self.count if self.share_milli == WHOLE_MILLI else f"{self.share_milli / WHOLE_MILLI:g}"
        return f"{amount} {self.model}"


class Offer(Answer):
    """One entry of the pool's ``GET api/flavors``."""

    name: str
    memory_bytes: int
    servable: bool
    equivalents: tuple[Equivalent, ...] = ()
    reason: str | None = None
    price_nano_per_second: int | None = None
    currency: str | None = None
    waiting: int = 0
    wait_seconds: float | None = None

    @property
    def rate(self) -> str:
        """What an hour of computing costs, for example ``0.36 USD``; "free" where nobody bills."""
        if self.price_nano_per_second is None:
            return "free"
        return amount(self.price_nano_per_second * SECONDS_PER_HOUR, self.currency or "")

    @property
    def memory(self) -> str:
        """The size in GiB."""
        return f"{Decimal(self.memory_bytes) / 2**30:.4g} GiB"

    @property
    def served_by(self) -> str:
        """Those of its devices that are here, for example ``1 MI250 or 2 MI210``."""
        return " or ".join(str(equivalent) for equivalent in self.equivalents if equivalent.devices)

    @property
    def wait(self) -> str:
        """How long a cell would wait for a device now."""
        if self.wait_seconds == 0:
            return "no wait"
        others = "" if not self.waiting else " (1 is waiting)" if self.waiting == 1 else f" ({self.waiting} are waiting)"
        return f"a wait of {_duration(self.wait_seconds)}{others}" if self.wait_seconds else f"all are held{others}"


def amount(nano: int, currency: str) -> str:
    """Nano-units exactly, for example ``0.36 USD``."""
    whole = Decimal(nano) / NANO
    cents = whole.quantize(Decimal("0.01"))
    return f"{cents if cents == whole else whole.normalize():f} {currency}"


def _duration(seconds: float) -> str:
    """Roughly: nobody waits to the second."""
    if seconds < 1:
        return "less than a second"
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 100 * 60 else f"about {seconds / 3600:.0f} h"


class _Choice(Answer):
    flavor: str


_OFFERS = TypeAdapter(list[Offer])


def read_offers(body: bytes) -> list[Offer]:
    """The pool's answer. Raises PoolUnavailable for anything else."""
    try:
        return _OFFERS.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "answer"
        raise PoolUnavailable(f"its answer is not a list of flavors: {where}: {first['msg']}") from None


def read_choice(body: bytes) -> str:
    """The pool's answer to ``GET api/choice``. Raises PoolUnavailable for anything else."""
    try:
        return _Choice.model_validate_json(body).flavor
    except ValidationError:
        raise PoolUnavailable("its answer is not the choice of a flavor") from None


def preferred(offers: Sequence[Offer], choice: str) -> str | None:
    """What to preselect: the last choice, else the first that can be served; None where nothing can."""
    servable = [offer.name for offer in offers if offer.servable]
    return choice if choice in servable else next(iter(servable), None)


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
