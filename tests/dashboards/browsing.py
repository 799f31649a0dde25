"""A browser for tests: Debian's Chromium, driven by Playwright, signed in as somebody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboards_installation import Hub, Installation
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CONSOLE_PAGES = (
    "usage", "operator", "operator/leases", "operator/leases?q=nobody+has+this", "operator/queue", "operator/sessions",
    "operator/nodes", "operator/timeline", "operator/devices", "operator/tenants", "operator/tenants?q=nobody+has+this",
    "operator/tenant/acme", "operator/usage", "operator/alerts", "operator/invoices",
    "operator/payments", "operator/flavors", "operator/flavors/new", "operator/suggestions", "operator/surcharges",
    "operator/price-list", "operator/plans", "operator/quotas", "operator/shares", "operator/audit", "operator/search?q=acme",
)  # fmt: skip
"""What an operator may see."""
GRAVE = ("serious", "critical")
"""Faults that keep somebody from using a page, as axe-core ranks them."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window; skips where there is none."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def sign_in(context: BrowserContext, hub: Hub, cloud: Installation, who: str, path: str = "usage", answers: bool = True) -> Page:
    """A tab of ``who``'s at a page of the dashboards; whatever goes wrong in its scripts fails the test that asks :func:`mishaps`.

    Who is asked whether something is to be removed says yes, unless the test ``answers`` itself.
    """
    page = context.new_page()
    if answers:
        page.on("dialog", lambda dialog: dialog.accept())
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(f"{message.text} {message.location['url']}") if message.type == "error" else None)
    _MISHAPS[page] = found
    hub.sign_in_as = who
    page.goto(cloud.urls["dashboards"] + path)
    page.wait_for_selector("#connection[data-state=live]")
    return page


def grave_faults(page: Page) -> list[dict[str, Any]]:
    """What axe-core finds that keeps somebody from using the page."""
    return [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in GRAVE]


def mishaps(page: Page) -> list[str]:
    """What went wrong in the page's scripts, or was refused by its policy."""
    return _MISHAPS[page]


_MISHAPS: dict[Page, list[str]] = {}
