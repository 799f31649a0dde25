"""The figures of the overview that come from other services: revenue, service efficiency and shortage, each held against what was done."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from dashboards_installation import Hub, Installation, eventually, install, running

DAY_NS = 86_400 * 10**9
MINUTE_NS = 60 * 10**9
NOTHING = "\N{EN DASH}"


@pytest.fixture(scope="module")
def quiet_cloud(hub: Hub, worker_python: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation in which nobody did anything but these tests."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("quiet"))  # type: ignore[arg-type]
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


def figures(cloud: Installation) -> str:
    return cloud.get("operator", "operator/money").text


def section(text: str, title: str) -> str:
    """What stands below a heading."""
    return re.split(rf"<h2[^>]*>{title}</h2>", text)[1].split("</section>")[0]


def price_nano(cloud: Installation, flavor: str) -> int:
    found: int = next(
        row["price_nano_per_hour"] for row in cloud.ask("billing", "operator", "GET", "api/prices") if row["flavor"] == flavor
    )
    return found


def devices_of(cloud: Installation, flavor: str) -> float:
    """Devices of the model ``null`` that serve a flavor, as the pool lists it."""
    (row,) = [row for row in cloud.ask("pool", "operator", "GET", "api/flavors") if row["name"] == flavor]
    return next(one["count"] * one["share_milli"] / 1000 for one in row["equivalents"] if one["model"] == "null")


def close(cloud: Installation, devices: list[str], closed: bool) -> None:
    for name in devices:
        body = {"cordoned": True, "cause": "a test"} if closed else {"cordoned": False}
        cloud.ask("pool", "operator", "PUT", f"api/devices/{name.replace('/', '%2F')}", json=body)


def test_revenue_is_what_all_tenants_used_today_at_its_price_and_nothing_of_yesterday(quiet_cloud: Installation) -> None:
    assert "No device was held." in section(figures(quiet_cloud), "Revenue today")
    midnight_ns = time.time_ns() // DAY_NS * DAY_NS
    if time.time_ns() - midnight_ns < MINUTE_NS or midnight_ns + DAY_NS - time.time_ns() < MINUTE_NS:
        pytest.skip("a day just begins or ends")
    quiet_cloud.record_usage(tenant="acme", flavor="dev.1gb", started_at_ns=midnight_ns, duration_ns=20 * 10**9)
    quiet_cloud.record_usage(tenant="globex", flavor="dev.4gb", started_at_ns=midnight_ns, duration_ns=30 * 10**9)
    quiet_cloud.record_usage(tenant="acme", flavor="dev.4gb", started_at_ns=midnight_ns - MINUTE_NS, duration_ns=10**9)
    expected_nano = round((20 * price_nano(quiet_cloud, "dev.1gb") + 30 * price_nano(quiet_cloud, "dev.4gb")) / 3600)
    shown = section(figures(quiet_cloud), "Revenue today")
    (exact,) = re.findall(r'<p class="figure"><data value="([\d.]+) USD"', shown)
    assert Decimal(exact) * 10**9 == expected_nano > 0
    assert "50.000 s" in shown and "2 leases" in shown


def test_efficiency_is_the_devices_of_all_open_flavors_for_each_that_is_held(quiet_cloud: Installation) -> None:
    def shown() -> str:
        return re.findall(r'<p class="figure">(.*?)</p>', section(figures(quiet_cloud), "Service efficiency"))[0]

    assert shown() == NOTHING
    with quiet_cloud.session("acme-member") as first, quiet_cloud.session("acme-owner"), quiet_cloud.session("globex-owner", "dev.4gb"):
        granted = first.acquire("efficient.ipynb", 1)
        (lease,) = quiet_cloud.ask("pool", "operator", "GET", "api/leases")
        held = lease["devices"] * lease["share_milli"] / 1000
        asked = 2 * devices_of(quiet_cloud, "dev.1gb") + devices_of(quiet_cloud, "dev.4gb")
        eventually(lambda: shown() == f"{asked / held:.2f}")
        assert asked > held
        first.release(granted.epoch)
        eventually(lambda: shown() == NOTHING)


def test_a_shortage_is_forecast_as_the_pool_does_when_devices_are_closed_under_their_demand(quiet_cloud: Installation) -> None:
    with quiet_cloud.session("acme-member") as session:
        for cell in range(3):
            session.release(session.acquire("demand.ipynb", cell).epoch)
        devices = [row["device"] for row in quiet_cloud.ask("pool", "operator", "GET", "api/devices")]
        try:
            close(quiet_cloud, devices, True)
            rows = {row["flavor"]: row for row in quiet_cloud.ask("pool", "operator", "GET", "api/forecast")}
            short = section(figures(quiet_cloud), "Shortage forecast")
        finally:
            close(quiet_cloud, devices, False)
    assert rows["dev.1gb"]["offered_devices"] > 0 and rows["dev.1gb"]["missing_devices"] > 0
    assert 'data-column="flavor">dev.1gb<' in short and 'data-column="flavor">dev.4gb<' not in short, "nobody asked for the other one"
    (wait,) = re.findall(r'data-label="Will wait" class="number">(\d+) %', short)
    assert int(wait) == round(100 * rows["dev.1gb"]["wait_probability"])
    assert f'data-label="Open" class="number">{rows["dev.1gb"]["devices"]:.1f}<' in short


def test_enough_devices_are_no_line_and_what_a_service_cannot_tell_is_said(quiet_cloud: Installation) -> None:
    def told() -> dict[str, Any]:
        return {row["flavor"]: row for row in quiet_cloud.ask("pool", "operator", "GET", "api/forecast")}

    if all(row["missing_devices"] == 0 and row["wait_probability"] < 0.5 for row in told().values()):
        assert "there are devices enough" in section(figures(quiet_cloud), "Shortage forecast")
    with quiet_cloud.billing.stopped():
        text = figures(quiet_cloud)
        assert "Today&#39;s revenue cannot be shown right now" in text
        assert "Forecasts cannot be shown" not in text


def test_the_overview_says_which_service_is_not_well_and_stops_when_it_is_again(quiet_cloud: Installation) -> None:
    sentence = "Billing does not take what the pool tells it. Usage records wait; nothing is lost."
    with quiet_cloud.billing.stopped():
        eventually(lambda: sentence in figures(quiet_cloud))
        assert "JupyterHub does not tell" not in figures(quiet_cloud)
    eventually(lambda: sentence not in figures(quiet_cloud))


def test_nobody_is_sent_to_sign_in_while_the_hub_refuses_everybody(quiet_cloud: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterHub refuses good tokens as bad ones where its database does not answer; nobody could sign in there."""
    address, bad = quiet_cloud.urls["dashboards"] + "usage", {"Authorization": f"token {'b' * 32}"}
    assert httpx.get(address, headers=bad).status_code == 403
    monkeypatch.setattr(quiet_cloud.hub, "tokens", {})
    assert httpx.get(address, headers={"Authorization": f"token {'c' * 32}"}).status_code == 503
    eventually(lambda: "its database does not answer" in httpx.get(quiet_cloud.dashboards.health_url).json()["troubles"].get("hub", ""))
