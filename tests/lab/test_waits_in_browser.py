"""What a person reads of a wait and of what is free: the same in the cell's line and in the panel, and nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from notebook_page import NotebookPage

pytestmark = [pytest.mark.slow]

USE = "import torch\nprint(torch.ones(3, device='cuda').sum().item())"
ON_CPU = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
CUT = """node => [...node.querySelectorAll('th, td')].filter(one => one.scrollWidth > one.clientWidth + 1
|| one.getBoundingClientRect().right > node.closest('#forebay-panel').getBoundingClientRect().right).map(one => one.innerText)"""


@pytest.fixture(scope="module")
def notebook(browser: Any, server: Any) -> Iterator[NotebookPage]:
    server.write("waits.ipynb", USE, ON_CPU)
    page = NotebookPage(browser, server, "lab", "waits.ipynb")
    yield page
    page.close()


def test_the_panel_and_the_line_below_the_cell_have_one_estimate_in_the_same_words(notebook: NotebookPage, cloud: Any) -> None:
    notebook.run(0)
    with cloud.device_held():
        notebook.start(0)
        notebook.await_status("queued")
        notebook.open_panel()
        line, panel = notebook.cell(0).locator(".forebay-waiting"), notebook.panel.locator(".forebay-reason")
        line.wait_for()
        panel.wait_for()
        for place in (".forebay-waiting", ".forebay-reason"):
            notebook.page.wait_for_function(f"() => document.querySelector('{place}')?.innerText.includes('longer than usual')")
        assert "main/cpu" not in line.inner_text() + panel.inner_text(), "people know no device by its name"
        offers = notebook.panel.locator(".forebay-flavor-more").all_inner_texts()
        assert any("all are held" in offer or "wait: " in offer for offer in offers), offers
    notebook.ended(0)


def test_a_cell_that_uses_no_device_is_on_the_cpu_and_free(notebook: NotebookPage, server: Any) -> None:
    notebook.await_status("resident")
    notebook.open_panel()
    notebook.start(1)
    notebook.await_status("on the CPU, free")
    assert "nothing is billed until it uses cuda:0" in notebook.panel.inner_text()
    (server.home / "work" / "go").write_text("")
    notebook.ended(1)
    notebook.await_status("resident")


def test_what_a_cell_takes_if_it_runs_again_is_not_cut_off_at_the_panels_width(notebook: NotebookPage) -> None:
    for _ in range(2):
        notebook.run(0)
    notebook.cell(0).click()
    notebook.open_panel()
    table = notebook.panel.locator(".forebay-rerun table")
    table.wait_for()
    assert table.evaluate(CUT) == []
    names = notebook.panel.locator(".forebay-flavor-name").all_inner_texts()
    assert [name for name in names if name.startswith("dev.")] == ["dev.1gb", "dev.4gb"], "by their memory"
