"""Hourly sums at Stripe's meters equal ours, late and corrected hours included."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from forebay_billing import failpoints
from forebay_billing.payments import metering, webhook_inbox
from forebay_billing.payments.amounts import METER_VALUE_MAX, meter_parts
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import ChangedHour, Mark, MeterHour
from hypothesis import given
from hypothesis import strategies as st
from stripe_emulator import Fault

pytestmark = pytest.mark.databases("sqlite")

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
METER = "forebay_usage_usd"


class Killed(BaseException):
    """The process died."""


class Usage:
    """A source of hours that a test changes."""

    def __init__(self) -> None:
        self.hours: dict[tuple[str, int], int] = {}
        self._states = [self.hours]

    def meter_hours(self, connection: Any, since_ns: int, until_ns: int) -> list[MeterHour]:
        return [
            MeterHour(tenant, METER, "USD", hour_ns, value)
            for (tenant, hour_ns), value in self.hours.items()
            if since_ns <= hour_ns < until_ns
        ]

    def changed_hours(self, *_: Any) -> list[ChangedHour]:
        return []

    def mark(self, *_: Any) -> Mark:
        """Goes on whenever the hours have changed."""
        if self._states[-1] != self.hours:
            self._states.append(dict(self.hours))
        return Mark(len(self._states), 0)


@pytest.fixture
def usage() -> Usage:
    return Usage()


@pytest.fixture
def shop(open_shop: Callable[..., Any], emulator: Any, usage: Usage) -> Any:
    emulator.add_price("price_nano", "usd", "0.0000001")
    opened = open_shop(mode="meters", meter_price="price_nano")
    opened.usage = usage
    return opened


@pytest.fixture
def send(shop: Any, usage: Usage) -> Callable[[], int]:
    """Hands over what is new, sends it, and lets Stripe count."""

    def all_of_it() -> int:
        made: int = shop.exporter.collect(usage)
        shop.run()
        shop.emulator.meters.process()
        return made

    return all_of_it


def hour(shop: Any, hours_ago: int) -> int:
    return int(shop.clock.now_ns // HOUR_NS * HOUR_NS - hours_ago * HOUR_NS)


def test_each_hour_is_one_event_in_whole_nano_units(shop: Any, usage: Usage, send: Any, customer: Any) -> None:
    shop.put(customer())
    usage.hours = {("acme", hour(shop, 5)): 1_234_567_891, ("acme", hour(shop, 4)): 17}
    assert send() == 2 and send() == 0
    events = shop.emulator.called("POST /v1/billing/meter_events")
    assert sorted((call.params["timestamp"], call.params["payload"]["value"]) for call in events) == [
        (str(hour(shop, 5) // 10**9), "1234567891"),
        (str(hour(shop, 4) // 10**9), "17"),
    ]
    assert shop.emulator.account.of("billing.meter")[0]["event_name"] == METER
    assert shop.reconcile().differences == () and shop.reconcile().compared["meter_hours"] == 2


def test_a_sum_that_stripe_has_not_counted_yet_proves_nothing(shop: Any, usage: Usage, send: Any, customer: Any) -> None:
    """An event of unknown fate and a correction of it cancel each other out: a sum of nothing looks as if both were in it."""
    shop.put(customer())
    key = ("acme", hour(shop, 5))
    usage.hours = {key: 700}
    shop.exporter.collect(usage)
    shop.emulator.faults.add(Fault("error_before", "meter_events"))
    shop.exporter.step()
    shop.exporter.step()
    usage.hours = {}
    shop.exporter.collect(usage)
    shop.exporter.step()
    shop.clock.now_ns += 60 * 10**9
    shop.exporter.step()
    assert [row.subject.split("/")[-1] for row in shop.rows("waiting")] == ["1"]
    shop.emulator.meters.process()
    shop.run()
    shop.emulator.meters.process()
    assert [event.value for event in shop.emulator.meters.counted] == [-700, 700]
    assert shop.reconcile().differences == ()


def test_two_events_of_unknown_fate_that_cancel_each_other_out_are_not_looked_for_before_stripe_can_have_counted(
    shop: Any, usage: Usage, send: Any, customer: Any
) -> None:
    """Stripe took the first, has not counted it yet, and never saw the second: a sum of nothing looks as if both were in it."""
    shop.put(customer())
    key = ("acme", hour(shop, 5))
    for value, fault in ((700, "error_after"), (None, "error_before")):
        usage.hours = {} if value is None else {key: value}
        shop.exporter.collect(usage)
        shop.emulator.faults.add(Fault(fault, "POST /v1/billing/meter_events"))
        while shop.emulator.faults.left:
            shop.exporter.step()
    shop.clock.now_ns += 60 * 10**9
    shop.exporter.step()
    assert [row.subject.split("/")[-1] for row in shop.rows("waiting")] == ["1", "2"]
    shop.emulator.meters.process()
    shop.run()
    shop.emulator.meters.process()
    assert [event.value for event in shop.emulator.meters.counted] == [700, -700]
    assert shop.reconcile().differences == ()


def test_an_event_that_stripe_took_and_has_not_counted_yet_is_not_sent_under_another_name(
    shop: Any, usage: Usage, send: Any, customer: Any
) -> None:
    """A dead letter that an operator sends again has a new identifier, which Stripe does not know."""
    shop.put(customer())
    usage.hours = {("acme", hour(shop, 5)): 700}
    shop.exporter.collect(usage)
    shop.exporter.step()
    shop.emulator.faults.add(Fault("lost_after", "POST /v1/billing/meter_events"))
    shop.exporter.step()
    shop.clock.now_ns += 600 * 10**9
    held = shop.books.write(lambda connection: payment_outbox.claim(connection, shop.clock.now_ns))
    shop.books.write(lambda connection: payment_outbox.CLAIMS.give_up(connection, held[0], shop.clock.now_ns, "made so by the test"))
    shop.books.write(lambda connection: payment_outbox.retry(connection, held[0].id, shop.clock.now_ns))
    shop.exporter.step()
    assert len(shop.rows("waiting")) == 1
    shop.emulator.meters.process()
    send()
    assert [event.value for event in shop.emulator.meters.counted] == [700]
    assert shop.rows()[-1].note.endswith("as Stripe's sum of the hour shows")


def test_what_is_sent_between_the_books_facts_and_stripes_sum_settles_nothing(shop: Any, usage: Usage, send: Any, customer: Any) -> None:
    """Another event of the hour, as large as the one looked for, is counted just before the sum is read."""
    shop.put(customer())
    key = ("acme", hour(shop, 5))
    usage.hours = {key: 700}
    shop.exporter.collect(usage)
    shop.exporter.step()
    shop.emulator.faults.add(Fault("error_before", "POST /v1/billing/meter_events"))
    shop.exporter.step()
    shop.clock.now_ns += 2 * HOUR_NS
    other, met = shop.start(), []

    def meets(name: str) -> None:
        if name == "payments.meter_event.look.before" and not met:
            met.append(name)
            usage.hours[key] = 1400
            other.collect(usage)
            other.step()
            shop.emulator.meters.process()

    with failpoints.armed(meets):
        shop.exporter.step()
    other.close()
    assert met and [event.value for event in shop.emulator.meters.counted] == [700]
    send()
    assert [event.value for event in shop.emulator.meters.counted] == [700, 700]
    assert shop.reconcile().differences == ()


def test_an_hour_that_is_not_over_waits(shop: Any, usage: Usage, send: Any) -> None:
    usage.hours = {("acme", hour(shop, 0)): 5, ("acme", hour(shop, -1)): 5}
    assert send() == 0
    shop.clock.now_ns += HOUR_NS + 301 * 10**9
    assert send() == 1


def test_late_records_and_corrections_add_to_their_hour(shop: Any, usage: Usage, send: Any) -> None:
    key = ("acme", hour(shop, 30))
    for value in (1000, 1700, 300, None):
        usage.hours = {} if value is None else {key: value}
        assert send() == 1
    values = [call.params["payload"]["value"] for call in shop.emulator.called("POST /v1/billing/meter_events")]
    assert values == ["1000", "700", "-1400", "-300"]
    assert shop.reconcile().differences == ()


def test_hours_too_old_for_the_meter_go_as_one_item_of_the_next_invoice(shop: Any, usage: Usage, send: Any) -> None:
    usage.hours = {("acme", hour(shop, 24 * 36)): 4_000_000, ("acme", hour(shop, 24 * 35)): 7_000_000, ("acme", hour(shop, 5)): 5}
    assert send() == 2 and send() == 0
    items = shop.emulator.account.of("invoiceitem")
    assert [(each["amount"], each["description"], each["invoice"]) for each in items] == [(1, "Usage of 2 earlier hours", None)]
    assert len(shop.emulator.called("POST /v1/billing/meter_events")) == 1
    assert shop.reconcile().differences == ()


def test_an_hour_that_grew_too_old_while_it_waited_goes_as_an_item(shop: Any, usage: Usage, send: Any) -> None:
    usage.hours = {("acme", hour(shop, 24 * 33)): 25_000_000}
    shop.exporter.collect(usage)
    shop.clock.now_ns += 2 * DAY_NS
    send()
    assert [each["amount"] for each in shop.emulator.account.of("invoiceitem")] == [2]
    assert shop.emulator.called("POST /v1/billing/meter_events") == [] and shop.reconcile().differences == ()


@pytest.mark.parametrize("hours_old", [24 * 10, 24 * 34 - 1])
def test_an_event_that_stripe_took_before_we_died_is_not_sent_as_an_item_weeks_later(
    shop: Any, usage: Usage, send: Any, hours_old: int
) -> None:
    """The hour grows too old for the meter while nobody knows that the meter has it: in weeks, or between two tries."""
    usage.hours = {("acme", hour(shop, 24)): 5, ("acme", hour(shop, hours_old)): 25_000_000}
    shop.exporter.collect(usage)

    def dies(name: str) -> None:
        if name == "payments.meter_event.create.after":
            raise Killed(name)

    with failpoints.armed(dies), pytest.raises(Killed):
        shop.exporter.step()
        shop.exporter.step()
    shop.exporter.close()
    shop.exporter = shop.start()
    shop.emulator.meters.process()
    shop.clock.now_ns += 30 * DAY_NS if hours_old == 24 * 10 else 2 * HOUR_NS
    send()
    assert shop.emulator.account.of("invoiceitem") == []
    assert sum(event.value for event in shop.emulator.meters.counted) == 25_000_005


@pytest.mark.parametrize("kind", ["busy", "conflict", "error_before", "error_after", "lost_before", "lost_after"])
@pytest.mark.parametrize("later_ns", [0, DAY_NS + HOUR_NS])
def test_a_fault_counts_no_hour_twice_and_loses_none(shop: Any, usage: Usage, send: Any, kind: Any, later_ns: int) -> None:
    """Also when both the keys and the identifiers of a day ago are forgotten."""
    usage.hours = {("acme", hour(shop, hours_ago)): 100 + hours_ago for hours_ago in range(2, 6)}
    shop.emulator.faults.add(*[Fault(kind, "POST /v1/billing/meter_events")] * 3)
    shop.exporter.collect(usage)
    while shop.emulator.faults.left:
        shop.exporter.step()
        shop.clock.now_ns += 10**9
    shop.emulator.meters.process()
    shop.clock.now_ns += later_ns
    send()
    assert sum(event.value for event in shop.emulator.meters.counted) == sum(usage.hours.values())
    assert shop.reconcile().differences == ()


def test_events_of_an_unknown_meter_are_dead_letters_until_it_is_there(shop: Any, usage: Usage, send: Any) -> None:
    usage.hours = {("acme", hour(shop, 9)): 1}
    send()
    meter = shop.emulator.account.of("billing.meter")[0]
    del shop.emulator.account.objects[meter["id"]]
    usage.hours[("acme", hour(shop, 5))] = 42
    send()
    assert shop.hear_all() == [200]
    dead = shop.rows("dead")
    assert [row.subject for row in dead] == [f"acme/{METER}/{hour(shop, 5)}/1"] and dead[0].note.startswith("no_meter: ")
    shop.emulator.account.objects[meter["id"]] = meter
    shop.books.write(lambda connection: payment_outbox.retry(connection, dead[0].id, shop.clock.now_ns))
    send()
    assert shop.rows("dead") == [] and shop.reconcile().differences == ()


def thrown_away(shop: Any, usage: Usage, send: Any) -> str:
    """The meter that was deactivated before the usage of five hours ago came to it."""
    usage.hours = {("acme", hour(shop, 9)): 1}
    send()
    meter: str = shop.emulator.account.of("billing.meter")[0]["id"]
    shop.gateway.client.v1.billing.meters.deactivate(meter)
    usage.hours[("acme", hour(shop, 5))] = 42
    send()
    return meter


def test_events_of_a_deactivated_meter_are_dead_letters_until_it_is_active(shop: Any, usage: Usage, send: Any) -> None:
    meter = thrown_away(shop, usage, send)
    shop.hear_all()
    dead = shop.rows("dead")
    assert dead[0].note.startswith("archived_meter: ")
    assert [(each.kind, each.ours, each.theirs) for each in shop.reconcile().differences] == [("meter hour", 42, None)]
    shop.books.write(lambda connection: payment_outbox.retry(connection, dead[0].id, shop.clock.now_ns))
    shop.run()
    assert "reactivate it, then retry" in shop.rows("dead")[0].note
    shop.gateway.client.v1.billing.meters.reactivate(meter)
    shop.books.write(lambda connection: payment_outbox.retry(connection, dead[0].id, shop.clock.now_ns))
    send()
    assert shop.rows("dead") == [] and shop.reconcile().differences == ()


def test_a_report_of_which_no_webhook_told_is_found_at_stripe_and_handled_once(shop: Any, usage: Usage, send: Any, caplog: Any) -> None:
    meter = thrown_away(shop, usage, send)
    lost, shop.emulator.webhooks = shop.emulator.webhooks, []
    assert shop.rows("dead") == []
    shop.emulator.faults.add(Fault("busy", "GET /v2/core/events"))
    with pytest.raises(StripeFailure):
        shop.exporter.fetch_reports()
    assert shop.exporter.fetch_reports() == 1
    assert [record.count for record in caplog.records if record.action == "payments.reports.fetched"] == [1]
    shop.run()
    (dead,) = shop.rows("dead")
    assert dead.subject == f"acme/{METER}/{hour(shop, 5)}/1" and dead.note.startswith("archived_meter: ")
    shop.gateway.client.v1.billing.meters.reactivate(meter)
    shop.books.write(lambda connection: payment_outbox.retry(connection, dead.id, shop.clock.now_ns))
    send()
    shop.emulator.webhooks += lost
    assert shop.hear_all() == [208], "the webhook comes after all"
    restarted = shop.start()
    assert (shop.exporter.fetch_reports(), restarted.fetch_reports()) == (0, 0)
    restarted.close()
    assert shop.rows("dead") == [] and shop.reconcile().differences == ()


def test_reports_are_asked_for_on_all_pages_of_thirty_days_and_then_of_what_is_new(shop: Any, usage: Usage, send: Any) -> None:
    usage.hours = {("acme", hour(shop, 9)): 1}
    send()
    shop.gateway.client.v1.billing.meters.deactivate(shop.emulator.account.of("billing.meter")[0]["id"])

    def reported(times: int) -> None:
        for _ in range(times):
            shop.clock.now_ns += HOUR_NS
            usage.hours[("acme", hour(shop, 2))] = 42
            send()
        shop.emulator.webhooks.clear()

    reported(3)
    shop.clock.now_ns += 30 * DAY_NS
    reported(23)
    assert shop.exporter.fetch_reports() == 23, "and three that Stripe has forgotten"
    asked = shop.emulator.called("GET /v2/core/events$")
    assert len(asked) == 3 and set(asked[0].params["types"].values()) == set(webhook_inbox.METER_EVENTS)
    shop.clock.now_ns += 2 * DAY_NS
    reported(1)
    assert shop.exporter.fetch_reports() == 1
    first_pages = [call.params["created"]["gte"] for call in shop.emulator.called("GET /v2/core/events$") if "created" in call.params]
    ages_ns = [shop.clock.now_ns - datetime.fromisoformat(since).timestamp() * 10**9 for since in first_pages]
    assert [round(age_ns / DAY_NS) for age_ns in ages_ns] == [32, 3], "thirty days, and a day more than the two since"
    shop.run()
    assert len(shop.rows("dead")) == 24


def test_a_dead_event_holds_nothing_up(shop: Any, usage: Usage, send: Any, grant: Any) -> None:
    usage.hours = {("acme", hour(shop, 9)): 1}
    shop.exporter.collect(usage)
    shop.exporter.step()
    held = shop.books.write(lambda connection: payment_outbox.claim(connection, shop.clock.now_ns))
    shop.books.write(lambda connection: payment_outbox.CLAIMS.give_up(connection, held[0], shop.clock.now_ns, "made so by the test"))
    shop.put(grant())
    shop.run()
    assert [row.state for row in shop.rows()] == ["done", "dead", "done"]


def test_stripes_own_invoice_asks_for_what_ours_does(shop: Any, usage: Usage, send: Any, customer: Any) -> None:
    """A subscription at one nano-unit per nano-unit, over hours in each of which less than a cent was used."""
    shop.put(customer())
    usage.hours = {("acme", hour(shop, hours_ago)): 1_234_567 * hours_ago for hours_ago in range(2, 200)}
    send()
    subscription = shop.emulator.account.of("subscription")
    assert len(subscription) == 1
    counted = sum(event.value for event in shop.emulator.meters.counted)
    made = shop.emulator.account.invoice_subscription(subscription[0]["id"], counted)
    assert made["total"] == (sum(usage.hours.values()) + 5_000_000) // 10_000_000 and made["status"] == "open"
    shop.put(customer(version=2))
    shop.run()
    assert len(shop.emulator.account.of("subscription")) == 1


def test_our_other_lines_are_items_of_stripes_next_invoice_and_usage_and_credit_lines_are_not(shop: Any, invoice: Any) -> None:
    from dataclasses import replace

    lines = tuple(replace(line, role=role) for line, role in zip(invoice().lines, ("usage", "other", "credit"), strict=True))
    shop.put(replace(invoice(), lines=lines))
    shop.run()
    assert shop.emulator.account.of("invoice") == []
    assert [(each["amount"], each["invoice"]) for each in shop.emulator.account.of("invoiceitem")] == [(1234, None)]


def test_grants_are_mirrored(shop: Any, grant: Any) -> None:
    shop.put(grant(), grant("grant-2", category="paid", priority=50, valid_from_ns=shop.clock.now_ns + DAY_NS, expires_at_ns=None))
    shop.run()
    made = {each["metadata"]["forebay_grant"]: each for each in shop.emulator.account.of("billing.credit_grant")}
    assert made["grant-1"]["amount"] == {"type": "monetary", "monetary": {"currency": "usd", "value": 5000}}
    assert (made["grant-1"]["category"], made["grant-1"]["priority"]) == ("promotional", 10)
    assert made["grant-1"]["expires_at"] == shop.clock.now_ns // 10**9 + 90 * 86_400
    assert (made["grant-2"]["category"], made["grant-2"]["expires_at"]) == ("paid", None)
    assert made["grant-2"]["effective_at"] == shop.clock.now_ns // 10**9 + 86_400
    assert shop.reconcile().differences == ()


@given(st.integers(0, 9), st.lists(st.tuples(st.integers(-5, 5), st.booleans()), max_size=8))
def test_a_sum_is_explained_alike_by_all_who_ask_one_after_the_other(certain: int, events: list[tuple[int, bool]]) -> None:
    """Each settles its own part; in the end the sum is what was counted, and what was not is sent."""
    counted = certain + sum(value for value, there in events if there)
    uncertain = {sequence: value for sequence, (value, _) in enumerate(events)}
    sent = 0
    while uncertain:
        inside = metering.taken_of(counted + sent, metering.HourFacts(certain + sent, tuple(sorted(uncertain.items()))))
        assert inside is not None
        sequence = max(uncertain)
        value = uncertain.pop(sequence)
        certain, sent = (certain + value, sent) if sequence in inside else (certain, sent + value)
    assert certain == counted


def test_a_sum_that_nothing_explains_is_not_guessed_at() -> None:
    assert metering.taken_of(4, metering.HourFacts(1, ((1, 1), (2, 1)))) is None
    assert metering.taken_of(0, metering.HourFacts(0, tuple((n, 1) for n in range(metering.UNCERTAIN_MAX + 1)))) is None


@given(st.integers(-(10**19), 10**19))
def test_parts_of_a_value_sum_to_it_and_fit(value: int) -> None:
    parts = meter_parts(value)
    assert sum(parts) == value and all(0 < abs(part) <= METER_VALUE_MAX for part in parts)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_a_late_item_is_rounded_once(values: list[int]) -> None:
    events = [metering.MeterEvent("acme", METER, "USD", n * HOUR_NS, 1, value) for n, value in enumerate(values)]
    exact, got = sum(values), metering.late_usage(events).amount_minor
    assert abs(got * 10**7 - exact) * 2 <= 10**7


def test_where_nothing_came_and_no_hour_ended_nothing_is_summed_up_again(shop: Any, usage: Usage, customer: Any) -> None:
    reads: list[tuple[int, int]] = []
    sums = usage.meter_hours

    def meter_hours(connection: Any, since_ns: int, until_ns: int) -> list[MeterHour]:
        reads.append((since_ns, until_ns))
        return sums(connection, since_ns, until_ns)

    usage.meter_hours = meter_hours  # type: ignore[method-assign]
    shop.put(customer())
    usage.hours = {("acme", hour(shop, 5)): 700}
    assert [shop.exporter.collect(usage) for _ in range(3)] == [1, 0, 0]
    assert len(reads) == 1
    usage.hours[("acme", hour(shop, 4))] = 42
    assert [shop.exporter.collect(usage) for _ in range(2)] == [1, 0]
    assert len(reads) == 2
    shop.clock.now_ns += HOUR_NS
    shop.exporter.collect(usage)
    assert len(reads) == 3
