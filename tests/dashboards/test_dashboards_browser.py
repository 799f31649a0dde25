"""The pages about money in a real browser: nothing sticks out, every field has a name, all can be read, and prices are changed by hand."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboards_installation import Hub, Installation
from forebay_billing.model.months import Month

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "pictures"))

from make import BROWSERS, Page, browser

pytestmark = pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium on PATH")
LONG_AGO = Month(2025, 1)
PAGES = (
    "operator", "operator/usage", "operator/invoices", "operator/flavors", "operator/surcharges", "operator/price-list", "operator/plans",
    "operator/audit", "usage", "tenant?tenant=acme",
)  # fmt: skip
WIDER = """[...document.querySelectorAll('body *')].filter(one => one.checkVisibility() && getComputedStyle(one).clipPath === 'none'
&& one.getBoundingClientRect().right > WIDTH + 1).map(one => one.outerHTML.slice(0, 120))"""
"""What is cut off at the right, or makes people scroll."""
NAMELESS = """[...document.querySelectorAll('input:not([type=hidden]), textarea, select')]
.filter(field => !field.labels.length && !field.getAttribute('aria-label')).map(field => field.outerHTML)"""
FAINT = """(() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const parts = color => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const color = parts(getComputedStyle(one).backgroundColor);
      if (color[3] === 255) return color;
    }
    return parts(getComputedStyle(document.documentElement).colorScheme.includes('dark') ? '#000' : '#fff');
  };
  const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll('body *')].filter(one => own(one) && one.checkVisibility()).map(one => {
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), one.outerHTML.slice(0, 120)];
  }).filter(([ratio]) => ratio < 4.5);
})()"""
"""What has less contrast than WCAG 2 asks of text."""


@pytest.fixture(scope="module")
def page(cloud: Installation, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """An operator's."""
    cloud.record_usage()
    plan = {"currency": "USD", "valid_from": "2031-05", "discount_bps": 1250, "tiers": [{"from_nano": 10**12, "discount_bps": 500}]}
    cloud.ask("billing", "operator", "PUT", "api/plans/acme", json=plan | {"free_seconds": {"dev.1gb": 360_000}})
    cloud.ask("billing", "operator", "PUT", "api/budgets", json={"tenant": "acme", "limit_nano": 10**12, "user": "acme-member"})
    body = {"currency": "USD", "surcharge_nano_per_hour": 360_000_000}
    cloud.ask("billing", "operator", "PUT", "api/surcharges/NVIDIA%20H200%20NVL%20141GB", json=body)
    before, hub.sign_in_as = hub.sign_in_as, "operator"
    with browser(tmp_path_factory.mktemp("browser")) as address:
        yield Page(address)
    hub.sign_in_as = before


def shown(page: Page, cloud: Installation, path: str) -> None:
    page.open(cloud.urls["dashboards"] + path, "document.readyState === 'complete' && document.querySelector('h1') !== null")


@pytest.mark.parametrize(
    ("width", "dark"),
    [(1440, False), (390, True), *(pytest.param(width, width == 1440, marks=pytest.mark.full_sweep) for width in (1440, 390))],
)
def test_nothing_sticks_out_every_field_has_a_name_and_all_can_be_read(page: Page, cloud: Installation, width: int, dark: bool) -> None:
    page.seem(width, 900, dark)
    for path in PAGES:
        shown(page, cloud, path)
        assert page.value(WIDER.replace("WIDTH", str(width))) == [], path
        assert page.value(NAMELESS) == [], path
        assert page.value(FAINT) == [], path


def test_what_would_be_wrong_with_a_page_is_seen(page: Page, cloud: Installation) -> None:
    page.seem(390, 900, False)
    shown(page, cloud, "operator/audit")
    page.value("""document.querySelector('main').insertAdjacentHTML('beforeend', '<p id="wrong">faint</p><input>');
    Object.assign(document.querySelector('#wrong').style, {color: '#999', background: '#aaa', width: '500px'}); true""")
    assert "faint" in page.value(WIDER.replace("WIDTH", "390"))[-1]
    assert len(page.value(NAMELESS)) == 1 and "faint" in page.value(FAINT)[0][1]


def typed(page: Page, field: str, text: str) -> None:
    page.value(f"document.querySelector({json.dumps(field)}).value = {json.dumps(text)}; true")


def pressed(page: Page, action: str) -> None:
    """Presses one of the form's buttons, and waits for the page that answers."""
    page.value("document.body.dataset.before = 1; true")
    page.click(f"button[value={action}]")
    page.wait("document.readyState === 'complete' && document.body.dataset.before === undefined && document.querySelector('h1') !== null")


def says(page: Page) -> Any:
    return page.value("document.querySelector('main').innerText")


def test_a_price_is_scheduled_previewed_compared_and_applied_and_one_in_a_closed_past_refused(page: Page, cloud: Installation) -> None:
    page.seem(1440, 900, False)
    cloud.record_usage(tenant="oldtimer", flavor="dev.4gb", started_at_ns=LONG_AGO.start_ns, duration_ns=10**9)
    cloud.ask("billing", "operator", "POST", "api/invoices", json={"tenant": "oldtimer", "month": str(LONG_AGO)})
    shown(page, cloud, "operator/price-list")
    flavors = 'prices:\n  "dev.4gb":\n    USD:\n      - {from: %s, per_hour: 3.6}\n'
    typed(page, "#list", flavors % "2033-01-01T00:00:00Z")
    typed(page, "#month", str(LONG_AGO))
    pressed(page, "preview")
    assert "oldtimer" in says(page) and "2025-01" in says(page)
    pressed(page, "compare")
    assert "What it would change" in says(page) and "3.60 USD/h" in says(page) and "2033" in says(page)
    prices = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "dev.4gb", "history": 1})
    pressed(page, "apply")
    assert "The price list is applied." in says(page) and "What it changed" in says(page)
    after = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "dev.4gb", "history": 1})
    before = [row | {"etag": after[-1]["etag"]} for row in prices]  # which is of all versions together
    assert after[:-1] == before and after[-1]["price_nano_per_hour"] == 3_600_000_000 and after[-1]["changed_by"] == "operator"
    typed(page, "#list", flavors % "2024-06-01T00:00:00Z")
    pressed(page, "apply")
    assert (
        "The month 2025-01 is finalised: a price of dev.4gb in USD from 2024-06-01T00:00:00Z on would change a closed period; "
        "let it begin at 2025-02-01T00:00:00Z at the earliest."
    ) in says(page)
    assert page.value("document.querySelector('#list').value.includes('2024-06-01')"), "what was typed is still there"
    assert cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "dev.4gb", "history": 1}) == after
