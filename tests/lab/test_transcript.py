"""What a kernel keeps of what its cells showed, until a page has saved it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_client import Kernel, Shown, kernel

pytestmark = [pytest.mark.slow]

SOON_SECONDS = 30


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = str(tmp_path_factory.mktemp("transcript-home"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    with kernel({**ours, "FOREBAY_URL": "local", "HOME": home, "IPYTHONDIR": f"{home}/ipython", "LANG": "C.UTF-8"}) as found:
        yield found


def shown(notebook: Kernel, request: str) -> dict[str, Any]:
    """A run that has ended, once the kernel has heard all of it."""
    deadline = time.monotonic() + SOON_SECONDS
    while (run := notebook.request(ask="run", request=request))["running"]:
        assert time.monotonic() < deadline, run
    assert isinstance(run, dict)
    return run


def ran(notebook: Kernel, code: str, cell_id: str) -> dict[str, Any]:
    request = notebook.start(code, cell_id)
    notebook.finish(request)
    return shown(notebook, request)


def texts(run: dict[str, Any]) -> list[str]:
    return [output.get("text") or output.get("ename") or output["data"]["text/plain"] for output in run["outputs"]]


def test_streams_results_and_errors_are_kept_as_a_notebook_has_them(notebook: Kernel) -> None:
    run = ran(notebook, "import sys\nprint('a'); print('b'); print('c', file=sys.stderr)\n40 + 2", "first")
    assert texts(run) == ["a\nb\n", "c\n", "42"] and run["count"] == run["outputs"][-1]["execution_count"]
    assert texts(ran(notebook, "1 / 0", "second")) == ["ZeroDivisionError"]


def test_the_last_run_of_a_cell_takes_the_place_of_the_one_before(notebook: Kernel) -> None:
    ran(notebook, "print('old')", "again")
    run = ran(notebook, "print('new')", "again")
    assert texts(run) == ["new\n"]
    assert [head["request"] for head in notebook.request(ask="runs") if head["cell_id"] == "again"] == [run["request"]]


def test_clearing_and_changing_displays_leaves_what_a_page_would_show(notebook: Kernel) -> None:
    ran(notebook, "from IPython.display import clear_output, display\nhandle = display('early', display_id=True)", "display")
    run = ran(notebook, "print('gone'); clear_output(wait=True); print('kept'); handle.update('late')", "clear")
    assert texts(run) == ["kept\n"]
    early = next(head for head in notebook.request(ask="runs") if head["cell_id"] == "display")
    assert texts(shown(notebook, early["request"])) == ["'late'"], "a later cell changed it"


def test_a_cell_that_runs_others_in_itself_is_one_run(notebook: Kernel) -> None:
    run = ran(notebook, "print('before'); get_ipython().run_cell('print(\"inside\")'); print('after')", "nested")
    assert texts(run) == ["before\ninside\nafter\n"]


def test_pages_are_told_of_a_cell_as_it_begins_and_a_busy_kernel_answers_and_says_that_it_is_busy(notebook: Kernel) -> None:
    request = notebook.start("import time; time.sleep(2)", "long")
    told = notebook.until(Shown(), lambda shown: [said for said in shown.comms if said["data"].get("request") == request]).comms[-1]["data"]
    assert told["type"] == "run" and told["cell_id"] == "long" and told["running"]
    assert notebook.request(ask="run", request=request)["running"]
    statuses: list[tuple[bool, str]] = []
    while statuses[-1:] != [(True, "idle")]:
        message = notebook._client.get_iopub_msg(timeout=SOON_SECONDS)
        if message["msg_type"] == "status":
            statuses.append((message["parent_header"].get("msg_id") == request, message["content"]["execution_state"]))
    assert (False, "idle") in statuses and statuses[-2:] == [(True, "busy"), (True, "idle")], "an answer's end is not the last word"


def test_a_question_and_its_answer_are_kept_and_a_password_is_not(notebook: Kernel) -> None:
    request = notebook.start("import getpass\ninput('Who? '); len(getpass.getpass('Word? '))", "ask")
    assert notebook.answer("Ann") == "Who? "
    assert notebook.answer("sesame") == "Word? "
    notebook.finish(request)
    run = shown(notebook, request)
    assert texts(run) == ["Who? Ann\n", "Word? ········\n", "6"] and run["asks"] is None
    assert "sesame" not in str(run)


def test_much_output_keeps_its_end_and_progress_bars_keep_their_last_state(notebook: Kernel) -> None:
    run = ran(notebook, "for row in range(12): print(f'row {row}'.rjust(2**20))", "much")
    note, kept = texts(run)
    assert "more than 8 MiB" in note and kept.endswith("row 11\n") and len(kept) > 2**20
    run = ran(notebook, "for step in range(20_000): print(f'\\r{step:5} of 20000', end='')\nprint()\nprint('over')", "bar")
    assert texts(run)[0].endswith("19999 of 20000\nover\n") and len(texts(run)[0]) < 2**18


def cells_of(notebook: Kernel) -> list[str]:
    """Whose runs are kept."""
    return [head["cell_id"] for head in notebook.request(ask="runs")]


def test_what_is_saved_is_kept_no_more_and_what_runs_is(notebook: Kernel, tmp_path: Path) -> None:
    ended = ran(notebook, "print('ended')", "ended")["request"]
    over = tmp_path / "over"
    request = notebook.start(f"import pathlib, time\nwhile not pathlib.Path('{over}').exists(): time.sleep(0.01)", "running")
    deadline = time.monotonic() + 30
    while "running" not in cells_of(notebook) and time.monotonic() < deadline:
        time.sleep(0.01)  # until it has begun
    notebook.request(ask="saved", requests=[ended, request])
    cells, found = cells_of(notebook), notebook.request(ask="run", request=ended)
    over.touch()  # whatever comes next has the kernel
    assert "ended" not in cells and "running" in cells
    assert found is None
    notebook.finish(request)
    assert not shown(notebook, request)["running"]


def test_a_cell_without_a_page_is_not_kept(notebook: Kernel) -> None:
    before = notebook.request(ask="runs")
    notebook.run("print('from a program')")
    assert notebook.request(ask="runs") == before
