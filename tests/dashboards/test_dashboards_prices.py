"""The price list, plans and the audit on the operator's pages, against real services."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from dashboards_installation import Installation
from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.forms.plan import TypedPlan

PLAN = {"tenant": "acme", "currency": "usd", "valid_from": "2031-01", "discount": "12.5", "free": "", "commitment": "500"}


def listed(cloud: Installation) -> str:
    page = cloud.get("operator", "operator/price-list").text
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def stamp(cloud: Installation) -> str:
    found = re.search('name="stamp" value="([^"]*)"', cloud.get("operator", "operator/price-list").text)
    assert found is not None
    return html.unescape(found[1])


def send(cloud: Installation, path: str, **fields: Any) -> str:
    answer = cloud.post("operator", path, fields, fragment=False)
    assert answer.status_code == 200, answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


def test_the_price_list_is_compared_previewed_and_applied_on_the_page(cloud: Installation) -> None:
    text = listed(cloud)
    assert "12xlarge.6144gb" in text
    assert "Nothing: the price book says what the list says." in send(cloud, "operator/price-list", list=text, action="compare")
    edited = text.replace("per_hour: 192.00", "per_hour: 216.00") + "parked:\n  USD:\n    - {per_gib_hour: 0.00005}\n"
    compared = send(cloud, "operator/price-list", list=edited, action="compare")
    assert "What it would change" in compared and "216.00 USD/h" in compared and "0.00005 USD" in compared
    assert "at these terms" in send(cloud, "operator/price-list", list=edited, action="preview", month="2026-01")
    assert listed(cloud).splitlines()[2:] == text.splitlines()[2:]
    assert "The price list is applied." in send(cloud, "operator/price-list", list=edited, action="apply", stamp=stamp(cloud))
    assert "per_hour: 216.00" in listed(cloud) and "per_gib_hour: 0.00005" in listed(cloud)
    refused = send(cloud, "operator/price-list", list="prices: {x: 1}", action="apply", stamp=stamp(cloud))
    assert "Line 1 of the price list: 'x' needs names with values below it." in refused
    entries = send_get(cloud, "operator/audit")
    assert "12xlarge.6144gb/USD" in entries and "price_nano_per_hour 216000000000" in entries


def send_get(cloud: Installation, path: str) -> str:
    return html.unescape(cloud.get("operator", path).text)


def hidden(page: str) -> dict[str, str]:
    """What a form holds of what it was opened with."""
    return {name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(stamp|whose)" value="([^"]*)"', page)}


PAGES: dict[str, tuple[dict[str, str], dict[str, str], str, str]] = {
    "operator/surcharges": ({"model": "H901", "currency": "EUR", "price": "0.36"}, {"model": "H901", "currency": "EUR"}, "price", "0.72"),
    "operator/plans": (
        {**PLAN, "tenant": "planned-twice", "valid_from": "2032-05", "new": "1", "action": "save"},
        {"tenant": "planned-twice"},
        "discount",
        "20",
    ),
}


@pytest.mark.parametrize("path", PAGES)
def test_of_two_operators_who_save_one_surcharge_or_plan_the_second_is_told_and_must_mean_it(cloud: Installation, path: str) -> None:
    form, asked, field, other = PAGES[path]
    for opens, amount, sentence in ((False, "10.8", "There is one already"), (True, "14.4", "Somebody changed this after")):
        mine = {**form, **(hidden(cloud.get("operator", path, params=asked).text) if opens else {})}
        theirs = {**mine, field: amount}
        assert cloud.post("operator", path, theirs, fragment=False).status_code == 200
        refused = cloud.post("operator", path, {**mine, field: other}, fragment=False)
        assert (refused.status_code, sentence in refused.text) == (412, True)
        assert f'value="{other}"' in refused.text, "what was typed stays"
        assert amount in refused.text, "what holds now stands above"
        assert cloud.post("operator", path, {**mine, **hidden(refused.text), field: other}, fragment=False).status_code == 200


def test_whoever_applies_a_price_list_that_was_read_before_somebody_elses_change_sees_what_it_would_do_now(cloud: Installation) -> None:
    opened, text = stamp(cloud), "prices: {48xlarge.24576gb: {USD: [{per_hour: 3.6}]}}"
    cloud.ask("billing", "operator", "PUT", "api/surcharges/H902", json={"surcharge_nano_per_hour": 5, "currency": "USD"})
    form = {"list": text, "action": "apply", "stamp": opened}
    refused = cloud.post("operator", "operator/price-list", form, fragment=False)
    assert (refused.status_code, "What it would change" in refused.text, "per_hour: 3.6" in refused.text) == (412, True, True)
    assert "Somebody changed prices after this page was opened" in refused.text
    before = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "48xlarge.24576gb"})
    assert before[0]["version"] == 1
    assert "The price list is applied." in send(cloud, "operator/price-list", **{**form, **hidden(refused.text)})


def test_a_plan_is_previewed_and_saved_on_the_page(cloud: Installation) -> None:
    cloud.record_usage()
    preview = send(cloud, "operator/plans", **PLAN, action="preview")
    assert "at these terms" in preview
    refused = send(cloud, "operator/plans", **{**PLAN, "tenant": "unheard"}, action="save")
    assert "Nothing was ever recorded for a tenant 'unheard'" in refused and "2031-01" not in cloud.get("operator", "operator/plans").text
    opened = hidden(cloud.get("operator", "operator/plans", params={"tenant": "acme"}).text)
    saved = send(cloud, "operator/plans", **PLAN, **opened, tiers="1000=5, 10000=10", free_hours="dev.1gb=100", action="save")
    assert "The plan of acme from 2031-01 is saved." in saved and "12.5 %" in saved and "from 10000: 10 %" in saved
    plans = cloud.ask("billing", "operator", "GET", "api/plans", params={"month": "2031-02"})
    (plan,) = [plan for plan in plans if plan["tenant"] == "acme"]
    assert plan["tiers"] == [{"from_nano": 10**12, "discount_bps": 500}, {"from_nano": 10**13, "discount_bps": 1000}]
    assert (plan["free_seconds"], plan["commitment_nano"], plan["currency"]) == ({"dev.1gb": 360_000}, 500 * 10**9, "USD")


def test_a_surcharge_is_saved_scheduled_and_refused_on_the_page(cloud: Installation) -> None:
    assert "Models that are not here cost nothing more." in send_get(cloud, "operator/surcharges")
    form = {"model": "H900", "currency": "usd", "price": "0.36", "start": ""}
    saved = send(cloud, "operator/surcharges", **form)
    assert "The surcharge of H900 in USD is saved; it holds from" in saved and "0.36 USD/h" in saved
    page = cloud.get("operator", "operator/surcharges", params={"model": "H900", "currency": "USD"}).text
    opened = hidden(page)
    assert (opened["whose"], 'value="0.36"' in page) == ("H900/USD", True)
    later = send(cloud, "operator/surcharges", **{**form, **opened, "price": "0.72", "start": "2031-01-01T00:00"})
    assert "it holds from 2031-01-01 00:00:00 UTC on" in later and "0.72 USD/h" in later
    for change, sentence in (
        ({"price": "0.3000000001"}, "0.3000000001 an hour cannot be billed exactly; the nearest that can is"),
        ({"price": "-1"}, "A price cannot be below zero"),
        ({"start": "tomorrow"}, "“tomorrow” is not a date and a time, such as 2026-12-01T00:00."),
        ({"currency": "XYZ"}, "'XYZ' is not a currency of ISO 4217"),
    ):
        assert sentence in send(cloud, "operator/surcharges", **{**form, **opened, "stamp": "2", **change})
    found = cloud.ask("billing", "operator", "GET", "api/surcharges", params={"history": 1})
    assert [one["surcharge_nano_per_hour"] for one in found if one["model"] == "H900"] == [360_000_000, 720_000_000]
    assert '"H900":' in listed(cloud)
    assert "@model/H900/USD" in send_get(cloud, "operator/audit")


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("discount", "12.555", "at most 2 decimals"),
        ("discount", "-1", "is not a number"),
        ("free", "a lot", "Free of charge"),
        ("free_hours", "dev.1gb", "as in dev.1gb=100"),
        ("free_hours", "dev.1gb=0.0001", "whole number of seconds"),
        ("tiers", "1=1,1=2", "each may be there once"),
    ],
)
def test_terms_that_cannot_be_are_said_in_one_sentence(field: str, text: str, says: str) -> None:
    with pytest.raises((FormError, MoneyError), match=says):
        TypedPlan.model_validate({**PLAN, field: text}).terms()


def test_the_pages_are_changed_by_operators_alone(cloud: Installation) -> None:
    for who in ("acme-owner", "acme-member"):
        assert cloud.post(who, "operator/price-list", {"list": "prices: {}", "action": "apply"}).status_code == 403
        assert cloud.post(who, "operator/plans", {**PLAN, "action": "save"}).status_code == 403
        assert cloud.post(who, "operator/surcharges", {"model": "x", "currency": "USD", "price": "1"}).status_code == 403
