"""Operators set quotas and say who may have which model; what cannot be read changes nothing, and what was typed stays."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from dashboards_installation import Installation
from forebay_dashboards.errors import FormError
from forebay_dashboards.forms.quota import FIELDS, read_quota, read_tenants, typed
from forebay_dashboards.rows.pool import Quota

FORM = {
    "tenant": "globex", "user": "", "devices": "2.5", "device_hours": "10", "window_days": "1", "on_exhausted": "revoke",
    "priority_max": "-5", "weight": "3", "parked_gib": "1024", "on_parked_full": "end",
}  # fmt: skip


def quota(cloud: Installation, path: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.ask("pool", "operator", "GET", f"api/quotas/{path}")
    return found


def test_a_quota_that_is_saved_is_the_pools_and_comes_back_into_the_form(cloud: Installation) -> None:
    answer = cloud.post("operator", "operator/quotas", FORM)
    assert "What globex is held to is saved." in answer.text
    row = quota(cloud, "globex")
    assert [row[name] for name in ("devices_milli", "device_seconds", "window_seconds", "on_exhausted")] == [2500, 36_000, 86_400, "revoke"]
    assert [row[name] for name in ("priority_max", "weight", "parked_bytes", "on_parked_full")] == [-5, 3, 2**40, "end"]
    page = cloud.get("operator", "operator/quotas", params={"tenant": "globex"}).text
    assert 'value="2.5"' in page and '<option value="revoke" selected>' in page and "0 of 10 in 1 days" in page
    entry = cloud.ask("pool", "operator", "GET", "api/audit?limit=1&subject=globex")["entries"][0]
    assert (entry["who"], entry["after"]["weight"]) == ("operator", 3)
    assert "saved" in cloud.post("operator", "operator/quotas", {"tenant": "globex", "user": "globex-owner", "weight": "2"}).text
    assert (quota(cloud, "globex/globex-owner")["weight"], quota(cloud, "globex")["weight"]) == (2, 3)
    assert "saved" in cloud.post("operator", "operator/quotas", {"tenant": "globex"}).text
    assert quota(cloud, "globex")["devices_milli"] is None


def test_whoever_saves_a_quota_that_somebody_else_changed_meanwhile_is_told_and_must_mean_it(cloud: Installation) -> None:
    page = cloud.get("operator", "operator/quotas", params={"tenant": "contested"}).text
    hidden = {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(stamp|whose)" value="([^"]*)"', page)}
    assert cloud.post("operator", "operator/quotas", {**hidden, "tenant": "contested", "weight": "2"}).status_code == 200
    mine = {**hidden, "tenant": "contested", "weight": "3"}
    stale = cloud.post("operator", "operator/quotas", mine)
    assert (stale.status_code, "Somebody changed this" in stale.text, 'value="3"' in stale.text) == (412, True, True)
    assert quota(cloud, "contested")["weight"] == 2
    again = dict(re.findall(r'type="hidden" name="(stamp|whose)" value="([^"]*)"', stale.text))
    assert cloud.post("operator", "operator/quotas", {**mine, **again}).status_code == 200
    assert quota(cloud, "contested")["weight"] == 3
    other = cloud.post("operator", "operator/quotas", {**mine, "user": "somebody"})
    assert other.status_code == 200, "what another quota was is no condition"
    for name in ("contested", "contested/somebody"):
        cloud.ask("pool", "operator", "PUT", f"api/quotas/{name}", json={})


def model_stamp(cloud: Installation) -> str:
    """Of who may have the model ``null``, as the page shows it."""
    page = cloud.get("operator", "operator/quotas").text
    return dict(re.findall(r'name="model" value="(\w+)"><input type="hidden" name="model_stamp" value="([^"]*)"', page))["null"]


def test_whoever_saves_the_policy_of_a_model_that_somebody_else_changed_meanwhile_is_told(cloud: Installation) -> None:
    opened = model_stamp(cloud)
    assert cloud.post("operator", "operator/quotas", {"model": "null", "tenants": "acme, globex", "model_stamp": opened}).status_code == 200
    stale = cloud.post("operator", "operator/quotas", {"model": "null", "tenants": "acme", "model_stamp": opened})
    assert (stale.status_code, "Somebody else changed this" in stale.text, 'value="acme, globex"' in stale.text) == (412, True, True)
    assert cloud.post("operator", "operator/quotas", {"model": "null", "tenants": "", "model_stamp": model_stamp(cloud)}).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tenant": " "}, {"devices": "many"}, {"devices": "1.0001"}, {"window_days": ""}),
        *({"weight": "1.5"}, {"weight": "-1"}, {"parked_gib": "²"}),
    ],
)
def test_a_form_that_cannot_be_read_changes_nothing_and_keeps_what_was_typed(cloud: Installation, wrong: dict[str, str]) -> None:
    form = {**FORM, "tenant": "umbrella", **wrong}
    answer = cloud.post("operator", "operator/quotas", form)
    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)
    assert answer.text.count('value="1024"') == (0 if "parked_gib" in wrong else 1)
    assert quota(cloud, "umbrella")["device_seconds"] is None


def test_a_quota_reads_back_from_the_form_as_it_was() -> None:
    odd = Quota(tenant="a", device_seconds=10**9 + 7, window_seconds=86_401, parked_bytes=2**40 + 1)
    for given in (Quota(tenant="a"), Quota(tenant="a", user="b", devices_milli=1, priority_max=-99, weight=7, parked_bytes=0), odd):
        tenant, user, body = read_quota(typed(given))
        assert Quota(tenant=tenant, user=user, **body) == given
    with pytest.raises(FormError):
        read_quota(dict.fromkeys(FIELDS, ""))


def test_a_model_is_kept_for_tenants_and_given_back_to_all(cloud: Installation) -> None:
    assert read_tenants(" b,a\n\nb ,") == ["a", "b"]
    assert read_tenants(" , ") is None

    def tenants() -> Any:
        return next(row["tenants"] for row in cloud.ask("pool", "operator", "GET", "api/models") if row["model"] == "null")

    form = {"model": "null", "tenants": "acme, globex", "model_stamp": model_stamp(cloud)}
    assert "saved" in cloud.post("operator", "operator/quotas", form).text
    assert tenants() == ["acme", "globex"]
    assert 'value="acme, globex"' in cloud.get("operator", "operator/quotas").text
    assert "saved" in cloud.post("operator", "operator/quotas", {"model": "null", "tenants": "", "model_stamp": model_stamp(cloud)}).text
    assert tenants() is None
    refused = cloud.post("operator", "operator/quotas", {"model": "no such model", "tenants": "acme"})
    assert (refused.status_code, "There is no device of the model" in refused.text) == (400, True)
