"""A closed tab loses nothing: what a cell shows meanwhile is there when the notebook is opened again, in another browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from dashboards_installation import eventually
from notebook_page import NotebookPage

pytestmark = [pytest.mark.slow]

IMPORT, STEPS, ASK, FOREVER, DISPLAYS, DEVICE, FAIL, KEPT, LARGE = range(9)
STEP_COUNT = 8
CELLS = (
    "import os, time\ndef wait(gate):\n    while not os.path.exists(gate): time.sleep(0.02)",
    f"for step in range({STEP_COUNT}):\n    wait(f'step{{step}}')\n    print('step', step)\n'done'",
    "name = input('Who? ')\nprint('hello', name)",
    "print('begun')\nwait('never')",
    (
        "from IPython.display import HTML, clear_output, display\nprint('gone')\nclear_output(wait=True)\nprint('kept')\n"
        "bar = display(HTML('<b>50 %</b>'), display_id=True)\nwait('changed')\nbar.update(HTML('<b>100 %</b>'))"
    ),
    "import torch\nx = torch.ones(50, 50, device='cuda')\nprint('begun')\nwhile True: (x @ x).sum().item()",
    "1 / 0",
    "from forebay.notebook import presenter\nprint('kept', [run['cell_id'] for run in presenter.transcript.heads()])",
    "wait('large')\nfor row in range(30_000): print('row', row)",
)


def opened(browser: Any, server: Any, kind: str) -> Iterator[NotebookPage]:
    """A notebook of which nothing is saved but its code; its first cell has run."""
    server.write(f"long-{kind}.ipynb", *CELLS)
    page = NotebookPage(browser, server, kind, f"long-{kind}.ipynb")
    page.run(IMPORT)
    yield page
    page.end_kernel()
    page.close()


@pytest.fixture(scope="module")
def notebook(browser: Any, server: Any) -> Iterator[NotebookPage]:
    """In JupyterLab."""
    yield from opened(browser, server, "lab")


@pytest.fixture
def classic(browser: Any, server: Any) -> Iterator[NotebookPage]:
    """In Notebook 7."""
    yield from opened(browser, server, "notebook")


def go(server: Any, *gates: str) -> None:
    """Lets cells go on that wait for these files."""
    for gate in gates:
        (server.home / "work" / gate).touch()


def steps(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"step (\d+)", text)]


def check_that_progress_comes_back(notebook: NotebookPage, server: Any) -> None:
    for gate in (server.home / "work").glob("step*"):
        gate.unlink()
    notebook.start(STEPS)
    go(server, "step0", "step1")
    notebook.await_output(STEPS, "step 1")
    notebook.come_back()
    notebook.await_output(STEPS, "step 1")
    assert notebook.prompt(STEPS) == "[*]:" and steps(notebook.output(STEPS)) == [0, 1]
    go(server, "step2")
    notebook.await_output(STEPS, "step 2")
    assert notebook.prompt(STEPS) == "[*]:", "the stream goes on"
    go(server, *(f"step{step}" for step in range(STEP_COUNT)))
    notebook.await_output(STEPS, "done")
    text = notebook.ended(STEPS)
    assert steps(text) == list(range(STEP_COUNT)), "each once, in order"
    assert text.strip().endswith("'done'") and notebook.prompt(STEPS) == "[2]:"


@pytest.mark.full_sweep
def test_progress_and_the_star_come_back_with_the_page_and_the_count_comes_at_the_end(notebook: NotebookPage, server: Any) -> None:
    check_that_progress_comes_back(notebook, server)


@pytest.mark.full_sweep
def test_the_same_in_notebook_7(classic: NotebookPage, server: Any) -> None:
    check_that_progress_comes_back(classic, server)


def test_what_was_shown_while_no_page_was_there_is_shown_and_then_saved(notebook: NotebookPage, server: Any) -> None:
    notebook.start(LARGE)
    notebook.start(DISPLAYS)
    notebook.start(FAIL)
    notebook.close()
    go(server, "large", "changed")
    notebook.await_idle_kernel()
    notebook.come_back()
    notebook.await_output(FAIL, "ZeroDivisionError")  # cells that waited behind another ran, too
    notebook.await_output(LARGE, "row 29999")
    notebook.await_output(DISPLAYS, "100 %")
    rows = re.findall(r"^row (\d+)$", notebook.output(LARGE), re.MULTILINE)
    assert [int(row) for row in rows] == list(range(30_000))
    text = notebook.output(DISPLAYS)
    assert "kept" in text and "100 %" in text and "50 %" not in text and "gone" not in text, "as if the page had been there"
    assert f"'c{LARGE}', 'c{DISPLAYS}', 'c{FAIL}', 'c{KEPT}']" in notebook.run(KEPT)
    notebook.save()
    eventually(lambda: f"kept ['c{KEPT}']" in notebook.run(KEPT))
    notebook.come_back()
    notebook.await_output(LARGE, "row 29999")
    assert "100 %" in notebook.output(DISPLAYS), "it is in the file"


def test_a_cell_that_asks_is_answered_on_the_page_that_is_there(notebook: NotebookPage) -> None:
    notebook.start(ASK)
    notebook.question.wait_for()
    notebook.come_back()
    notebook.question.wait_for()
    assert "Who?" in notebook.cell(ASK).inner_text() and notebook.prompt(ASK) == "[*]:"
    notebook.question.fill("Ann")
    notebook.question.press("Enter")
    notebook.await_output(ASK, "hello Ann")
    assert re.search(r"Who\? Ann\s+hello Ann", notebook.ended(ASK))
    assert notebook.question.count() == 0


@pytest.mark.full_sweep
def test_the_lease_the_status_item_the_stop_button_and_the_line_with_the_cost_go_with_the_cell(notebook: NotebookPage, cloud: Any) -> None:
    notebook.start(DEVICE)
    notebook.await_status("computing")
    [lease] = cloud.leases()
    notebook.come_back()
    notebook.await_status("computing")
    assert [row["lease"] for row in cloud.leases()] == [lease["lease"]], "one lease, as long as the cell"
    notebook.await_output(DEVICE, "begun")
    notebook.stop()
    notebook.await_output(DEVICE, "KeyboardInterrupt")
    notebook.await_output(DEVICE, "forebay: device")
    assert re.match(r"\[\d+\]:", notebook.prompt(DEVICE))
    eventually(lambda: cloud.leases() == [])
    notebook.start(DEVICE)
    notebook.await_status("computing")
    notebook.await_output(DEVICE, "begun")
    assert "KeyboardInterrupt" not in notebook.output(DEVICE), "the new run alone is shown"
    notebook.stop()
    notebook.ended(DEVICE)


@pytest.mark.full_sweep
def test_a_restarted_kernel_leaves_no_star(notebook: NotebookPage) -> None:
    notebook.start(FOREVER)
    notebook.await_output(FOREVER, "begun")
    notebook.come_back()
    notebook.await_output(FOREVER, "begun")
    notebook.restart()
    notebook.cell(FOREVER).locator(".jp-InputPrompt", has_text=re.compile(r"^\[ \]:$")).wait_for()
    notebook.await_kernel()
    assert notebook.prompt(FOREVER) == "[ ]:"
