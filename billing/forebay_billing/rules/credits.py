"""Credits: which grant pays for which hour of a period's usage. Pure, in whole minor units, and blind to the order of deliveries.

What is due is spread over the hours in which the usage was, and the hours are paid in the order of time. An hour is paid by the grants
that are valid in it: the lowest priority number first, of those the one that expires first, of those the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from forebay_billing.rules.rating import HOUR_NS

GrantKind = Literal["prepaid", "promotional"]
"""A prepaid credit is money that was paid before: it can be refunded, and pays tax too. A promotional one is a gift, and lowers the tax."""

NEVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Grant:
    """Credit of a tenant. Valid from ``effective_at_ns`` until before ``expires_at_ns`` (None: for ever). Ids grow with age."""

    id: int
    kind: GrantKind
    currency: str
    amount_minor: int
    priority: int
    effective_at_ns: int
    expires_at_ns: int | None

    def covers(self, hour_ns: int) -> bool:
        """Whether it is valid in any moment of the hour that begins at ``hour_ns``."""
        return self.effective_at_ns < hour_ns + HOUR_NS and hour_ns < (NEVER_NS if self.expires_at_ns is None else self.expires_at_ns)


@dataclass(frozen=True)
class Balance:
    """What is left of a grant."""

    grant: Grant
    left_minor: int


@dataclass(frozen=True)
class Due:
    """What is to be paid for the usage of an hour."""

    hour_ns: int
    amount_minor: int


@dataclass(frozen=True)
class Use:
    """What a grant pays."""

    grant: Grant
    amount_minor: int


def dues(usage_grains: Mapping[int, int], net_minor: int, last_hour_ns: int) -> tuple[Due, ...]:
    """``net_minor`` spread over the hours of ``usage_grains`` (by their start), in proportion, summing to it exactly.

    Hours of nothing or less (corrections) have no part in it. Where there are no others, all is due in ``last_hour_ns``.
    """
    if net_minor <= 0:
        return ()
    hours = sorted(hour for hour, grains in usage_grains.items() if grains > 0)
    if not hours:
        return (Due(last_hour_ns, net_minor),)
    grown = list(accumulate((usage_grains[hour] for hour in hours), initial=0))
    shares = [amount * net_minor // grown[-1] for amount in grown]
    return tuple(Due(hour, after - before) for hour, (before, after) in zip(hours, pairwise(shares), strict=True) if after > before)


def allocate(owed: Iterable[Due], balances: Sequence[Balance]) -> tuple[Use, ...]:
    """What each grant pays of ``owed``, in the order in which they are used; grants that pay nothing are left out."""
    ordered = sorted(balances, key=_place)
    left = {balance.grant.id: balance.left_minor for balance in ordered}
    for due in sorted(owed, key=lambda due: due.hour_ns):
        rest = due.amount_minor
        for balance in ordered:
            if balance.grant.covers(due.hour_ns):
                paid = min(rest, left[balance.grant.id])
                left[balance.grant.id] -= paid
                rest -= paid
    used = ((balance.grant, balance.left_minor - left[balance.grant.id]) for balance in ordered)
    return tuple(Use(grant, amount) for grant, amount in used if amount)


def after(balances: Iterable[Balance], uses: Iterable[Use]) -> tuple[Balance, ...]:
    """What is left once ``uses`` are paid."""
    paid: dict[int, int] = {}
    for use in uses:
        paid[use.grant.id] = paid.get(use.grant.id, 0) + use.amount_minor
    return tuple(Balance(balance.grant, balance.left_minor - paid.get(balance.grant.id, 0)) for balance in balances)


def expired(balances: Iterable[Balance], until_ns: int) -> tuple[Balance, ...]:
    """Those that expired by ``until_ns`` with something left in them."""
    return tuple(
        balance
        for balance in balances
        if balance.left_minor and balance.grant.expires_at_ns is not None and balance.grant.expires_at_ns <= until_ns
    )


def _place(balance: Balance) -> tuple[int, int, int]:
    grant = balance.grant
    return grant.priority, NEVER_NS if grant.expires_at_ns is None else grant.expires_at_ns, grant.id
