"""The reconciliation is empty where both sides agree, and names everything that somebody changed at Stripe."""

from __future__ import annotations

from typing import Any

import pytest
from forebay_billing.payments.reconciliation import Difference
from forebay_billing.writes.payment_orders import CreditNote

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def settled(shop: Any, customer: Any, invoice: Any, grant: Any) -> Any:
    note = CreditNote("CN-1", "acme", "2026-000001", "USD", 19, "a fault of ours")
    shop.put(customer(), invoice(), grant(), note, customer("globex", name="Globex"), invoice("2026-000002", tenant="globex"))
    shop.run()
    return shop


def change_name(shop: Any) -> None:
    shop.gateway.client.v1.customers.update(shop.known("customer", "globex").stripe_id, {"name": "Globex plc"})


def change_email(shop: Any) -> None:
    shop.gateway.client.v1.customers.update(shop.known("customer", "acme").stripe_id, {"email": ""})


def delete_customer(shop: Any) -> None:
    shop.gateway.client.v1.customers.delete(shop.known("customer", "globex").stripe_id)


def lose_invoice(shop: Any) -> None:
    del shop.emulator.account.objects[shop.known("invoice", "2026-000002").stripe_id]


def change_line(shop: Any) -> None:
    items = shop.emulator.account.of("invoiceitem", invoice=shop.known("invoice", "2026-000002").stripe_id)
    next(item for item in items if item["metadata"]["forebay_line"] == "line-1")["amount"] += 1


def add_line(shop: Any) -> None:
    made = shop.emulator.account.objects[shop.known("invoice", "2026-000001").stripe_id]
    item = {"customer": made["customer"], "invoice": made["id"], "currency": "usd", "amount": 7}
    made["status"] = "draft"
    shop.emulator.account.create_item(item)
    made["status"] = "open"


def bill_twice(shop: Any) -> None:
    made = shop.emulator.account.objects[shop.known("invoice", "2026-000001").stripe_id]
    shop.emulator.account.keep(made | {"id": "in_again"})


def bill_by_hand(shop: Any) -> None:
    shop.gateway.client.v1.invoices.create({"customer": shop.known("customer", "acme").stripe_id, "currency": "usd"})


def void_note(shop: Any) -> None:
    shop.gateway.client.v1.credit_notes.void_credit_note(shop.known("credit_note", "CN-1").stripe_id)


def change_grant(shop: Any) -> None:
    shop.emulator.account.of("billing.credit_grant")[0]["amount"]["monetary"]["value"] = 1


CHANGES = [
    (change_name, Difference("customer", "globex", "name", "Globex", "Globex plc")),
    (change_email, Difference("customer", "acme", "email", "pay@acme.example", None)),
    (delete_customer, Difference("customer", "globex", "existence", "Globex", None)),
    (lose_invoice, Difference("invoice", "2026-000002", "existence", 1219, None)),
    (change_line, Difference("invoice line", "2026-000002/line-1", "amount", 1234, 1235)),
    (add_line, Difference("invoice", "2026-000001", "total", 1219, 1226)),
    (bill_twice, Difference("invoice", "2026-000001", "how often", 1, 2)),
    (bill_by_hand, Difference("invoice", "in_emu000003", "existence", None, 0)),
    (void_note, Difference("credit_note", "CN-1", "existence", 19, None)),
    (change_grant, Difference("credit_grant", "grant-1", "amount", 5000, 1)),
]


def test_both_sides_agree(settled: Any) -> None:
    report = settled.reconcile()
    assert report.differences == () and report.totals == {"USD": (2438, 2438)}
    assert report.compared == {"customers": 2, "invoices": 2, "credit_notes": 1, "credit_grants": 1, "meter_hours": 0, "late_usage": 0}


@pytest.mark.parametrize(("change", "difference"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_change_at_stripe_is_named(settled: Any, change: Any, difference: Difference) -> None:
    change(settled)
    found = settled.reconcile().differences
    assert difference in found and {each.subject.partition("/")[0] for each in found} == {difference.subject.partition("/")[0]}


def test_an_invoice_that_stripe_makes_of_a_subscription_is_its_own(settled: Any) -> None:
    settled.emulator.add_price("price_nano", "usd", "0.0000001")
    client = settled.gateway.client.v1
    made = client.subscriptions.create({"customer": settled.known("customer", "acme").stripe_id, "items": [{"price": "price_nano"}]})
    settled.emulator.account.invoice_subscription(made.id, 10**9)
    assert settled.reconcile().differences == ()


def test_lists_longer_than_a_page_are_read_to_their_end(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), *(invoice(f"2026-{n:06d}", amounts=(n,)) for n in range(1, 112)))
    for _ in range(120):
        shop.exporter.step()
    report = shop.reconcile()
    assert report.differences == () and report.compared["invoices"] == 111 and report.totals == {"USD": (6216, 6216)}
