"""Two people who change the same from the same point: one change is done, and whoever comes second is told, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

WRITERS = 6
CURRENCIES = ("USD", "EUR", "JPY", "GBP", "CHF", "KRW", "SEK", "NOK", "AUD", "CAD", "NZD", "DKK")
SOMETHING_ELSE = '"something-else"'


def budget(running: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/budgets", tenant="acme").json()
    return found[0]


def profile(running: Any) -> dict[str, Any]:
    found = running.get("operator", "/api/profiles/acme")
    assert found.headers["ETag"] == found.json()["etag"] == running.get("operator", "/api/tenants", tenant="acme").json()[0]["profile_etag"]
    answer: dict[str, Any] = found.json()
    return answer


def plan(running: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = running.get("operator", "/api/plans", tenant="acme", history=1).json()
    return found[-1]


KINDS: dict[str, tuple[str, Callable[[int], dict[str, Any]], Callable[[Any], dict[str, Any]]]] = {
    "budget": ("/api/budgets", lambda n: {"tenant": "acme", "limit_nano": n}, budget),
    "tax": ("/api/profiles/acme", lambda n: {"tax_label": "VAT", "tax_bps": n}, profile),
    "currency": ("/api/profiles/acme", lambda n: {"currency": CURRENCIES[n]}, profile),
    "plan": ("/api/plans/acme", lambda n: {"currency": "USD", "valid_from": "2027-01", "discount_bps": n, "new": True}, plan),
}


@pytest.mark.parametrize("kind", KINDS)
def test_of_writers_with_one_tag_one_wins_and_the_others_change_nothing(running_anywhere: Any, kind: str) -> None:
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
    done = [entry["action"] for entry in running_anywhere.get("operator", "/api/audit").json()["entries"]]
    assert len([action for action in done if action in ("budget.set", "profile.change", "plan.change")]) == 2


def test_a_refusal_says_what_happened_and_a_change_without_a_condition_is_done_as_ever(running: Any) -> None:
    body = {"tenant": "acme", "limit_nano": 1}
    refused = running.request("operator", "PUT", "/api/budgets", json=body, headers={"If-Match": SOMETHING_ELSE})
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed") and "Somebody else" in refused.json()["message"]
    assert running.get("operator", "/api/budgets", tenant="acme").json() == []
    assert running.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
    malformed = running.request("operator", "PUT", "/api/budgets", json=body, headers={"If-Match": "untagged"})
    assert (malformed.status_code, malformed.json()["code"]) == (400, "invalid")


def test_a_budget_that_was_changed_meanwhile_is_not_removed(running_anywhere: Any) -> None:
    set_to = {number: {"tenant": "acme", "limit_nano": number} for number in (1, 2)}
    first = running_anywhere.request("operator", "PUT", "/api/budgets", json=set_to[1]).json()
    second = running_anywhere.request("operator", "PUT", "/api/budgets", json=set_to[2]).json()
    path = f"/api/budgets/{first['id']}"
    assert running_anywhere.request("operator", "DELETE", path, headers={"If-Match": first["etag"]}).status_code == 412
    assert budget(running_anywhere)["limit_nano"] == 2
    assert running_anywhere.request("operator", "DELETE", path, headers={"If-Match": second["etag"]}).status_code == 200


def test_a_member_who_may_not_know_the_limit_gets_no_tag_that_it_could_be_guessed_from(running: Any) -> None:
    running.request("operator", "PUT", "/api/budgets", json={"tenant": "acme", "limit_nano": 5})
    (seen,) = running.get("acme-member", "/api/budgets").json()
    assert seen["limit_nano"] is None and seen["etag"] is None
