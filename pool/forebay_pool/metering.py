"""From a closed lease to a usage record and its cost."""

from __future__ import annotations

from forebay_pool.types import WHOLE_MILLI, Lease, Place, Price, UsageRecord

SECOND_NS = 1_000_000_000


def record_id(lease: Lease) -> str:
    """Names the usage record of the lease's segment for ever."""
    return f"{lease.id}/1"


def usage_record(lease: Lease) -> UsageRecord:
    """The record of a closed lease's one segment."""
    session = lease.session
    return UsageRecord(
        id=record_id(lease),
        tenant=session.tenant,
        user=session.user,
        session=session.id,
        lease=lease.id,
        span=lease.span,
        flavor=lease.flavor.name,
        device_model=lease.device.model,
        devices=len(lease.place.devices),
        started_at_unix_ns=lease.opened_unix_ns,
        duration_ns=lease.duration_ns,
        close_reason=lease.ending,
        share_milli=lease.place.share_milli,
        surcharge_nano_per_second=lease.surcharge_nano_per_second,
    )


def rate(price: Price | None, surcharge_nano_per_second: int, place: Place) -> Price | None:
    """What a second of the place costs: the flavor's price, and the model's surcharge for each device's share.

    Whole nano-units: a surcharge that is none for the share is rounded (half-even) here, as billing rounds it, and nothing after it is.
    """
    if price is None:
        return None
    surcharge = round_half_even(surcharge_nano_per_second * len(place.devices) * place.share_milli, WHOLE_MILLI)
    return Price(price.nano_per_second + surcharge, price.currency)


def cost_nano(duration_ns: int, price: Price | None) -> int | None:
    """What the user is told a lease cost. Billing computes the exact amount itself, and rounds once, on the statement."""
    return None if price is None else round_half_even(duration_ns * price.nano_per_second, SECOND_NS)


def round_half_even(amount: int, divisor: int) -> int:
    """The integer nearest to ``amount / divisor``; halves go to the even one."""
    quotient, rest = divmod(amount, divisor)
    return quotient + (2 * rest > divisor or (2 * rest == divisor and quotient % 2 == 1))
