"""The charts in a browser, over a real pool: figures under the pointer, and the way from a day to one cell of one device."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation, eventually
from forebay_pool.model.trends import MINUTE_NS, Sample, Trend
from forebay_pool.store.database import Store
from forebay_pool.store.trends import TrendStore
from playwright.sync_api import Browser, Page, expect

WIDE = 1440
HELD = (1, 2, 2, 0)
"""Of two devices, ten minutes each, up to now."""


@pytest.fixture(scope="module")
def used_cloud(cloud: Installation) -> Installation:
    """A pool that knows of the last forty minutes, and in which a cell held a device."""
    store, now_ns = Store(f"sqlite:///{Path(cloud.pool.environment['FOREBAY_POOL_STATE_DIR']) / 'pool.sqlite'}"), time.time_ns()
    first_ns = now_ns - now_ns % (10 * MINUTE_NS) - (len(HELD) - 1) * 10 * MINUTE_NS
    samples = [Sample(held, 0, 2 - held, 0, held, 3_000 * held, 1_000 * held) for held in HELD]
    trends = [Trend(first_ns + number * 10 * MINUTE_NS, waits={40: 3}).with_sample(one) for number, one in enumerate(samples)]
    TrendStore(store).add(trends, now_ns)
    store.close()
    with cloud.session("acme-member") as session:
        granted = session.acquire("far/away.ipynb", 7)
        time.sleep(0.3)
        session.release(granted.epoch)
    return cloud


@pytest.fixture
def console(chrome: Browser, used_cloud: Installation, hub: Hub) -> Iterator[Page]:
    context = chrome.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=False)
    yield sign_in(context, hub, used_cloud, "operator", "operator")
    context.close()


def test_the_overview_tells_what_was_at_the_step_under_the_pointer(console: Page) -> None:
    held = console.locator("#plot-devices [data-column='0']")
    assert held.inner_text() == "0.0", "the last that is known"
    expect(console.locator("#plot-devices svg.drawn")).to_have_attribute("role", "img")
    label = console.get_attribute("#plot-devices svg.drawn", "aria-label") or ""
    assert "On average 1.2 of 2 devices were held." in label
    box = console.locator("#plot-queue svg.drawn").bounding_box()
    assert box is not None
    console.mouse.move(box["x"] + box["width"] * (1 - 2.5 / 144), box["y"] + 20)
    expect(held).to_have_text("2.0")
    expect(console.locator("#plot-waits [data-column='8']")).to_have_text(re.compile("s$"))
    assert console.locator("line.cross.on").count() == 4
    console.mouse.move(5, 5)
    expect(held).to_have_text("0.0")
    assert console.locator("line.cross.on").count() == 0
    console.click("text=Last 7 days")
    console.wait_for_selector(".choice [aria-current]:has-text('Last 7 days')")
    assert "over=week" in console.url and mishaps(console) == []


SCREENS = [
    (WIDE, "en-GB", "light"),
    (390, "ko-KR", "dark"),
    pytest.param(WIDE, "ko-KR", "dark", marks=pytest.mark.full_sweep),
    pytest.param(390, "en-GB", "light", marks=pytest.mark.full_sweep),
]


@pytest.mark.parametrize(("width", "locale", "scheme"), SCREENS)
def test_energy_is_drawn_by_hour_with_its_co2_on_every_screen(
    chrome: Browser, used_cloud: Installation, hub: Hub, width: int, locale: str, scheme: Literal["light", "dark"]
) -> None:
    used_cloud.record_usage(tenant="globex", user="globex-owner", energy_mj=5_400_000, duration_ns=10**9)
    context = chrome.new_context(viewport={"width": width, "height": 900}, locale=locale, color_scheme=scheme, bypass_csp=True)
    page = sign_in(context, hub, used_cloud, "operator", "operator?over=week")
    energy = page.locator("#energy")
    expect(energy.locator("rect").first).to_be_visible()
    expect(energy.locator("figcaption")).to_contain_text("Wh")
    caption = energy.locator("figcaption").inner_text()
    assert re.search(r"Energy, Wh .*Wh in all, .* of CO₂\." if locale == "en-GB" else r"에너지, Wh .*총 .*Wh, CO₂ .*\.", caption), caption
    energy.locator("summary").click()
    expect(energy.locator("tbody tr")).to_have_count(energy.locator("rect").count())
    assert page.evaluate("document.documentElement.scrollWidth") <= width and grave_faults(page) == [] and mishaps(page) == []
    context.close()


def test_one_comes_from_a_day_to_a_cell_by_drawing_and_pressing(console: Page, used_cloud: Installation) -> None:
    eventually(lambda: "far/away.ipynb" in used_cloud.get("operator", "operator/timeline?ms=60000").text)
    console.goto(used_cloud.urls["dashboards"] + "operator/timeline?ms=86400000")
    track = console.locator("svg.track").first
    box = track.bounding_box()
    assert box is not None
    console.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 5)
    console.mouse.down()
    console.mouse.move(box["x"] + box["width"] * 0.995, box["y"] + 8)
    console.mouse.move(box["x"] + box["width"] + 30, box["y"] + 8)
    console.mouse.up()
    console.wait_for_url("**until=*")
    asked = parse_qs(urlsplit(console.url).query)
    assert 0.005 < int(asked["ms"][0]) / 86_400_000 < 0.015
    bars = console.locator("svg.track rect", has=console.locator("title:text('far/away.ipynb [7]')"))
    expect(bars).to_have_count(1)
    bars.first.click()
    console.wait_for_selector("svg.track text:text('far/away.ipynb [7]')")
    assert int(parse_qs(urlsplit(console.url).query)["ms"][0]) < 60_000
    console.click("summary")
    assert "far/away.ipynb" in console.inner_text("details table")
    assert mishaps(console) == [] and grave_faults_of(console) == []


def test_a_member_sees_own_cells_alone_and_comes_to_one_by_pressing(chrome: Browser, used_cloud: Installation, hub: Hub) -> None:
    with used_cloud.session("acme-owner") as other:
        granted = other.acquire("secret.ipynb", 1)
        other.release(granted.epoch)
    eventually(lambda: "secret.ipynb" in used_cloud.get("acme-owner", "usage/timeline?ms=600000").text)
    context = chrome.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark", locale="ko-KR")
    page = sign_in(context, hub, used_cloud, "acme-member", "usage/timeline?ms=86400000")
    bars = page.locator("svg.track rect", has=page.locator("title:text('far/away.ipynb [7]')"))
    expect(bars).to_have_count(1)
    assert "secret.ipynb" not in page.content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("summary")
    page.click("details table a")
    page.wait_for_selector("svg.track text:text('far/away.ipynb [7]')")
    assert int(parse_qs(urlsplit(page.url).query)["ms"][0]) < 60_000
    assert mishaps(page) == [] and grave_faults_of(page) == []
    context.close()


def grave_faults_of(page: Page) -> list[str]:
    """Axe needs scripts of its own, which the page's policy does not let in: a page of the same address without it."""
    context = page.context.browser.new_context(bypass_csp=True) if page.context.browser else page.context
    context.add_cookies(page.context.cookies())  # type: ignore[arg-type] # what it gives it takes
    other = context.new_page()
    other.goto(page.url)
    found = [str(fault["id"]) for fault in grave_faults(other)]
    context.close()
    return found
