"""An operator makes flavors for the devices that are here: by a button, in both languages, on a telephone, and without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from browsing import grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation, eventually, install, running
from forebay_dashboards.rows.bases import Equivalent
from forebay_dashboards.rows.pool import Flavor
from leftover_text import leftovers
from playwright.sync_api import Browser, BrowserContext

DEVICES = """[{kind = "cuda", model = "H100", memory = "81559 MiB", count = 2}, {kind = "null", model = "null", memory = "4 GiB"}]"""
SUGGESTED = ["3xsmall.10gb", "2xsmall.20gb", "xsmall.40gb", "small.80gb", "medium.160gb"]
PATH = "operator/suggestions"
SEVERAL = (
    "Of several devices each computes its part of a batch that comes again and again; "
    "what cannot be divided runs on the first. All are billed."
)
TIMES = "\N{MULTIPLICATION SIGN}"
WIDER = """(() => { const width = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() && getComputedStyle(one).clipPath === 'none'
&& one.getBoundingClientRect().right > width + 1).map(one => one.outerHTML.slice(0, 120)); })()"""
"""What is cut off at the right, or makes people scroll."""


@pytest.fixture
def gpu_cloud(hub: Hub, worker_python: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with two accelerators that no flavor uses as a whole."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("gpus"))  # type: ignore[arg-type]
    installation.pool.environment |= {"FOREBAY_POOL_DEVICES": DEVICES, "FOREBAY_POOL_WARM_WORKERS": "0"}
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


def flavors(cloud: Installation) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in cloud.ask("pool", "operator", "GET", "api/flavors")}


def made(cloud: Installation) -> list[str]:
    entries = cloud.ask("pool", "operator", "GET", "api/audit?action=flavor.set")["entries"]
    assert {entry["who"] for entry in entries} <= {"operator"}
    return [entry["subject"] for entry in reversed(entries)]


def telephone(chrome: Browser) -> BrowserContext:
    return chrome.new_context(viewport={"width": 390, "height": 844}, locale="ko-KR")


def test_a_suggestion_is_added_by_keyboard_and_the_table_shows_it(chrome: Browser, gpu_cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context()
    page = sign_in(context, hub, gpu_cloud, "operator", "operator/flavors")
    page.focus("#suggest")
    page.keyboard.press("Enter")
    page.wait_for_selector("#suggestions table")
    assert page.inner_text("#suggest") == "Suggest flavors for these devices"
    page.wait_for_selector("#suggestions-title:focus")
    assert [row.get_attribute("id") for row in page.query_selector_all("#suggestions tbody tr")] == [
        f"suggested-{name}" for name in SUGGESTED
    ]
    whole = page.inner_text("[id='suggested-small.80gb']")
    assert f"1 {TIMES} H100" in whole and "new" in whole and "2.49 USD/h" in whole and "by memory, as small.64gb" in whole
    assert grave_faults(page) == [] and made(gpu_cloud) == [], "nothing is made by looking"
    page.focus("[id='suggested-small.80gb'] button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#suggestions .saved")
    assert page.inner_text("#suggestions .saved") == "small.80gb is made. It is not billed until it has a price."
    page.wait_for_selector("#suggestions .saved:focus")
    assert page.query_selector("[id='suggested-small.80gb']") is None and len(page.query_selector_all("#suggestions tbody tr")) == 4
    page.wait_for_selector("#flavors a[data-edits='small.80gb']")
    assert made(gpu_cloud) == ["small.80gb"] and flavors(gpu_cloud)["small.80gb"]["servable"] is True
    two = page.inner_text("#flavors tr:has(a[data-edits='medium.128gb'])")
    assert SEVERAL in two
    assert mishaps(page) == []
    context.close()


def test_on_a_telephone_in_korean_nothing_sticks_out_and_all_are_added(chrome: Browser, gpu_cloud: Installation, hub: Hub) -> None:
    context = telephone(chrome)
    page = sign_in(context, hub, gpu_cloud, "operator", "operator/flavors")
    assert page.inner_text("#suggest") == "이 장치에 맞는 플레이버 제안"
    page.click("#suggest")
    page.wait_for_selector("#suggestions table")
    assert page.evaluate(WIDER) == [] and grave_faults(page) == []
    data = {*flavors(gpu_cloud), *SUGGESTED, "H100"}
    assert leftovers(page.inner_html("#suggestions"), data) == [] and re.search("[가-힣]", page.inner_text("#suggestions"))
    for name in SUGGESTED:
        page.click(f"[id='suggested-{name}'] button")
        page.wait_for_selector(f"#suggestions .saved:has-text('{name}')")
        assert page.evaluate(WIDER) == []
    assert page.inner_text("#suggestions .empty") == "이 환경의 장치에 맞는 플레이버가 모두 있어 제안할 것이 없습니다."
    assert made(gpu_cloud) == SUGGESTED, "one entry of the audit each"
    assert mishaps(page) == []
    context.close()


def test_without_scripts_it_is_a_page_of_its_own_and_what_somebody_else_made_is_not_made_again(gpu_cloud: Installation) -> None:
    page = gpu_cloud.get("operator", PATH).text
    assert "<title>" in page and all(f'id="suggested-{name}"' in page for name in SUGGESTED)
    done = gpu_cloud.post("operator", PATH, {"name": "small.80gb"}, fragment=False)
    assert (done.status_code, done.headers["Location"]) == (303, "/services/dashboards/operator/flavors")
    again = gpu_cloud.post("operator", PATH, {"name": "small.80gb"})
    assert (again.status_code, "This is not suggested any more" in again.text) == (409, True)
    assert gpu_cloud.post("operator", PATH, {}).status_code == 409
    for name in ("acme-member", "acme-owner", "acme-billing", "service"):
        assert gpu_cloud.post(name, PATH, {"name": "medium.160gb"}).status_code == 403
    assert made(gpu_cloud) == ["small.80gb"]


def test_a_default_flavor_of_before_gets_more_that_serves_it_and_keeps_its_residents(gpu_cloud: Installation) -> None:
    before = {"memory_bytes": 65_520 * 2**20, "equivalents": [{"model": "MI210", "count": 1}], "residents_max": 3}
    gpu_cloud.ask("pool", "operator", "PUT", "api/flavors/small.64gb", json=before)
    assert "is there, gets more" in gpu_cloud.get("operator", PATH).text
    answer = gpu_cloud.post("operator", PATH, {"name": "small.64gb"}).text
    assert "small.64gb is served by more devices from now on." in answer and 'id="suggested-small.64gb"' not in answer
    row = flavors(gpu_cloud)["small.64gb"]
    assert ([one["model"] for one in row["equivalents"]], row["residents_max"], row["servable"]) == (["MI210", "H100"], 3, True)  # type: ignore[attr-defined]


def test_of_many_ways_to_serve_a_flavor_the_table_names_those_that_are_here(gpu_cloud: Installation) -> None:
    page = gpu_cloud.get("operator", "operator/flavors/small.64gb/row", headers={"HX-Request": "true"}).text
    shown, _, folded = page.partition("<details><summary>or 19 other models</summary>")
    assert f"1 {TIMES} H100" in shown and "MI210" not in shown and f"1 {TIMES} MI210" in folded
    saved = gpu_cloud.get("operator", "operator/flavors/small.64gb/edit", headers={"HX-Request": "true"}).text
    assert "1 H100" in saved and "0.25 MI325X" in saved, "the form has all of them"
    many = tuple(Equivalent(model=f"m{number}", count=1) for number in range(5))
    flavor = Flavor(name="x", memory_bytes=1, equivalents=many)
    assert (flavor.named, flavor.others) == (many[:3], many[3:]), "the first ones where none is here"
