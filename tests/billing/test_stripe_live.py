"""The same calls against Stripe's own test mode, where a key of it is given. Nothing here touches live money."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay_billing.payments import objects
from forebay_billing.payments.exporter import REPORTS_KEPT_NS, Exporter
from forebay_billing.payments.gateway import Gateway
from forebay_billing.payments.reconciliation import Ours, Reader, compare
from forebay_billing.payments.source import BooksSource
from forebay_billing.payments.terms import Terms
from forebay_billing.payments.webhook_inbox import METER_EVENTS, Inbox, nobody
from forebay_billing.tables.engines import Engines, migrate, open_engines, reading, writing
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import CreditGrant, CreditNote, Customer, Invoice, InvoiceLine, MeterEvent

KEY = os.environ.get("FOREBAY_STRIPE_TEST_KEY", "")
HOUR_NS = 3600 * 10**9
SECONDS_MAX = 120

pytestmark = [
    pytest.mark.skipif(not KEY, reason="FOREBAY_STRIPE_TEST_KEY is not set: a key of Stripe's test mode, sk_test_… or rk_test_…"),
    pytest.mark.slow,
]


class Live:
    """Orders of a tenant that nobody else has, sent to Stripe's test mode."""

    def __init__(self, engines: Engines) -> None:
        if not KEY.startswith(("sk_test_", "rk_test_")):
            raise ValueError("FOREBAY_STRIPE_TEST_KEY is no key of the test mode")
        self.engines = engines
        self.tenant = f"forebay-test-{secrets.token_hex(6)}"
        self.gateway = Gateway(KEY)

    def write(self, job: Any) -> Any:
        with writing(self.engines) as connection:
            return job(connection)

    def read(self, work: Any) -> Any:
        with reading(self.engines) as connection:
            return work(connection)

    def send(self, terms: Terms, *orders: Any) -> None:
        exporter = Exporter(self, self.gateway, terms, time.time_ns, lambda: 0.5)
        self.write(lambda connection: [payment_outbox.put(connection, order, time.time_ns()) for order in orders])
        end = time.monotonic() + SECONDS_MAX
        while self.read(lambda connection: payment_outbox.rows(connection, "waiting", None)):
            assert time.monotonic() < end
            exporter.step()
        exporter.close()
        assert [row.note for row in self.read(lambda connection: payment_outbox.rows(connection, "dead", None))] == []


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    engines = open_engines(f"sqlite:///{tmp_path}/billing.sqlite3", 5)
    migrate(engines)
    tenant = Live(engines)
    yield tenant
    known = tenant.read(lambda connection: objects.find(connection, "customer", tenant.tenant))
    if known is not None:
        tenant.gateway.client.v1.customers.delete(known.stripe_id)
    engines.dispose()


def test_an_invoice_and_its_credit_note_reconcile(live: Live) -> None:
    now = time.time_ns()
    number = f"{live.tenant}-1"
    lines = tuple(InvoiceLine(f"line-{n}", f"Line {n}", amount, "usage", now - HOUR_NS, now) for n, amount in enumerate((1234, 85, -100)))
    live.send(
        Terms(collection="send_invoice", auto_advance=False),
        Customer(live.tenant, "Forebay test", "forebay@example.com", "USD", 1),
        Invoice(number, live.tenant, "USD", lines),
        CreditNote(f"{number}-CN", live.tenant, number, "USD", 19, "a test"),
        CreditGrant(f"{number}-G", live.tenant, "a test", "promotional", "USD", 500, 10, now, now + 48 * HOUR_NS),
    )
    source = BooksSource()
    ours, known = live.read(
        lambda connection: (
            Ours(
                source.customers(connection),
                source.invoices(connection, 0, 2**62),
                source.credit_notes(connection, 0, 2**62),
                source.credit_grants(connection, 0, 2**62),
            ),
            objects.of_kind(connection, "customer", None),
        )
    )
    report = compare(ours, Reader(live.gateway).theirs(ours, known))
    assert report.differences == () and report.totals == {"USD": (1219, 1219)}


def test_an_hour_is_counted_by_a_meter(live: Live) -> None:
    hour_ns = time.time_ns() // HOUR_NS * HOUR_NS - 2 * HOUR_NS
    event = MeterEvent(live.tenant, "forebay_test_usd", "USD", hour_ns, 1, 1_234_567_891)
    live.send(Terms(mode="meters"), Customer(live.tenant, "Forebay test", None, "USD", 1), event)
    known = live.read(lambda connection: objects.find(connection, "customer", live.tenant))
    reader, end = Reader(live.gateway), time.monotonic() + SECONDS_MAX
    from forebay_billing.writes.payment_orders import MeterHour

    ours = Ours(meter_hours=[MeterHour(live.tenant, event.meter, "USD", hour_ns, event.value)])
    while reader.theirs(ours, [known]).meter_hours != {(live.tenant, event.meter, hour_ns): event.value}:
        assert time.monotonic() < end, "Stripe did not count the event in time"
        time.sleep(2)


def test_reports_of_meters_are_listed(live: Live) -> None:
    """Of whatever other tests made Stripe refuse, if anything."""
    found = Inbox(live.gateway, nobody).reports(time.time_ns() - REPORTS_KEPT_NS)
    assert {report.type for report in found} <= set(METER_EVENTS)
