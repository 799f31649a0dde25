"""Orders reach Stripe exactly once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from forebay_billing import failpoints
from forebay_billing.errors import RecordConflict
from forebay_billing.rules.retries import BACKOFF_SECONDS_MAX, GIVE_UP_NS, Dead, Later, StripeFailure, backoff_seconds, next_step
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import CreditNote, order_of, text_of
from stripe_emulator import Fault

pytestmark = pytest.mark.databases("sqlite")

DAY_NS = 86_400 * 10**9
STEPS = ("POST /v1/customers$", "POST /v1/invoices$", "POST /v1/invoiceitems", "POST /v1/invoices/.*/finalize")


def test_an_invoice_is_at_stripe_line_by_line_under_our_number(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice())
    shop.run()
    made = shop.emulator.account.of("invoice")
    assert [(each["status"], each["total"], each["metadata"]["forebay_invoice"]) for each in made] == [("open", 1219, "2026-000001")]
    assert made[0]["custom_fields"] == [{"name": "Invoice", "value": "2026-000001"}] and made[0]["auto_advance"] is True
    items = shop.emulator.account.of("invoiceitem")
    assert sorted((each["metadata"]["forebay_line"], each["amount"]) for each in items) == [
        ("line-0", 85),
        ("line-1", 1234),
        ("line-2", -100),
    ]
    known = shop.known("invoice", "2026-000001")
    assert (known.status, known.total_minor, known.paid_minor, known.url) == ("open", 1219, 0, made[0]["hosted_invoice_url"])
    assert shop.reconcile().differences == () and shop.reconcile().totals == {"USD": (1219, 1219)}


def test_every_creating_call_has_a_key_of_its_own(shop: Any, customer: Any, invoice: Any, grant: Any) -> None:
    shop.put(customer(), invoice(), grant(), CreditNote("CN-1", "acme", "2026-000001", "USD", 19, "a fault of ours"))
    shop.run()
    keys = [call.key for call in shop.emulator.called("POST ")]
    assert len(keys) == 8 and len(set(keys)) == 8 and all(key.startswith("forebay-") and len(key) <= 255 for key in keys)


@pytest.mark.parametrize(
    ("step", "kind"), list(product(STEPS, ["busy", "conflict", "error_before", "error_after", "lost_before", "lost_after"]))
)
def test_a_fault_at_any_call_makes_nothing_twice_and_loses_nothing(shop: Any, customer: Any, invoice: Any, step: str, kind: Any) -> None:
    shop.emulator.faults.add(Fault(kind, step))
    shop.put(customer(), invoice())
    shop.run()
    assert shop.emulator.faults.left == 0
    assert [row.state for row in shop.rows()] == ["done", "done"]
    assert len(shop.emulator.account.of("customer")) == len(shop.emulator.account.of("invoice")) == 1
    assert len(shop.emulator.account.of("invoiceitem")) == 3
    assert shop.reconcile().differences == ()


@pytest.mark.parametrize("step", STEPS)
def test_an_answer_lost_for_longer_than_keys_are_kept_is_looked_for(shop: Any, customer: Any, invoice: Any, step: str) -> None:
    shop.put(customer(), invoice())
    shop.emulator.faults.add(Fault("lost_after", step))
    while shop.emulator.faults.left:
        shop.exporter.step()
    shop.clock.now_ns += DAY_NS + 1
    shop.run()
    assert [len(shop.emulator.account.of(kind)) for kind in ("customer", "invoice", "invoiceitem")] == [1, 1, 3]
    assert shop.reconcile().differences == ()


def test_a_credit_that_expires_before_stripe_can_be_told_of_it_holds_nothing_up(
    shop: Any, customer: Any, invoice: Any, grant: Any
) -> None:
    shop.put(customer())
    shop.run()
    shop.put(grant(expires_at_ns=shop.clock.now_ns + DAY_NS), invoice())
    shop.clock.now_ns += 2 * DAY_NS
    shop.run()
    assert [row.state for row in shop.rows()] == ["done", "done", "done"]
    assert shop.emulator.account.of("billing.credit_grant") == [] and len(shop.emulator.account.of("invoice")) == 1
    assert shop.books.read(payment_outbox.never_mirrored) == {"grant-1"}


def test_a_credit_note_to_an_invoice_that_was_made_void_at_stripe_holds_nothing_up(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice())
    shop.run()
    shop.emulator.account.void(shop.emulator.account.of("invoice")[0]["id"])
    shop.put(CreditNote("CN-1", "acme", "2026-000001", "USD", 19, "a fault of ours"), invoice("2026-000002"))
    shop.run()
    assert [row.state for row in shop.rows()] == ["done"] * 4
    assert shop.emulator.account.of("credit_note") == [] and shop.books.read(payment_outbox.never_mirrored) == {"CN-1"}


def test_a_credit_whose_answer_was_lost_before_it_expired_is_found_at_stripe(shop: Any, customer: Any, grant: Any) -> None:
    shop.put(customer())
    shop.run()
    shop.put(grant(expires_at_ns=shop.clock.now_ns + DAY_NS))
    shop.emulator.faults.add(Fault("lost_after", "POST /v1/billing/credit_grants"))
    shop.exporter.step()
    shop.clock.now_ns += DAY_NS
    shop.run()
    assert len(shop.emulator.account.of("billing.credit_grant")) == 1
    assert shop.known("credit_grant", "grant-1").status == "granted"


@pytest.mark.parametrize("kind", ["grant", "credit_note"])
@pytest.mark.parametrize("fault", ["error_after", "lost_after"])
def test_grants_and_credit_notes_are_looked_for_too(shop: Any, customer: Any, invoice: Any, grant: Any, kind: str, fault: Any) -> None:
    shop.put(customer(), invoice())
    shop.run()
    shop.put(grant() if kind == "grant" else CreditNote("CN-1", "acme", "2026-000001", "USD", 19, "a fault of ours"))
    shop.emulator.faults.add(Fault(fault, "POST /v1/(billing/credit_grants|credit_notes)"))
    while shop.emulator.faults.left:
        shop.exporter.step()
    shop.clock.now_ns += DAY_NS + 1
    shop.run()
    assert len(shop.emulator.account.of("billing.credit_grant")) + len(shop.emulator.account.of("credit_note")) == 1
    assert shop.reconcile().differences == ()


def test_a_500_that_its_key_would_replay_for_a_day_is_overcome_at_once(shop: Any, customer: Any) -> None:
    shop.emulator.faults.add(Fault("error_before", "POST /v1/customers"))
    begun = shop.clock.now_ns
    shop.put(customer())
    shop.run()
    calls = shop.emulator.called("/v1/customers")
    assert [call.method for call in calls] == ["POST", "GET", "POST"] and calls[0].key != calls[2].key
    assert shop.clock.now_ns - begun < 2 * 10**9


def test_a_busy_stripe_is_left_alone_for_as_long_as_it_asks(shop: Any, customer: Any) -> None:
    shop.emulator.faults.add(Fault("busy", "POST /v1/customers", retry_after_seconds=90))
    begun = shop.clock.now_ns
    shop.put(customer())
    shop.exporter.step()
    shop.clock.now_ns += 89 * 10**9
    shop.exporter.step()
    assert len(shop.emulator.called("POST /v1/customers")) == 1
    shop.run()
    assert shop.rows()[0].state == "done" and shop.clock.now_ns - begun == 90 * 10**9


def test_a_wrong_api_key_stops_everything_loses_nothing_and_is_not_shown(
    shop: Any, customer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop.emulator.api_key = "sk_test_theKeyThatIsRight"
    shop.put(customer())
    for _ in range(60):
        shop.exporter.step()
        shop.clock.now_ns += 2 * 3600 * 10**9
    row = shop.rows()[0]
    assert row.state == "waiting" and shop.clock.now_ns - row.created_at_ns > GIVE_UP_NS
    assert "Invalid API Key provided: sk_…" in row.note and "emulatorEmulator" not in row.note + caplog.text
    del shop.emulator.api_key
    shop.run()
    assert shop.rows()[0].state == "done"


def test_what_stripe_refuses_for_good_is_a_dead_letter_and_holds_up_that_tenant_alone(shop: Any, customer: Any, invoice: Any) -> None:
    shop.terms = type(shop.terms)(collection="send_invoice")
    shop.exporter.close()
    shop.exporter = shop.start()
    shop.put(customer(email=None), invoice(), invoice("2026-000002"), customer("globex"), invoice("2026-000003", tenant="globex"))
    for _ in range(9):
        shop.exporter.step()
    states = {row.subject: row.state for row in shop.rows()}
    assert states == {"acme/1": "done", "2026-000001": "dead", "2026-000002": "waiting", "globex/1": "done", "2026-000003": "done"}
    assert "must have a valid email" in shop.rows("dead")[0].note
    shop.put(customer(version=2))
    shop.exporter.step()
    shop.books.write(lambda connection: payment_outbox.retry(connection, shop.rows("dead")[0].id, shop.clock.now_ns))
    shop.run()
    assert {row.state for row in shop.rows()} == {"done"}
    assert shop.reconcile().differences == ()


def test_a_dead_letter_that_is_given_up_lets_the_others_go_and_stays_a_difference(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), CreditNote("CN-1", "acme", "2025-000001", "USD", 5, "never sent"), invoice())
    shop.exporter.step()
    shop.exporter.step()
    dead = shop.rows("dead")
    assert [row.subject for row in dead] == ["CN-1"]
    shop.books.write(lambda connection: payment_outbox.skip(connection, dead[0].id, shop.clock.now_ns, "ann: settled by phone"))
    shop.run()
    assert [row.state for row in shop.rows()] == ["done", "skipped", "done"]
    assert [(each.kind, each.subject, each.ours, each.theirs) for each in shop.reconcile().differences] == [
        ("credit_note", "CN-1", 5, None)
    ]


def test_a_tenant_without_a_contact_becomes_a_customer_under_its_own_name(shop: Any, invoice: Any, customer: Any) -> None:
    shop.put(invoice())
    shop.run()
    assert [(each["name"], each["email"]) for each in shop.emulator.account.of("customer")] == [("acme", None)]
    shop.put(customer())
    shop.run()
    assert [(each["name"], each["email"]) for each in shop.emulator.account.of("customer")] == [("Acme Ltd", "pay@acme.example")]
    assert shop.reconcile().differences == ()


def test_the_same_order_again_is_one_row_and_another_content_is_refused(shop: Any, invoice: Any) -> None:
    shop.put(invoice(), invoice())
    assert [row.kind for row in shop.rows()] == ["customer", "invoice"]
    with pytest.raises(RecordConflict, match="2026-000001 was handed over before"):
        shop.put(invoice(amounts=(86,)))


def test_a_row_is_written_with_its_cause_or_not_at_all(shop: Any, invoice: Any) -> None:
    def job(connection: Any) -> None:
        payment_outbox.put(connection, invoice(), shop.clock.now_ns)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shop.books.write(job)
    assert shop.rows() == []


def test_more_lines_than_stripe_takes_are_summed_up_in_the_last(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice(amounts=tuple(range(1, 301))))
    shop.run()
    made = shop.emulator.account.of("invoice")[0]
    assert len(shop.emulator.account.of("invoiceitem")) == 250
    assert made["total"] == 300 * 301 // 2 and made["status"] == "open"
    assert shop.reconcile().differences == ()


def test_a_draft_that_asks_for_another_total_is_never_finalised(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice())
    shop.emulator.faults.add(Fault("lost_after", "POST /v1/invoiceitems"))
    while shop.emulator.faults.left:
        shop.exporter.step()
    draft = shop.emulator.account.of("invoice")[0]
    shop.emulator.account.create_item({"customer": draft["customer"], "invoice": draft["id"], "currency": "usd", "amount": 1})
    while shop.rows("waiting"):
        shop.clock.now_ns += 10**9
        shop.exporter.step()
    assert "asks for 1220 instead of 1219" in shop.rows("dead")[0].note
    assert draft["status"] == "draft"
    assert {(each.what, each.ours, each.theirs) for each in shop.reconcile().differences} >= {
        ("status", "finalised", "draft"),
        ("total", 1219, 1220),
    }


@pytest.mark.parametrize(
    ("currency", "amount", "sent"), [("JPY", 500, 500), ("KRW", 12_345, 12_345), ("ISK", 5, 500), ("MGA", 1500, 15), ("KWD", 5120, 5120)]
)
def test_each_currency_is_sent_in_the_coins_of_stripes_api(
    shop: Any, customer: Any, invoice: Any, currency: str, amount: int, sent: int
) -> None:
    shop.put(customer(currency=currency), invoice(amounts=(amount,), currency=currency))
    shop.run()
    assert shop.emulator.account.of("invoice")[0]["total"] == sent
    assert shop.known("invoice", "2026-000001").total_minor == amount
    assert shop.reconcile().differences == ()


@pytest.mark.parametrize(("currency", "amount"), [("KWD", 5124), ("MGA", 1501), ("CLF", 10_000)])
def test_what_stripe_has_no_coins_for_is_a_dead_letter(shop: Any, customer: Any, invoice: Any, currency: str, amount: int) -> None:
    shop.put(customer(currency=currency), invoice(amounts=(amount,), currency=currency))
    shop.run()
    assert [row.state for row in shop.rows()] == ["done", "dead"]
    assert "Stripe" in shop.rows("dead")[0].note and all(each["status"] == "draft" for each in shop.emulator.account.of("invoice"))


def test_a_credit_note_takes_from_what_is_open_then_from_what_was_paid(shop: Any, customer: Any, invoice: Any) -> None:
    shop.put(customer(), invoice(amounts=(1000,)), CreditNote("CN-1", "acme", "2026-000001", "USD", 400, "half a day of outage"))
    shop.run()
    made = shop.emulator.account.of("invoice")[0]
    assert (made["amount_remaining"], made["status"]) == (600, "open")
    shop.emulator.account.pay(made["id"])
    shop.put(CreditNote("CN-2", "acme", "2026-000001", "USD", 100, "and more"))
    shop.run()
    assert shop.emulator.account.of("customer")[0]["balance"] == -100
    assert shop.reconcile().differences == ()


class Killed(BaseException):
    """The process died."""


def _reached(shop: Any, orders: Callable[[], list[Any]]) -> list[str]:
    names: list[str] = []
    with failpoints.armed(names.append):
        shop.put(*orders())
        shop.run()
    return names


@pytest.mark.databases("sqlite", "postgresql")
def test_a_kill_at_any_failpoint_makes_nothing_twice_and_loses_nothing(open_shop: Any, customer: Any, invoice: Any, grant: Any) -> None:
    """One tenant after the other, each killed at another place of the same story."""
    shop = open_shop()

    def story(tenant: str) -> list[Any]:
        number = f"{tenant}-000001"
        note = CreditNote(f"CN-{tenant}", tenant, number, "USD", 19, "a fault of ours")
        return [customer(tenant), invoice(number, tenant=tenant), grant(f"grant-{tenant}", tenant=tenant), note]

    places = len(_reached(shop, lambda: story("rehearsal")))
    assert places > 20
    for place in range(places):
        left = [place]

        def kill(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise Killed(name)

        shop.put(*story(f"tenant{place}"))
        with failpoints.armed(kill), pytest.raises(Killed):
            shop.run()
        shop.exporter.close()
        shop.exporter = shop.start()
        shop.run()
    account = shop.emulator.account
    assert [len(account.of(kind)) for kind in ("customer", "invoice", "billing.credit_grant", "credit_note")] == [places + 1] * 4
    assert {row.state for row in shop.rows()} == {"done"}
    assert shop.reconcile().differences == ()


def test_only_the_latest_claim_settles_a_row(shop: Any, customer: Any) -> None:
    shop.put(customer())
    now = shop.clock.now_ns
    first = shop.books.write(lambda connection: payment_outbox.claim(connection, now))
    assert shop.books.write(lambda connection: payment_outbox.claim(connection, now)) == []
    second = shop.books.write(lambda connection: payment_outbox.claim(connection, now + payment_outbox.CLAIMS.claim_ns))
    assert not shop.books.write(lambda connection: payment_outbox.CLAIMS.give_up(connection, first[0], now, "late"))
    assert shop.books.write(lambda connection: payment_outbox.CLAIMS.done(connection, second[0], now, "cus_1"))


def test_back_off_doubles_to_its_bound_and_never_comes_at_the_same_time() -> None:
    assert [backoff_seconds(attempt, 1.0) for attempt in (1, 2, 3, 12, 13, 99)] == [1, 2, 4, 2048, BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MAX]
    assert backoff_seconds(5, 0.0) == backoff_seconds(5, 1.0) / 2
    assert next_step(StripeFailure("busy", "", 9999), 1, 0, 0.5) == Later(BACKOFF_SECONDS_MAX, False)
    assert next_step(StripeFailure("unreachable", ""), 1, GIVE_UP_NS, 0.5) == Dead()
    assert next_step(StripeFailure("indeterminate", ""), 2, 0, 1.0) == Later(2.0, True)


def test_an_order_is_the_same_after_it_was_written(customer: Any, invoice: Any, grant: Any) -> None:
    for order in (customer(), invoice(), grant(), CreditNote("CN-1", "acme", "2026-000001", "USD", 5, "rêve")):
        assert order_of(text_of(order)) == order
