"""Budgets over HTTP, on each database: who sets and sees them, what heartbeats are answered, and that alerts come once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads.budgets import active
from forebay_billing.reads.rollups import heads_of
from forebay_billing.reads.spending import marks_of, spent_by
from forebay_billing.rules.budgets import DAY_NS, Budget, Subject
from forebay_billing.tables import budgets
from forebay_billing.tables.engines import writing
from forebay_billing.writes import spending
from forebay_billing.writes.budgets import set_budget
from forebay_wire.causes import cause_of_budget
from hypothesis import given, settings
from hypothesis import strategies as st
from running_billing import Running
from sqlalchemy import update

pytestmark = pytest.mark.databases("sqlite")

SECOND_NS = 10**9
HOUR_NS = 3_600 * SECOND_NS
NANO = 10**9
"""Nano-units in a unit."""
PRICE = 2_000_000_000
"""Of small.64gb, in nano-units an hour."""
Usage = Callable[..., UsageRecord]


def put(running: Running, caller: str, **body: Any) -> dict[str, Any]:
    """Before anything is used."""
    response = running.request(caller, "PUT", "/api/budgets", json=body | {"new": True})
    assert response.status_code == 200, response.text
    row: dict[str, Any] = response.json()
    return row


def beat(running: Running, *records: UsageRecord, sent_at_ns: int | None = None, source: str = "pool") -> list[dict[str, Any]]:
    """One heartbeat of the pool, and what it is answered."""
    sent_at_ns = running.clock() if sent_at_ns is None else sent_at_ns
    left_out = ("source", "id", "close_reason", "parked_bytes", "energy_mj")
    leases = [{**{k: v for k, v in asdict(one).items() if k not in left_out}, "record": one.id} for one in records]
    body = {"source": source, "sent_at_ns": sent_at_ns, "period_ns": 5 * SECOND_NS, "leases": leases}
    response = running.request("pool", "POST", "/api/heartbeats", json=body)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["budgets"]
    return found


def test_metrics_tell_tenants_budgets_one_by_one_and_peoples_only_by_their_number(running: Running, usage: Usage) -> None:
    put(running, "operator", tenant="acme", limit_nano=4 * PRICE)
    put(running, "operator", tenant="acme", user="acme-member", limit_nano=1, on_limit="refuse")
    put(running, "operator", tenant="acme", user="acme-member", notebook="a.ipynb", limit_nano=10**18)
    running.post_usage(usage("a/1", duration_ns=3600 * SECOND_NS))
    text = running.get(None, "/metrics").text
    labels = 'currency="USD",origin="operator",tenant="acme",window="month"'
    assert f"forebay_billing_budget_used_ratio{{{labels}}} 0.25" in text
    assert f"forebay_billing_budget_limit_units{{{labels}}} {4 * PRICE / NANO}" in text
    assert 'forebay_billing_budgets{state="open",tenant="acme"} 2.0' in text
    assert 'forebay_billing_budgets{state="refuse",tenant="acme"} 1.0' in text
    assert "acme-member" not in text and "a.ipynb" not in text


@pytest.mark.parametrize("step_hours", [-2, 2])
def test_a_clock_that_is_set_makes_nobody_forget_what_runs(running: Running, usage: Usage, step_hours: int) -> None:
    """Billing forgets a pool that was silent for an hour, by a clock that nobody sets: what runs would seem to cost nothing."""
    put(running, "operator", tenant="acme", limit_nano=PRICE, on_limit="refuse")
    hour = usage("open/1", started_at_ns=running.clock() - 3600 * SECOND_NS, duration_ns=3600 * SECOND_NS)
    assert [found["state"] for found in beat(running, hour)] == ["refuse"]
    running.clock.now_ns += step_hours * 3600 * SECOND_NS
    assert [found["state"] for found in beat(running, source="another")] == ["refuse"]


def price_of(running: Running) -> int:
    """Of a second of small.64gb, in nano-units: from the beginning on it costs a whole number of them."""
    price = 1_000_000
    assert running.set_price("small.64gb", price_nano_per_hour=3600 * price, currency="USD", valid_from_ns=0).status_code == 200
    return price


def alerts(running: Running, caller: str = "operator") -> set[tuple[int, str, int]]:
    return {(row["budget"], row["period"], row["threshold"]) for row in running.get(caller, "/api/alerts").json()}


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


# Who sets and sees them


def test_an_operator_sets_changes_and_removes_a_budget_and_the_audit_tells(running_anywhere: Running) -> None:
    running = running_anywhere
    first = put(running, "operator", tenant="acme", limit_nano=100 * NANO)
    assert (first["window"], first["on_limit"], first["thresholds"], first["origin"], first["currency"]) == (
        "month", "notify", [50, 80, 100], "operator", "USD"
    )  # fmt: skip
    again = put(running, "operator", tenant="acme", limit_nano=200 * NANO, on_limit="drain", grace_seconds=5)
    assert (again["id"], again["limit_nano"], again["set_at_ns"]) == (first["id"], 200 * NANO, running.clock())
    total = put(running, "operator", tenant="acme", limit_nano=1, window="total")
    assert total["id"] != first["id"]
    assert running.request("operator", "DELETE", f"/api/budgets/{first['id']}").json() == {"id": first["id"], "removed": True}
    assert [row["id"] for row in running.get("operator", "/api/budgets").json()] == [total["id"]]
    assert running.request("operator", "DELETE", f"/api/budgets/{first['id']}").status_code == 404
    with running.service.store._engines.reader.begin() as connection:
        from forebay_billing.tables import schema
        from sqlalchemy import select

        rows = connection.execute(select(schema.audit).where(schema.audit.c.action.like("budget.%")).order_by(schema.audit.c.id)).all()
    assert [(row.action, row.who, row.subject) for row in rows] == [
        ("budget.set", "operator", f"acme/#{first['id']}"),
        ("budget.set", "operator", f"acme/#{first['id']}"),
        ("budget.set", "operator", f"acme/#{total['id']}"),
        ("budget.remove", "operator", f"acme/#{first['id']}"),
    ]
    assert '"limit_nano": 100000000000' in rows[1].before and '"limit_nano": 200000000000' in rows[1].after


def test_a_user_sets_budgets_for_labels_of_their_own_and_no_others(running: Running) -> None:
    own = put(running, "acme-member", notebook="experiment a", window="total", limit_nano=5, thresholds=[], on_limit="drain")
    assert (own["origin"], own["tenant"], own["user"], own["notebook"]) == ("user", "acme", "acme-member", "experiment a")
    again = put(running, "acme-member", user="acme-member", notebook="experiment a", window="total", limit_nano=7)
    assert (again["id"], again["limit_nano"]) == (own["id"], 7)
    for body in ({}, {"user": "acme-member"}, {"user": "acme-owner", "notebook": "experiment a"}, {"tenant": "globex", "notebook": "a"}):
        refused = running.request("acme-member", "PUT", "/api/budgets", json={"limit_nano": 1, **body})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), body
    for limit in (-1, 10**24 + 1, 0.5, "1"):
        body = {"limit_nano": limit, "notebook": "experiment a"}
        assert running.request("acme-member", "PUT", "/api/budgets", json=body).status_code == 400, limit
    owners = put(running, "acme-owner", user="acme-member", notebook="experiment a", window="total", limit_nano=3)
    assert owners["id"] != own["id"], "a user does not change what the owner set"
    assert running.request("acme-member", "DELETE", f"/api/budgets/{owners['id']}").status_code == 403
    assert running.request("globex-owner", "DELETE", f"/api/budgets/{own['id']}").status_code == 404
    assert running.request("acme-member", "DELETE", f"/api/budgets/{own['id']}").status_code == 200
    others = put(running, "acme-owner", notebook="experiment b", limit_nano=1)
    assert (others["origin"], others["user"]) == ("owner", "acme-owner")
    assert running.request("acme-member", "DELETE", f"/api/budgets/{others['id']}").status_code == 404


def test_a_user_has_a_hundred_budgets_at_most_and_takes_no_room_of_the_tenant(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_billing.writes.budgets.OWN_BUDGETS_MAX", 2)
    monkeypatch.setattr("forebay_billing.writes.budgets.BUDGETS_PER_TENANT_MAX", 3)
    first, _ = (put(running, "acme-member", notebook=f"experiment {name}", limit_nano=1) for name in "ab")
    third = {"notebook": "experiment c", "limit_nano": 1}
    refused = running.request("acme-member", "PUT", "/api/budgets", json=third)
    assert (refused.status_code, refused.json()["error"]["message"]) == (413, "acme-member has set 2 budgets; remove one first.")
    for window in ("month", "total"):
        put(running, "acme-owner", window=window, limit_nano=1)
    assert running.request("acme-member", "DELETE", f"/api/budgets/{first['id']}").status_code == 200
    assert running.request("acme-member", "PUT", "/api/budgets", json=third).status_code == 200


def test_a_users_own_budget_stops_its_label_and_says_who_can_raise_it(running: Running, usage: Usage) -> None:
    put(running, "acme-member", notebook="digits.ipynb", window="total", limit_nano=1, on_limit="drain", grace_seconds=0)
    (found,) = beat(running, usage("open/1", duration_ns=3600 * SECOND_NS))
    assert (found["user"], found["span"], found["state"], found["origin"]) == ("acme-member", "digits.ipynb", "drain", "user")
    assert found["sentence"].endswith("is used up; acme-member of acme can raise it.")
    cause = cause_of_budget({**found, "notebook": found["span"]})
    assert cause is not None and cause.said() == found["sentence"]


def test_an_owner_sets_budgets_of_the_tenant_within_what_an_operator_allows(running: Running) -> None:
    cap = put(running, "operator", tenant="acme", limit_nano=100 * NANO)
    own = put(running, "acme-owner", limit_nano=50 * NANO)
    mine = put(running, "acme-owner", user="acme-member", limit_nano=10 * NANO, on_limit="refuse")
    assert (own["origin"], own["tenant"], mine["user"]) == ("owner", "acme", "acme-member")
    refused = running.request("acme-owner", "PUT", "/api/budgets", json={"limit_nano": 101 * NANO})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert running.request("acme-owner", "DELETE", f"/api/budgets/{cap['id']}").status_code == 403
    assert running.request("globex-owner", "DELETE", f"/api/budgets/{mine['id']}").status_code == 404
    assert running.request("acme-member", "DELETE", f"/api/budgets/{mine['id']}").status_code == 403
    assert running.request("acme-owner", "DELETE", f"/api/budgets/{mine['id']}").status_code == 200
    assert running.request("operator", "DELETE", f"/api/budgets/{own['id']}").status_code == 200


def test_each_role_of_a_tenant_sets_the_budgets_that_it_may(running: Running) -> None:
    """Its owner and who pays for it, within what operators allow; nobody else does, and nobody another tenant's."""
    cap = put(running, "operator", tenant="acme", limit_nano=100 * NANO)
    put(running, "operator", tenant="globex", limit_nano=100 * NANO)
    for caller in ("acme-owner", "acme-billing"):
        own = put(running, caller, limit_nano=50 * NANO, window="total")
        assert (own["origin"], own["tenant"], own["set_by"]) == ("owner", "acme", caller)
        mine = put(running, caller, user="acme-member", notebook="digits.ipynb", limit_nano=NANO, on_limit="drain")
        over = running.request(caller, "PUT", "/api/budgets", json={"limit_nano": 101 * NANO})
        elsewhere = running.request(caller, "PUT", "/api/budgets", json={"tenant": "globex", "limit_nano": 1})
        assert (over.status_code, elsewhere.status_code) == (403, 403)
        assert running.request(caller, "DELETE", f"/api/budgets/{cap['id']}").status_code == 403
        for other in ("acme-member", "loner", "scopeless", "pool"):
            assert running.request(other, "PUT", "/api/budgets", json={"tenant": "acme", "limit_nano": 1}).status_code == 403
            assert running.request(other, "DELETE", f"/api/budgets/{mine['id']}").status_code == 403
        assert running.request(caller, "DELETE", f"/api/budgets/{mine['id']}").status_code == 200
        assert running.request(caller, "DELETE", f"/api/budgets/{own['id']}").status_code == 200
    assert [row["tenant"] for row in running.get("operator", "/api/budgets").json()] == ["acme", "globex"]


def test_a_member_sees_what_concerns_them_and_not_what_others_spend(running: Running, usage: Usage) -> None:
    for body in ({}, {"user": "acme-member"}, {"user": "acme-owner"}, {"user": "acme-member", "notebook": "digits.ipynb"}):
        put(running, "acme-owner", limit_nano=1, on_limit="refuse", **body)
    put(running, "globex-owner", limit_nano=5 * NANO)
    running.post_usage(usage("a/1"), usage("b/1", user="acme-owner"))
    rows = running.get("acme-member", "/api/budgets").json()
    assert [(row["user"], row["notebook"]) for row in rows] == [(None, None), ("acme-member", None), ("acme-member", "digits.ipynb")]
    assert (rows[0]["limit_nano"], rows[0]["spent_nano"], rows[0]["left_nano"], rows[0]["forecast_nano"]) == (None, None, None, None)
    assert (rows[0]["state"], rows[1]["state"]) == ("refuse", "refuse")
    assert rows[1]["spent_nano"] == rows[2]["spent_nano"] == round(PRICE / 60)
    assert len(running.get("acme-owner", "/api/budgets").json()) == 4
    assert [row["tenant"] for row in running.get("globex-owner", "/api/budgets").json()] == ["globex"]
    until(lambda: len(alerts(running)) == 12)
    seen = running.get("acme-member", "/api/alerts").json()
    assert {(row["user"], row["used_nano"] is None) for row in seen} == {(None, True), ("acme-member", False)}
    assert {row["user"] for row in running.get("acme-owner", "/api/alerts").json()} == {None, "acme-member", "acme-owner"}
    assert running.get("globex-owner", "/api/alerts").json() == []


def test_a_change_that_is_sent_twice_under_a_key_happens_once(running: Running) -> None:
    headers = {"Idempotency-Key": "set-1"}
    bodies = [{"tenant": "acme", "limit_nano": limit, "new": True} for limit in (7, 7, 8)]
    answers = [running.request("operator", "PUT", "/api/budgets", json=body, headers=headers) for body in bodies]
    assert answers[0].json() == answers[1].json()
    assert (answers[2].status_code, answers[2].json()["error"]["code"]) == (409, "key_reused")
    assert running.get("operator", "/api/budgets").json()[0]["limit_nano"] == 7


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"limit_nano": -1, "tenant": "acme"}, "limit_nano"),
        ({"limit_nano": 1.5, "tenant": "acme"}, "limit_nano"),
        ({"limit_nano": 10**25, "tenant": "acme"}, "limit_nano"),
        ({"limit_nano": 1}, "tenant"),
        ({"limit_nano": 1, "tenant": "acme", "currency": "EUR"}, "currency"),
        ({"limit_nano": 1, "tenant": "acme", "thresholds": [100, 50]}, "thresholds"),
        ({"limit_nano": 1, "tenant": "acme", "on_limit": "explode"}, "on_limit"),
        ({"limit_nano": 1, "tenant": "acme", "grace_seconds": 10**6}, "grace_seconds"),
        ({"limit_nano": 1, "tenant": "acme", "notebook": "a.ipynb"}, "user"),
        ({"limit_nano": 1, "tenant": "acme", "surprise": 1}, "surprise"),
    ],
)
def test_a_budget_that_says_nothing_sensible_is_refused_and_nothing_changes(running: Running, body: dict[str, Any], where: str) -> None:
    response = running.request("operator", "PUT", "/api/budgets", json=body | {"new": True})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid")
    assert where in response.json()["error"]["message"]
    assert running.get("operator", "/api/budgets").json() == []


# What counts


def test_spending_counts_for_each_subject_and_corrections_take_it_back(running_anywhere: Running, usage: Usage) -> None:
    running = running_anywhere
    running.post_usage(usage("before/1"))  # a budget that is set later counts what came before
    for body in ({}, {"user": "acme-member"}, {"user": "acme-member", "notebook": "digits.ipynb"}, {"user": "acme-owner"}):
        put(running, "operator", tenant="acme", limit_nano=10 * NANO, **body)
    put(running, "operator", tenant="acme", limit_nano=10 * NANO, window="total")
    october = Month(2026, 10).start_ns
    running.set_price("small.64gb", price_nano_per_hour=PRICE, currency="EUR", valid_from_ns=0)
    running.post_usage(
        usage("here/1"),
        usage("there/1", span=usage().span.__class__("s", "cell", "other.ipynb", 1)),
        usage("hers/1", user="acme-owner"),
        usage("theirs/1", tenant="globex"),
    )
    assert october < running.clock()

    def spent() -> list[int]:
        return [round(row["spent_nano"] * 60 / PRICE) for row in running.get("operator", "/api/budgets").json()]

    assert spent() == [4, 3, 2, 1, 4]
    until(lambda: marks_are_at_the_heads(running))
    assert spent() == [4, 3, 2, 1, 4]
    running.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "here/1", "reason": "x"})
    assert spent() == [3, 2, 1, 1, 3]
    until(lambda: marks_are_at_the_heads(running))
    assert spent() == [3, 2, 1, 1, 3]
    running.clock.now_ns = Month(2026, 12).start_ns + 1
    assert spent() == [0, 0, 0, 0, 3]


def marks_are_at_the_heads(running: Running) -> bool:
    with running.service.store._engines.reader.begin() as connection:
        return marks_of(connection) == heads_of(connection)


def test_the_projection_is_what_the_segments_sum_to(running: Running, usage: Usage) -> None:
    put(running, "operator", tenant="acme", limit_nano=10 * NANO, window="total")
    start = running.clock() - 9 * DAY_NS
    running.post_usage(*(usage(f"r-{n}/1", started_at_ns=start + n * 7 * 3600 * SECOND_NS, duration_ns=n * 10**12 + 1) for n in range(30)))
    until(lambda: marks_are_at_the_heads(running))
    engines = running.service.store._engines
    with engines.writer.begin() as connection:
        (budget,) = active(connection)
        kept = spent_by(connection, [budget], running.clock())
        connection.exec_driver_sql("DELETE FROM budget_spending")
        spending.begin(connection, budget)
        assert spent_by(connection, [budget], running.clock()) == kept
        assert kept[budget.id].total_grains == sum((n * 10**12 + 1) * PRICE for n in range(30))


def test_a_budget_begins_with_what_the_marks_have_passed_and_no_more(running: Running, usage: Usage) -> None:
    """Usage and its correction on either side of the marks: each counts once, before the marks move and after."""
    put(running, "operator", tenant="acme", limit_nano=10 * NANO, window="total")
    running.post_usage(usage("a/1"), usage("b/1"))
    running.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "a/1", "reason": "x"})
    until(lambda: marks_are_at_the_heads(running))
    running.post_usage(usage("c/1"), usage("d/1"))
    running.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "b/1", "reason": "x"})
    running.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "d/1", "reason": "x"})
    until(lambda: marks_are_at_the_heads(running))
    engines = running.service.store._engines
    with engines.writer.begin() as connection:
        (budget,) = active(connection)
        heads = heads_of(connection)
        totals = []
        for usage_id in range(heads.usage_id + 1):
            for transaction_id in (0, heads.transaction_id - 1, heads.transaction_id):
                connection.exec_driver_sql("DELETE FROM budget_spending")
                connection.execute(update(budgets.marks).values(usage_id=usage_id, transaction_id=transaction_id))
                spending.begin(connection, budget)
                before = spent_by(connection, [budget], running.clock())[budget.id].total_grains
                spending.catch_up(connection, [budget])
                totals.append((before, spent_by(connection, [budget], running.clock())[budget.id].total_grains))
    (record,) = [one for one in running.get("operator", "/api/usage").json()["records"] if one["id"] == "c/1"]
    assert {one for pair in totals for one in pair} == {record["duration_ns"] * record["price_nano_per_hour"]}


def test_another_budget_reads_no_more_however_many_there_are(fresh_books: Callable[[], Any]) -> None:
    """Steps of SQLite's machine: they count each row that is looked at, in any statement."""

    def steps(connection: Any, tenant: str, user: str) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        subject = Subject(tenant, user)
        wanted = Budget(0, subject, "USD", "month", "operator", 10**18, (50,), "drain", 0, 1, "operator")
        driver = connection.connection.dbapi_connection
        driver.set_progress_handler(step, 1)
        set_budget(Books(connection), wanted, 1)
        driver.set_progress_handler(None, 1)
        return count

    with fresh_books() as engines, writing(engines) as connection:
        first = [steps(connection, "acme", f"user-{number}") for number in range(10)]
        for number in range(200):
            steps(connection, f"tenant-{number}", "somebody")
        assert steps(connection, "acme", "user-10") < 1.2 * first[-1]
        for number in range(11, 211):
            steps(connection, "acme", f"user-{number}")
        assert steps(connection, "acme", "somebody") < 30 * 200 + first[-1], "its tenant's are looked through at most, and not read"


# Heartbeats


def test_a_heartbeat_is_answered_with_what_budgets_do(running_anywhere: Running, usage: Usage) -> None:
    running = running_anywhere
    price = price_of(running)
    put(running, "operator", tenant="acme", user="acme-member", limit_nano=100 * price, on_limit="drain", grace_seconds=10)
    put(running, "operator", tenant="globex", limit_nano=0, on_limit="refuse")

    def open_for(seconds: int, id: str = "open/1") -> UsageRecord:
        return usage(id, started_at_ns=running.clock() - seconds * SECOND_NS, duration_ns=seconds * SECOND_NS)

    globex = {"tenant": "globex", "user": None, "span": None, "state": "refuse"}

    def states(*records: UsageRecord) -> list[tuple[str, str, float]]:
        running.clock.now_ns += SECOND_NS
        found = beat(running, *records)
        assert globex.items() <= found[-1].items()
        assert "budget" in found[-1]["sentence"]
        assert (found[-1]["code"], found[-1]["origin"], found[-1]["period"]) == ("used_up", "operator", "2026-11")
        assert all((row["code"] is None) == (row["state"] == "open") == (row["sentence"] == "") for row in found)
        return [(row["user"], row["state"], row["grace_seconds"]) for row in found[:-1]]

    assert states() == []
    assert states(open_for(80)) == [("acme-member", "open", 0)]
    assert states(open_for(89)) == [("acme-member", "drain", 10)]
    assert states(open_for(95)) == [("acme-member", "drain", 4)]
    assert states(open_for(45), open_for(50, "second/1")) == [("acme-member", "drain", 1.5)]
    put(running, "operator", tenant="acme", user="acme-member", limit_nano=1000 * price, on_limit="drain", grace_seconds=10)
    assert states(open_for(95)) == [("acme-member", "open", 0)]
    assert states() == []


def test_usage_that_overtakes_a_heartbeat_is_not_counted_twice(running: Running, usage: Usage) -> None:
    price = price_of(running)
    put(running, "operator", tenant="acme", limit_nano=100 * price, on_limit="drain", grace_seconds=0)
    record = usage("r/1", started_at_ns=running.clock() - 60 * SECOND_NS, duration_ns=60 * SECOND_NS)
    assert [row["state"] for row in beat(running, record)] == ["open"]
    assert running.get("operator", "/api/budgets").json()[0]["running_nano"] == 60 * price
    running.post_usage(record)
    assert [row["state"] for row in beat(running, record, sent_at_ns=running.clock() + 1)] == ["open"]
    row = running.get("operator", "/api/budgets").json()[0]
    assert (row["spent_nano"], row["running_nano"], row["left_nano"]) == (60 * price, 0, 40 * price)


def test_a_heartbeat_of_several_calls_counts_as_one_and_an_old_one_not_at_all(running: Running, usage: Usage) -> None:
    price = price_of(running)
    put(running, "operator", tenant="acme", limit_nano=10**6 * price)
    now_ns = running.clock()
    ones = [usage(f"r-{n}/1", started_at_ns=now_ns - 10 * SECOND_NS, duration_ns=10 * SECOND_NS) for n in range(3)]

    def running_seconds() -> int:
        return int(running.get("operator", "/api/budgets").json()[0]["running_nano"]) // price

    beat(running, ones[0], sent_at_ns=now_ns)
    beat(running, ones[1], sent_at_ns=now_ns)
    assert running_seconds() == 20
    beat(running, ones[2], sent_at_ns=now_ns - 1)
    assert running_seconds() == 20
    beat(running, ones[2], sent_at_ns=now_ns + 1)
    beat(running, ones[2], sent_at_ns=now_ns + 2)
    assert running_seconds() == 10
    beat(running, sent_at_ns=now_ns + 3)
    beat(running, sent_at_ns=now_ns + 4)
    assert running_seconds() == 0


def test_a_lease_over_the_end_of_a_month_counts_in_both(running: Running, usage: Usage) -> None:
    price = price_of(running)
    running.clock.now_ns = Month(2026, 12).start_ns + 30 * SECOND_NS
    put(running, "operator", tenant="acme", limit_nano=10**6 * price)
    put(running, "operator", tenant="acme", limit_nano=10**6 * price, window="total")
    beat(running, usage("r/1", started_at_ns=Month(2026, 12).start_ns - 10 * SECOND_NS, duration_ns=40 * SECOND_NS))
    assert [row["running_nano"] // price for row in running.get("operator", "/api/budgets").json()] == [30, 40]


# Alerts


def test_each_threshold_is_told_of_once_per_period_and_limit(running_anywhere: Running, usage: Usage) -> None:
    running = running_anywhere
    price = price_of(running)
    budget = put(running, "operator", tenant="acme", limit_nano=100 * price)["id"]
    beat(running, usage("r/1", started_at_ns=running.clock() - 49 * SECOND_NS, duration_ns=49 * SECOND_NS))
    assert alerts(running) == set()
    beat(running, usage("r/1", started_at_ns=running.clock() - 50 * SECOND_NS, duration_ns=50 * SECOND_NS), sent_at_ns=running.clock() + 1)
    assert alerts(running) == {(budget, "2026-11", 50)}
    running.post_usage(usage("r/1", duration_ns=101 * SECOND_NS))
    until(lambda: alerts(running) == {(budget, "2026-11", share) for share in (50, 80, 100)})
    running.clock.now_ns = Month(2026, 12).start_ns + SECOND_NS
    running.post_usage(usage("s/1", started_at_ns=running.clock() - SECOND_NS, duration_ns=80 * SECOND_NS))
    until(lambda: {(budget, "2026-12", 50), (budget, "2026-12", 80)} <= alerts(running))
    put(running, "operator", tenant="acme", limit_nano=160 * price)
    until(lambda: len(running.get("operator", "/api/alerts").json()) == 6)
    put(running, "operator", tenant="acme", limit_nano=100 * price)
    for _ in range(3):
        running.clock.now_ns += SECOND_NS
        beat(running)
    assert len(running.get("operator", "/api/alerts").json()) == 6


def test_every_order_of_arrival_gives_the_same_alerts_once(fresh_books: Callable[[], Any], usage: Usage) -> None:
    """Records, a duplicate, a correction and heartbeats in every order; the loop looks at any moment, or never until the end."""
    from forebay_billing.ledger.access import Scope
    from forebay_billing.ledger.books import Books
    from forebay_billing.reads.alerts import alerts_of
    from forebay_billing.rules.budgets import Budget, Subject
    from forebay_billing.tables.engines import reading, writing
    from forebay_billing.tasks.budget_watch import look
    from forebay_billing.writes import alerts as alerts_writes
    from forebay_billing.writes import usage as usage_writes
    from forebay_billing.writes.budgets import set_budget

    now_ns = Month(2026, 11).start_ns + 20 * DAY_NS
    records = [usage(f"r-{n}/1", duration_ns=(n + 1) * 10 * SECOND_NS, user=("acme-member", "acme-owner")[n % 2]) for n in range(4)]
    other = usage("o/1", tenant="globex", duration_ns=10**12)

    def play(order: tuple[int, ...], looks: tuple[bool, ...]) -> set[tuple[Any, ...]]:
        arrivals = [*records, records[0], other]
        with fresh_books() as engines:
            with writing(engines) as connection:
                books = Books(connection)
                price = next(p for p in books.prices() if p.flavor == "small.64gb" and p.currency == "USD").price_nano_per_hour
                for subject in (Subject("acme"), Subject("acme", "acme-member"), Subject("acme", "acme-owner", "digits.ipynb")):
                    limit = 75 * SECOND_NS * price
                    set_budget(books, Budget(0, subject, "USD", "month", "operator", limit, (50, 80, 100), "refuse", 0, 0, "op"), now_ns)

            def watch() -> None:
                with reading(engines) as connection:
                    picture = look(connection, [], {}, lambda tenant: "USD", now_ns)
                with writing(engines) as connection:
                    alerts_writes.write(Books(connection), [*picture.missing, *picture.due], now_ns)
                    alerts_writes.write(Books(connection), picture.missing, now_ns)

            for place, looking in zip(order, looks, strict=True):
                with writing(engines) as connection:
                    usage_writes.post_usage(Books(connection), [arrivals[place]], lambda tenant: "USD", lambda: now_ns)
                if looking:
                    watch()
                    with writing(engines) as connection:
                        spending.catch_up(connection, active(connection))
            watch()
            with reading(engines) as connection:
                found = alerts_of(connection, Scope(None, None), None)
            told = [(alert.budget.subject, alert.period, alert.threshold) for alert in found]
            assert len(told) == len(set(told))
            return set(told)

    expected = play((0, 1, 2, 3, 4, 5), (False,) * 6)
    assert len(expected) == 6

    @settings(settings.get_profile("costly"))
    @given(st.permutations(range(6)), st.tuples(*[st.booleans()] * 6))
    def check(order: list[int], looks: tuple[bool, ...]) -> None:
        assert play(tuple(order), looks) == expected

    check()
    assert play((5, 4, 3, 2, 1, 0), tuple(itertools.islice(itertools.cycle((True, False)), 6))) == expected
