"""Operators make flavors and remove them, see prices that are to come, and what tenants had of their parts of the fair share."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from dashboards_installation import Installation
from forebay_dashboards.rows.pool import ShareRow
from forebay_dashboards.tables.shares import shares

NEW = {
    "name": "dev.3gb", "memory": "3 GiB", "equivalents": "1 null", "price": "0.5", "currency": "USD", "stamp": "", "flavor_stamp": "",
}  # fmt: skip


def flavor(cloud: Installation, name: str) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = cloud.ask("pool", "operator", "GET", "api/flavors")
    return next((row for row in rows if row["name"] == name), None)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"name": "Dev 3"}, "problem-name"),
        ({"memory": "much"}, "problem-memory"),
        ({"equivalents": ""}, "problem-equivalents"),
        ({"price": "free"}, "problem-price-1"),
        ({"currency": ""}, 'name="currency" value="" size="4" maxlength="3" autocomplete="off" aria-invalid="true"'),
        ({"name": "dev.1gb"}, "Nothing was saved"),
    ],
)
def test_a_flavor_that_cannot_be_is_refused_at_the_field(cloud: Installation, wrong: dict[str, str], complaint: str) -> None:
    answer = cloud.post("operator", "operator/flavors/new", {**NEW, **wrong}, fragment=False)
    assert (answer.status_code, complaint in answer.text) == (400, True)
    assert f'value="{wrong.get("name", "dev.3gb")}"' in answer.text, "what was typed stays"
    assert flavor(cloud, "dev.3gb") is None


def test_what_a_flavor_offers_is_ticked_and_stays_where_something_else_changes(cloud: Installation) -> None:
    form = {**NEW, "name": "calls.3gb", "runtimes": ["", "torch"]}
    assert cloud.post("operator", "operator/flavors/new", form, fragment=False).status_code == 303
    made = flavor(cloud, "calls.3gb")
    assert made is not None and (made["runtimes"], made["runtimes_served"]) == (["torch"], ["torch"])
    editor = cloud.get("operator", "operator/flavors/calls.3gb/edit", headers={"HX-Request": "true"}).text
    assert re.findall(r'name="runtimes" value="(\w+)"( checked)?', editor) == [("torch", " checked"), ("xla", ""), ("exec", "")]
    stamp = made["etag"].strip('"')
    cloud.post("operator", "operator/flavors/calls.3gb/edit", {"memory": "4 GiB", "equivalents": "1 cpu-dev", "flavor_stamp": stamp})
    changed = flavor(cloud, "calls.3gb")
    assert changed is not None and (changed["memory_bytes"], changed["runtimes"]) == (4 * 2**30, ["torch"])
    ticked = {"memory": "4 GiB", "equivalents": "1 cpu-dev", "flavor_stamp": changed["etag"].strip('"'), "runtimes": ""}
    cloud.post("operator", "operator/flavors/calls.3gb/edit", ticked)
    every = flavor(cloud, "calls.3gb")
    assert every is not None and every["runtimes"] is None


def test_places_that_processes_may_reach_are_saved_and_one_that_is_none_is_refused_in_words(cloud: Installation) -> None:
    form = {**NEW, "name": "out.3gb", "egress": "PyPI.org:443"}
    assert cloud.post("operator", "operator/flavors/new", form, fragment=False).status_code == 303
    made = flavor(cloud, "out.3gb")
    assert made is not None and made["egress"] == ["pypi.org:443"]
    editor = cloud.get("operator", "operator/flavors/out.3gb/edit", headers={"HX-Request": "true"}).text
    assert 'name="egress" value="pypi.org:443"' in editor
    typed = {"memory": "3 GiB", "equivalents": "1 cpu-dev", "flavor_stamp": made["etag"].strip('"'), "egress": "169.254.169.254:80"}
    told = cloud.post("operator", "operator/flavors/out.3gb/edit", typed).text
    assert "Nothing was saved." in told and "169.254.169.254" in told and 'value="169.254.169.254:80"' in told
    cloud.post("operator", "operator/flavors/out.3gb/edit", typed | {"egress": "none"})
    closed = flavor(cloud, "out.3gb")
    assert closed is not None and closed["egress"] == []


def test_a_flavor_is_made_with_its_price_and_removed_when_nobody_has_it(cloud: Installation) -> None:
    assert "New flavor" in cloud.get("operator", "operator/flavors").text
    assert cloud.post("operator", "operator/flavors/new", NEW, fragment=False).status_code == 303
    made = flavor(cloud, "dev.3gb")
    assert made is not None and (made["memory_bytes"], made["price_nano_per_hour"]) == (3 * 2**30, 500_000_000)
    soon = {"price_nano_per_hour": 750_000_000, "currency": "USD", "valid_from_ns": time.time_ns() + 86_400 * 10**9}
    cloud.ask("billing", "operator", "PUT", "api/prices/dev.3gb", json=soon)
    row = re.sub(r"<[^>]+>", "", cloud.get("operator", "operator/flavors/dev.3gb/row", headers={"HX-Request": "true"}).text)
    assert re.search(r"0.50 USD/h\s*from 20\d\d-.*UTC 0.75 USD/h", row), row
    form = {"remove": "1", "flavor_stamp": made["etag"].strip('"')}
    with cloud.session("acme-member", "dev.3gb"):
        refused = cloud.post("operator", "operator/flavors/dev.3gb/edit", form)
        assert (refused.status_code, "1 session has the flavor dev.3gb" in refused.text) == (409, True)
    stale = cloud.post("operator", "operator/flavors/dev.3gb/edit", {**form, "flavor_stamp": "x"})
    assert stale.status_code == 412 and flavor(cloud, "dev.3gb") is not None
    assert "dev.3gb is removed" in cloud.post("operator", "operator/flavors/dev.3gb/edit", form).text
    assert flavor(cloud, "dev.3gb") is None
    offered, folded, gone = cloud.get("operator", "operator/flavors").text.partition("Prices of 1 flavor that is not there any more")
    assert folded and "dev.3gb" in gone and "dev.3gb" not in offered and "dev.1gb" in offered
    entry = cloud.ask("pool", "operator", "GET", "api/audit?limit=1&subject=dev.3gb")["entries"][0]
    assert (entry["who"], entry["action"]) == ("operator", "flavor.remove")


def test_a_part_is_by_weight_and_who_had_most_beyond_it_comes_first() -> None:
    def row(tenant: str, weight: int, seconds: float) -> ShareRow:
        return ShareRow(tenant=tenant, weight=weight, held_milli=0, decayed_device_seconds=seconds)

    found = shares([row("a", 1, 10), row("b", 3, 30), row("c", 4, 120)])
    assert [(one.tenant, one.entitled_milli, one.used_milli, one.over) for one in found] == [
        ("c", 500, 750, True), ("a", 125, 62, False), ("b", 375, 188, False),
    ]  # fmt: skip
    assert shares([]) == [] and shares([row("a", 2, 0)])[0].used_milli == 0


def test_the_page_shows_each_tenants_part_and_use(cloud: Installation) -> None:
    cloud.ask("pool", "operator", "PUT", "api/quotas/acme", json={"weight": 3})
    page = cloud.get("operator", "operator/shares").text
    assert re.search(r'aria-label="[0-9.]+ % used, entitled to [0-9.]+ %"', page) and "acme" in page
    cloud.ask("pool", "operator", "PUT", "api/quotas/acme", json={})
