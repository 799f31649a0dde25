"""A notebook is shared from JupyterLab's menu, as it is now, and read by another member."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from notebook_page import NotebookPage

pytestmark = [pytest.mark.slow]


def test_a_notebook_is_shared_from_the_menu_with_what_its_cells_showed(browser: Any, server: Any, cloud: Any) -> None:
    server.write("Losses 2.ipynb", "import sys, torch\nprint(sys.prefix)\ntorch.ones(3, device='cuda').sum().item()")
    opened = NotebookPage(browser, server, "lab", "Losses 2.ipynb", permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    opened.run(0)
    opened.await_output(0, "USD")
    opened.await_output(0, f"{server.home}/.forebay/environments/default")  # where everybody's kernels run
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name="Share a Read-Only Copy…").click()
    dialog = page.locator(".jp-Dialog")
    assert "Losses 2.ipynb" in dialog.inner_text()
    dialog.locator("select").select_option(label="Days: 7")
    dialog.get_by_role("button", name="Share", exact=True).click()
    field = dialog.locator("input[readonly]")
    field.wait_for()
    link = field.input_value()
    found = re.fullmatch(re.escape(server.url) + r"/services/dashboards/shared/(\d+)\?key=([\w-]{43})", link)
    assert found, link
    grave = [one["id"] for one in Axe().run(page, ".jp-Dialog").response["violations"] if one["impact"] in ("serious", "critical")]
    assert grave == []
    dialog.get_by_role("button", name="Copy the link").click()
    assert page.evaluate("navigator.clipboard.readText()") == link
    shown = cloud.ask("pool", "acme-owner", "GET", f"api/shared-notebooks/{found[1]}/page?key={found[2]}")["page"]
    assert "3.0" in shown and "USD" in shown, "what the cell showed, and its cost"
    row = cloud.ask("pool", "acme-owner", "GET", f"api/shared-notebooks/{found[1]}?key={found[2]}")
    assert (row["name"], row["user"]) == ("Losses 2.ipynb", "acme-member")
    assert row["expires_at_ns"] - row["shared_at_ns"] == 7 * 86_400 * 10**9
    opened.close()
