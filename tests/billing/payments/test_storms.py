"""Faults of every kind, restarts, deaths and jumps of the clock in any order: in the end both sides agree."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from forebay_billing import failpoints
from forebay_billing.payments import metering
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import ChangedHour, CreditNote, Mark, MeterHour
from stripe_emulator import Fault

HOUR_NS = 3600 * 10**9
KINDS = ("busy", "conflict", "error_before", "error_after", "lost_before", "lost_after", "denied")
SEEDS = 8
STEPS = 40


class Killed(BaseException):
    """The process died."""


class Known:
    """Books that hold just these hours."""

    def __init__(self, hours: list[MeterHour]) -> None:
        self.hours = hours

    def meter_hours(self, *_: Any) -> list[MeterHour]:
        return self.hours

    def changed_hours(self, *_: Any) -> list[ChangedHour]:
        return []

    def mark(self, *_: Any) -> Mark:
        return Mark(0, 0)


class Storm:
    """One seed's weather over one shop."""

    def __init__(self, shop: Any, seed: int) -> None:
        self.shop, self.chance = shop, random.Random(seed)

    def blow(self, *orders: Any) -> None:
        """Hands the orders over one by one, each followed by some trouble."""
        waiting = list(orders)
        for _ in range(STEPS):
            if waiting and self.chance.random() < 0.5:
                self.shop.put(waiting.pop(0))
            if self.chance.random() < 0.6:
                self.shop.emulator.faults.add(Fault(self.chance.choice(KINDS), self.chance.choice(("POST ", "GET ", ""))))
            self._step()
            self.shop.clock.now_ns += self.chance.choice((1, 10**9, 60 * 10**9, HOUR_NS, 5 * HOUR_NS))
        self.shop.put(*waiting)

    def _step(self) -> None:
        left = self.chance.randrange(60)

        def kill(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed(name)

        try:
            with failpoints.armed(kill):
                self.shop.exporter.step()
        except Killed:
            self.shop.exporter.close()
            self.shop.exporter = self.shop.start()
        if self.chance.random() < 0.3:
            self.shop.emulator.deliver(self.shop.hear, chance=self.chance, copies=self.chance.randrange(1, 3))
        if self.chance.random() < 0.3:
            self.shop.emulator.meters.process()

    def calm(self) -> None:
        """No more faults; whatever died is sent again."""
        while self.shop.emulator.faults.take("POST GET "):
            pass
        for _ in range(10):
            self.shop.run()
            self.shop.emulator.meters.process()
            self.shop.hear_all()
            for row in self.shop.rows("dead"):
                self.shop.books.write(lambda connection, row=row: payment_outbox.retry(connection, row.id, self.shop.clock.now_ns))
            self.shop.clock.now_ns += payment_outbox.CLAIMS.claim_ns
            if not self.shop.rows("waiting"):
                return
        raise AssertionError([(row.subject, row.state, row.note) for row in self.shop.rows() if row.state != "done"])


@pytest.fixture
def migrated_url(tmp_path: Any, migrated_file: Any) -> str:
    """SQLite: what is tried here is not the database."""
    return f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'forebay.sqlite3')}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_storm_each_invoice_is_at_stripe_once_and_to_the_cent(
    shop: Any, customer: Any, invoice: Any, grant: Any, seed: int
) -> None:
    orders = []
    for tenant in ("acme", "globex"):
        numbers = [f"{tenant}-{n}" for n in range(2)]
        orders += [customer(tenant), *(invoice(number, amounts=(seed + 1, 250, -7), tenant=tenant) for number in numbers)]
        orders += [CreditNote(f"CN-{tenant}", tenant, numbers[0], "USD", 5, "x"), grant(f"G-{tenant}", tenant=tenant, expires_at_ns=None)]
    storm = Storm(shop, seed)
    storm.blow(*orders)
    storm.calm()
    account = shop.emulator.account
    assert [len(account.of(kind)) for kind in ("customer", "invoice", "invoiceitem", "credit_note", "billing.credit_grant")] == [
        2,
        4,
        12,
        2,
        2,
    ]
    report = shop.reconcile()
    assert report.differences == () and report.totals == {"USD": (4 * (seed + 244), 4 * (seed + 244))}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_storm_each_hour_is_counted_once(open_shop: Callable[..., Any], seed: int) -> None:
    shop = open_shop(mode="meters")
    chance = random.Random(seed)
    start = shop.clock.now_ns // HOUR_NS * HOUR_NS
    hours = [
        MeterHour(tenant, "usage_usd", "USD", start - n * HOUR_NS, chance.randrange(1, 10**12))
        for tenant in ("a", "b")
        for n in range(2, 8)
    ]
    later = [MeterHour(hour.tenant, hour.meter, hour.currency, hour.hour_ns, hour.value + chance.randrange(-5, 9)) for hour in hours]
    storm = Storm(shop, seed)
    shop.usage = Known(later)
    for known in (hours, later):
        news = metering.News(known, (), Mark(0, 0))
        shop.books.write(lambda connection, news=news: metering.collect(connection, news, 0, shop.clock.now_ns))
        storm.blow()
    storm.calm()
    assert sum(event.value for event in shop.emulator.meters.counted) == sum(hour.value for hour in later)
    assert shop.reconcile().differences == ()
