"""The switch of the language in a real browser: by keyboard, without scripts, and on a telephone, with nothing in anybody's way."""

from __future__ import annotations

import time

import pytest
from browsing import CONSOLE_PAGES, grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation
from forebay_service.languages import COOKIE
from playwright.sync_api import Browser, BrowserContext


def choice(context: BrowserContext) -> dict[str, object]:
    (cookie,) = [dict(cookie) for cookie in context.cookies() if cookie["name"] == COOKIE]
    return cookie


def test_the_switch_changes_the_page_what_its_scripts_say_and_what_comes_later(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context(locale="en-GB")
    page = sign_in(context, hub, cloud, "operator", "operator/leases?q=korean.ipynb")
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#connection .text").inner_text() == "Live"
    page.get_by_role("button", name="한국어").press("Enter")
    page.wait_for_selector("html[lang=ko]")
    assert page.url.endswith("operator/leases?q=korean.ipynb"), "one stays where one was"
    page.wait_for_selector("#connection[data-state=live]")
    assert page.locator("#connection .text").inner_text() == "실시간"
    cookie = choice(context)
    assert (cookie["value"], cookie["path"], cookie["sameSite"], cookie["httpOnly"], cookie["secure"]) == ("ko", "/", "Lax", True, False)
    with cloud.session("acme-member") as session:
        epoch = session.acquire("korean.ipynb", 4).epoch
        page.wait_for_selector("#rows tbody tr")
        row = page.locator("#rows tbody tr").inner_text()
        page.wait_for_function("document.querySelector('.ticking').textContent.endsWith('초')")
        assert "셀 4" in row and "cell" not in row
        assert page.locator("#rows time").inner_text() != "" and ("오전" in row or "오후" in row), "times as the language writes them"
        session.release(epoch)
    page.get_by_role("button", name="English").click()
    page.wait_for_selector("html[lang=en]")
    assert choice(context)["value"] == "en"
    assert mishaps(page) == []
    context.close()


def test_the_switch_needs_no_script(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context(java_script_enabled=False, locale="ko-KR")
    hub.sign_in_as = "acme-member"
    page = context.new_page()
    page.goto(cloud.urls["dashboards"] + "usage?period=week")
    assert page.locator("html").get_attribute("lang") == "ko", "as the browser asks for"
    page.get_by_role("button", name="English").click()
    assert page.locator("html").get_attribute("lang") == "en" and page.url.endswith("usage?period=week")
    assert page.locator("h1").inner_text() == "My usage"
    context.close()


def test_statement_and_draft_invoice_are_no_wider_than_a_telephone(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    cloud.record_usage(duration_ns=987_654_321_987)
    context = chrome.new_context(viewport={"width": 390, "height": 844})
    hub.sign_in_as = "acme-owner"
    page = context.new_page()
    page.goto(cloud.urls["dashboards"] + "tenant")
    month = time.strftime("%Y-%m", time.gmtime())
    for path in (f"statement?tenant=acme&month={month}&format=html", f"invoice?tenant=acme&month={month}&format=html"):
        page.goto(cloud.urls["dashboards"] + path)
        assert page.locator("table").count() == 1, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.full_sweep)])
def test_in_korean_nothing_sticks_out_on_a_telephone_and_nothing_keeps_anybody_from_using_it(
    chrome: Browser, cloud: Installation, hub: Hub, scheme: str
) -> None:
    context = chrome.new_context(locale="ko-KR", viewport={"width": 390, "height": 844}, color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    cloud.record_usage()
    found, wide = {}, []
    with cloud.session("acme-member") as session:
        epoch = session.acquire("digits.ipynb", 5).epoch
        page = sign_in(context, hub, cloud, "operator", "operator")
        for path in CONSOLE_PAGES:
            page.goto(cloud.urls["dashboards"] + path)
            assert page.locator("html").get_attribute("lang") == "ko"
            wide += [path] if page.evaluate("document.documentElement.scrollWidth") > 390 else []
            faults = grave_faults(page)
            found[path] = [(fault["id"], [node["target"] for node in fault["nodes"]][:3]) for fault in faults]
        session.release(epoch)
        assert mishaps(page) == []
    context.close()
    assert wide == []
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_the_tenants_page_fits_a_telephone_in_korean(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context(locale="ko-KR", viewport={"width": 390, "height": 844})
    page = sign_in(context, hub, cloud, "acme-owner", "tenant")
    for path in ("tenant", "tenant/reports", "usage", "usage/notebook?label=digits.ipynb"):
        page.goto(cloud.urls["dashboards"] + path)
        assert page.locator("html").get_attribute("lang") == "ko"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert mishaps(page) == []
    context.close()
