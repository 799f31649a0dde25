"""Two people who change the same from the same point: one change is done, and whoever comes second is told, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from running_billing import Running

WRITERS = 6
CURRENCIES = ("USD", "EUR", "JPY", "GBP", "CHF", "KRW", "SEK", "NOK", "AUD", "CAD", "NZD", "DKK")
SOMETHING_ELSE = '"something-else"'


def budget(running: Running) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/budgets", tenant="acme").json()
    return found[0]


def profile(running: Running) -> dict[str, Any]:
    found = running.get("operator", "/api/profiles/acme")
    assert found.headers["ETag"] == found.json()["etag"] == running.get("operator", "/api/tenants", tenant="acme").json()[0]["profile_etag"]
    answer: dict[str, Any] = found.json()
    return answer


def plan(running: Running) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/plans", tenant="acme", history=1).json()
    return found[-1]


def price(running: Running) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/prices", flavor="dev.1gb", history=1).json()
    return [one for one in found if one["currency"] == "EUR"][-1]


def surcharge(running: Running) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/surcharges", history=1).json()
    return found[-1]


def parked_price(running: Running) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/parked-prices").json()
    return found[-1]


KINDS: dict[str, tuple[str, Callable[[int], dict[str, Any]], Callable[[Any], dict[str, Any]]]] = {
    "budget": ("/api/budgets", lambda n: {"tenant": "acme", "limit_nano": n, "new": True}, budget),
    "tax": ("/api/profiles/acme", lambda n: {"tax_label": "VAT", "tax_bps": n}, profile),
    "currency": ("/api/profiles/acme", lambda n: {"currency": CURRENCIES[n]}, profile),
    "plan": ("/api/plans/acme", lambda n: {"currency": "USD", "valid_from": "2027-01", "discount_bps": n, "new": True}, plan),
    "price": ("/api/prices/dev.1gb", lambda n: {"currency": "EUR", "price_nano_per_hour": n}, price),
    "surcharge": ("/api/surcharges/MI250", lambda n: {"currency": "EUR", "surcharge_nano_per_hour": n}, surcharge),
    "parked price": ("/api/parked-prices/EUR", lambda n: {"price_nano_per_gib_hour": n}, parked_price),
}
CHANGES = ("budget.set", "profile.change", "plan.change", "price.change")


@pytest.mark.parametrize("kind", KINDS)
def test_of_writers_with_one_tag_one_wins_and_the_others_change_nothing(running_anywhere: Running, kind: str) -> None:
    path, body, read = KINDS[kind]
    begin = Barrier(WRITERS)

    def write(number: int, headers: dict[str, str]) -> int:
        begin.wait()
        status: int = running_anywhere.request("operator", "PUT", path, json=body(number), headers=headers).status_code
        return status

    with ThreadPoolExecutor(WRITERS) as threads:
        first = list(threads.map(lambda number: write(number, {"If-None-Match": "*"}), range(WRITERS)))
        assert sorted(first) == [200] + [412] * (WRITERS - 1)
        made = read(running_anywhere)
        assert made.items() >= {k: v for k, v in body(first.index(200)).items() if k != "new"}.items()
        second = list(threads.map(lambda number: write(number, {"If-Match": made["etag"]}), range(WRITERS, 2 * WRITERS)))
    assert sorted(second) == [200] + [412] * (WRITERS - 1)
    now = read(running_anywhere)
    assert now["etag"] != made["etag"]
    assert now.items() >= {k: v for k, v in body(WRITERS + second.index(200)).items() if k != "new"}.items()
    entries = running_anywhere.get("operator", "/api/audit", who="operator").json()["entries"]
    assert len([entry for entry in entries if entry["action"] in CHANGES]) == 2


def test_of_writers_of_the_price_list_with_one_tag_one_wins_and_the_others_change_nothing(running_anywhere: Running) -> None:
    before = running_anywhere.get("operator", "/api/price-list")
    begin = Barrier(WRITERS)

    def write(number: int) -> int:
        begin.wait()
        text = f"prices: {{dev.1gb: {{USD: [{{nano_per_hour: {1000 + number}}}]}}}}"
        expected = {"If-Match": before.headers["ETag"]}
        status: int = running_anywhere.request("operator", "PUT", "/api/price-list", content=text, headers=expected).status_code
        return status

    with ThreadPoolExecutor(WRITERS) as threads:
        answers = list(threads.map(write, range(WRITERS)))
    assert sorted(answers) == [200] + [412] * (WRITERS - 1)
    (now,) = running_anywhere.get("operator", "/api/prices", flavor="dev.1gb").json()
    assert (now["version"], now["price_nano_per_hour"]) == (2, 1000 + answers.index(200))
    after = running_anywhere.get("operator", "/api/price-list").headers["ETag"]
    assert after != before.headers["ETag"]
    again = running_anywhere.request("operator", "GET", "/api/price-list", headers={"If-None-Match": after})
    assert again.status_code == 200, "the text says which prices are in force, the tag only which there are"


def test_a_price_that_is_to_come_counts_among_those_that_a_change_expects(running_anywhere: Running) -> None:
    def put(nano: int, headers: dict[str, str], **more: int) -> Any:
        body = {"currency": "USD", "price_nano_per_hour": nano, **more}
        return running_anywhere.request("operator", "PUT", "/api/prices/dev.1gb", json=body, headers=headers)

    (seen,) = running_anywhere.get("operator", "/api/prices", flavor="dev.1gb").json()
    scheduled = put(5, {"If-Match": seen["etag"]}, valid_from_ns=2 * 10**18).json()
    (now,) = running_anywhere.get("operator", "/api/prices", flavor="dev.1gb").json()
    assert (now["version"], now["etag"]) == (seen["version"], scheduled["etag"]), "the price in force is the same, the tag is not"
    assert put(6, {"If-Match": seen["etag"]}).status_code == 412
    assert put(6, {"If-None-Match": "*"}).status_code == 412
    assert put(6, {"If-Match": now["etag"]}).status_code == 200


def test_a_refusal_says_what_happened_and_a_change_without_a_condition_is_done_as_ever(running: Running) -> None:
    body = {"tenant": "acme", "limit_nano": 1, "new": True}
    refused = running.request("operator", "PUT", "/api/budgets", json=body, headers={"If-Match": SOMETHING_ELSE})
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition_failed")
    assert "Somebody else" in refused.json()["error"]["message"]
    assert running.get("operator", "/api/budgets", tenant="acme").json() == []
    assert running.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
    malformed = running.request("operator", "PUT", "/api/budgets", json=body, headers={"If-Match": "untagged"})
    assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, "invalid")


def test_a_budget_that_was_changed_meanwhile_is_not_removed(running_anywhere: Running) -> None:
    set_to = {number: {"tenant": "acme", "limit_nano": number, "new": True} for number in (1, 2)}
    first = running_anywhere.request("operator", "PUT", "/api/budgets", json=set_to[1]).json()
    second = running_anywhere.request("operator", "PUT", "/api/budgets", json=set_to[2]).json()
    path = f"/api/budgets/{first['id']}"
    assert running_anywhere.request("operator", "DELETE", path, headers={"If-Match": first["etag"]}).status_code == 412
    assert budget(running_anywhere)["limit_nano"] == 2
    assert running_anywhere.request("operator", "DELETE", path, headers={"If-Match": second["etag"]}).status_code == 200


def test_a_member_who_may_not_know_the_limit_gets_no_tag_that_it_could_be_guessed_from(running: Running) -> None:
    running.request("operator", "PUT", "/api/budgets", json={"tenant": "acme", "limit_nano": 5, "new": True})
    (seen,) = running.get("acme-member", "/api/budgets").json()
    assert seen["limit_nano"] is None and seen["etag"] is None
