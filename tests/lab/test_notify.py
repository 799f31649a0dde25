"""People are told when a long cell ends, fails, waits for a device, or is stopped by a budget."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboards_installation import eventually
from kernel_client import Kernel, Shown, kernel
from lab_installation import environment
from notebook_page import NotebookPage

pytestmark = [pytest.mark.slow]

SET, SLOW, FAIL, SHOW = range(4)
WAITS = "import os, time\nwhile not os.path.exists('told'): time.sleep(0.02)"
CELLS = ("%notify after 0.1s", WAITS, "time.sleep(0.2)\nraise ValueError('no')", "%notify")
RECORD = """() => {
window.shown = [];
window.Notification = class extends window.Notification {
    constructor(title, options) { super(title, options); this.onshow = () => window.shown.push({title, ...options}); }
};
document.hasFocus = () => !window.away;
}"""
"""What the browser shows is kept. A page of Playwright's always has the focus, so that somebody is away is said here."""
ASKED = """() => {
window.asked = 0;
Object.defineProperty(Notification, 'permission', {get: () => 'default'});
const ask = Notification.requestPermission.bind(Notification);
Notification.requestPermission = () => { window.asked += navigator.userActivation.isActive ? 1 : 100; return ask(); };
}"""
"""As in a browser that nobody has asked yet: one without a window refuses from the beginning."""


@pytest.fixture(scope="module")
def notebook(cloud: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel(environment(cloud, tmp_path_factory.mktemp("notify-home"))) as found:
        found.run("import torch\nx = torch.ones(50, 50, device='cuda')\nx.sum().item()")
        yield found
        found.run("%notify off")


def notices(shown: Shown) -> list[dict[str, Any]]:
    return [said["data"] for said in shown.comms if said["data"].get("type") == "notice"]


def test_it_is_off_until_it_is_turned_on_and_says_how_it_is_set(notebook: Kernel) -> None:
    assert "Nobody tells you" in notebook.run("%notify").streams["stdout"]
    assert notices(notebook.run("import time; time.sleep(0.1)")) == []
    assert "took 60 s or more" in notebook.run("%notify on").streams["stdout"]
    assert "took 5 min or more" in notebook.run("%notify after 5m").streams["stdout"]
    assert "Nobody tells you" in notebook.run("%notify off").streams["stdout"]


@pytest.mark.parametrize("words", ["after", "after soon", "after -1s", "after 999h", "loud", "on off", "channels", "channels loud"])
def test_what_is_not_known_is_refused_in_a_sentence_and_changes_nothing(notebook: Kernel, words: str) -> None:
    error = notebook.run(f"%notify {words}").streams["stderr"]
    assert error.startswith("UsageError: ") and ("usage: %notify" in error or " is not " in error), error
    assert "Nobody tells you" in notebook.run("%notify").streams["stdout"]


def test_a_cell_that_took_long_is_told_as_it_ends_or_fails_and_one_that_did_not_is_not(notebook: Kernel) -> None:
    notebook.run("%notify after 0.2s")
    assert notices(notebook.run("1 + 1")) == []
    [ended] = notices(notebook.run("# an hour of work\ntime.sleep(0.3)"))
    assert ended["kind"] == "ended" and ended["seconds"] >= 0.3 and ended["first_line"] == "# an hour of work" and ended["why"] is None
    [failed] = notices(notebook.run("time.sleep(0.3)\n1 / 0"))
    assert (failed["kind"], failed["why"], failed["cell"]) == ("failed", "ZeroDivisionError", ended["cell"] + 1)


def test_who_stops_a_cell_needs_no_word_of_it(notebook: Kernel) -> None:
    cell = notebook.start("time.sleep(0.3)\nprint('long by now', flush=True)\ntime.sleep(60)")
    shown = notebook.until(Shown(), lambda shown: "long by now" in shown.streams.get("stdout", ""))
    notebook.interrupt()
    shown = notebook.finish(cell, shown)
    assert "KeyboardInterrupt" in shown.errors[0] and notices(shown) == []


def test_a_wait_for_a_device_is_told_once_with_its_reason(notebook: Kernel, cloud: Any) -> None:
    with cloud.device_held():
        cell = notebook.start("x.sum().item()")
        shown = notebook.until(Shown(), notices)
    shown = notebook.finish(cell, shown)
    assert [notice["kind"] for notice in notices(shown)] == ["waits", "ended"]
    assert "is held" in notices(shown)[0]["why"]


def test_a_cell_that_reached_its_own_bound_is_told_as_stopped(notebook: Kernel) -> None:
    [stopped] = notices(notebook.run("%%gpu max_time=0.2s\nwhile True: (x @ x).sum().item()"))
    assert stopped["kind"] == "budget" and "max_time" in stopped["why"]


def test_a_budget_that_stops_a_cell_is_told_whatever_the_time(notebook: Kernel, cloud: Any) -> None:
    notebook.run("%notify after 1h")
    budget = {"tenant": "acme", "user": "acme-member", "limit_nano": 1, "on_limit": "refuse", "new": True}
    row = cloud.ask("billing", "operator", "PUT", "api/budgets", json=budget)
    try:
        told: list[dict[str, Any]] = []

        def stopped() -> bool:
            told.extend(notices(notebook.run("for _ in range(40): (x @ x).sum().item()")))
            return bool(told)

        eventually(stopped)
        assert told[0]["kind"] == "budget" and "budget" in told[0]["why"].lower(), told
    finally:
        cloud.ask("billing", "operator", "DELETE", f"api/budgets/{row['id']}")
    eventually(lambda: not notebook.run("(x @ x).sum().item()").errors)  # before the pool has heard of it, other tests' cells are refused


def test_channels_are_told_too_where_they_are_on(notebook: Kernel, cloud: Any) -> None:
    channel = {"kind": "slack", "target": "https://hooks.acme.invalid/T1"}
    added = cloud.ask("billing", "acme-member", "POST", "api/notices/channels", json=channel)

    def told() -> Any:
        [row] = cloud.ask("billing", "acme-member", "GET", "api/notices/channels")
        return row["note"]

    notebook.run("%notify after 0.2s")
    notebook.run("time.sleep(0.3)")
    assert told() is None, "nobody asked for it"
    assert "Your channels are told too" in notebook.run("%notify channels on").streams["stdout"]
    notebook.run("time.sleep(0.3)\n1 / 0")
    eventually(lambda: "could not be reached" in (told() or ""))
    assert "Your channels" not in notebook.run("%notify channels off").streams["stdout"]
    cloud.ask("billing", "acme-member", "DELETE", f"api/notices/channels/{added['id']}")


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[NotebookPage]:
    """A page that may show notifications."""
    server.write("told.ipynb", *CELLS)
    found = NotebookPage(browser, server, "lab", "told.ipynb", permissions=["notifications"])
    found.page.evaluate(RECORD)
    yield found
    found.end_kernel()
    found.close()


def test_the_browser_shows_what_is_told_to_who_looks_elsewhere(page: NotebookPage, server: Any) -> None:
    page.run(SET)
    page.start(SLOW)
    page.page.evaluate("window.away = true")
    page.page.wait_for_timeout(200)
    (server.home / "work" / "told").touch()
    page.page.wait_for_function("window.shown.length === 1")
    page.run(FAIL)
    page.page.wait_for_function("window.shown.length === 2")
    ended, failed = page.page.evaluate("window.shown")
    assert re.fullmatch(r"told\.ipynb: Cell \[2\] ended after \d+ s", ended["title"]) and ended["body"] == "import os, time"
    assert failed["title"].startswith("told.ipynb: Cell [3] failed after ") and failed["title"].endswith(": ValueError")
    page.page.evaluate("window.away = false")
    page.run(FAIL)
    page.run(SHOW)
    assert page.page.evaluate("window.shown.length") == 2, "who looks at the notebook sees it anyway"


def test_the_panel_turns_it_on_and_the_notebook_keeps_that(page: NotebookPage, server: Any) -> None:
    page.run(SHOW)
    page.open_panel()
    setting = page.panel.locator(".forebay-notify")
    pages, channels = setting.locator("input").nth(0), setting.locator("input").nth(1)
    assert not pages.is_checked() and channels.is_disabled(), "off by default"
    pages.check()
    channels.check()
    assert setting.get_by_role("link").get_attribute("href") == "/services/dashboards/usage/notices"
    setting.locator("select").select_option("300")
    eventually(lambda: "took 5 min or more" in page.run(SHOW))
    wanted = {"on": True, "after_seconds": 300, "channels": True}
    eventually(lambda: _saved(page, server.home / "work" / "told.ipynb") == wanted)
    faults = Axe().run(page.page, context="#forebay-panel").response["violations"]
    assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []
    page.end_kernel()
    page.come_back()
    page.await_kernel()
    eventually(lambda: "took 5 min or more" in page.run(SHOW))
    assert "Your channels are told too" in page.run(SHOW)


def _saved(page: NotebookPage, file: Path) -> Any:
    """What the notebook has of it, once it is saved; nothing while the file is being written."""
    page.save()
    try:
        return json.loads(file.read_text())["metadata"].get("forebay_notify")
    except ValueError:
        return None


def test_permission_is_asked_for_by_a_click_alone(browser: Any, server: Any) -> None:
    server.write("click.ipynb", *CELLS)
    page = NotebookPage(browser, server, "lab", "click.ipynb")
    try:
        page.page.evaluate(ASKED)
        page.run(SET)
        page.open_panel()
        allow = page.panel.get_by_role("button", name="Allow notifications in this browser")
        allow.wait_for()
        assert page.page.evaluate("window.asked") == 0, "%notify cannot ask"
        allow.click()
        page.page.wait_for_function("window.asked === 1")
    finally:
        page.end_kernel()
        page.close()
