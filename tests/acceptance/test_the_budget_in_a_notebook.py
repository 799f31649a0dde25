"""What is left of a budget stands in the notebook's status bar, of an installation as people start it, in a real browser."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from browsing import chromium

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

LIMIT_NANO = 7_250_000_000
WAIT_MS = 120_000


@pytest.fixture
def budget(cloud: Any) -> Iterator[None]:
    """Of acme-member, who has used next to nothing of it."""
    address, token = f"{cloud.url}/services/billing/api/budgets", cloud.person("acme-owner").new_token()
    body = {"user": "acme-member", "limit_nano": LIMIT_NANO, "on_limit": "notify", "new": True}
    with httpx.Client(headers={"Authorization": f"token {token}"}) as owner:
        answer = owner.put(address, json=body)
        assert answer.status_code == httpx.codes.OK, answer.text
        yield
        owner.delete(f"{address}/{answer.json()['id']}").raise_for_status()


@pytest.fixture
def unopened(member: Any) -> Iterator[None]:
    """The kernels of the notebooks that a browser opened are shut down, as the next one to open them expects."""
    yield
    root = "/user/acme-member/"
    for session in member.web.get(f"{root}api/sessions").raise_for_status().json():
        member.web.delete(f"{root}api/sessions/{session['id']}", headers={"X-XSRFToken": member.xsrf(root)}).raise_for_status()


@pytest.mark.usefixtures("budget", "unopened")
def test_the_status_bar_and_the_panel_tell_what_is_left_of_the_budget(cloud: Any) -> None:
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{cloud.url}/hub/login")
        page.fill("input[name=username]", "acme-member")
        page.fill("input[name=password]", cloud.logins["acme-member"])
        page.click("#login_submit")
        page.goto(f"{cloud.url}/user/acme-member/lab/tree/digits.ipynb")
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]:visible")
        page.wait_for_timeout(1000)
        prompt = page.locator(".jp-NotebookPanel:visible .jp-CodeCell .jp-InputPrompt").first
        while not re.match(r"\[\d+\]", prompt.inner_text()):
            page.locator(".jp-NotebookPanel:visible .jp-CodeCell .cm-content").first.click()
            page.keyboard.press("Control+Enter")
            page.wait_for_timeout(3000)
        status = page.locator(".forebay-status-button", has_text="left")
        status.wait_for()
        assert re.search(r"7\.2\d USD left", status.inner_text().replace("\n", " ")), status.inner_text()
        status.click()
        left = page.locator("#forebay-panel dl", has_text="Budget left")
        left.wait_for()
        assert re.search(r"Budget left\s*7\.2\d* USD", left.inner_text()), left.inner_text()
        context.close()
