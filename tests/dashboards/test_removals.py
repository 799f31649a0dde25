"""What removes something asks first: each button of all pages, and one of them in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay_dashboards
import pytest
from browsing import chromium, mishaps, sign_in
from dashboards_installation import Hub, Installation
from playwright.sync_api import Browser

TEMPLATES = Path(forebay_dashboards.__file__).parent / "templates"
BUTTON = re.compile(r"<button\b((?:[^>{]|\{\{.*?\}\}|\{%.*?%\})*)>", re.DOTALL)


def removing() -> list[tuple[str, str]]:
    """The page and the attributes of each button that removes something, or looks as if it did."""
    found = [(path.name, match[1]) for path in sorted(TEMPLATES.rglob("*.html")) for match in BUTTON.finditer(path.read_text("utf-8"))]
    return [(name, one) for name, one in found if re.search(r'(name|value)="remove"|class="grave"', one)]


def test_every_button_of_a_page_that_removes_something_asks() -> None:
    """An action on a lease, a session, a device or a node is asked by a page of its own, whose button comes second."""
    assert len(removing()) >= 8
    assert [(name, one) for name, one in removing() if 'data-ask="{{ _(' not in one] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_a_flavor_goes_only_if_the_question_is_answered_yes(browser: Browser, cloud: Installation, hub: Hub) -> None:
    cloud.ask("pool", "operator", "PUT", "api/flavors/dev.7gb", json={"memory_bytes": 7 << 30, "equivalents": [{"model": "cpu-dev"}]})
    page = sign_in(browser.new_context(), hub, cloud, "operator", "operator/flavors", answers=False)
    asked: list[str] = []

    def answer(yes: bool) -> Any:
        def told(dialog: Any) -> None:
            asked.append(dialog.message)
            dialog.accept() if yes else dialog.dismiss()

        return told

    def there() -> bool:
        return any(row["name"] == "dev.7gb" for row in cloud.ask("pool", "operator", "GET", "api/flavors"))

    page.get_by_role("link", name="Edit dev.7gb").or_(page.get_by_role("button", name="Edit dev.7gb")).click()
    page.once("dialog", answer(False))
    page.get_by_role("button", name="Remove the flavor").click()
    assert asked == ["Remove the flavor dev.7gb? Nobody gets it any more."] and there()
    page.once("dialog", answer(True))
    page.get_by_role("button", name="Remove the flavor").click()
    page.get_by_text("dev.7gb is removed").wait_for()
    assert len(asked) == 2 and not there() and mishaps(page) == []
