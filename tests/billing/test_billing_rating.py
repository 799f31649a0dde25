"""Segments: where a record is split, and what each costs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from forebay_billing.errors import InvalidRequest, Unpriced
from forebay_billing.model.money import GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.model.types import PriceVersion, SurchargeVersion, UsageRecord
from forebay_billing.rules.prices import PRICE_NANO_PER_HOUR_MAX, PriceBook
from forebay_billing.rules.rating import HOUR_NS, open_period, segments_of
from hypothesis import given
from hypothesis import strategies as st

START_NS = Month(2026, 11).end_ns - 5 * HOUR_NS
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def version(number: int, valid_from_ns: int, price: int) -> PriceVersion:
    return PriceVersion("small.64gb", "USD", number, price, valid_from_ns, 0, "operator")


def surcharge(number: int, valid_from_ns: int, nano: int, model: str = "cpu-dev", currency: str = "USD") -> SurchargeVersion:
    return SurchargeVersion(model, currency, number, nano, valid_from_ns, 0, "operator")


CHANGES = st.lists(st.tuples(st.integers(START_NS - HOUR_NS, START_NS + 12 * HOUR_NS), st.integers(0, 10**6)), max_size=4)


@given(
    changes=CHANGES,
    offset_ns=st.one_of(st.sampled_from([0, HOUR_NS, HOUR_NS - 1]), st.integers(0, 4 * HOUR_NS)),
    duration_ns=st.one_of(st.integers(0, 1), st.integers(0, 8 * HOUR_NS)),
    surcharges=CHANGES,
    devices=st.integers(1, 100),
    share=st.integers(1, 1000),
)
def test_segments_cover_a_record_exactly_and_each_lies_in_one_hour_month_price_and_surcharge(
    usage: Callable[..., UsageRecord],
    changes: list[tuple[int, int]],
    offset_ns: int,
    duration_ns: int,
    surcharges: list[tuple[int, int]],
    devices: int,
    share: int,
) -> None:
    record = usage(started_at_ns=START_NS + offset_ns, duration_ns=duration_ns, devices=devices, share_milli=share)
    of_models = [surcharge(number, start, nano) for number, (start, nano) in enumerate(surcharges, 1)]
    others = [surcharge(1, 0, 99, "gpu"), surcharge(1, 0, 99, currency="EUR")]
    prices = [version(1, 0, 5), *(version(number, start, price) for number, (start, price) in enumerate(changes, 2))]
    book = PriceBook(prices, of_models + others)
    segments = segments_of(record, book, "USD", ())
    assert [segment.position for segment in segments] == list(range(len(segments)))
    assert sum(segment.duration_ns for segment in segments) == duration_ns
    assert all(segment.duration_ns > 0 for segment in segments) or duration_ns == 0
    at_ns = record.started_at_ns
    for segment in segments:
        assert segment.started_at_ns == at_ns
        at_ns += segment.duration_ns
        last_ns = max(at_ns - 1, segment.started_at_ns)
        assert segment.started_at_ns // HOUR_NS == last_ns // HOUR_NS
        begins, ends = (EPOCH + timedelta(seconds=moment // 10**9) for moment in (segment.started_at_ns, last_ns))
        assert f"{begins:%Y-%m}" == f"{ends:%Y-%m}" == str(segment.period)
        assert not segment.late
        assert segment.price == book.at("small.64gb", "USD", segment.started_at_ns) == book.at("small.64gb", "USD", last_ns)
        nano, at_last = (
            max(((start, number, nano) for number, (start, nano) in enumerate(surcharges) if start <= at), default=(0, 0, 0))[2]
            for at in (segment.started_at_ns, last_ns)
        )
        assert nano == at_last
        assert segment.surcharge_nano_per_hour == round(Fraction(nano * devices * share, 1000))
        rate = segment.price.price_nano_per_hour + segment.surcharge_nano_per_hour
        assert Fraction(segment.amount_grains, GRAINS_PER_UNIT) == Fraction(segment.duration_ns, HOUR_NS) * rate / 10**9


def test_a_long_record_is_split_where_hours_prices_and_months_change(usage: Callable[..., UsageRecord]) -> None:
    book = PriceBook([version(1, 0, 1), version(2, START_NS + 90 * 60 * 10**9, 2), version(3, START_NS + 4 * HOUR_NS, 3)])
    record = usage(started_at_ns=START_NS + 30 * 60 * 10**9, duration_ns=5 * HOUR_NS)
    segments = segments_of(record, book, "USD", ())
    assert [(segment.duration_ns // (60 * 10**9), segment.price.version, str(segment.period)) for segment in segments] == [
        (30, 1, "2026-11"),
        (30, 1, "2026-11"),
        (30, 2, "2026-11"),
        (60, 2, "2026-11"),
        (60, 2, "2026-11"),
        (60, 3, "2026-11"),
        (30, 3, "2026-12"),
    ]


def test_what_lies_in_a_finalised_month_goes_to_the_first_open_one_after(usage: Callable[..., UsageRecord]) -> None:
    record = usage(started_at_ns=Month(2026, 11).end_ns - 1, duration_ns=2)
    closed = {Month(2026, 10), Month(2026, 11), Month(2026, 12)}
    segments = segments_of(record, PriceBook([version(1, 0, 1)]), "USD", closed)
    assert [(str(segment.period), segment.late) for segment in segments] == [("2027-01", True), ("2027-01", True)]
    segments = segments_of(record, PriceBook([version(1, 0, 1)]), "USD", {Month(2026, 11)})
    assert [(str(segment.period), segment.late) for segment in segments] == [("2026-12", True), ("2026-12", False)]
    assert open_period(Month(2026, 9), closed) == Month(2026, 9)


def test_usage_without_a_price_in_the_tenants_currency_or_before_the_first_is_refused(usage: Callable[..., UsageRecord]) -> None:
    with pytest.raises(Unpriced, match=r"'small.64gb', which had no price in EUR .* PUT api/prices/small.64gb"):
        segments_of(usage(), PriceBook([version(1, 0, 1)]), "EUR", ())
    with pytest.raises(Unpriced, match="had no price in USD"):
        segments_of(usage(started_at_ns=START_NS), PriceBook([version(1, START_NS + 1, 1)]), "USD", ())


def test_a_surcharge_that_cannot_be_is_refused(usage: Callable[..., UsageRecord]) -> None:
    book = PriceBook([version(1, 0, 1)], [surcharge(1, 0, PRICE_NANO_PER_HOUR_MAX // 10)])
    assert segments_of(usage(devices=10), book, "USD", ())[0].surcharge_nano_per_hour == PRICE_NANO_PER_HOUR_MAX
    with pytest.raises(InvalidRequest, match="has a surcharge of 360000000000000000 nano-units per hour for each of 11 devices"):
        segments_of(usage(devices=11), book, "USD", ())
