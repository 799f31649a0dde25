"""Webhooks change nothing unless they are Stripe's, and then the same whatever their order and number."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from forebay_billing.errors import BadWebhook
from forebay_billing.payments import webhook_inbox
from forebay_billing.payments.exporter import LOOK_AGAIN_NS
from forebay_billing.tables.payments import events
from forebay_billing.writes.payment_orders import CreditNote
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from stripe_emulator import Fault

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def billed(shop: Any, customer: Any, invoice: Any) -> Any:
    """Two invoices at Stripe, their webhooks still to come."""
    shop.put(customer(), invoice(amounts=(1000,)), invoice("2026-000002", amounts=(2000,)))
    shop.run()
    return shop


def stripe_id(shop: Any, number: str) -> str:
    return str(shop.known("invoice", number).stripe_id)


def test_a_payment_is_known_when_stripe_says_so(billed: Any) -> None:
    billed.gateway.client.v1.invoices.pay(stripe_id(billed, "2026-000001"))
    assert set(billed.hear_all()) == {200}
    known = billed.known("invoice", "2026-000001")
    assert (known.status, known.total_minor, known.paid_minor) == ("paid", 1000, 1000)
    assert billed.known("invoice", "2026-000002").status == "open"
    assert billed.heard == [("2026-000001", "open", "paid")]


@pytest.mark.parametrize("seed", range(12))
def test_order_and_repetition_make_no_difference(billed: Any, seed: int) -> None:
    client = billed.gateway.client.v1
    billed.emulator.account.fail_payment(stripe_id(billed, "2026-000001"))
    client.invoices.pay(stripe_id(billed, "2026-000001"))
    client.invoices.void_invoice(stripe_id(billed, "2026-000002"))
    answers = billed.hear_all(chance=random.Random(seed), copies=3)
    assert sorted(answers) == [200] * 5 + [208] * 10
    assert [billed.known("invoice", f"2026-00000{n}").status for n in (1, 2)] == ["paid", "void"]
    assert sorted(billed.heard) == [("2026-000001", "open", "paid"), ("2026-000002", "open", "void")]


def test_an_event_that_was_true_once_does_not_undo_what_came_later(billed: Any) -> None:
    """The finalisation's event arrives last, with a body that says open."""
    finalised = [entry for entry in billed.emulator.webhooks if json.loads(entry[0])["type"] == "invoice.finalized"]
    billed.emulator.webhooks.clear()
    billed.gateway.client.v1.invoices.pay(stripe_id(billed, "2026-000001"))
    billed.hear_all()
    billed.emulator.webhooks += finalised
    billed.hear_all()
    assert billed.known("invoice", "2026-000001").status == "paid"


def test_a_webhook_that_overtakes_the_answer_of_its_call_is_not_undone_by_it(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice(amounts=(1000,)))
    shop.emulator.faults.add(Fault("lost_after", "POST /v1/invoices/.*/finalize"))
    while shop.emulator.faults.left:
        shop.exporter.step()
    shop.gateway.client.v1.invoices.pay(shop.emulator.account.of("invoice")[0]["id"])
    shop.emulator.deliver(shop.hear)
    shop.exporter.step()
    assert shop.known("invoice", "2026-000001").status == "paid"
    shop.run()
    assert shop.known("invoice", "2026-000001").status == "paid" and shop.rows()[1].state == "done"


def test_an_event_is_handled_again_until_stripe_answers(billed: Any) -> None:
    billed.gateway.client.v1.invoices.pay(stripe_id(billed, "2026-000001"))
    billed.emulator.faults.add(Fault("lost_before", "GET /v1/invoices/"), Fault("busy", "GET /v1/invoices/"))
    billed.hear_all()
    assert billed.emulator.faults.left == 0 and billed.known("invoice", "2026-000001").status == "paid"


def test_credit_notes_are_followed_with_their_invoice(billed: Any) -> None:
    billed.put(CreditNote("CN-1", "acme", "2026-000001", "USD", 1000, "all of it"))
    billed.run()
    billed.gateway.client.v1.credit_notes.void_credit_note(billed.known("credit_note", "CN-1").stripe_id)
    billed.hear_all()
    assert billed.known("credit_note", "CN-1").status == "void"
    assert billed.known("invoice", "2026-000001").status == "paid"


def test_a_customer_that_was_deleted_at_stripe_comes_back_with_its_contact(billed: Any, customer: Any, invoice: Any) -> None:
    billed.gateway.client.v1.customers.delete(billed.known("customer", "acme").stripe_id)
    billed.hear_all()
    assert billed.known("customer", "acme").status == "deleted"
    billed.put(invoice("2026-000003"))
    billed.run()
    assert "was deleted at Stripe" in billed.rows("dead")[0].note
    billed.put(customer(version=2))
    billed.run()
    assert billed.known("customer", "acme").status == "active"
    assert len(billed.emulator.account.of("customer")) == 1


def test_what_is_not_ours_is_left_alone(billed: Any) -> None:
    strange = billed.gateway.client.v1.customers.create({"name": "somebody else"})
    made = billed.emulator.account.create_invoice({"customer": strange.id, "currency": "usd"})
    billed.emulator.account.create_item({"customer": strange.id, "invoice": made["id"], "currency": "usd", "amount": 5})
    billed.gateway.client.v1.invoices.finalize_invoice(made["id"])
    billed.gateway.client.v1.customers.delete(strange.id)
    billed.hear_all()
    states = billed.books.read(lambda connection: connection.execute(select(events.c.state).order_by(events.c.id)).scalars().all())
    assert sorted(states) == ["done", "done", "done", "ignored"]
    assert billed.known("customer", "acme").status == "active"


PAYLOAD = json.dumps({"id": "evt_1", "object": "event", "type": "invoice.paid", "data": {"object": {"id": "in_1"}}}).encode()
NOW_NS = 1_800_000_000 * 10**9


ONE = "whsec_one"


def signed(payload: bytes = PAYLOAD, secret: str = ONE, at_s: int = NOW_NS // 10**9) -> str:
    import stripe

    return stripe.WebhookSignature.generate_signature_header(payload.decode(), secret, at_s)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "signature is missing"),
        ("", "signature is missing"),
        ("t=1800000000", "signature is missing"),
        ("t=1800000000,v1=" + "0" * 64, "none of our secrets"),
        ("t=x,v1=y", "none of our secrets"),
        (signed(secret="whsec_other"), "none of our secrets"),
        (signed(PAYLOAD + b" "), "none of our secrets"),
        (signed(at_s=NOW_NS // 10**9 - 301), "more than 300 seconds"),
        (signed(at_s=NOW_NS // 10**9 + 301), "more than 300 seconds"),
        (signed().replace("t=1800000000", "t=1800000001"), "none of our secrets"),
        (signed().replace("v1=", "v0="), "none of our secrets"),
    ],
)
def test_a_webhook_that_is_not_proven_is_refused(header: str | None, reason: str) -> None:
    with pytest.raises(BadWebhook, match=reason) as refused:
        webhook_inbox.verified(PAYLOAD, header, ["whsec_zero", "whsec_one"], NOW_NS)
    assert "whsec" not in str(refused.value)


@pytest.mark.parametrize("at_s", [-300, 0, 300])
def test_a_webhook_within_the_tolerance_is_taken(at_s: int) -> None:
    notice = webhook_inbox.verified(PAYLOAD, signed(at_s=NOW_NS // 10**9 + at_s), ["whsec_zero", "whsec_one"], NOW_NS)
    assert notice == webhook_inbox.Notice("evt_1", "invoice.paid", "in_1")


def test_no_secret_means_no_webhook() -> None:
    for secrets in ([], [""], [" "]):
        with pytest.raises(BadWebhook):
            webhook_inbox.verified(PAYLOAD, signed(secret=secrets[0] if secrets else "whsec_one"), secrets, NOW_NS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "object", "type", "data", "related_object"]), inner, max_size=4)
    ),
)


@given(
    json_values
    | st.fixed_dictionaries(
        {"object": st.sampled_from(["event", "v2.core.event"]), "id": json_values, "type": json_values, "data": json_values}
    )
)
def test_a_signed_body_that_is_no_event_is_refused_and_never_an_error_of_ours(body: Any) -> None:
    payload = json.dumps(body).encode()
    try:
        notice = webhook_inbox.verified(payload, signed(payload), ["whsec_one"], NOW_NS)
    except BadWebhook:
        return
    assert isinstance(notice.id, str) and isinstance(notice.type, str)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_are_refused(payload: bytes) -> None:
    with pytest.raises(BadWebhook):
        webhook_inbox.verified(payload, "t=1800000000,v1=00", ["whsec_one"], NOW_NS)


def test_what_a_lost_webhook_would_have_told_is_read_some_hours_later(billed: Any) -> None:
    client = billed.gateway.client.v1
    billed.hear_all()
    client.invoices.pay(stripe_id(billed, "2026-000001"))
    client.invoices.void_invoice(stripe_id(billed, "2026-000002"))
    billed.emulator.webhooks.clear()
    assert billed.exporter.look_again() == 0 and billed.known("invoice", "2026-000001").status == "open"
    billed.clock.now_ns += LOOK_AGAIN_NS + 10**9
    billed.emulator.faults.add(Fault("busy", "GET "))
    assert billed.exporter.look_again() == 0
    assert billed.exporter.look_again() == 2
    assert sorted(billed.heard) == [("2026-000001", "open", "paid"), ("2026-000002", "open", "void")]
    billed.clock.now_ns += LOOK_AGAIN_NS + 10**9
    assert billed.exporter.look_again() == 0
    assert len(billed.heard) == 2


def test_an_invoice_that_cannot_be_read_keeps_no_other_from_it(billed: Any) -> None:
    billed.hear_all()
    paid = stripe_id(billed, "2026-000002")
    billed.gateway.client.v1.invoices.pay(paid)
    billed.emulator.webhooks.clear()
    billed.clock.now_ns += LOOK_AGAIN_NS + 10**9
    billed.emulator.faults.add(Fault("error_before", f"GET /v1/invoices/{stripe_id(billed, '2026-000001')}"))
    assert billed.exporter.look_again() == 1
    assert (billed.known("invoice", "2026-000002").status, billed.emulator.faults.left) == ("paid", 0)


def test_what_a_webhook_told_meanwhile_is_not_undone_by_an_older_answer(billed: Any) -> None:
    billed.hear_all()
    older = billed.known("invoice", "2026-000001")
    billed.clock.now_ns += 10**9
    billed.gateway.client.v1.invoices.pay(older.stripe_id)
    billed.hear_all()
    assert not billed.books.write(lambda connection: billed.exporter._inbox.take_looked(connection, older))
    assert billed.known("invoice", "2026-000001").status == "paid"
