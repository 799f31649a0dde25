"""The endpoints over HTTP, with real tokens, on SQLite and PostgreSQL."""

from __future__ import annotations

import csv
import io
import json
import socket
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from forebay_billing.http.handler import BODY_BYTES_MAX
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from running_billing import Running

pytestmark = pytest.mark.databases("sqlite")

HOUR_NS = 3600 * 10**9
NOVEMBER = Month(2026, 11)
NOW_NS = NOVEMBER.start_ns + 20 * 86_400 * 10**9
"""By the clock of the running service."""


def check_refusal(response: Any, status: int, code: str) -> str:
    """The message of an error, which is exactly ``{"error": {code, message}}``, with ``fault`` where something that was sent is wrong."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) - {"fault"} == {"code", "message"} and error["code"] == code, error
    assert status in (400, 403, 409) or "fault" not in error, error
    assert error["message"].endswith(".")
    return str(error["message"])


def test_usage_becomes_records_a_summary_and_a_statement(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    records = [
        usage("a/1", duration_ns=HOUR_NS),
        usage("a/2", duration_ns=HOUR_NS + 1, lease="a"),
        usage("b/1", user="acme-owner", flavor="dev.1gb"),
        usage("c/1", tenant="globex", user="globex-owner"),
    ]
    assert run.post_usage(*records).json() == {"accepted": 4, "duplicates": 0}
    assert run.post_usage(*records[1:], usage("d/1", tenant="globex", duration_ns=0)).json() == {"accepted": 1, "duplicates": 3}

    page = run.get("pool", "/api/usage", tenant="acme").json()
    assert page["next"] is None and len(page["records"]) == 3
    (first,) = [record for record in page["records"] if record["id"] == "a/1"]
    assert first == {
        **asdict(records[0]),
        "price_nano_per_hour": 2_000_000_000,
        "price_version": 1,
        "cost_nano": 2_000_000_000,
        "cost_exact": "2.000000000000000000",
        "currency": "USD",
        "rates": [
            {
                "price_version": 1,
                "price_nano_per_hour": 2_000_000_000,
                "surcharge_nano_per_hour": 0,
                "duration_ns": HOUR_NS,
                "cost_exact": "2.000000000000000000",
                "period": "2026-11",
                "late": False,
            }
        ],
        "corrected_at_ns": None,
    }
    rows = run.get("operator", "/api/summary", by="tenant,user,flavor", tenant="acme").json()
    untold = {"energy_mj": None, "energy_duration_ns": 0, "co2_mg": None}
    assert rows == [
        {"tenant": "acme", "user": "acme-member", "flavor": "small.64gb", "currency": "USD", "duration_ns": 2 * HOUR_NS + 1,
         "cost_nano": 4_000_000_000, "leases": 1, "parked_nano": 0, **untold},
        {"tenant": "acme", "user": "acme-owner", "flavor": "dev.1gb", "currency": "USD", "duration_ns": 60 * 10**9,
         "cost_nano": 500_000, "leases": 1, "parked_nano": 0, **untold},
    ]  # fmt: skip
    by_tenant = run.get("operator", "/api/summary", by="tenant").json()
    assert [(row["tenant"], row["leases"]) for row in by_tenant] == [("acme", 2), ("globex", 2)]
    assert not any("user" in row or "flavor" in row for row in by_tenant)
    statement = run.get("operator", "/api/statement", tenant="acme", month="2026-11").json()
    assert statement["final"] is False
    assert [(line["user"], line["amount"], line["cost_exact"]) for line in statement["lines"]] == [
        ("acme-member", "4.00", "4.000000000000555556"),
        ("acme-owner", "0.00", "0.000500000000000000"),
    ]
    total = {"currency": "USD", "amount": "4.00", "cost_nano": 4_000_500_000, "cost_exact": "4.000500000000555556"}
    assert statement["totals"] == [total]


def test_a_price_change_applies_from_its_moment_on(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    changed = run.set_price("small.64gb", price_nano_per_hour=3_600_000_000, currency="USD")
    expected = {
        "flavor": "small.64gb", "price_nano_per_hour": 3_600_000_000, "currency": "USD", "valid_from_ns": run.clock.now_ns, "version": 2,
        "etag": '"2"',
    }  # fmt: skip
    assert changed.status_code == 200 and changed.json() == expected
    across, after = usage("a/1", started_at_ns=run.clock.now_ns - 15 * 10**9), usage("b/1", started_at_ns=run.clock.now_ns)
    assert run.post_usage(across, after).json() == {"accepted": 2, "duplicates": 0}
    records = {record["id"]: record for record in run.get("pool", "/api/usage").json()["records"]}
    costs = {id: record["cost_nano"] for id, record in records.items()}
    assert costs == {"a/1": 8_333_333 + 45 * 1_000_000, "b/1": 60 * 1_000_000}
    assert [(rate["price_version"], rate["duration_ns"]) for rate in records["a/1"]["rates"]] == [(1, 15 * 10**9), (2, 45 * 10**9)]
    assert expected in run.get("acme-member", "/api/prices").json()
    history = run.get("acme-member", "/api/prices", flavor="small.64gb", history="1").json()
    assert [(price["version"], price["changed_by"], price["changed_at_ns"]) for price in history] == [
        (1, "seed", run.clock.now_ns),
        (2, "operator", run.clock.now_ns),
    ]
    lines = run.get("acme-owner", "/api/statement", month="2026-11").json()["lines"]
    assert [(line["price_version"], line["cost_nano"]) for line in lines] == [(1, 8_333_333), (2, 105_000_000)]


def test_a_surcharge_is_billed_by_devices_and_share_as_a_whole_rate(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    for model, nano in (("part", 7), ("whole", 3_600_000)):
        assert run.set_surcharge(model, nano, valid_from_ns=0).status_code == 200
    shared = usage("a/1", duration_ns=1, share_milli=333, device_model="part")
    gang = usage("b/1", duration_ns=HOUR_NS, devices=8, device_model="whole", user="acme-owner")
    assert run.post_usage(shared, gang).json() == {"accepted": 2, "duplicates": 0}
    records = {record["id"]: record for record in run.get("pool", "/api/usage").json()["records"]}
    assert records["a/1"]["cost_exact"] == "0.000000000000555556"
    assert records["a/1"]["rates"][0]["surcharge_nano_per_hour"] == 2
    assert records["b/1"]["cost_nano"] == 2_028_800_000
    lines = run.get("acme-owner", "/api/statement", month="2026-11").json()["lines"]
    assert [(line["surcharge_nano_per_hour"], line["cost_exact"]) for line in lines] == [
        (2, "0.000000000000555556"),
        (28_800_000, "2.028800000000000000"),
    ]
    page = run.get("acme-owner", "/api/statement", month="2026-11", format="html").text
    assert "2.0288 USD" in page and "0.0288 of it for the devices" in page
    assert run.get("operator", "/api/check").json() == {"differences": []}


def test_a_change_that_is_sent_twice_under_one_key_happens_once(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    run.post_usage(usage("a/1"))
    price = {"price_nano_per_hour": 7, "currency": "USD"}
    correction = {"source": "pool", "id": "a/1", "reason": "the device failed"}
    requests = (("PUT", "/api/prices/dev.1gb", price), ("POST", "/api/corrections", correction))
    for number, (method, path, body) in enumerate(requests):
        headers = {"Idempotency-Key": f"key-{number}"}
        answers = [run.request("operator", method, path, json=body, headers=headers) for _ in range(3)]
        assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
        other = {**body, "reason": "another"} if "reason" in body else {**body, "price_nano_per_hour": 8}
        assert "key-" in check_refusal(run.request("operator", method, path, json=other, headers=headers), 409, "key_reused")
    assert run.get("operator", "/api/prices", flavor="dev.1gb").json()[0]["version"] == 2
    again = run.request("operator", "POST", "/api/corrections", json=correction, headers={"Idempotency-Key": "new"})
    check_refusal(again, 409, "already_corrected")
    assert run.request("pool", "POST", "/api/usage", json={"records": []}, headers={"Idempotency-Key": "key-0"}).status_code == 200
    assert run.get("operator", "/api/check").json() == {"differences": []}


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb"])
def test_a_key_that_cannot_be_is_refused(running: Running, key: str) -> None:
    price = {"price_nano_per_hour": 7, "currency": "USD"}
    answer = running.request("operator", "PUT", "/api/prices/dev.1gb", json=price, headers={"Idempotency-Key": key})
    assert "Idempotency-Key" in check_refusal(answer, 400, "invalid")
    assert running.get("operator", "/api/prices", flavor="dev.1gb").json()[0]["version"] == 1


def test_a_refused_change_may_be_sent_again_under_its_key(running: Running, usage: Callable[..., UsageRecord]) -> None:
    body = {"records": [asdict(usage("a/1", flavor="huge.1tb"))]}
    headers = {"Idempotency-Key": "one"}
    check_refusal(running.request("pool", "POST", "/api/usage", json=body, headers=headers), 422, "unpriced")
    running.set_price("huge.1tb", price_nano_per_hour=5, currency="USD", valid_from_ns=0, new=True)
    for _ in range(2):
        assert running.request("pool", "POST", "/api/usage", json=body, headers=headers).json() == {"accepted": 1, "duplicates": 0}


def test_a_price_can_be_set_for_later(running: Running) -> None:
    later = running.clock.now_ns + HOUR_NS
    assert running.set_price("dev.1gb", price_nano_per_hour=0, currency="USD", valid_from_ns=later).json()["version"] == 2
    (now,) = running.get("operator", "/api/prices", flavor="dev.1gb").json()
    running.clock.now_ns = later
    (then,) = running.get("operator", "/api/prices", flavor="dev.1gb").json()
    assert (now["version"], then["version"]) == (1, 2)


@pytest.mark.parametrize(
    ("flavor", "body", "status", "code"),
    [
        ("small.64gb", {"price_nano_per_hour": -1, "currency": "USD"}, 400, "invalid_price"),
        ("small.64gb", {"price_nano_per_hour": 1, "currency": "BTC"}, 400, "invalid_price"),
        ("small.64gb", {"price_nano_per_hour": 1, "currency": "USD", "valid_from_ns": -5}, 400, "invalid_price"),
        ("small.64gb", {"price_nano_per_hour": 10**30, "currency": "USD"}, 400, "invalid_price"),
        ("small.64gb", {"price_nano_per_hour": 1.5, "currency": "USD"}, 400, "invalid"),
        ("small.64gb", {"price_nano_per_hour": "1", "currency": "USD"}, 400, "invalid"),
        ("small.64gb", {"price_nano_per_hour": True, "currency": "USD"}, 400, "invalid"),
        ("small.64gb", {"currency": "USD"}, 400, "invalid"),
        ("small.64gb", {"price_nano_per_hour": 1, "currency": "USD", "surprise": 1}, 400, "invalid"),
        ("smal.64gb", {"price_nano_per_hour": 1, "currency": "USD"}, 404, "unknown_flavor"),
        ("Small.64GB", {"price_nano_per_hour": 1, "currency": "USD"}, 404, "unknown_flavor"),
    ],
)
def test_a_bad_price_is_refused_and_the_book_stays(running: Running, flavor: str, body: dict[str, Any], status: int, code: str) -> None:
    before = running.get("operator", "/api/prices", history="1").json()
    check_refusal(running.set_price(flavor, **body), status, code)
    assert running.get("operator", "/api/prices", history="1").json() == before


@pytest.mark.parametrize(
    "change",
    [
        {"duration_ns": -1},
        {"duration_ns": 1.0},
        {"duration_ns": 367 * 86_400 * 10**9},
        {"started_at_ns": 2**63},
        {"devices": 0},
        {"share_milli": 0},
        {"share_milli": 1001},
        {"surcharge_nano_per_hour": 0},
        {"tenant": ""},
        {"tenant": "t" * 129},
        {"flavor": "small\x0064gb"},
        {"close_reason": None},
        {"surprise": 1},
        {"span": {"id": "x", "kind": "dream", "label": ""}},
        {"started_at_ns": Month(2026, 12).start_ns},
    ],
)
def test_a_bad_record_is_refused_and_so_is_its_batch(running: Running, usage: Callable[..., UsageRecord], change: dict[str, Any]) -> None:
    records = [asdict(usage("a/1")), {**asdict(usage("b/1")), **change}]
    check_refusal(running.request("pool", "POST", "/api/usage", json={"records": records}), 400, "invalid")
    assert running.get("pool", "/api/usage").json() == {"records": [], "next": None}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"records": {}}',
        b'{"records": []',
        b"\xff\xfe",
        b'{"records": [1]}',
        b'{"records": ' + b"[" * 5000,
        b'{"records": ["\\ud800"]}',
    ],
)
def test_a_garbled_body_is_refused(running: Running, body: bytes) -> None:
    check_refusal(running.request("pool", "POST", "/api/usage", content=body), 400, "invalid")


def test_strange_but_honest_text_is_kept(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    label = 'π/<b>"notebook\'s"</b> \U0001f98a.ipynb'
    assert running_anywhere.post_usage(usage("a/1", span=Span("s", "process", label, None))).status_code == 200
    assert running_anywhere.get("pool", "/api/usage").json()["records"][0]["span"]["label"] == label


def test_batches_and_bodies_are_bounded(running: Running, usage: Callable[..., UsageRecord]) -> None:
    thousand = [usage(f"{n}/1", span=Span("s", "cell", "\U0001f98a" * 2048, n)) for n in range(1000)]
    too_many = check_refusal(running.post_usage(*(usage(f"{n}/1") for n in range(1001))), 400, "invalid")
    assert "1000" in too_many
    body = json.dumps({"records": [asdict(record) for record in thousand]}, ensure_ascii=False).encode()
    assert len(body) > BODY_BYTES_MAX
    assert str(BODY_BYTES_MAX) in check_refusal(running.request("pool", "POST", "/api/usage", content=body), 413, "too_large")
    assert running.get("pool", "/api/usage").json()["records"] == []
    assert running.post_usage(*(usage(f"{n}/1") for n in range(1000))).json() == {"accepted": 1000, "duplicates": 0}
    assert running.post_usage().json() == {"accepted": 0, "duplicates": 0}


def test_a_conflict_names_the_record_and_what_differs(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    running_anywhere.post_usage(usage("a/1"))
    message = check_refusal(running_anywhere.post_usage(usage("b/1"), usage("a/1", user="eve")), 409, "conflict")
    assert "pool/a/1" in message and "'acme-member' is stored, 'eve' arrived" in message
    assert [record["id"] for record in running_anywhere.get("pool", "/api/usage").json()["records"]] == ["a/1"]


def test_usage_of_a_flavor_without_a_price_is_refused(running: Running, usage: Callable[..., UsageRecord]) -> None:
    assert "'huge.1tb'" in check_refusal(running.post_usage(usage(flavor="huge.1tb")), 422, "unpriced")


def test_usage_of_a_new_flavor_is_billed_once_an_operator_has_priced_it(running: Running, usage: Callable[..., UsageRecord]) -> None:
    record = usage(flavor="huge.1tb")
    check_refusal(running.post_usage(record), 422, "unpriced")
    price = {"price_nano_per_hour": 300, "currency": "USD", "valid_from_ns": 0}
    check_refusal(running.set_price("huge.1tb", **price), 404, "unknown_flavor")
    check_refusal(running.set_price("huge.1tb", caller="acme-owner", new=True, **price), 403, "forbidden")
    assert running.set_price("huge.1tb", new=True, **price).json()["version"] == 1
    check_refusal(running.set_price("huge.1tb", new=True, **price), 409, "known_flavor")
    assert running.post_usage(record).json() == {"accepted": 1, "duplicates": 0}
    (row,) = running.get("pool", "/api/summary", by="flavor").json()
    assert (row["flavor"], row["cost_nano"]) == ("huge.1tb", 5)


def test_a_tenant_is_billed_in_its_own_currency(running: Running, usage: Callable[..., UsageRecord]) -> None:
    check_refusal(running.post_usage(usage(tenant="tokyo")), 422, "unpriced")
    running.set_price("small.64gb", price_nano_per_hour=288_000_000_000, currency="JPY")
    start = running.clock.now_ns
    assert running.post_usage(usage(tenant="tokyo", started_at_ns=start), usage("b/1", started_at_ns=start)).status_code == 200
    (line,) = running.get("pool", "/api/statement", tenant="tokyo", month="2026-11").json()["lines"]
    assert (line["currency"], line["amount"], line["cost_exact"]) == ("JPY", "5", "4.800000000000000000")


def test_pages_of_usage_go_from_new_to_old_without_gap_or_repetition(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    starts = [NOVEMBER.start_ns + (n // 3) * 10**9 for n in range(20)]
    running_anywhere.post_usage(*(usage(f"{n}/1", started_at_ns=start) for n, start in enumerate(starts)))
    seen: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 7}
    for _ in range(3):
        page = running_anywhere.get("pool", "/api/usage", **query).json()
        seen += page["records"]
        query["cursor"] = page["next"]
    assert page["next"] is None
    assert len({record["id"] for record in seen}) == len(seen) == 20
    assert [record["started_at_ns"] for record in seen] == sorted(starts, reverse=True)
    window = {"since_ns": starts[3], "until_ns": starts[6]}
    assert {record["id"] for record in running_anywhere.get("pool", "/api/usage", **window).json()["records"]} == {"3/1", "4/1", "5/1"}
    assert running_anywhere.get("pool", "/api/summary", by="tenant", **window).json()[0]["leases"] == 3


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/usage", {"limit": "0"}),
        ("/api/usage", {"limit": "1001"}),
        ("/api/usage", {"cursor": "x"}),
        ("/api/usage", {"cursor": "9999999999999999999.1"}),
        ("/api/usage", {"user": "a\x00b"}),
        ("/api/usage", {"since_ns": "yesterday"}),
        ("/api/usage", {"tenat": "acme"}),
        ("/api/summary", {"by": "span"}),
        ("/api/summary", {"by": "day"}),
        ("/api/summary", {"by": "day", "since_ns": "0", "until_ns": "1700000000000000000"}),
        ("/api/summary", {"by": "day", "since_ns": "0", "until_ns": "1", "zone": "Asia/Atlantis"}),
        ("/api/summary", {"by": "day", "since_ns": "0", "until_ns": "1", "zone": "../etc/passwd"}),
        ("/api/summary", {"by": "user,user"}),
        ("/api/summary", {"by": ""}),
        ("/api/statement", {"tenant": "acme"}),
        ("/api/statement", {"tenant": "acme", "month": "November"}),
        ("/api/statement", {"tenant": "acme", "month": "2026-11", "format": "pdf"}),
        ("/api/statement", {"month": "2026-11"}),
        ("/api/prices", {"history": "yes"}),
        ("/health", {"verbose": "1"}),
    ],
)
def test_a_bad_question_is_refused(running: Running, usage: Callable[..., UsageRecord], path: str, query: dict[str, str]) -> None:
    running.post_usage(usage())
    check_refusal(running.get("operator", path, **query), 400, "invalid")


def test_what_does_not_exist_says_so(running: Running) -> None:
    check_refusal(running.get("operator", "/api/statement", tenant="umbrella", month="2026-11"), 404, "unknown_tenant")
    check_refusal(running.get("operator", "/api/prices", flavor="huge.1tb"), 404, "unknown_flavor")
    check_refusal(running.get("operator", "/api/nothing"), 404, "not_found")
    check_refusal(running.request("operator", "DELETE", "/api/usage"), 405, "method_not_allowed")
    body = {"source": "pool", "id": "x/1", "reason": "test"}
    check_refusal(running.request("operator", "POST", "/api/corrections", json=body), 404, "unknown_record")


def test_a_connection_outlives_every_refusal(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.service.port), timeout=30) as connection, connection.makefile("rb") as answers:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("POST", "/nothing", 404),
            ("DELETE", "/api/usage", 405),
            ("GET", "/api/usage", 401),
        ):
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody".encode())
            assert answers.readline().split()[1] == str(status).encode()
            length = next(int(line.split(b":")[1]) for line in answers if line.lower().startswith(b"content-length"))
            assert [line for line in iter(answers.readline, b"\r\n") if line.lower() == b"connection: close\r\n"] == []
            answers.read(length)


def test_a_new_tenant_sees_its_own_empty_statement(running: Running) -> None:
    statement = running.get("acme-owner", "/api/statement", month="2026-11").json()
    assert (statement["tenant"], statement["lines"], statement["totals"]) == ("acme", [], [])


def test_a_correction_credits_the_present_month_and_leaves_the_past_alone(
    running_anywhere: Running, usage: Callable[..., UsageRecord]
) -> None:
    run = running_anywhere
    run.post_usage(usage("a/1", duration_ns=HOUR_NS), usage("b/1", duration_ns=HOUR_NS))
    november = run.get("acme-owner", "/api/statement", month="2026-11").json()
    run.clock.now_ns = Month(2026, 12).start_ns + 5
    body = {"source": "pool", "id": "a/1", "reason": "the device failed"}
    done = run.request("operator", "POST", "/api/corrections", json=body)
    assert done.status_code == 200 and set(done.json()) == {"source", "id", "transaction"}
    check_refusal(run.request("operator", "POST", "/api/corrections", json=body), 409, "already_corrected")
    assert run.get("acme-owner", "/api/statement", month="2026-11").json() == {**november, "final": True}
    december = run.get("acme-owner", "/api/statement", month="2026-12").json()
    assert [(line["kind"], line["amount"], line["duration_ns"]) for line in december["lines"]] == [("correction", "-2.00", -HOUR_NS)]
    (row,) = run.get("acme-owner", "/api/summary", by="tenant").json()
    assert (row["cost_nano"], row["leases"]) == (2_000_000_000, 1)
    corrected = {record["id"]: record["corrected_at_ns"] for record in run.get("pool", "/api/usage").json()["records"]}
    assert corrected == {"a/1": run.clock.now_ns, "b/1": None}


def test_a_record_across_the_month_end_is_stated_in_both_months(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    run.clock.now_ns = Month(2026, 12).start_ns + 10 * HOUR_NS
    run.post_usage(usage("a/1", started_at_ns=NOVEMBER.end_ns - 1, duration_ns=HOUR_NS), usage("b/1", started_at_ns=NOVEMBER.end_ns))
    november, december = (run.get("acme-owner", "/api/statement", month=month).json() for month in ("2026-11", "2026-12"))
    assert [line["duration_ns"] for line in november["lines"]] == [1]
    assert [line["duration_ns"] for line in december["lines"]] == [HOUR_NS - 1 + 60 * 10**9]
    assert november["lines"][0]["cost_exact"] == "0.000000000000555556"


def test_the_statement_as_csv_is_exact_and_safe_in_a_spreadsheet(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(usage("a/1", duration_ns=HOUR_NS), usage("b/1", user='=HYPERLINK("evil"),x'))
    response = running.get("acme-owner", "/api/statement", month="2026-11", format="csv")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert response.headers["content-disposition"] == 'attachment; filename="statement-2026-11.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [(row["user"], row["seconds"], row["exact_amount"], row["amount"]) for row in rows] == [
        ('\'=HYPERLINK("evil"),x', "60.000000000", "0.033333333333333333", "0.03"),
        ("acme-member", "3600.000000000", "2.000000000000000000", "2.00"),
    ]


def test_the_statement_as_a_page_escapes_names_and_carries_no_script(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(usage("a/1", duration_ns=HOUR_NS), usage("b/1", user="<script>alert(1)</script>"))
    response = running.get("acme-owner", "/api/statement", month="2026-11", format="html")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = response.text
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "2.00 USD" in page and "2.000000000" in page and "Statement 2026-11" in page
    assert "color-scheme: light dark" in page and "@media print" in page
    assert "No device time" in running.get("acme-owner", "/api/statement", month="2026-10", format="html").text


def test_metrics_count_what_happened(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(usage("a/1", duration_ns=HOUR_NS), usage("a/1", duration_ns=HOUR_NS))
    text = running.get(None, "/metrics").text
    for line in (
        'forebay_billing_usage_records_total{outcome="accepted"} 1.0',
        'forebay_billing_usage_records_total{outcome="duplicate"} 1.0',
        'forebay_billing_usage_cost_units_total{currency="USD",flavor="small.64gb",tenant="acme"} 2.0',
        'forebay_billing_usage_seconds_total{currency="USD",flavor="small.64gb",tenant="acme"} 3600.0',
        'forebay_billing_month_revenue_units{currency="USD"} 2.0',
        'forebay_billing_requests_total{endpoint="usage",method="POST",status="200"} 1.0',
    ):
        assert line in text.splitlines()
    assert "forebay_billing_writes_waiting " in text, "of whatever number: the service looks after budgets at its own time"
    assert "acme-member" not in text


def test_a_method_that_nobody_knows_makes_no_series_of_its_own(running: Running) -> None:
    for method in ("BREW", "PROPFIND"):
        running.request(None, method, "/api/prices")
    text = running.get(None, "/metrics").text
    assert 'forebay_billing_requests_total{endpoint="prices",method="other",status="405"} 2.0' in text
    assert "BREW" not in text


def test_a_second_start_finds_the_state_of_the_first(
    settings: Any, clock: Any, running_service: Any, usage: Callable[..., UsageRecord]
) -> None:
    seen = []
    for start in range(2):
        service = running_service(settings, clock)
        if start == 0:
            service.post_usage(usage())
            service.set_price("small.64gb", price_nano_per_hour=1, currency="USD")
        seen.append([service.get("pool", path).json() for path in ("/api/usage", "/api/prices?history=1")])
        service.stop()
    assert seen[0] == seen[1] and len(seen[0][0]["records"]) == 1 and len(seen[0][1]) == 16


@pytest.mark.parametrize(
    ("changes", "status", "code", "says"),
    [
        ({"duration_ns": -1}, 400, "invalid", "duration_ns"),
        ({"duration_ns": 367 * 86_400 * 10**9}, 400, "invalid", "duration_ns"),
        ({"started_at_ns": NOW_NS + 2 * 3600 * 10**9}, 400, "invalid", "in the future"),
        ({"flavor": "unknown"}, 422, "unpriced", "unknown"),
        ({"duration_ns": 1}, 409, "conflict", "duration_ns"),
    ],
)
def test_refused_usage_is_in_the_audit_once_and_changes_nothing(
    running: Running, usage: Callable[..., UsageRecord], changes: dict[str, Any], status: int, code: str, says: str
) -> None:
    running.post_usage(usage("known-1/1"))
    before = running.get("operator", "/api/summary").json()
    for _ in range(3):  # the pool sends it again and again
        answer = running.post_usage(usage("good-1/1"), usage("known-1/1" if code == "conflict" else "bad-1/1", **changes))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert says in answer.json()["error"]["message"]
    assert running.get("operator", "/api/summary").json() == before
    with sqlite3.connect(running.settings.database_url.removeprefix("sqlite:///")) as books:
        rows = books.execute("SELECT who, action, after FROM audit WHERE action LIKE 'usage.%'").fetchall()
    ((who, action, after),) = rows
    assert (who, action, json.loads(after)["code"]) == ("pool", "usage.post.refused", code)
    assert says in json.loads(after)["message"]
