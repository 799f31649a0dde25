"""What usage costs: splits a record at changes of price and surcharge, full UTC hours and month ends, and prices each segment exactly.

What a record costs depends on the record and the price book alone, so that the order of deliveries never matters.
"""

from __future__ import annotations

from collections.abc import Collection

from forebay_billing.errors import InvalidRequest, Unpriced
from forebay_billing.model.money import cost_grains, round_half_even
from forebay_billing.model.months import Month
from forebay_billing.model.types import ParkedSegment, Segment, UsageRecord, priced_model
from forebay_billing.rules.parked import ParkedBook, parked_grains
from forebay_billing.rules.prices import PRICE_NANO_PER_HOUR_MAX, PriceBook

HOUR_NS = 3600 * 10**9
WHOLE_MILLI = 1000
"""A whole device, in thousandths."""


def segments_of(record: UsageRecord, book: PriceBook, currency: str, finalised: Collection[Month]) -> list[Segment]:
    """The segments of ``record`` in order; their durations sum to the record's. ``finalised`` are the tenant's closed months.

    Raises Unpriced where no price was in force when the record started, InvalidRequest for a surcharge that cannot be.
    """
    at_ns, ended_at_ns = record.started_at_ns, record.started_at_ns + record.duration_ns
    segments: list[Segment] = []
    while not segments or at_ns < ended_at_ns:
        price, until_ns = book.stretch(record.flavor, currency, at_ns)
        if price is None:
            raise _unpriced(record, currency)
        surcharge, same_until_ns = _surcharge(record, book, currency, at_ns)
        end_ns = min(ended_at_ns, until_ns, same_until_ns, _hour_after(at_ns))
        amount = cost_grains(end_ns - at_ns, price.price_nano_per_hour + surcharge)
        month = Month.of(at_ns)
        period = open_period(month, finalised) if finalised else month
        segments.append(Segment(len(segments), at_ns, end_ns - at_ns, price, surcharge, amount, period, period != month))
        at_ns = end_ns
    return segments


def parked_segments_of(
    record: UsageRecord, parked_bytes: int, book: ParkedBook, currency: str, finalised: Collection[Month]
) -> list[ParkedSegment]:
    """The same of a record of parked bytes. Without a price they cost nothing."""
    at_ns, ended_at_ns = record.started_at_ns, record.started_at_ns + record.duration_ns
    segments: list[ParkedSegment] = []
    while not segments or at_ns < ended_at_ns:
        price, until_ns = book.stretch(record.flavor, currency, at_ns)
        end_ns = min(ended_at_ns, until_ns, _hour_after(at_ns))
        amount = 0 if price is None else parked_grains(parked_bytes * (end_ns - at_ns), price.price_nano_per_gib_hour)
        month = Month.of(at_ns)
        period = open_period(month, finalised)
        segments.append(ParkedSegment(len(segments), at_ns, end_ns - at_ns, price, currency, amount, period, period != month))
        at_ns = end_ns
    return segments


def surcharge_rate(nano_per_hour: int, devices: int, share_milli: int) -> int:
    """What an hour of so much of so many devices costs beside the flavor's price, in whole nano-units.

    A rate, not an amount, is rounded (half-even): so every amount made with it is exact, and the pool tells its users the same rate.
    """
    return round_half_even(nano_per_hour * devices * share_milli, WHOLE_MILLI)


def _surcharge(record: UsageRecord, book: PriceBook, currency: str, time_ns: int) -> tuple[int, int]:
    """What an hour of the record's devices costs then beside the flavor's price, and until when. Raises InvalidRequest."""
    version, until_ns = book.surcharges.stretch(priced_model(record.device_model), currency, time_ns)
    if version is None:
        return 0, until_ns
    surcharge = surcharge_rate(version.surcharge_nano_per_hour, record.devices, record.share_milli)
    if surcharge > PRICE_NANO_PER_HOUR_MAX:
        raise InvalidRequest(
            f"Usage {record.source}/{record.id} has a surcharge of {version.surcharge_nano_per_hour} nano-units per hour for each of "
            f"{record.devices} devices; all together it is at most {PRICE_NANO_PER_HOUR_MAX}."
        )
    return surcharge, until_ns


def open_period(month: Month, finalised: Collection[Month]) -> Month:
    """``month``, or the first after it that is not finalised."""
    while month in finalised:
        month = month.next
    return month


def _hour_after(at_ns: int) -> int:
    """The full hour at which a segment ends at the latest. Months end at full hours too, since leap seconds do not count in Unix time."""
    return at_ns - at_ns % HOUR_NS + HOUR_NS


def _unpriced(record: UsageRecord, currency: str) -> Unpriced:
    return Unpriced(
        f"Usage {record.source}/{record.id} is of flavor {record.flavor!r}, which had no price in {currency} at "
        f"{record.started_at_ns} ns; set one with PUT api/prices/{record.flavor} and a valid_from_ns "
        "up to then, and send the usage again."
    )
