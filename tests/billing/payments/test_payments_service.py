"""Payments in the running service: endpoints, secrets, audit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay_billing.model.months import Month
from forebay_billing.payments.gateway import Gateway
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import open_engines, reading
from forebay_billing.writes import payment_outbox
from forebay_service.errors import SettingsError
from pydantic import SecretStr
from sqlalchemy import text
from stripe_emulator import Emulator

pytestmark = pytest.mark.databases("sqlite")

SECONDS_MAX = 20
HOUR_NS = 3600 * 10**9


@pytest.fixture
def paid(running_service: Any, settings: Settings, emulator: Emulator, clock: Any, migrated_url: str, tmp_path: Path) -> Iterator[Any]:
    """The service with payments on, against the emulator."""
    secrets = tmp_path / "webhooks"
    secrets.write_text(f"{Emulator.secret}\n{Emulator.thin_secret}\n")
    (tmp_path / "key").write_text(Emulator.api_key + "\n")
    values = {
        "database_url": migrated_url, "busy_seconds": 2.0, "stripe_mode": "invoices", "stripe_key_file": tmp_path / "key",
        "stripe_webhook_secrets_file": secrets, "stripe_api_url": emulator.url, "stripe_return_url": "https://cloud.example/",
    }  # fmt: skip
    running = running_service(settings.model_copy(update=values), clock)
    try:
        yield running
    finally:
        running.stop()


def wait_for(what: Callable[[], Any]) -> Any:
    """Its first true value; the service's loop turns once a second of real time."""
    end = time.monotonic() + SECONDS_MAX
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def put_contact(paid: Any, caller: str = "acme-owner", tenant: str = "acme", **body: Any) -> Any:
    return paid.request(caller, "PUT", f"/api/payments/contacts/{tenant}", json={"name": "Acme Ltd", "email": "pay@acme.example"} | body)


def done(paid: Any, count: int) -> Callable[[], bool]:
    return lambda: paid.get("operator", "/api/payments/outbox").json()["counts"] == {"done": count}


def hear(paid: Any, payload: bytes, header: str) -> int:
    return int(paid.client.post("/api/payments/webhook", content=payload, headers={"Stripe-Signature": header}).status_code)


def audit(paid: Any, action: str) -> list[Any]:
    engines = open_engines(paid.settings.database_url, 2)
    with reading(engines) as connection:
        rows = connection.execute(text("SELECT who, subject, before, after FROM audit WHERE action = :action"), {"action": action}).all()
    engines.dispose()
    return list(rows)


@pytest.fixture
def billed(paid: Any, clock: Any, usage: Any) -> Any:
    """Acme's November, with tax and credit: 12.19 to pay. Stripe has been told."""
    profile = {"legal_name": "Acme Ltd", "email": "pay@acme.example", "tax_label": "VAT", "tax_bps": 1900}
    assert paid.request("operator", "PUT", "/api/profiles/acme", json=profile).status_code == 200
    grant = {"tenant": "acme", "kind": "prepaid", "name": "Paid ahead", "amount_minor": 71}
    assert paid.request("operator", "POST", "/api/credits", json=grant).status_code == 200
    paid.post_usage(usage(duration_ns=5 * HOUR_NS), usage("two/1", user="acme-owner", duration_ns=HOUR_NS * 42 // 100))
    clock.now_ns = Month(2026, 12).start_ns
    made = paid.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": "2026-11"}).json()
    assert [(row["number"], row["total_minor"]) for row in made] == [("INV-000001", 1219)]
    wait_for(done(paid, 3))
    return paid


def reconciled(paid: Any, clock: Any) -> Any:
    report = paid.get("operator", "/api/payments/reconciliation", since_ns=0, until_ns=clock.now_ns + 1).json()
    assert report["differences"] == []
    assert paid.get("operator", "/api/check").json() == {"differences": []}
    return report["totals"]


def pay_at_stripe(paid: Any, emulator: Emulator, copies: int = 1) -> None:
    emulator.account.pay(paid.get("acme-owner", "/api/payments/invoices").json()[0]["stripe_id"])
    assert set(emulator.deliver(lambda payload, header: hear(paid, payload, header), copies=copies)) == {200}


def own(paid: Any) -> Any:
    return paid.get("acme-owner", "/api/invoices/INV-000001").json()


def test_what_stripe_collects_is_in_the_ledger_and_on_the_invoice_once(billed: Any, emulator: Emulator, clock: Any) -> None:
    pay_at_stripe(billed, emulator, copies=3)
    wait_for(lambda: own(billed)["state"] == "paid")
    (settled,) = own(billed)["settlements"]
    assert (settled["kind"], settled["amount_minor"], settled["method"]) == ("payment", 1219, "stripe")
    assert reconciled(billed, clock) == {"USD": {"ours": 1219, "theirs": 1219}}


def test_a_credit_note_reaches_stripe_and_what_is_void_there_is_void_here(billed: Any, emulator: Emulator, clock: Any) -> None:
    body = {"amount_minor": 19, "reason": "a fault of ours"}
    assert billed.request("operator", "POST", "/api/invoices/INV-000001/credit-notes", json=body).json()["name"] == "CN-000001"
    wait_for(done(billed, 4))
    assert [note["amount"] for note in emulator.account.of("credit_note")] == [19]
    reconciled(billed, clock)
    stripe_id = billed.get("acme-owner", "/api/payments/invoices").json()[0]["stripe_id"]
    Gateway(Emulator.api_key, emulator.url).client.v1.invoices.void_invoice(stripe_id)
    emulator.deliver(lambda payload, header: hear(billed, payload, header))
    wait_for(lambda: own(billed)["state"] == "void")
    assert own(billed)["open_minor"] == 0 and billed.get("operator", "/api/check").json() == {"differences": []}


def test_usage_that_arrives_while_payments_are_noted_keeps_its_ids(billed: Any, emulator: Emulator, usage: Any) -> None:
    """The sink posts with books of its own in the writer's transaction; those of the writer look again."""
    pay_at_stripe(billed, emulator)
    for n in range(40):
        assert billed.post_usage(usage(f"more-{n}/1")).status_code == 200
    wait_for(lambda: own(billed)["state"] == "paid")
    assert billed.post_usage(usage("last/1")).status_code == 200
    assert billed.get("operator", "/api/check").json() == {"differences": []}


def test_from_contact_to_invoice_to_payment(paid: Any, emulator: Emulator, invoice: Any, clock: Any) -> None:
    assert put_contact(paid, "acme-owner").json()["version"] == 1
    paid.service.store.submit(lambda books: payment_outbox.put(books.connection, invoice(), clock.now_ns)).result()
    wait_for(done(paid, 2))
    url = "/api/payments/invoices"
    listed = paid.get("acme-owner", url).json()
    assert [(row["number"], row["status"], row["total_minor"], row["currency"]) for row in listed] == [("2026-000001", "open", 1219, "USD")]
    assert listed[0]["url"].startswith("https://invoice.stripe.com/")
    emulator.account.pay(listed[0]["stripe_id"])
    assert emulator.deliver(lambda payload, header: hear(paid, payload, header), copies=2) == [200] * 4
    wait_for(lambda: paid.get("acme-owner", url).json()[0]["paid_minor"] == 1219)
    assert [row.who for row in audit(paid, "payments.contact")] == ["acme-owner"]


@pytest.fixture
def metered(
    running_service: Any, settings: Settings, emulator: Emulator, clock: Any, migrated_url: str
) -> Callable[[Callable[[Any], Any]], Any]:
    """Does something with the service started anew, whose meters tell Stripe of usage. Usage is collected at each start."""
    emulator.add_price("price_nano", "usd", "0.0000001")
    values = {
        "database_url": migrated_url, "busy_seconds": 2.0, "stripe_mode": "meters", "stripe_meter_price": "price_nano",
        "stripe_key": SecretStr(Emulator.api_key), "stripe_api_url": emulator.url,
    }  # fmt: skip

    def with_service(act: Callable[[Any], Any]) -> Any:
        running = running_service(settings.model_copy(update=values), clock)
        try:
            return act(running)
        finally:
            running.stop()

    return with_service


def test_usage_is_counted_by_the_meter_hour_by_hour(metered: Any, emulator: Emulator, clock: Any, usage: Any) -> None:
    """Two records over three hours, one of them corrected after it was counted."""
    start_ns = clock.now_ns // HOUR_NS * HOUR_NS - 5 * HOUR_NS

    def agreed(running: Any) -> bool:
        emulator.meters.process()
        report = running.get("operator", "/api/payments/reconciliation", since_ns=start_ns, until_ns=clock.now_ns).json()
        return report["compared"]["meter_hours"] > 0 and report["differences"] == []

    def counted() -> list[int]:
        sums: dict[int, int] = {}
        for event in emulator.meters.counted:
            sums[event.timestamp] = sums.get(event.timestamp, 0) + event.value
        return [value for _, value in sorted(sums.items())]

    one = usage("one/1", started_at_ns=start_ns + HOUR_NS // 2, duration_ns=2 * HOUR_NS)
    two = usage("two/1", started_at_ns=start_ns, duration_ns=60 * 10**9, device_model="gpu")
    assert metered(lambda running: running.set_surcharge("gpu", 70_000_000, valid_from_ns=start_ns)).status_code == 200
    assert metered(lambda running: running.post_usage(one, two)).status_code == 200
    metered(lambda running: wait_for(lambda: agreed(running)))
    rate = 2_000_000_000
    assert counted() == [rate // 2 + (rate + 70_000_000) // 60, rate, rate // 2]
    correction = {"source": "pool", "id": "two/1", "reason": "x"}
    metered(lambda running: running.request("operator", "POST", "/api/corrections", json=correction))
    metered(lambda running: wait_for(lambda: agreed(running)))
    assert counted() == [rate // 2, rate, rate // 2]


def test_a_report_that_no_webhook_brought_is_fetched_at_the_start_and_by_a_reconciliation(
    metered: Any, emulator: Emulator, clock: Any, usage: Any
) -> None:
    start_ns = clock.now_ns // HOUR_NS * HOUR_NS - 5 * HOUR_NS
    meters = Gateway(Emulator.api_key, emulator.url).client.v1.billing.meters

    def use_an_hour(number: int) -> None:
        record = usage(f"{number}/1", started_at_ns=start_ns + number * HOUR_NS, duration_ns=10**9)
        assert metered(lambda running: running.post_usage(record)).status_code == 200

    def counts(running: Any) -> Any:
        return running.get("operator", "/api/payments/outbox").json()["counts"]

    def throw_away(running: Any, number: int) -> None:
        """Stripe takes the hour's event, finds that its meter is not active, and its report is lost."""
        wait_for(lambda: len(emulator.called("POST /v1/billing/meter_events")) == number and not counts(running).get("waiting"))
        meters.deactivate(emulator.account.of("billing.meter")[0]["id"])
        emulator.meters.process()
        emulator.webhooks.clear()

    def reconcile(running: Any) -> None:
        throw_away(running, 2)
        running.get("operator", "/api/payments/reconciliation", since_ns=start_ns, until_ns=clock.now_ns)
        wait_for(lambda: counts(running).get("dead") == 2)

    use_an_hour(1)
    metered(lambda running: throw_away(running, 1))
    metered(lambda running: wait_for(lambda: counts(running).get("dead") == 1))
    meters.reactivate(emulator.account.of("billing.meter")[0]["id"])
    use_an_hour(2)
    metered(reconcile)


def test_the_portal_is_opened_for_the_tenants_own_customer(paid: Any, emulator: Emulator) -> None:
    refused = paid.request("acme-owner", "POST", "/api/payments/portal", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "payments_off")
    put_contact(paid)
    wait_for(done(paid, 1))
    opened = paid.request("acme-owner", "POST", "/api/payments/portal", json={}).json()
    assert opened["tenant"] == "acme" and opened["url"].startswith("https://billing.stripe.com/p/session/")
    asked = emulator.called("POST /v1/billing_portal/sessions")[0].params
    assert asked == {"customer": emulator.account.of("customer")[0]["id"], "return_url": "https://cloud.example/"}
    other = paid.request("acme-owner", "POST", "/api/payments/portal", json={"tenant": "globex"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "forbidden")


def test_a_webhook_that_is_not_stripes_changes_nothing_and_is_audited(paid: Any, emulator: Emulator, clock: Any) -> None:
    payload = '{"id": "evt_1", "object": "event", "type": "invoice.paid", "data": {"object": {"id": "in_1"}}}'
    header = emulator.signature(payload, Emulator.secret)
    forged = emulator.signature(payload, "whsec_forged")
    clock.now_ns += 301 * 10**9
    for sent in (header, forged, "", "t=1,v1=zz"):
        answer = paid.client.post("/api/payments/webhook", content=payload, headers={"Stripe-Signature": sent})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_webhook")
    assert len(audit(paid, "payments.webhook")) == 4
    for _ in range(60):
        assert hear(paid, payload.encode(), forged) == 400
    assert len(audit(paid, "payments.webhook")) == 30
    engines = open_engines(paid.settings.database_url, 2)
    with reading(engines) as connection:
        assert connection.execute(text("SELECT count(*) FROM payment_events")).scalar_one() == 0
    engines.dispose()
    clock.now_ns -= 301 * 10**9
    assert hear(paid, payload.encode(), header) == 200


def test_a_dead_letter_is_seen_and_decided_on(paid: Any, invoice: Any, clock: Any) -> None:
    put_contact(paid)
    order = invoice(amounts=(5124,), currency="KWD")
    paid.service.store.submit(lambda books: payment_outbox.put(books.connection, order, clock.now_ns)).result()
    rows = wait_for(lambda: paid.get("operator", "/api/payments/outbox", state="dead").json()["rows"])
    assert [(row["kind"], row["subject"], row["state"]) for row in rows] == [("invoice", "2026-000001", "dead")]
    assert "finer than the coins" in rows[0]["note"]
    wait_for(lambda: 'forebay_billing_payment_orders{state="dead"} 1.0' in paid.get(None, "/metrics").text)
    path = f"/api/payments/outbox/{rows[0]['id']}"
    assert paid.request("operator", "POST", path, json={"action": "skip", "reason": "billed by hand"}).status_code == 200
    again = paid.request("operator", "POST", path, json={"action": "retry", "reason": "x"})
    assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_record")
    assert [(row.who, row.subject) for row in audit(paid, "payments.dead_letter")] == [("operator", str(rows[0]["id"]))]


def test_a_stripe_that_does_not_answer_is_a_502_and_nothing_of_ours_changes(paid: Any, emulator: Emulator) -> None:
    from stripe_emulator import Fault

    put_contact(paid)
    wait_for(done(paid, 1))
    emulator.faults.add(Fault("lost_before", "GET /v1/customers"), Fault("busy", "POST /v1/billing_portal"))
    for answer in (
        paid.get("operator", "/api/payments/reconciliation", since_ns=0, until_ns=2**60),
        paid.request("acme-owner", "POST", "/api/payments/portal", json={}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "payments_unavailable")


def test_without_payments_their_endpoints_say_so(running: Any) -> None:
    for answer in (
        put_contact(running),
        running.request("acme-owner", "POST", "/api/payments/portal", json={}),
        running.get("operator", "/api/payments/reconciliation", since_ns=0, until_ns=1),
        running.client.post("/api/payments/webhook", content=b"{}"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "payments_off")
    assert running.get("operator", "/api/payments/outbox").json() == {"counts": {}, "rows": []}


@pytest.mark.parametrize("body", [{"name": ""}, {"name": "x" * 151}, {"email": "nobody"}, {"email": "a@b\u0000"}, {"colour": "red"}])
def test_a_contact_that_is_none_is_refused(paid: Any, body: dict[str, Any]) -> None:
    answer = put_contact(paid, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")


def test_an_operators_contact_of_a_tenant_of_whom_nothing_was_recorded_is_refused_and_nothing_goes_to_stripe(
    paid: Any, emulator: Emulator
) -> None:
    refused = put_contact(paid, "operator", "amce")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_tenant")
    assert [row.subject for row in audit(paid, "payments.contact.refused")] == ["amce"]
    assert paid.get("operator", "/api/payments/outbox").json()["rows"] == []
    assert paid.request("operator", "PUT", "/api/profiles/amce", json={"currency": "KRW"}).status_code == 200
    assert put_contact(paid, "operator", "amce").status_code == 200
    wait_for(done(paid, 2))
    engines = open_engines(paid.settings.database_url, 2)
    with reading(engines) as connection:
        bodies = connection.execute(text("SELECT body FROM payment_outbox WHERE tenant = 'amce'")).scalars().all()
    engines.dispose()
    assert ["KRW" in str(body) for body in bodies] == [True, True], "in what the profile says"


def test_secrets_are_never_shown(paid: Any, emulator: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    put_contact(paid)
    wait_for(done(paid, 1))
    hear(paid, b"{}", "t=1,v1=0")
    shown = caplog.text + repr(paid.settings) + str(paid.settings.model_dump()) + paid.get(None, "/metrics").text
    assert not [secret for secret in (Emulator.api_key, Emulator.secret, Emulator.thin_secret) if secret in shown]
    settings = Settings(stripe_key="sk_live_secretSecret", stripe_webhook_secrets="whsec_secretSecret")  # type: ignore[arg-type]
    assert "secretSecret" not in repr(settings) and settings.stripe_webhook_secret_texts() == ("whsec_secretSecret",)


def test_payments_without_a_key_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="stripe_key_file or stripe_key"):
        Settings(stripe_mode="invoices").stripe_key_text()
    with pytest.raises(SettingsError, match=r"stripe_key_file: .* cannot be read"):
        Settings(stripe_mode="invoices", stripe_key_file=tmp_path / "missing").stripe_key_text()
    (tmp_path / "billing.toml").write_text('[[tokens]]\ntoken = "token-of-the-pool-service"\nname = "pool"\nkind = "service"\n')
    loaded = Settings.load(tmp_path / "billing.toml", {"FOREBAY_BILLING_STRIPE_KEY": "sk_test_fromTheEnvironment"})
    assert loaded.stripe_key_text() == "sk_test_fromTheEnvironment"
