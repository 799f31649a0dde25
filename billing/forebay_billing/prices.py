"""The price book: which price is in force when, and which new ones are accepted."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from importlib import resources

from forebay_billing.errors import InvalidPrice, KnownFlavor, UnknownFlavor
from forebay_billing.money import decimals_of
from forebay_billing.types import PriceVersion

PRICE_NANO_PER_SECOND_MAX = 10**15
"""One million currency units a second: no flavor costs that in any currency, and every cost fits the ledger's columns."""
TIME_NS_MAX = 2**63 - 1
FLAVOR_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
"""The pool's names of flavors."""


def _valid_from_ns(version: PriceVersion) -> int:
    return version.valid_from_ns


class PriceBook:
    """All versions of all prices. A version is in force from its ``valid_from_ns``; of two with the same, the later version is."""

    def __init__(self, versions: Iterable[PriceVersion]) -> None:
        by_key: dict[tuple[str, str], list[PriceVersion]] = defaultdict(list)
        for version in versions:
            by_key[version.flavor, version.currency].append(version)
        self._versions = {key: sorted(found, key=lambda v: (v.valid_from_ns, v.version)) for key, found in by_key.items()}
        self._flavors = {flavor for flavor, _ in self._versions}

    def at(self, flavor: str, currency: str, time_ns: int) -> PriceVersion | None:
        """The version in force at ``time_ns``, or None before the first."""
        versions = self._versions.get((flavor, currency), [])
        found = bisect_right(versions, time_ns, key=_valid_from_ns)
        return versions[found - 1] if found else None

    def changes(self, flavor: str, currency: str, after_ns: int, before_ns: int) -> list[int]:
        """The moments in (after, before) from which another version is in force, in order."""
        versions = self._versions.get((flavor, currency), [])
        first, end = bisect_right(versions, after_ns, key=_valid_from_ns), bisect_left(versions, before_ns, key=_valid_from_ns)
        return sorted({version.valid_from_ns for version in versions[first:end]})

    def current(self, now_ns: int) -> list[PriceVersion]:
        """The versions in force at ``now_ns``, by flavor and currency."""
        found = (self.at(flavor, currency, now_ns) for flavor, currency in sorted(self._versions))
        return [version for version in found if version is not None]

    def history(self, flavor: str | None) -> list[PriceVersion]:
        """All versions, oldest first within flavor and currency; of one flavor where given."""
        return [
            version
            for key in sorted(self._versions)
            if flavor is None or key[0] == flavor
            for version in sorted(self._versions[key], key=lambda v: v.version)
        ]

    def check_flavor(self, flavor: str) -> None:
        """Raises UnknownFlavor for one that was never in the book."""
        if flavor not in self._flavors:
            held = ", ".join(sorted(self._flavors))
            raise UnknownFlavor(f'There is no flavor {flavor!r:.80}; the price book holds {held}. A first price needs "new": true.')

    def next_version(
        self, flavor: str, currency: str, price_nano_per_second: int, valid_from_ns: int | None, now_ns: int, who: str, new: bool = False
    ) -> PriceVersion:
        """The version that a change makes; valid from now on where no time is given. Raises UnknownFlavor, KnownFlavor, InvalidPrice.

        ``new`` says that the flavor is not in the book yet. A first version may be valid from the past: nothing was billed before it.
        """
        if new and flavor in self._flavors:
            raise KnownFlavor(f'The price book holds the flavor {flavor!r} already; leave out "new" to change its price.')
        if new and re.fullmatch(FLAVOR_PATTERN, flavor) is None:
            raise InvalidPrice(f"{flavor!r:.80} is no name of a flavor: use a-z, 0-9, dot, dash, underscore, 64 at most.")
        if not new:
            self.check_flavor(flavor)
        decimals_of(currency)
        earlier = self._versions.get((flavor, currency), [])
        if price_nano_per_second < 0:
            raise InvalidPrice(f"A price cannot be below zero; {price_nano_per_second} nano-units per second was given.")
        if price_nano_per_second > PRICE_NANO_PER_SECOND_MAX:
            raise InvalidPrice(f"A price is at most {PRICE_NANO_PER_SECOND_MAX} nano-units per second; {price_nano_per_second} was given.")
        if valid_from_ns is not None and valid_from_ns < (now_ns if earlier else 0):
            raise InvalidPrice(
                f"A price cannot be valid from the past: valid_from_ns {valid_from_ns} lies before now, {now_ns}; "
                "leave it out for a price that is valid at once."
            )
        if valid_from_ns is not None and valid_from_ns > TIME_NS_MAX:
            raise InvalidPrice(f"valid_from_ns {valid_from_ns} is too large; it can be at most {TIME_NS_MAX}.")
        return PriceVersion(
            flavor=flavor,
            currency=currency,
            version=1 + max((v.version for v in earlier), default=0),
            price_nano_per_second=price_nano_per_second,
            valid_from_ns=now_ns if valid_from_ns is None else valid_from_ns,
            changed_at_ns=now_ns,
            changed_by=who,
        )


def seed_prices(now_ns: int) -> list[PriceVersion]:
    """Version 1 of every flavor, valid for all time before a change, from ``seeds/prices.toml``."""
    text = resources.files("forebay_billing").joinpath("seeds", "prices.toml").read_text(encoding="utf-8")
    seeds = tomllib.loads(text)
    return [
        PriceVersion(
            flavor=flavor,
            currency=seeds["currency"],
            version=1,
            price_nano_per_second=price,
            valid_from_ns=0,
            changed_at_ns=now_ns,
            changed_by="seed",
        )
        for flavor, price in seeds["price_nano_per_second"].items()
    ]
