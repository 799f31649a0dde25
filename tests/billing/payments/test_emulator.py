"""The emulator does what Stripe documents, as the real client sees it; and its shapes are those of the installed library."""

from __future__ import annotations

from typing import Any

import pytest
import stripe
from forebay_billing.payments.gateway import API_VERSION, Gateway
from stripe._api_version import _ApiVersion
from stripe_emulator import Emulator, Fault
from stripe_emulator.shapes import BadParameter, faults_of_answer, params_of, taken

DAY_S = 86_400


@pytest.fixture
def v1(emulator: Emulator) -> Any:
    return Gateway(Emulator.api_key, emulator.url).client.v1


@pytest.fixture
def event(v1: Any, emulator: Emulator) -> Any:
    """Sends a meter event; what is not given is right."""
    customer = v1.customers.create({"name": "a"}).id
    v1.billing.meters.create({"display_name": "m", "event_name": "m", "default_aggregation": {"formula": "sum"}})

    def send(identifier: str, seconds_ago: int = 60, value: str = "1", **payload: str) -> Any:
        return v1.billing.meter_events.create(
            {
                "event_name": payload.pop("event_name", "m"),
                "identifier": identifier,
                "timestamp": emulator.now_s() - seconds_ago,
                "payload": {"stripe_customer_id": customer, "value": value} | payload,
            }
        )

    return send


def test_the_version_that_we_pin_is_the_librarys_own() -> None:
    """So that its types tell what the API takes and answers."""
    assert API_VERSION == _ApiVersion.CURRENT


def test_a_key_answers_the_same_for_a_day_and_then_anew(v1: Any, emulator: Emulator, clock: Any) -> None:
    first = v1.customers.create({"name": "a"}, {"idempotency_key": "k"})
    again = v1.customers.create({"name": "a"}, {"idempotency_key": "k"})
    assert first.id == again.id and again.last_response.headers["Idempotent-Replayed"] == "true"
    clock.now_ns += DAY_S * 10**9
    assert v1.customers.create({"name": "a"}, {"idempotency_key": "k"}).id != first.id


def test_a_key_with_other_parameters_is_refused(v1: Any) -> None:
    v1.customers.create({"name": "a"}, {"idempotency_key": "k"})
    with pytest.raises(stripe.IdempotencyError, match="same parameters"):
        v1.customers.create({"name": "b"}, {"idempotency_key": "k"})


def test_a_500_is_replayed_and_a_429_and_a_409_are_not(v1: Any, emulator: Emulator) -> None:
    for kind, error in (("error_before", stripe.APIError), ("busy", stripe.RateLimitError), ("conflict", stripe.APIError)):
        emulator.faults.add(Fault(kind, retry_after_seconds=7))  # type: ignore[arg-type]
        with pytest.raises(error):
            v1.customers.create({"name": kind}, {"idempotency_key": kind})
    with pytest.raises(stripe.APIError):
        v1.customers.create({"name": "error_before"}, {"idempotency_key": "error_before"})
    for kind in ("busy", "conflict"):
        assert v1.customers.create({"name": kind}, {"idempotency_key": kind}).name == kind
    assert len(emulator.account.of("customer")) == 2


def test_a_lost_answer_may_or_may_not_have_happened(v1: Any, emulator: Emulator) -> None:
    for kind, made in (("lost_before", 0), ("lost_after", 1)):
        emulator.faults.add(Fault(kind))  # type: ignore[arg-type]
        with pytest.raises(stripe.APIConnectionError):
            v1.customers.create({"name": kind}, {"idempotency_key": kind})
        assert len(emulator.account.of("customer")) == made


def test_identifiers_of_meter_events_are_unique_for_a_day(event: Any, emulator: Emulator, clock: Any) -> None:
    event("one")
    clock.now_ns += (DAY_S - 1) * 10**9
    with pytest.raises(stripe.InvalidRequestError, match="already exists with identifier one"):
        event("one")
    clock.now_ns += 10**9
    event("one")
    emulator.meters.process()
    assert [counted.value for counted in emulator.meters.counted] == [1, 1]


@pytest.mark.parametrize(
    ("seconds_ago", "code"),
    [(35 * DAY_S, None), (35 * DAY_S + 1, "timestamp_too_far_in_past"), (-300, None), (-301, "timestamp_in_future")],
)
def test_timestamps_of_meter_events_are_35_days_old_or_5_minutes_ahead_at_most(event: Any, seconds_ago: int, code: str | None) -> None:
    if code is None:
        assert event("one", seconds_ago).identifier == "one"
        return
    with pytest.raises(stripe.InvalidRequestError) as refused:
        event("one", seconds_ago)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"event_name": "n"}, "no_meter"),
        ({"stripe_customer_id": "cus_x"}, "meter_event_customer_not_found"),
        ({"value": "1.5"}, "meter_event_invalid_value"),
        ({"value": "1" * 16}, "meter_event_value_too_many_digits"),
    ],
)
def test_what_is_wrong_with_a_meter_event_is_told_later(event: Any, emulator: Emulator, wrong: dict[str, str], code: str) -> None:
    event("good")
    assert event("bad", **wrong).identifier == "bad" and emulator.webhooks == []
    emulator.meters.process()
    assert [counted.value for counted in emulator.meters.counted] == [1]
    client = Gateway(Emulator.api_key, emulator.url).client
    payload, secret = emulator.webhooks[0]
    thin: Any = client.parse_event_notification(payload, stripe.WebhookSignature.generate_signature_header(payload, secret), secret)
    kind = thin.fetch_event().data.reason.error_types[0]
    assert (kind.code, kind.error_count, kind.sample_errors[0].request.identifier) == (code, 1, "bad")
    assert thin.type == f"v1.billing.meter.{'no_meter_found' if code == 'no_meter' else 'error_report_triggered'}"


def test_sums_are_by_the_hour(event: Any, v1: Any, emulator: Emulator) -> None:
    for number, seconds_ago in enumerate((3600, 3700, 7300)):
        event(f"e{number}", seconds_ago, str(10**number))
    emulator.meters.process()
    meter, customer = emulator.account.of("billing.meter")[0]["id"], emulator.account.of("customer")[0]["id"]
    now = emulator.now_s()
    params = {"customer": customer, "start_time": now - 10_800, "end_time": now, "value_grouping_window": "hour"}
    assert sorted(row.aggregated_value for row in v1.billing.meters.event_summaries.list(meter, params).data) == [1.0, 10.0, 100.0]


def test_a_test_clock_goes_ahead_and_meters_count(event: Any, v1: Any, emulator: Emulator) -> None:
    frozen = emulator.now_s()
    made = v1.test_helpers.test_clocks.create({"frozen_time": frozen})
    event("one")
    v1.test_helpers.test_clocks.advance(made.id, {"frozen_time": frozen + DAY_S})
    assert emulator.now_s() == frozen + DAY_S and len(emulator.meters.counted) == 1
    with pytest.raises(stripe.InvalidRequestError, match="only goes ahead"):
        v1.test_helpers.test_clocks.advance(made.id, {"frozen_time": frozen})


def test_an_unknown_key_or_version_is_refused(emulator: Emulator) -> None:
    with pytest.raises(stripe.AuthenticationError):
        Gateway("sk_test_other", emulator.url).client.v1.customers.create({})
    old = stripe.StripeClient(Emulator.api_key, stripe_version="2020-08-27", base_addresses={"api": emulator.url})
    with pytest.raises(stripe.InvalidRequestError, match="pinned version"):
        old.v1.customers.create({})


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("CustomerCreateParams", {"colour": "red"}),
        ("InvoiceItemCreateParams", {"amount": "1.5"}),
        ("InvoiceCreateParams", {"auto_advance": "maybe"}),
        ("InvoiceItemCreateParams", {"period": {"start": "1"}}),
        ("billing.MeterCreateParams", {"display_name": "m", "event_name": "m"}),
        ("billing.MeterCreateParams", {"display_name": "m", "event_name": "m", "default_aggregation": {"formula": "sum", "x": "y"}}),
        ("billing.CreditGrantCreateParams", {"amount": {"type": "shells"}, "applicability_config": {"scope": {}}}),
    ],
)
def test_parameters_that_the_librarys_types_do_not_have_are_refused(kind: str, params: Any) -> None:
    with pytest.raises(BadParameter):
        taken(params, params_of(kind))


def test_answers_that_the_librarys_classes_do_not_have_are_found() -> None:
    summary = {
        "object": "billing.meter_event_summary",
        "id": "x",
        "aggregated_value": 1.0,
        "start_time": 0,
        "end_time": 1,
        "livemode": False,
    }
    assert faults_of_answer(summary) == [".meter of MeterEventSummary is missing"]
    assert faults_of_answer(summary | {"meter": "m", "colour": "red"}) == [".colour of MeterEventSummary"]
    assert faults_of_answer({"object": "list", "data": [summary], "has_more": False, "url": "/"}) != []
