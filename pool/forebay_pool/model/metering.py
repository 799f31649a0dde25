"""From a lease to usage records, one for each of its segments, and its cost."""

from __future__ import annotations

from dataclasses import replace

from forebay_pool.model.types import GOES_ON, WHOLE_MILLI, Lease, Parking, Place, Price, SegmentEnd, Surcharges, UsageRecord

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
PARKED = "@parked"
"""What parked bytes are called among flavors; no flavor has such a name."""


def cut_after(unix_ns: int, segment_ns: int) -> int:
    """The next moment at which segments end: every ``segment_ns`` from each full UTC hour on, and at the hour. Months end at full hours."""
    within_ns = unix_ns % HOUR_NS
    return unix_ns - within_ns + min(HOUR_NS, (within_ns // segment_ns + 1) * segment_ns)


def passed_ns(opened_unix_ns: int, metered_ns: int, sure_ns: int, segment_ns: int) -> int:
    """For how long what began then can be metered in whole segments, if it lasts for ``sure_ns`` at least."""
    while True:
        cut_ns = cut_after(opened_unix_ns + metered_ns, segment_ns) - opened_unix_ns
        if cut_ns > sure_ns:
            return metered_ns
        metered_ns = cut_ns


def record_id(lease: str, number: int) -> str:
    """Names the usage record of the lease's segment of that number, which counts from 1, for ever."""
    return f"{lease}/{number}"


def segment_number(record: UsageRecord) -> int:
    """Of the lease's segment that the record is of."""
    return int(record.id.rpartition("/")[2])


def whole_record(lease: Lease, duration_ns: int, reason: SegmentEnd, energy_mj: int | None = None) -> UsageRecord:
    """What the lease would be metered as, in one piece; named as its segment that is running. ``energy_mj`` was not metered yet."""
    session = lease.session
    return UsageRecord(
        id=record_id(lease.id, lease.segment),
        tenant=session.tenant,
        user=session.user,
        session=session.id,
        lease=lease.id,
        span=lease.span,
        flavor=lease.flavor.name,
        device_model=lease.device.model,
        devices=len(lease.place.devices),
        started_at_unix_ns=lease.opened_unix_ns,
        duration_ns=duration_ns,
        close_reason=reason,
        share_milli=lease.place.share_milli,
        energy_mj=energy_mj,
        held=tuple(device.id for device in lease.place.devices),
    )


def parked_record(parking: Parking, duration_ns: int, reason: SegmentEnd) -> UsageRecord:
    """What the stretch of parked time would be metered as, in one piece; named as its segment that is running."""
    session, holder, image = parking.session, parking.holder, parking.image
    return UsageRecord(
        id=record_id(parking.id, parking.segment),
        tenant=session.tenant,
        user=session.user,
        session=session.id,
        lease=parking.id,
        span=parking.span,
        flavor=PARKED,
        device_model=image.model if image is not None else "" if holder is None else holder.device.model,
        devices=1 if image is not None or holder is None else len(holder.devices),
        started_at_unix_ns=parking.opened_unix_ns,
        duration_ns=duration_ns,
        close_reason=reason,
        parked_bytes=parking.bytes,
    )


def segments(whole: UsageRecord, number: int, metered_ns: int, segment_ns: int) -> list[UsageRecord]:
    """The records of a lease's segments from ``number`` on, of which those before were metered for ``metered_ns``.

    They lie one after the other from the lease's start on, by the monotonic clock alone: a step of the Unix clock while the lease is open
    moves none of them. All but the last are of a lease that goes on. What was metered once is not given back. The energy of ``whole`` is
    shared out among them by their time.
    """
    opened_ns, ended_ns = whole.started_at_unix_ns, whole.started_at_unix_ns + max(whole.duration_ns, metered_ns)
    at_ns = opened_ns + metered_ns
    if not metered_ns and ended_ns <= cut_after(at_ns, segment_ns) and whole.id == record_id(whole.lease, number):
        return [whole]
    found: list[UsageRecord] = []
    first_ns = at_ns
    while True:
        cut_ns = cut_after(at_ns, segment_ns)
        end_ns = min(cut_ns, ended_ns)
        name, reason = record_id(whole.lease, number + len(found)), whole.close_reason if end_ns == ended_ns else GOES_ON
        energy_mj = _part(whole.energy_mj, at_ns - first_ns, end_ns - first_ns, ended_ns - first_ns)
        found.append(
            replace(whole, id=name, started_at_unix_ns=at_ns, duration_ns=end_ns - at_ns, close_reason=reason, energy_mj=energy_mj)
        )
        if end_ns == ended_ns:
            return found
        at_ns = end_ns


def _part(amount: int | None, from_ns: int, until_ns: int, whole_ns: int) -> int | None:
    """What falls on a stretch of ``whole_ns``; the parts of adjoining stretches add up to the amount."""
    return amount if amount is None or not whole_ns else amount * until_ns // whole_ns - amount * from_ns // whole_ns


def rate(price: Price | None, surcharges: Surcharges, place: Place) -> Price | None:
    """What an hour of the place costs: the flavor's price, and the model's surcharge for each device's share.

    Whole nano-units: a surcharge that is none for the share is rounded (half-even) here, as billing rounds it, and nothing after it is.
    """
    if price is None or price.nano_per_hour is None:
        return price
    nano_per_hour = surcharges.get((place.devices[0].model, price.currency), 0)
    surcharge = round_half_even(nano_per_hour * len(place.devices) * place.share_milli, WHOLE_MILLI)
    return Price(price.nano_per_hour + surcharge, price.currency)


def cost_nano(duration_ns: int, price: Price | None) -> int | None:
    """What the user is told a lease cost. Billing computes the exact amount itself, and rounds once, on the statement."""
    return None if price is None or price.nano_per_hour is None else round_half_even(duration_ns * price.nano_per_hour, HOUR_NS)


def round_half_even(amount: int, divisor: int) -> int:
    """The integer nearest to ``amount / divisor``; halves go to the even one."""
    quotient, rest = divmod(amount, divisor)
    return quotient + (2 * rest > divisor or (2 * rest == divisor and quotient % 2 == 1))
