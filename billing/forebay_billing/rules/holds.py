"""Holds: money of a tenant that is kept back for leases that are open, so that what is left is known before they close.

A hold is named as the usage record is that its lease will make: by (source, record). It covers a stretch of the lease's time from the
record's start on, and a heartbeat makes it longer before that is over. The record releases it, whatever that costs: what is owed comes
from records alone, and holds never change it. A hold whose time has been over for long, and of which nobody said anything, expires.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from forebay_billing.errors import InvalidRequest, Unpriced
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.rules.prices import PriceBook
from forebay_billing.rules.rating import open_period, segments_of

HOLDS = "holds"
"""The account that holds stand against."""
Ending = Literal["post", "void", "expire"]
"""How a hold ends: with the record of its lease, with one of a lease that failed by our fault, or by silence."""


def held(tenant: str) -> str:
    """The account of what is held of a tenant."""
    return f"held:{tenant}"


@dataclass(frozen=True)
class Terms:
    """``margin_ns`` is how far ahead a hold covers its lease; it is made longer once half of that is left beyond the next heartbeat.

    ``silence_ns`` after the end of what it covers a hold expires.
    """

    margin_ns: int
    silence_ns: int

    def covered_ns(self, duration_ns: int, period_ns: int) -> int:
        """For how long a new or longer hold covers a lease that has been open for ``duration_ns``."""
        return duration_ns + period_ns + self.margin_ns

    def suffices(self, covered_ns: int, duration_ns: int, period_ns: int) -> bool:
        """Whether a hold can stay as it is until the next heartbeat."""
        return covered_ns >= duration_ns + period_ns + self.margin_ns // 2

    def expires_at_ns(self, covered_ns: int, duration_ns: int, now_ns: int) -> int:
        """When a hold ends of which nothing is heard after now."""
        return now_ns + covered_ns - duration_ns + self.silence_ns


@dataclass(frozen=True)
class Heartbeat:
    """What a pool says of open leases, each as the record that it makes if it closes now; ``period_ns`` until it says it again."""

    source: str
    period_ns: int
    leases: tuple[UsageRecord, ...]


@dataclass(frozen=True)
class Hold:
    """What is kept back: ``amount_grains`` of ``currency``, in ``period``, for the first ``covered_ns`` of a record."""

    source: str
    record_id: str
    tenant: str
    user: str
    span_label: str
    currency: str
    period: Month
    covered_ns: int
    amount_grains: int
    expires_at_ns: int


def reserved(
    lease: UsageRecord, period_ns: int, book: PriceBook, currency: str, finalised: Collection[Month], terms: Terms, now_ns: int
) -> Hold | None:
    """The hold that ``lease`` needs now, at the prices that are known; None for one that could not be billed either."""
    covered_ns = terms.covered_ns(lease.duration_ns, period_ns)
    try:
        segments = segments_of(replace(lease, duration_ns=covered_ns), book, currency, finalised)
    except (Unpriced, InvalidRequest):
        return None
    return Hold(
        source=lease.source,
        record_id=lease.id,
        tenant=lease.tenant,
        user=lease.user,
        span_label=lease.span.label,
        currency=currency,
        period=open_period(Month.of(lease.started_at_ns), finalised),
        covered_ns=covered_ns,
        amount_grains=sum(segment.amount_grains for segment in segments),
        expires_at_ns=terms.expires_at_ns(covered_ns, lease.duration_ns, now_ns),
    )


def ending_of(record: UsageRecord) -> Ending:
    """How a record ends its hold. What a failed lease costs is what its worker had confirmed; the rest of its hold is void."""
    return "void" if record.close_reason == "failed" else "post"
