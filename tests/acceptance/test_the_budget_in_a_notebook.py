"""What is left of a budget stands in the notebook's status bar, of an installation as people start it, in a real browser."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from browsing import chromium

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

LIMIT_NANO = 7_250_000_000
WAIT_MS = 120_000


def test_the_status_bar_and_the_panel_tell_what_is_left_of_the_budget(tmp_path: Path, starter: Callable[[Path], Any]) -> None:
    cloud = starter(tmp_path / "state")
    owner = cloud.person("acme-owner").new_token()
    body = {"user": "acme-member", "limit_nano": LIMIT_NANO, "on_limit": "notify", "new": True}
    answer = httpx.put(f"{cloud.url}/services/billing/api/budgets", json=body, headers={"Authorization": f"token {owner}"})
    assert answer.status_code == httpx.codes.OK, answer.text
    member = cloud.person("acme-member")
    member.spawn("dev.1gb")
    member.open_lab()
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
        assert "7.25 USD left" in status.inner_text().replace("\n", " ")
        status.click()
        left = page.locator("#forebay-panel dl", has_text="Budget left")
        left.wait_for()
        assert re.search(r"Budget left\s*7\.2\d* USD", left.inner_text()), left.inner_text()
        context.close()
    assert cloud.stop() == 0
