"""axe-core finds nothing serious on any page of the operator's console, in light and dark, on a wide screen and on a telephone."""

from __future__ import annotations

import pytest
from browsing import CONSOLE_PAGES, grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation, eventually
from playwright.sync_api import Browser

SCREENS = [
    (1440, "light"),
    pytest.param(390, "dark", marks=pytest.mark.full_sweep),
    pytest.param(1440, "dark", marks=pytest.mark.full_sweep),
    pytest.param(390, "light", marks=pytest.mark.full_sweep),
]

LONGEST = "longer than usual; before it 2 run, since 12 min 40 s"
"""What may stand where a wait's end is estimated."""


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_nothing_keeps_anybody_from_using_the_console(chrome: Browser, cloud: Installation, hub: Hub, width: int, scheme: str) -> None:
    context = chrome.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    found = {}
    with cloud.session("acme-member") as first, cloud.session("globex-owner") as second, cloud.session("acme-owner") as third:
        epochs = [first.acquire("one.ipynb", 1).epoch, second.acquire("two.ipynb", 2).epoch]
        third.ask("three.ipynb", 3)
        eventually(lambda: "three.ipynb" in cloud.get("operator", "operator/queue").text)
        page = sign_in(context, hub, cloud, "operator", "operator")
        for path in CONSOLE_PAGES:
            page.goto(cloud.urls["dashboards"] + path)
            faults = grave_faults(page)
            found[path] = [(fault["id"], [node["target"] for node in fault["nodes"]][:3]) for fault in faults]
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than the screen"
        page.goto(cloud.urls["dashboards"] + "operator/queue")
        page.locator("[data-label=Estimate]").first.evaluate("(cell, said) => { cell.textContent = said }", LONGEST)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "a wait longer than usual makes it wider than the screen"
        page.goto(cloud.urls["dashboards"] + "operator/tenant/acme")
        for key in ("budget", "quota", "plan", "currency", "tax", "credit"):
            page.click(f"#edit-{key}")
            page.wait_for_selector(f"#term-{key}[data-editing]")
        page.fill("#tax-rate", "much")
        page.press("#tax-rate", "Enter")
        page.wait_for_selector("#problem-tax-rate")
        faults = grave_faults(page)
        found["terms"] = [(fault["id"], [node["target"] for node in fault["nodes"]][:3]) for fault in faults]
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the forms are wider than the screen"
        assert [mishap for mishap in mishaps(page) if "400" not in mishap] == [], "the browser's console tells of the refusal itself"
        mishaps(page).clear()
        page.goto(cloud.urls["dashboards"] + "operator/nodes")
        page.click("a[id^='close-']")
        page.wait_for_selector("dialog[open] #cause")
        found["dialog"] = [(fault["id"],) for fault in grave_faults(page)]
        assert mishaps(page) == []
        for session, epoch in zip((first, second), epochs, strict=True):
            session.release(epoch)
    context.close()
    assert {path: faults for path, faults in found.items() if faults} == {}
