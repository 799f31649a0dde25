"""A notebook that is shared, in a real browser: read by who has the link, by nobody of another tenant, run by nobody, and taken back."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from browsing import grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation
from playwright.sync_api import Browser, Frame, Page

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = """<!DOCTYPE html><html><head><base target="_blank"><style>h1 { color: rgb(1, 2, 3) }</style></head><body>
<h1>손실 0.5</h1><a href="ELSEWHERE">elsewhere</a>
<img id="drawn" src="data:image/png;base64,PIXEL"><img id="loaded" src="ELSEWHEREstatic/icon.svg">
<form action="ELSEWHEREshared" method="post"><input name="remove" value="1"><button>Send</button></form>
<script>document.title = "ran"; parent.postMessage("ran", "*")</script><img src="x" onerror="document.title = 'ran'">
<iframe src="ELSEWHEREusage"></iframe></body></html>"""


def share(cloud: Installation, who: str = "acme-member", page: str = "<h1>손실 0.5</h1>", name: str = "digits.ipynb") -> tuple[int, str]:
    """The number, and the path of the link."""
    row = cloud.ask("pool", who, "POST", "api/shared-notebooks", json={"name": name, "page": page})
    return row["id"], f"shared/{row['id']}?key={row['key']}"


def notebook(page: Page) -> Frame:
    """The frame that the notebook is in, loaded."""
    page.frame_locator("iframe.notebook").locator("h1").wait_for()
    (frame,) = [frame for frame in page.frames if frame.parent_frame == page.main_frame]
    return frame


def answer(cloud: Installation, hub: Hub, who: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(cloud.urls["dashboards"] + path, headers={"Authorization": f"token {hub.tokens[who]}", **headers})


def test_another_member_reads_it_by_the_link_until_it_is_taken_back(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    number, link = share(cloud)
    reader, maker = chrome.new_context(viewport=WIDE, locale="en-GB"), chrome.new_context(viewport=WIDE, locale="en-GB")
    page = sign_in(reader, hub, cloud, "acme-owner", link)
    assert page.locator("h1").inner_text() == "digits.ipynb"
    assert "its cells ran on the account of acme-member, and reading costs nothing" in page.locator("main").inner_text()
    assert notebook(page).locator("h1").inner_text() == "손실 0.5"
    assert mishaps(page) == []
    mine = sign_in(maker, hub, cloud, "acme-member", "shared")
    mine.get_by_role("link", name="digits.ipynb").first.click()
    assert notebook(mine).locator("h1").inner_text() == "손실 0.5", "who shares it needs no key"
    mine.go_back()
    mine.get_by_role("button", name=f"Take digits.ipynb back, number {number}").click()
    mine.wait_for_selector("text=It is shared no longer")
    assert mine.get_by_role("button", name=f"number {number}", exact=False).count() == 0
    page.reload()
    assert "This link opens nothing for you" in page.locator("main").inner_text()
    assert answer(cloud, hub, "acme-owner", link).status_code == httpx.codes.NOT_FOUND
    reader.close()
    maker.close()


@pytest.mark.parametrize("who", ["globex-owner", "operator"])
def test_nobody_of_another_tenant_opens_it(chrome: Browser, cloud: Installation, hub: Hub, who: str) -> None:
    number, link = share(cloud)
    context = chrome.new_context(locale="ko-KR")
    page = context.new_page()
    hub.sign_in_as = who
    opened = page.goto(cloud.urls["dashboards"] + link)
    assert opened is not None and opened.status in (httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN)
    assert page.locator("iframe").count() == 0 and "손실" not in page.content()
    for path in (link, link.replace("?", "/page?"), f"shared/{number}/page"):
        refused = answer(cloud, hub, who, path)
        assert refused.status_code == opened.status and "손실" not in refused.text
    context.close()


def test_a_notebook_runs_sends_and_loads_nothing_and_knows_no_origin(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    number, link = share(cloud, "acme-owner", HOSTILE.replace("ELSEWHERE", cloud.urls["dashboards"]).replace("PIXEL", PIXEL))
    context = chrome.new_context(viewport=WIDE, locale="en-GB")
    page = sign_in(context, hub, cloud, "acme-member", link)
    frame = notebook(page)
    assert frame.evaluate("[document.title, origin, document.querySelector('#drawn').naturalWidth > 0]") == ["", "null", True]
    assert frame.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(1, 2, 3)", "it has its own style"
    assert frame.evaluate("document.querySelector('#loaded').naturalWidth") == 0
    frame.get_by_role("button", name="Send").click()
    assert page.evaluate("document.title").startswith("digits.ipynb")
    with context.expect_page() as opened:
        frame.get_by_role("link", name="elsewhere").click()
    assert opened.value.evaluate("opener") is None
    assert cloud.ask("pool", "acme-owner", "GET", f"api/shared-notebooks/{number}")["id"] == number
    alone = context.new_page()
    alone.goto(cloud.urls["dashboards"] + link.replace("?", "/page?"))
    assert alone.evaluate("[document.title, origin]") == ["", "null"], "opened by itself it is held, too"
    policy = answer(cloud, hub, "acme-member", link.replace("?", "/page?")).headers["Content-Security-Policy"]
    assert "allow-scripts" not in policy and "allow-same-origin" not in policy and "default-src 'none'" in policy
    context.close()


def test_an_owner_sees_what_members_share_and_takes_it_back(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    number, link = share(cloud, name="secrets.ipynb")
    context = chrome.new_context(viewport=WIDE, locale="en-GB")
    page = sign_in(context, hub, cloud, "acme-owner", "tenant/shared")
    row = page.locator("tr", has_text=f"#{number}")
    assert "acme-member" in row.inner_text() and row.get_by_role("link").count() == 0
    row.get_by_role("button").click()
    page.wait_for_selector("text=It is shared no longer")
    assert answer(cloud, hub, "acme-member", link).status_code == httpx.codes.NOT_FOUND
    deeds = cloud.ask("pool", "operator", "GET", "api/audit")["entries"]
    assert (deeds[0]["who"], deeds[0]["action"]) == ("acme-owner", "notebook.unshare")
    context.close()
    assert answer(cloud, hub, "acme-billing", "tenant/shared").status_code == httpx.codes.FORBIDDEN


@pytest.mark.parametrize(
    ("screen", "scheme", "locale", "words"),
    [(WIDE, "light", "en-GB", ("Notebooks I share", "Take back")), (NARROW, "dark", "ko-KR", ("내가 공유한 노트북", "공유 해제"))],
)
def test_the_pages_fit_the_screen_in_their_readers_language(
    chrome: Browser, cloud: Installation, hub: Hub, screen: Any, scheme: Any, locale: str, words: tuple[str, str]
) -> None:
    _, link = share(cloud, "acme-owner", name="a_notebook_with_a_long_name_" + "x" * 80 + ".ipynb")
    context = chrome.new_context(viewport=screen, color_scheme=scheme, locale=locale)
    page = sign_in(context, hub, cloud, "acme-owner", "shared")
    assert page.locator("h1").inner_text() == words[0]
    assert page.locator("td button").first.inner_text() == words[1]
    for path in ("shared", "tenant/shared", link):
        page.goto(cloud.urls["dashboards"] + path)
        assert grave_faults(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"], path
    assert mishaps(page) == []
    context.close()
