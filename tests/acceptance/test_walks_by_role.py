"""A member, an owner and an operator each go through what their role works with, in a real browser, from sign-in to sign-out.

Each page fits the screen, keeps nobody from using it, and nothing goes wrong in its scripts.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import nbformat
import pytest
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from browsing import CONSOLE_PAGES, chromium, grave_faults

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

DASHBOARDS = "/services/dashboards/"
PASSWORD = "correct horse battery"
WAIT_MS = 60_000
COMPUTE_MS = 240_000
"""The first cell imports PyTorch and begins a worker, on a host that does other things too."""
PRESS_AGAIN_MS = 1000
WIDE, LAPTOP = 1440, 900
OWNERS = ("tenant", "tenant/people", "tenant/budgets", "tenant/alerts", "tenant/reports", "tenant/bills", "usage", "jobs", "help")
MEMBERS = ("usage", "usage/timeline", "usage/notices", "usage/notebook?label=walk.ipynb", "jobs", "help")
SCREENS = [
    pytest.param((WIDE, "en", "light"), id="wide"),
    pytest.param((390, "ko", "dark"), id="telephone"),
    pytest.param((WIDE, "ko", "dark"), id="wide-dark"),
    pytest.param((390, "en", "light"), id="telephone-light"),
]


@dataclass
class Walk:
    """Somebody's browser, and what it met that it should not have."""

    page: Page
    language: str
    met: list[str] = field(default_factory=list)

    def look(self) -> None:
        """At the page as it is."""
        page, width = self.page, (self.page.viewport_size or {"width": 0})["width"]
        where = page.url.partition("://")[2].partition("/")[2]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            self.met.append(f"{where} is wider than the screen")
        if page.locator("html").get_attribute("lang") != self.language:
            self.met.append(f"{where} is in another language")
        self.met += [f"{where}: {fault['id']} {[node['target'] for node in fault['nodes']][:3]}" for fault in grave_faults(page)]

    def visit(self, path: str) -> None:
        answer = self.page.goto(path)
        assert answer is not None and answer.ok, f"{path}: {answer and answer.status}"
        self.look()

    def sign_in(self, name: str, password: str) -> None:
        """By the page, once in vain."""
        self.visit("/hub/login")
        for typed in ("wrong", password):
            self.page.fill("#username_input", name)
            self.page.fill("#password_input", typed)
            self.page.click("#login_submit")
            if typed == "wrong":
                self.page.wait_for_selector(".login_error")
                self.look()
        self.page.wait_for_url(lambda address: "/hub/login" not in address)

    def arrive(self, cloud: Any, name: str, place: str, paths: Sequence[str]) -> None:
        """Signs in, comes to the page that the role begins at, and looks at others of its pages."""
        self.sign_in(name, cloud.logins[name])
        assert self.page.url == f"{cloud.url}{DASHBOARDS}{place}"
        for path in paths:
            self.visit(path)

    def sign_out(self) -> None:
        self.visit("/hub/home")
        if not self.page.locator("#logout").is_visible():
            self.page.click(".navbar-toggler")
            self.page.wait_for_selector(".navbar-collapse.show")  # it unfolds for a while, and what is in it moves
        self.page.click("#logout")
        self.page.wait_for_selector("#login_submit")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def walk(screen: tuple[int, str, Literal["light", "dark"]], browser: Browser, cloud: Any) -> Iterator[Walk]:
    width, language, scheme = screen
    context = browser.new_context(
        viewport={"width": width, "height": LAPTOP}, locale=language, color_scheme=scheme, base_url=cloud.url, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    walk = Walk(page, language)
    page.on("pageerror", lambda error: walk.met.append(str(error)))
    yield walk
    context.close()
    assert walk.met == []


@pytest.mark.parametrize("screen", [(390, "ko", "dark")])
def test_the_front_door_on_a_telephone_in_korean_and_its_switch_of_the_language(walk: Walk, cloud: Any) -> None:
    page = walk.page
    walk.arrive(cloud, "operator", "operator", ("/hub/home", "/hub/token", f"{DASHBOARDS}help"))
    page.goto("/hub/nothing")
    walk.look()
    page.goto("/hub/home")
    walk.language = "en"
    page.click("button[name=language][value=en]")
    page.wait_for_selector("html[lang=en]")
    assert page.url == f"{cloud.url}/hub/home"
    walk.look()
    walk.sign_out()


@pytest.mark.full_sweep
@pytest.mark.parametrize("screen", SCREENS)
def test_a_member_joins_computes_submits_a_job_and_reads_the_bill(walk: Walk, cloud: Any) -> None:
    name = f"walker-{len(cloud.logins)}"
    _join(walk, cloud, name)
    page, own = walk.page, f"/user/{name}/"
    walk.look()
    page.check("#flavor-dev\\.4gb")
    page.click("#spawn_form button[type=submit]")
    if "/spawn-pending/" in page.url:
        walk.look()
    page.wait_for_url(f"**{own}lab**")
    _compute(page, own)

    for path in MEMBERS:
        walk.visit(DASHBOARDS + path)
    page.goto(f"{DASHBOARDS}usage")
    page.wait_for_selector("section[aria-labelledby=records] tbody tr:has-text('walk.ipynb')")
    _submit(page, own)
    walk.look()

    walk.visit("/hub/home")
    page.click("#stop")
    page.wait_for_selector("#stop", state="detached")
    walk.sign_out()


def _join(walk: Walk, cloud: Any, name: str) -> None:
    """By an owner's invitation; arrives at the choice of a device."""
    body = {"role": "member", "address": None, "days": 1}
    made = cloud.person("acme-owner").hub_api("POST", "forebay/tenants/acme/invitations", body).raise_for_status().json()
    walk.visit(made["path"])
    for part, typed in (("name", name), ("password", PASSWORD), ("again", PASSWORD)):
        walk.page.fill(f"#{part}", typed)
    walk.page.click("form:has(#name) button[type=submit]")
    walk.page.wait_for_url("**/hub/spawn")


def _write(page: Page, own: str, name: str, kind: str, content: object) -> None:
    """Puts a file into the walker's home, as Lab does."""
    token = next(cookie["value"] for cookie in page.context.cookies() if (cookie["name"], cookie["path"]) == ("_xsrf", own))
    body = {"type": kind, "format": "json" if kind == "notebook" else "text", "content": content}
    assert page.request.put(f"{own}api/contents/{name}", data=body, headers={"X-XSRFToken": token}).ok


def _compute(page: Page, own: str) -> None:
    """A notebook of one cell, whose tensor is on the device. Lab is made for a wide screen."""
    size = page.viewport_size
    page.set_viewport_size({"width": WIDE, "height": LAPTOP})
    cell = nbformat.v4.new_code_cell("import torch\nprint(torch.ones(500, 500, device='cuda').sum().item())")
    kernel = {"name": "python3", "display_name": "Python 3 (virtual GPU)"}
    _write(page, own, "walk.ipynb", "notebook", nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel}))
    page.goto(f"{own}lab/tree/walk.ipynb")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]:visible")
    first, asked = page.locator(".jp-NotebookPanel:visible .jp-CodeCell").first, page.locator(".jp-Dialog .jp-mod-accept")
    while first.locator(".jp-InputPrompt").inner_text() == "[ ]:":  # a key that comes too early is lost, or has Lab ask for the kernel
        if asked.is_visible():
            asked.click()
        else:
            first.locator(".cm-content").click()
            page.keyboard.press("Control+Enter")
        page.wait_for_timeout(PRESS_AGAIN_MS)
    first.locator(".jp-OutputArea-output", has_text="250000.0").wait_for(timeout=COMPUTE_MS)
    _record(page, own)
    if size is not None:
        page.set_viewport_size(size)


def _record(page: Page, own: str) -> None:
    """The environment, into the notebook that is open and has something that is typed and not saved."""
    page.locator(".jp-NotebookPanel:visible .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("  # not saved yet")
    page.click(".lm-MenuBar-itemLabel:text('File')")
    page.click(".lm-Menu-itemLabel:text('Record This Environment')")
    page.locator(".Toastify__toast", has_text="Recorded in the notebook").wait_for()
    page.locator(".jp-NotebookPanel:visible .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+s")
    deadline, kept = time.monotonic() + WAIT_MS / 1000, {"metadata": {}, "cells": []}
    while "forebay" not in kept["metadata"] and time.monotonic() < deadline:
        page.wait_for_timeout(200)
        kept = page.request.get(f"{own}api/contents/walk.ipynb").json()["content"]
    assert kept["metadata"]["forebay"] == {"python": platform.python_version(), "requirements": []}
    assert kept["cells"][0]["source"].endswith("# not saved yet")


def _submit(page: Page, own: str) -> None:
    """A script of one line, which runs to its end."""
    _write(page, own, "walk.py", "file", "print('done by a job')\n")
    page.goto(f"{DASHBOARDS}jobs")
    page.fill("#file", "walk.py")
    page.click("form:has(#file) button.main")
    page.wait_for_selector(".printed pre:has-text('done by a job')")


@pytest.mark.full_sweep
@pytest.mark.parametrize("screen", SCREENS)
def test_an_owner_invites_sets_a_budget_and_an_alert_and_reads_what_the_tenant_used(walk: Walk, cloud: Any) -> None:
    page = walk.page
    walk.arrive(cloud, "acme-owner", "tenant", [DASHBOARDS + path for path in OWNERS])
    page.goto(f"{DASHBOARDS}tenant/people")
    page.click("form:has(#invitation-address) button")
    page.wait_for_selector("#link")
    walk.look()
    page.click("button[name=revoke] >> nth=0")
    walk.visit(f"{DASHBOARDS}tenant/people/acme-member")
    walk.visit(f"{DASHBOARDS}tenant/budgets")
    page.click("a[data-edits]")
    page.wait_for_selector("#budget-limit")
    page.fill("#budget-limit", "1000")
    page.click("#term-budget button.main")
    page.wait_for_selector("tr:has(meter)")
    walk.look()
    page.click("tr:has(meter) a[data-edits] >> nth=0")
    page.click("tr[data-editing] button[name=action]")
    page.wait_for_selector("tr[data-editing]", state="detached")
    page.goto(f"{DASHBOARDS}tenant/budgets")
    assert page.locator("tr:has(meter)").count() == 0
    walk.sign_out()


@pytest.mark.full_sweep
@pytest.mark.parametrize("screen", SCREENS)
def test_an_operator_goes_through_the_console_and_closes_a_device_for_a_while(walk: Walk, cloud: Any) -> None:
    page = walk.page
    walk.arrive(cloud, "operator", "operator", [DASHBOARDS + path for path in CONSOLE_PAGES])
    page.goto(f"{DASHBOARDS}operator/nodes")
    page.click("a[id^='close-'] >> nth=0")
    page.wait_for_selector("dialog[open] #cause")
    walk.look()
    page.fill("#cause", "walked by")
    page.click("dialog[open] button.main")
    page.wait_for_selector("dialog .saved")
    page.click("dialog [data-close]")
    page.click("a[id^='open-'] >> nth=0")
    page.click("dialog[open] button.main")
    page.wait_for_selector("dialog .saved")
    page.wait_for_selector("a[id^='open-']", state="detached")
    walk.visit(f"{DASHBOARDS}operator/audit")
    assert "walked by" in page.inner_text("main")
    walk.sign_out()
