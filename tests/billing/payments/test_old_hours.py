"""What comes to hours that no meter takes any more reaches Stripe all the same, to the cent, with real books."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from forebay_billing.ledger.books import Books
from forebay_billing.model.types import UsageRecord
from forebay_billing.tables.engines import writing
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes

pytestmark = pytest.mark.databases("sqlite")

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
RATE = 2_000_000_000
"""Nano-units a second of the flavor of these records."""


class Cloud:
    """Books with usage, and the shop that tells Stripe of it."""

    def __init__(self, shop: Any, usage: Callable[..., UsageRecord]) -> None:
        self.shop, self._usage = shop, usage
        with writing(shop.books.engines) as connection:
            prices_writes.seed(Books(connection), 0)

    def used(self, id: str, days_ago: int, seconds: int, **changes: Any) -> None:
        start = self.shop.clock.now_ns // DAY_NS * DAY_NS - days_ago * DAY_NS
        record = self._usage(id, started_at_ns=start, duration_ns=seconds * 10**9, **changes)
        with writing(self.shop.books.engines) as connection:
            usage_writes.post_usage(Books(connection), [record], lambda tenant: "USD", self.shop.clock)

    def correct(self, id: str) -> None:
        with writing(self.shop.books.engines) as connection:
            usage_writes.correct(Books(connection), "pool", id, "test", self.shop.clock, "operator")

    def send(self) -> list[int]:
        """The amounts of all items at Stripe once everything is sent."""
        self.shop.exporter.collect(self.shop.usage)
        self.shop.run()
        self.shop.emulator.meters.process()
        return sorted(item["amount"] for item in self.shop.emulator.account.of("invoiceitem"))

    def counted(self) -> int:
        return sum(event.value for event in self.shop.emulator.meters.counted)


@pytest.fixture
def cloud(open_shop: Callable[..., Any], emulator: Any, usage: Callable[..., UsageRecord], customer: Any) -> Cloud:
    emulator.add_price("price_nano", "usd", "0.0000001")
    shop = open_shop(mode="meters", meter_price="price_nano")
    shop.put(customer())
    return Cloud(shop, usage)


def test_a_correction_of_an_hour_that_stripe_no_longer_takes_is_credited_once(cloud: Cloud) -> None:
    cloud.used("a/1", 3, 1800)
    cloud.used("b/1", 3, 900)
    assert cloud.send() == [] and cloud.counted() == RATE * 3 // 4
    cloud.shop.clock.now_ns += 60 * DAY_NS
    cloud.correct("a/1")
    assert cloud.send() == [-100]  # 1800 s cost 1.00
    assert cloud.send() == [-100] and cloud.counted() == RATE * 3 // 4
    assert cloud.shop.reconcile().differences == ()


def test_a_record_that_comes_months_late_is_charged_once(cloud: Cloud) -> None:
    assert cloud.send() == []
    cloud.used("late/1", 70, 3600)
    cloud.used("late/2", 70, 1800, tenant="acme", user="acme-owner")
    assert cloud.send() == [300] and cloud.send() == [300]
    cloud.correct("late/1")
    assert cloud.send() == [-200, 300]
    assert cloud.counted() == 0 and cloud.shop.reconcile().differences == ()


def test_what_was_used_before_payments_began_stays_unsent_when_a_part_is_taken_back(cloud: Cloud) -> None:
    cloud.used("old/1", 50, 3600)
    cloud.used("old/2", 50, 1800)
    assert cloud.send() == []
    cloud.correct("old/2")
    assert cloud.send() == [-100]
    cloud.correct("old/1")
    assert cloud.send() == [-200, -100]
    assert cloud.shop.reconcile().compared["late_usage"] == 1


def test_cents_are_carried_from_item_to_item(cloud: Cloud) -> None:
    assert cloud.send() == []
    for number in range(9):
        cloud.used(f"crumb-{number}/1", 60 + number, 7)  # 7 s cost 0.39 cents
        sent = cloud.send()
        assert abs(Fraction(sum(sent) * 10**7) - Fraction((number + 1) * 7 * RATE, 3600)) * 2 <= 10**7 + number
        assert 0 not in sent
    assert sum(sent) == 4  # of 3.5 cents, where each alone comes to nothing
    assert cloud.shop.reconcile().differences == ()


def test_an_item_that_is_missing_or_changed_at_stripe_is_named(cloud: Cloud) -> None:
    assert cloud.send() == []
    cloud.used("late/1", 70, 3600)
    assert cloud.send() == [200]
    item = cloud.shop.emulator.account.of("invoiceitem")[0]
    item["amount"] = 199
    (difference,) = cloud.shop.reconcile().differences
    assert (difference.kind, difference.subject, difference.ours, difference.theirs) == ("late usage", "acme/USD", 200, 199)
