"""The flavors that the pool offers, and the choice among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from forebay_service.causes import Cause, told
from forebay_service.languages import Text, as_sent, either, in_context, listed, plural, wait_of
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from forebay_spawner.errors import FlavorRefused, PoolUnavailable

OPTION = "flavor"
"""Name of the choice in a server's user options."""

NANO = 10**9
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
    cause: Cause | None = None
    price_nano_per_hour: int | None = None
    currency: str | None = None
    waiting: int = 0
    wait_seconds: float | None = None

    @property
    def rate(self) -> str:
        """What an hour of computing costs, for example ``0.36 USD``, if there is a price; "free" where nobody bills."""
        if self.price_nano_per_hour is None:
            return in_context("price", "free") if self.currency is None else Text("no price in %(currency)s", currency=self.currency)
        return amount(self.price_nano_per_hour, self.currency or "")

    @property
    def memory(self) -> str:
        """The size in GiB."""
        tenths = (Decimal(self.memory_bytes) / 2**30).quantize(Decimal("0.1"))
        return f"{tenths.normalize():,f} GiB"

    @property
    def served_by(self) -> Text:
        """Those of its devices that are here, for example ``1 MI250 or 2 MI210``."""
        return either([str(equivalent) for equivalent in self.equivalents if equivalent.devices])

    @property
    def several(self) -> bool:
        """Whether several devices that are here may be leased together for it."""
        return any(equivalent.count > 1 and equivalent.devices for equivalent in self.equivalents)

    @property
    def refusal(self) -> Text:
        """Why it cannot be served: in English as the pool says it, in other languages by the cause's code, else by what it would need."""
        if not self.reason:
            return Text("no device fits it")
        known = None if self.cause is None else told(self.cause.code, self.cause.values, self.cause.parts)
        needs = Text("needs %(devices)s, which is not here", devices=either([str(one) for one in self.equivalents]))
        return as_sent(self.reason, known or (needs if self.equivalents else None))

    @property
    def wait(self) -> Text:
        """How long a cell would wait for a device now."""
        if self.wait_seconds == 0:
            return Text("no wait")
        wait = Text("a wait of %(time)s", time=wait_of(self.wait_seconds)) if self.wait_seconds else Text("all are held")
        if not self.waiting:
            return wait
        return plural("%(wait)s (%(count)s is waiting)", "%(wait)s (%(count)s are waiting)", self.waiting, wait=wait)


def amount(nano: int, currency: str) -> str:
    """Nano-units exactly, for example ``0.36 USD``."""
    whole = Decimal(nano) / NANO
    cents = whole.quantize(Decimal("0.01"))
    return f"{cents if cents == whole else whole.normalize():f} {currency}"


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
        raise PoolUnavailable(Text("its answer is not a list of flavors: %(problem)s", problem=f"{where}: {first['msg']}")) from None


def read_choice(body: bytes) -> str:
    """The pool's answer to ``GET api/choice``. Raises PoolUnavailable for anything else."""
    try:
        return _Choice.model_validate_json(body).flavor
    except ValidationError:
        raise PoolUnavailable(Text("its answer is not the choice of a flavor")) from None


def preferred(offers: Sequence[Offer], choice: str) -> str | None:
    """What to preselect: the last choice, else the first that can be served; None where nothing can."""
    servable = [offer.name for offer in offers if offer.servable]
    return choice if choice in servable else next(iter(servable), None)


def requested(options: Mapping[str, Any]) -> str | None:
    """The flavor in user options, which may come raw from a REST request. None: not chosen. Raises FlavorRefused."""
    flavor = options.get(OPTION)
    if flavor is None or (isinstance(flavor, str) and flavor):
        return flavor
    example = f'{{"{OPTION}": "small.64gb"}}'
    raise FlavorRefused(
        Text("A flavor is chosen by its name, as in %(example)s, not by %(typed)s.", example=example, typed=f"{flavor!r:.80}")
    )


def admit(offers: Sequence[Offer], flavor: str) -> Offer:
    """The offer of that name. Raises FlavorRefused for a flavor that is unknown, or cannot be served here."""
    by_name = {offer.name: offer for offer in offers}
    offer = by_name.get(flavor)
    names = [as_sent(name) for name, each in by_name.items() if each.servable]
    servable = listed(names) if names else Text("none at the moment")
    if offer is None:
        message = Text("There is no flavor %(name)s. This installation can serve: %(servable)s.", name=f"{flavor!r:.80}", servable=servable)
        raise FlavorRefused(message)
    if not offer.servable:
        raise FlavorRefused(
            Text(
                "Flavor %(name)s cannot be served here: %(reason)s. Choose one of: %(servable)s.",
                name=flavor,
                reason=offer.refusal,
                servable=servable,
            )
        )
    return offer
