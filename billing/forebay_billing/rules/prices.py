"""The price book: which price is in force when, and which new ones are accepted."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Generic, Protocol, TypeVar

from forebay_service.errors import Fault

from forebay_billing.errors import ClosedToPrices, InvalidPrice, KnownFlavor, UnknownFlavor
from forebay_billing.model.money import decimals_of
from forebay_billing.model.months import Month, time_text
from forebay_billing.model.types import MODEL, PriceVersion, SurchargeVersion, priced_model
from forebay_billing.rules.etags import version_tag

PRICE_NANO_PER_HOUR_MAX = 3600 * 10**15
"""One million currency units a second: no flavor costs that in any currency, and every cost fits the ledger's columns."""
TIME_NS_MAX = 2**63 - 1
NEVER_NS = 2**64
"""After all usage: the latest begins at TIME_NS_MAX, and lasts a year at most."""
FLAVOR_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
"""The pool's names of flavors."""
MODEL_CHARS_MAX = 128
"""Longest name of a model that a usage record has."""


@dataclass(frozen=True)
class Past:
    """What a price may not change any more: usage that was rated, and the months up to the latest that is finalised for a tenant."""

    rated_until_ns: int = 0
    finalised: Month | None = None

    def check(self, flavor: str, currency: str, valid_from_ns: int) -> None:
        """Raises ClosedToPrices."""
        flavor = flavor.removeprefix(MODEL)
        if self.finalised is not None and valid_from_ns < self.finalised.end_ns:
            raise ClosedToPrices(
                f"The month {self.finalised} is finalised: a price of {flavor} in {currency} from {time_text(valid_from_ns)} on would "
                f"change a closed period; let it begin at {time_text(self.finalised.end_ns)} at the earliest."
            )
        if valid_from_ns < self.rated_until_ns:
            raise ClosedToPrices(
                f"Usage of {flavor} in {currency} is rated up to {time_text(self.rated_until_ns)}: a price from "
                f"{time_text(valid_from_ns)} on would change what was billed; let it begin then at the earliest, or correct the usage."
            )


NOTHING_RATED = Past()


class Version(Protocol):
    """A version of what something costs."""

    @property
    def flavor(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def amount_nano(self) -> int: ...
    @property
    def valid_from_ns(self) -> int: ...


V = TypeVar("V", bound=Version)


class Book(Generic[V]):
    """All versions of all prices. A version is in force from its ``valid_from_ns``; of two with the same, the later version is."""

    AMOUNT_NANO_MAX = PRICE_NANO_PER_HOUR_MAX

    def __init__(self, versions: Iterable[V]) -> None:
        by_key: dict[tuple[str, str], list[V]] = defaultdict(list)
        for version in versions:
            by_key[version.flavor, version.currency].append(version)
        self._versions = {key: sorted(found, key=lambda v: (v.valid_from_ns, v.version)) for key, found in by_key.items()}
        self._starts_ns = {key: [version.valid_from_ns for version in found] for key, found in self._versions.items()}
        self._flavors = {flavor for flavor, _ in self._versions}

    def at(self, flavor: str, currency: str, time_ns: int) -> V | None:
        """The version in force at ``time_ns``, or None before the first."""
        return self.stretch(flavor, currency, time_ns)[0]

    def stretch(self, flavor: str, currency: str, time_ns: int) -> tuple[V | None, int]:
        """The version in force at ``time_ns``, or None before the first; and from when on another one is."""
        starts_ns = self._starts_ns.get((flavor, currency), ())
        found = bisect_right(starts_ns, time_ns)
        until_ns = starts_ns[found] if found < len(starts_ns) else NEVER_NS
        return (self._versions[flavor, currency][found - 1] if found else None), until_ns

    def keys(self) -> list[tuple[str, str]]:
        """Each flavor and currency that has a price."""
        return sorted(self._versions)

    def versions(self, flavor: str, currency: str) -> list[V]:
        """All of one flavor in one currency."""
        return list(self._versions.get((flavor, currency), ()))

    def tag(self, flavor: str, currency: str) -> str | None:
        """The tag of all versions of one flavor in one currency, those to come included; None where there is none."""
        last = max((version.version for version in self._versions.get((flavor, currency), ())), default=None)
        return None if last is None else version_tag(last)

    def changes(self, flavor: str, currency: str, after_ns: int, before_ns: int) -> list[int]:
        """The moments in (after, before) from which another version is in force, in order."""
        starts_ns = self._starts_ns.get((flavor, currency), [])
        first, end = bisect_right(starts_ns, after_ns), bisect_left(starts_ns, before_ns)
        return sorted(set(starts_ns[first:end])) if first < end else []

    def current(self, now_ns: int) -> list[V]:
        """The versions in force at ``now_ns``, by flavor and currency."""
        found = (self.at(flavor, currency, now_ns) for flavor, currency in sorted(self._versions))
        return [version for version in found if version is not None]

    def history(self, flavor: str | None = None) -> list[V]:
        """All versions, oldest first within flavor and currency; of one flavor where given."""
        return [
            version
            for key in sorted(self._versions)
            if flavor is None or key[0] == flavor
            for version in sorted(self._versions[key], key=lambda v: v.version)
        ]

    def next_start(
        self, flavor: str, currency: str, amount_nano: int, valid_from_ns: int | None, now_ns: int, past: Past
    ) -> tuple[int, int]:
        """Number and start of the version that a change makes; without ``valid_from_ns`` it is valid from now on, or from the end of
        what was rated, should clocks differ. A first version may be valid from the past: nothing was billed before it.

        Raises InvalidPrice, ClosedToPrices.
        """
        decimals_of(currency)
        if amount_nano < 0:
            sentence = f"A price cannot be below zero; {amount_nano} nano-units was given for {flavor.removeprefix(MODEL)}."
            raise InvalidPrice(sentence, Fault("price_below_zero", values={"given": amount_nano}))
        if amount_nano > self.AMOUNT_NANO_MAX:
            what, most = flavor.removeprefix(MODEL), self.AMOUNT_NANO_MAX
            sentence = f"A price is at most {most} nano-units; {amount_nano} was given for {what}."
            raise InvalidPrice(sentence, Fault("price_too_high", values={"given": amount_nano, "most": most}))
        earlier = self._versions.get((flavor, currency), [])
        number = 1 + max((v.version for v in earlier), default=0)
        if valid_from_ns is None:
            return number, max(now_ns, past.rated_until_ns if earlier else 0)
        if not 0 <= valid_from_ns <= TIME_NS_MAX:
            raise InvalidPrice(f"valid_from_ns {valid_from_ns} is not from 0 to {TIME_NS_MAX}; without it a price is valid at once.")
        if earlier:
            past.check(flavor, currency, valid_from_ns)
        return number, valid_from_ns


class SurchargeBook(Book[SurchargeVersion]):
    """What an hour of one whole device of each model costs beside the flavor's price: nothing where that was never said."""

    def nano_per_hour(self, model: str, currency: str, time_ns: int) -> int:
        """The surcharge in force at ``time_ns``."""
        version = self.at(priced_model(model), currency, time_ns)
        return 0 if version is None else version.surcharge_nano_per_hour

    def next_version(
        self, model: str, currency: str, nano_per_hour: int, valid_from_ns: int | None, now_ns: int, who: str, past: Past = NOTHING_RATED
    ) -> SurchargeVersion:
        """The version that a change makes. Raises InvalidPrice, ClosedToPrices.

        The first takes the place of zero, at which what came before was rated, so it does not begin in the past.
        """
        if not 0 < len(model) <= MODEL_CHARS_MAX or not model.isprintable():
            raise InvalidPrice(f"{model!r:.80} is no name of a model: it has 1 to {MODEL_CHARS_MAX} printable characters.")
        key = priced_model(model)
        number, start_ns = self.next_start(key, currency, nano_per_hour, valid_from_ns, now_ns, past)
        if valid_from_ns is None:
            start_ns = max(start_ns, past.rated_until_ns)
        past.check(key, currency, start_ns)
        return SurchargeVersion(model, currency, number, nano_per_hour, start_ns, now_ns, who)


class PriceBook(Book[PriceVersion]):
    """What an hour of each flavor costs, whatever serves it, and the ``surcharges`` of what does."""

    def __init__(self, versions: Iterable[PriceVersion], surcharges: Iterable[SurchargeVersion] = ()) -> None:
        super().__init__(versions)
        self.surcharges = SurchargeBook(surcharges)

    def holds(self, flavor: str) -> bool:
        """Whether the flavor was ever in the book."""
        return flavor in self._flavors

    def check_flavor(self, flavor: str) -> None:
        """Raises UnknownFlavor for one that was never in the book."""
        if flavor not in self._flavors:
            held = ", ".join(sorted(self._flavors))
            raise UnknownFlavor(f'There is no flavor {flavor!r:.80}; the price book holds {held}. A first price needs "new": true.')

    def next_version(
        self,
        flavor: str,
        currency: str,
        price_nano_per_hour: int,
        valid_from_ns: int | None,
        now_ns: int,
        who: str,
        new: bool = False,
        past: Past = NOTHING_RATED,
    ) -> PriceVersion:
        """The version that a change makes. ``new`` says that the flavor is not in the book yet.

        Raises UnknownFlavor, KnownFlavor, InvalidPrice, ClosedToPrices.
        """
        if new and flavor in self._flavors:
            raise KnownFlavor(f'The price book holds the flavor {flavor!r} already; leave out "new" to change its price.')
        if new and re.fullmatch(FLAVOR_PATTERN, flavor) is None:
            raise InvalidPrice(f"{flavor!r:.80} is no name of a flavor: use a-z, 0-9, dot, dash, underscore, 64 at most.")
        if not new:
            self.check_flavor(flavor)
        number, start_ns = self.next_start(flavor, currency, price_nano_per_hour, valid_from_ns, now_ns, past)
        return PriceVersion(flavor, currency, number, price_nano_per_hour, start_ns, now_ns, who)


def seed_prices(now_ns: int) -> list[PriceVersion]:
    """Version 1 of every flavor, valid for all time before a change, from ``seeds/prices.toml``."""
    text = resources.files("forebay_billing").joinpath("seeds", "prices.toml").read_text(encoding="utf-8")
    seeds = tomllib.loads(text)
    return [
        PriceVersion(
            flavor=flavor,
            currency=seeds["currency"],
            version=1,
            price_nano_per_hour=price,
            valid_from_ns=0,
            changed_at_ns=now_ns,
            changed_by="seed",
        )
        for flavor, price in seeds["price_nano_per_hour"].items()
    ]
