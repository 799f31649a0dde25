"""The operator's page of payments: what failed for good is sent again or given up, with a reason that stands in the audit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from dashboards_installation import Installation

COLUMNS = {
    "tenant": "acme", "kind": "customer", "body": "{}", "generation": 1, "look": 0, "state": "dead", "attempts": 9,
    "created_at_ns": 1, "next_at_ns": 1, "note": "No such <customer>",
}  # fmt: skip


@pytest.fixture
def letters(cloud: Installation) -> Iterator[sqlite3.Connection]:
    """Two deliveries that Stripe refused for good, in billing's own database."""
    path = cloud.billing.environment["FOREBAY_BILLING_DATABASE_URL"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=10)) as database:
        for number in (901, 902):
            row = {"id": number, "subject": f"acme-{number}", "idempotency": f"k-{number}", **COLUMNS}
            marks = ", ".join(f":{name}" for name in row)
            database.execute(f"INSERT INTO payment_outbox ({', '.join(row)}) VALUES ({marks})", row)  # noqa: S608 - names of ours
        database.commit()
        yield database
        database.execute("DELETE FROM payment_outbox WHERE id IN (901, 902)")
        database.commit()


def state(letters: sqlite3.Connection, number: int) -> str:
    (found,) = letters.execute("SELECT state FROM payment_outbox WHERE id = ?", (number,)).fetchone()
    return str(found)


def test_where_nothing_failed_the_page_says_so(cloud: Installation) -> None:
    assert "Nothing failed for good." in cloud.get("operator", "operator/payments").text


def test_a_delivery_that_failed_for_good_is_sent_again_or_given_up(cloud: Installation, letters: sqlite3.Connection) -> None:
    page = cloud.get("operator", "operator/payments").text
    assert "acme-901" in page and "No such &lt;customer&gt;" in page
    assert "Delivery 901 is sent again." in cloud.post("operator", "operator/payments", form(901, "retry")).text
    assert "Delivery 902 is given up." in cloud.post("operator", "operator/payments", form(902, "skip")).text
    assert (state(letters, 901), state(letters, 902)) == ("waiting", "skipped")
    entry = cloud.ask("billing", "operator", "GET", "api/audit?limit=1")["entries"][0]
    assert (entry["who"], entry["action"], entry["after"]) == ("operator", "payments.dead_letter", {"action": "skip", "reason": "a test"})


@pytest.mark.parametrize("wrong", [{"id": "x"}, {"id": ""}, {"choice": "burn"}, {"reason": " "}, {"id": "77"}])
def test_what_makes_no_sense_changes_nothing(cloud: Installation, letters: sqlite3.Connection, wrong: dict[str, str]) -> None:
    answer = cloud.post("operator", "operator/payments", form(901, "skip") | wrong)
    assert answer.status_code == 400 and 'role="alert"' in answer.text
    assert state(letters, 901) == "dead"


def test_a_comparison_without_stripe_says_why_there_is_none(cloud: Installation) -> None:
    assert "Payments are off in this installation" in cloud.get("operator", "operator/payments?compare=1").text


def form(number: int, choice: str) -> dict[str, Any]:
    return {"id": str(number), "choice": choice, "reason": "a test"}
