"""What removes something asks first: each button of all pages, and one of them in a real browser, with scripts and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import forebay_dashboards
import httpx
import pytest
from browsing import chromium, mishaps, sign_in
from dashboards_installation import Hub, Installation
from playwright.sync_api import Browser

TEMPLATES = Path(forebay_dashboards.__file__).parent / "templates"
PAGES = [path for path in TEMPLATES.rglob("*.html") if path.name != "question.html"]
"""All but the one that is the question."""
BUTTON = re.compile(r"<button\b((?:[^>{]|\{\{.*?\}\}|\{%.*?%\})*)>", re.DOTALL)


KNOWN_TO_THE_SERVER = re.compile(r'name="remove"|name="action" value="remove"')
"""As the server tells what removes something."""


def removing() -> list[tuple[str, str]]:
    """The page and the attributes of each button that removes something, or looks as if it did."""
    found = [(path.name, match[1]) for path in sorted(PAGES) for match in BUTTON.finditer(path.read_text("utf-8"))]
    return [(name, one) for name, one in found if re.search(r'(name|value)="remove"|class="grave"', one)]


def test_every_button_of_a_page_that_removes_something_asks() -> None:
    """An action on a lease, a session, a device or a node is asked by a page of its own, whose button comes second."""
    assert len(removing()) >= 8
    assert [(name, one) for name, one in removing() if " data-ask" not in one or not KNOWN_TO_THE_SERVER.search(one)] == []


def test_every_form_that_removes_something_has_the_question() -> None:
    for path in PAGES:
        asking = [part for part in re.split(r"<form\b", path.read_text("utf-8"))[1:] if " data-ask" in part.partition("</form>")[0]]
        without = [part for part in asking if part.count('name="question" value="{{ _(') != 1]
        assert not without, path.name


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


def test_without_scripts_a_page_asks_and_says_no_on_its_other_button(browser: Browser, cloud: Installation, hub: Hub) -> None:
    def there() -> bool:
        return any(row["name"] == "dev.6gb" for row in cloud.ask("pool", "operator", "GET", "api/flavors"))

    cloud.ask("pool", "operator", "PUT", "api/flavors/dev.6gb", json={"memory_bytes": 6 << 30, "equivalents": [{"model": "cpu-dev"}]})
    page = browser.new_context(java_script_enabled=False).new_page()
    hub.sign_in_as = "operator"
    for answer in ("Cancel", "Remove"):
        page.goto(cloud.urls["dashboards"] + "operator/flavors")
        page.get_by_role("link", name="Edit dev.6gb").click()
        page.get_by_role("button", name="Remove the flavor").click()
        assert page.get_by_role("heading", level=1).inner_text() == "Remove the flavor dev.6gb? Nobody gets it any more."
        assert there()
        page.get_by_role("link" if answer == "Cancel" else "button", name=answer, exact=True).click()
        assert there() is (answer == "Cancel")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("usage/notices", {"remove": "1"}),
        ("tenant/reports", {"remove": "1", "question": "<script>alert(1)</script>"}),
        ("tenant/alerts", {"remove": "1", "action": "keep"}),
        ("jobs", {"remove": "1", "asked_for": "1"}),
        ("tenant/budgets/terms/budget-1/edit", {"action": "remove", "stamp": "ü\0"}),
        ("tenant/budgets/terms/budget-1/edit", [("action", "keep"), ("action", "remove")]),
    ],
)
def test_a_form_that_removes_is_asked_whatever_else_it_says(cloud: Installation, path: str, form: Any) -> None:
    headers = {"Authorization": f"token {cloud.hub.tokens['acme-owner']}"}
    body = urlencode(form)
    asked = httpx.post(
        cloud.urls["dashboards"] + path, content=body, headers={**headers, "Content-Type": "application/x-www-form-urlencoded"}, timeout=60
    )
    assert asked.status_code == 200 and 'name="asked" value="1"' in asked.text, asked.text
    assert "<script>alert" not in asked.text
