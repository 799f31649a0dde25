"""What people see of their device in JupyterLab and in Notebook: state, cost, queue, flavors and sessions, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboards_installation import eventually
from forebay_wire import messages as wire
from notebook_page import GATED, NotebookPage
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow]

GOES_ON_NS = 3 * 10**9
"""A lease that lives for so long without its page does not end with it."""
IMPORT, MAKE, WORK, LONG, LOOK, LAST = range(6)
CELLS = (
    "import os, torch",
    "x = torch.ones(500, 500, device='cuda')\nprint(x.sum().item())",
    GATED,
    GATED,
    "x.sum().item()",
    "x.mean().item()",
)


@pytest.fixture(scope="module", params=["lab", pytest.param("notebook", marks=pytest.mark.full_sweep)])
def notebook(request: pytest.FixtureRequest, browser: Any, server: Any) -> Iterator[NotebookPage]:
    """A notebook whose first two cells have run, so that its session has tensors."""
    name = f"{request.param}.ipynb"
    server.write(name, *CELLS)
    page = NotebookPage(browser, server, request.param, name)
    page.run(IMPORT)
    page.run(MAKE)
    yield page
    page.close()


def test_a_cell_that_used_the_device_says_below_it_what_that_took_and_cost(notebook: NotebookPage) -> None:
    text = notebook.output(MAKE)
    assert "250000.0" in text
    assert re.search(r"forebay: device \d+\.\d{3} s · waited \d+\.\d+ s · (< )?0\.\d+ USD · dev\.\dgb", text), text
    assert "forebay" not in notebook.output(IMPORT), "it used none"


def test_the_status_item_tells_state_rate_and_spend_while_a_cell_computes_and_nothing_moves(notebook: NotebookPage) -> None:
    before = notebook.status_once("resident")
    with notebook.computing(WORK):
        shown = notebook.status_once("computing ([2-9]|[1-9][0-9])")
        assert re.search(r"dev\.\dgb\s0\.\d+ USD/h\s(< )?0\.\d+ USD", shown["text"]), shown
        assert shown["places"] == before["places"], "the state stands last, and alone changes its width"
        assert "computing" in shown["label"] and "Rate 0." in shown["label"]
    notebook.await_status("resident")


def test_a_page_that_is_loaded_while_a_cell_computes_shows_it_before_the_cell_ends(notebook: NotebookPage, cloud: Any) -> None:
    notebook.shut_gate()
    notebook.start(LONG)
    notebook.await_status("computing")
    notebook.page.reload()
    notebook.await_status("computing")
    assert len(cloud.leases()) == 1
    notebook.open_gate()
    notebook.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]:visible")
    notebook.await_status("resident")


def test_a_cell_that_waits_says_place_and_reason_and_no_more_once_it_computes(notebook: NotebookPage, cloud: Any) -> None:
    with cloud.device_held():
        notebook.start(LOOK)
        assert "queued #1" in notebook.await_status("queued")
        waiting = notebook.cell(LOOK).locator(".forebay-waiting")
        waiting.wait_for()
        assert "next in line" in waiting.inner_text() and "is held" in waiting.inner_text()
        assert "is held" in (notebook.page.locator(".forebay-status-button").get_attribute("title") or "")
    text = notebook.ended(LOOK)
    assert "250000.0" in text and "waiting" not in text
    assert notebook.cell(LOOK).locator(".jp-OutputArea-child:visible").count() == 2, "the value and the line, no gap"
    waited = re.search(r"waited (\d+\.\d+) s", text)
    assert waited is not None and float(waited[1]) > 0.5


def test_the_stop_button_leaves_the_queue_at_once(notebook: NotebookPage, cloud: Any) -> None:
    with cloud.device_held():
        notebook.start(LAST)
        notebook.await_status("queued")
        assert len(cloud.ask("pool", "operator", "GET", "api/queue")) == 1
        notebook.stop()
        text = notebook.ended(LAST)  # while the device is held yet
        eventually(lambda: cloud.ask("pool", "operator", "GET", "api/queue") == [])
        assert "KeyboardInterrupt: The wait for a device was stopped" in text and "session.py" not in text
        notebook.await_status("resident")
    assert "1.0" in notebook.run(LAST), "the tensors are there"


def test_a_flavor_is_chosen_in_the_panel_by_keyboard(notebook: NotebookPage) -> None:
    notebook.open_panel()
    panel = notebook.panel
    now = panel.locator("input[name=forebay-flavor]:checked").get_attribute("value")
    wanted = "dev.4gb" if now == "dev.1gb" else "dev.1gb"
    offer = panel.locator(".forebay-flavor", has_text=wanted).inner_text()
    assert re.search(r"0\.\d+ USD/h", offer) and re.search("on 1 . cpu-dev", offer)
    panel.locator("input[name=forebay-flavor]:checked").focus()
    notebook.page.keyboard.press("ArrowDown" if wanted == "dev.4gb" else "ArrowUp")
    notebook.await_status(wanted)
    assert panel.locator("input[name=forebay-flavor]:checked").get_attribute("value") == wanted
    assert wanted in notebook.run(LOOK)
    assert panel.locator("table tbody tr").count() > 1
    assert "is not available" not in panel.inner_text()
    panel.locator("summary").click()
    assert "needs 1 MI250" in panel.locator("details").inner_text(), "why others cannot be had"


def test_the_panel_says_what_the_selected_cell_takes_if_it_runs_again_and_estimates_it_for_other_flavors(
    notebook: NotebookPage, cloud: Any
) -> None:
    cloud.make_pair()  # on which the cell never ran
    notebook.open_panel()
    ran = re.search(r"device (\d+\.\d{3}) s", notebook.run(LOOK))  # a range of two times has the unit once
    present = notebook.panel.locator("input[name=forebay-flavor]:checked").get_attribute("value")
    estimate = notebook.panel.locator(".forebay-rerun")
    estimate.locator("th", has_text=present).wait_for()
    estimate.locator("tr", has_text="≈").first.wait_for()  # the pair's, once the panel has heard of it
    here, *others = estimate.locator("tbody tr").all_inner_texts()
    assert ran and here.startswith(present) and ran.group(1) in here and "≈" not in here and "USD" in here
    assert all(re.search(r"\t.* s\t.*USD$", row.strip()) for row in others) and any("≈" in row for row in others), others
    assert "speed classes" in estimate.inner_text()
    notebook.cell(IMPORT).locator(".cm-content").click()
    estimate.wait_for(state="detached")
    other = "dev.1gb" if present == "dev.4gb" else "dev.4gb"
    notebook.panel.locator("input[name=forebay-flavor]:checked").focus()
    notebook.page.keyboard.press("ArrowUp" if other == "dev.1gb" else "ArrowDown")
    notebook.await_status(other)  # which the user's next kernels begin with, as before these two tests


def test_the_panel_draws_what_the_device_did_lately_as_it_heard_it(notebook: NotebookPage) -> None:
    notebook.open_panel()
    chart = notebook.panel.locator(".forebay-activity")
    before = chart.locator(".forebay-activity-computing").count()
    with notebook.computing(WORK):
        expect(chart.locator(".forebay-activity-computing")).to_have_count(before + 1)
        wide = chart.locator(".forebay-activity-computing").last
        expect(wide).to_have_attribute("x", re.compile(r"^5\d\d"))
    notebook.await_status("resident")
    said = chart.locator(".forebay-hint").inner_text()
    assert re.fullmatch(r"Computed for \d+\.\d+ s; [1-9]\d* MiB of memory at most\.", said), said
    assert chart.locator("svg").get_attribute("aria-label") == said
    assert "V" in (chart.locator(".forebay-activity-memory").get_attribute("d") or "")


LINE = """line => {
    const parts = [line, line.closest('table'), line.parentElement.previousElementSibling];
    const [box, table, row] = parts.map(part => part.getBoundingClientRect());
    return {
        text: line.innerText,
        width: box.width / table.width,
        below: box.top >= row.bottom - 1,
        height: line.querySelector('code').getBoundingClientRect().height,
        font: parseFloat(getComputedStyle(line.querySelector('code')).fontSize),
        cut: line.scrollWidth > line.clientWidth,
        wider: table.width - line.closest('section').clientWidth,
    };
}"""


@pytest.mark.parametrize("width", [390, 1440])
def test_the_first_line_of_a_cell_has_the_whole_width_of_the_panels_table(notebook: NotebookPage, width: int) -> None:
    notebook.open_panel()
    notebook.run(LOOK)
    try:
        notebook.page.set_viewport_size({"width": width, "height": 900})
        notebook.panel.locator(".forebay-cell-line").first.wait_for()
        shown = [line.evaluate(LINE) for line in notebook.panel.locator(".forebay-cell-line td").all()]
        assert {line["text"] for line in shown} >= {"x.sum().item()"}
        for line in shown:
            assert line["width"] > 0.99 and line["below"] and line["wider"] < 1, line
            assert line["height"] >= line["font"] >= 11, line
            assert line["text"] != "x.sum().item()" or not line["cut"], "what has room is not cut"
    finally:
        notebook.page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.full_sweep
def test_the_panel_says_where_one_of_two_devices_did_most_and_what_such_a_flavor_is(browser: Any, server: Any, cloud: Any) -> None:
    cloud.make_pair()
    work = "x = torch.ones(1200, 1200, device='cuda')\nfor _ in range(40): y = (x @ x) / 1200\ny[0, 0].item()"
    server.write("pair.ipynb", "import forebay, torch", "forebay.flavor('pair')", work)
    page = NotebookPage(browser, server, "lab", "pair.ipynb")
    try:
        for cell in range(2):
            page.run(cell)
        page.open_panel()
        offer = page.panel.locator(".forebay-flavor", has_text="pair").inner_text()
        assert re.search("on 2 . cpu-half", offer) and "what cannot be divided runs on the first; all are billed" in offer
        assert page.panel.locator(".forebay-alone").count() == 0
        assert "forebay: 100 % of the time on 1 of the 2 devices of cuda:0: no batch of rows came again" in page.run(2)
        said = page.panel.locator(".forebay-alone").inner_text()
        assert said == "100 % of the last cell ran on 1 of 2 devices: no batch of rows came again."
    finally:
        page.close()


@pytest.mark.full_sweep
def test_the_panel_says_how_what_came_again_was_carried_out(browser: Any, server: Any) -> None:
    begin = "import os; os.environ['FOREBAY_COMPILE'] = '1'\nimport torch; x = torch.ones(64, 64, device='cuda')"
    work = "for _ in range(30):\n    for _ in range(30): x = (x @ x / 64).relu()\n    x.sum().item()"
    server.write("compiled.ipynb", begin, work)
    page = NotebookPage(browser, server, "lab", "compiled.ipynb")
    try:
        page.open_panel()
        for cell in range(2):
            page.run(cell)
        first = page.panel.locator(".forebay-segments li").first
        assert re.fullmatch(r"\d+ . \d+ calls: tier 1 \(.*\)", first.inner_text())
    finally:
        page.close()


def test_a_session_elsewhere_is_released_after_a_second_press(notebook: NotebookPage, cloud: Any) -> None:
    with cloud.session(process="forgotten.py") as other:
        notebook.open_panel()
        entry = notebook.panel.locator(".forebay-sessions li", has_text="forgotten.py")
        notebook.run(LOOK)
        entry.wait_for()
        entry.get_by_role("button", name="Release forgotten.py").click()
        assert "tensors are lost" in entry.inner_text()
        entry.get_by_role("button", name="Keep it").click()
        assert [row["process"] for row in cloud.mine()].count("forgotten.py") == 1
        entry.get_by_role("button", name="Release forgotten.py").press("Enter")
        entry.get_by_role("button", name="Release it").press("Enter")
        entry.wait_for(state="detached")
        assert "forgotten.py" not in [row["process"] for row in cloud.mine()]
        while not isinstance(wire.to_client(other.link.recv(timeout=60)), wire.SessionLost):
            continue


@pytest.mark.parametrize("part", ["#forebay-panel", ".forebay-status"])
def test_axe_finds_nothing_serious(notebook: NotebookPage, cloud: Any, part: str) -> None:
    with cloud.session(process="forgotten.py"):
        notebook.open_panel()
        notebook.run(LOOK)
        notebook.panel.locator(".forebay-sessions li", has_text="forgotten.py").wait_for()
        found = Axe().run(notebook.page, context=part).response["violations"]
    assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found if fault["impact"] in ("serious", "critical")] == []


def test_the_line_below_cells_can_be_turned_off_and_on(notebook: NotebookPage) -> None:
    notebook.open_panel()
    setting = notebook.panel.get_by_label("A line with the cost below cells")
    known = notebook.panel.locator(".forebay-line-setting input[aria-busy=false]")
    setting.uncheck()
    known.wait_for()
    assert "forebay" not in notebook.run(LOOK)
    setting.check()
    known.wait_for()
    assert "forebay: device" in notebook.run(LOOK)


def test_what_is_left_of_a_budget_is_shown(notebook: NotebookPage, cloud: Any) -> None:
    budget = {"tenant": "acme", "user": "acme-member", "limit_nano": 10 * 10**9, "on_limit": "refuse", "new": True}
    row = cloud.ask("billing", "operator", "PUT", "api/budgets", json=budget)
    try:
        notebook.run(LOOK)
        assert re.search(r"(10\.00|9\.9\d) USD left", notebook.await_status("left"))
    finally:
        cloud.ask("billing", "operator", "DELETE", f"api/budgets/{row['id']}")


def test_a_kernel_that_is_restarted_while_it_computes_leaves_no_lease_and_is_followed_again(notebook: NotebookPage, cloud: Any) -> None:
    notebook.shut_gate()
    notebook.start(LONG)
    notebook.await_status("computing")
    assert len(cloud.leases()) == 1
    sessions = len(cloud.mine())
    notebook.cell(IMPORT).locator(".jp-InputPrompt").click()
    notebook.page.keyboard.press("0")
    notebook.page.keyboard.press("0")
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    notebook.page.locator(".forebay-status-button").wait_for(state="detached")
    eventually(lambda: cloud.leases() == [] and len(cloud.mine()) == sessions - 1)
    notebook.await_kernel()
    notebook.run(IMPORT)
    assert "idle" in notebook.await_status("idle")
    notebook.run(MAKE)
    notebook.await_status("resident")


@pytest.mark.full_sweep
def test_a_closed_tab_stops_no_cell_and_leaves_no_lease_behind(browser: Any, server: Any, cloud: Any) -> None:
    server.write("closed.ipynb", *CELLS)
    first = NotebookPage(browser, server, "lab", "closed.ipynb")
    first.run(IMPORT)
    first.run(MAKE)
    first.shut_gate()
    first.start(LONG)
    first.await_status("computing")
    first.close()
    [running] = cloud.leases()
    eventually(lambda: cloud.leases()[0]["duration_ns"] > running["duration_ns"] + GOES_ON_NS)
    assert [lease["lease"] for lease in cloud.leases()] == [running["lease"]], "the cell goes on"
    first.open_gate()
    eventually(lambda: cloud.leases() == [])
    again = NotebookPage(browser, server, "lab", "closed.ipynb")
    try:
        assert "250000.0" in again.run(LOOK), "the kernel has its tensors"
    finally:
        again.close()


@pytest.fixture
def korean(server: Any) -> Iterator[None]:
    """Jupyter's display language is Korean."""
    setting = server.home / "config" / "lab" / "user-settings" / "@jupyterlab" / "translation-extension" / "plugin.jupyterlab-settings"
    setting.parent.mkdir(parents=True, exist_ok=True)
    setting.write_text('{"locale": "ko_KR"}', encoding="utf-8")
    yield
    setting.unlink()


OF_A_HUB = """new MutationObserver(() => { if (document.body) document.body.dataset.hubPrefix = '/hub/'; })
.observe(document, {childList: true, subtree: true});"""
"""Has the page be as that of a server of JupyterHub's."""


@pytest.mark.parametrize(
    ("kernel", "more"), [pytest.param("python3", "", marks=pytest.mark.full_sweep), ("forebay-work", "&environment=work")]
)
def test_the_menu_leads_to_the_page_of_jobs_with_the_notebook_that_is_open(browser: Any, server: Any, kernel: str, more: str) -> None:
    name = f"nightly-{kernel}.ipynb"
    server.write(name, "1", kernel=kernel)
    opened = NotebookPage(browser, server, "lab", name)
    opened.context.add_init_script(OF_A_HUB)
    opened.open()
    opened.page.get_by_role("menuitem", name="File", exact=True).click()
    with opened.context.expect_page() as jobs:
        opened.page.get_by_role("menuitem", name="Run Notebook as a Job…").click()
    jobs.value.wait_for_url(f"**/services/dashboards/jobs?file={name}*")
    assert jobs.value.url.endswith(f"/services/dashboards/jobs?file={name}{more}")
    opened.close()


def test_texts_are_korean_where_jupyter_is(browser: Any, server: Any, cloud: Any, korean: None) -> None:
    server.write("korean.ipynb", *CELLS)
    page = NotebookPage(browser, server, "lab", "korean.ipynb")
    try:
        page.run(IMPORT)
        text = page.run(MAKE)
        assert "장치" in text and "대기" in text
        page.await_status("상주")
        page.open_panel()
        assert "플레이버" in page.panel.inner_text()
        page.panel.locator("summary").click()
        absent = page.panel.locator("details li", has_text="medium.128gb").inner_text()
        assert re.search(r"medium\.128gb에는 .*가 필요하지만, 이 환경에는 .*가 있습니다", absent), absent
        with cloud.device_held():
            page.start(LOOK)
            page.await_status("대기")
            waiting = page.cell(LOOK).locator(".forebay-waiting")
            waiting.wait_for()
            reason = page.panel.locator(".forebay-reason")
            reason.wait_for()
            title = page.page.locator(".forebay-status-button").get_attribute("title") or ""
            for said in (waiting.inner_text(), reason.inner_text(), title):
                assert "사용 중입니다" in said and not re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", said), said
        assert "250000.0" in page.ended(LOOK)
    finally:
        page.close()
