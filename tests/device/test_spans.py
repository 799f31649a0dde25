"""Spans: what device work is attributed to."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from forebay.spans import Spans, first_line, notebook_label, process_label
from forebay_wire.messages import Span

FOLLOWED = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

seen, ends = [], []
shell = InteractiveShell.instance()
shell.user_ns.update(seen=seen, ends=ends)
shell.run_cell(%(activate)r, store_history=True, cell_id="one")
for cell in ["seen.append(spans.current())", "get_ipython().run_cell('seen.append(spans.current())'); seen.append(spans.current())", "1/0"]:
    shell.run_cell(cell, store_history=True, cell_id="another")
seen.append(shell.user_ns["spans"].current())
print(file=sys.stdout)
print(json.dumps({"spans": [vars(work) for work in seen], "ends": len(ends)}))
"""
ACTIVATE = """
from forebay.spans import Spans, running_shell
spans = Spans(lambda: ends.append(spans.current()))
seen.append(spans.current())
spans.follow(running_shell())
seen.append(spans.current())
"""


def test_spans_of_a_jobs_run_begin_with_its_numbers_and_no_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for job, attempt, begins in (("17", "2", "job-17/2/"), ("17", "", ""), ("x", "2", "")):
        monkeypatch.setenv("FOREBAY_JOB", job)
        monkeypatch.setenv("FOREBAY_JOB_ATTEMPT", attempt)
        span = Spans(lambda: None).current()
        assert re.fullmatch(begins + "[0-9a-f]{32}", span.id)
        assert Span(id=span.id, kind=span.kind, label=span.label).id == span.id, "it crosses the link as it is"


def test_a_process_is_one_span_that_shows_its_command_line() -> None:
    spans = Spans(lambda: None)
    first, second = spans.current(), spans.current()
    assert first == second
    assert (first.kind, first.cell) == ("process", None)


@pytest.mark.parametrize(
    ("argv", "label"),
    [
        (["/opt/env/bin/python3.11", "train.py", "--lr", "0.1"], "train.py --lr 0.1"),
        (["python", "-u", "-X", "dev", "-Wignore", "--check-hash-based-pycs", "always", "work/train.py", "-m"], "work/train.py -m"),
        (["python", "-Im", "torch.distributed.run", "-c"], "torch.distributed.run -c"),
        (["python", "-mtimeit", "x"], "timeit x"),
        (["python", "-c", "print('a password')", "more"], "python -c"),
        (["/usr/bin/python3"], "python3"),
        ([], "python"),
    ],
)
def test_a_program_is_recognised_by_its_name_and_not_by_its_interpreter(argv: list[str], label: str) -> None:
    assert process_label(argv) == label


def test_a_cell_is_recognised_by_how_it_begins_unless_its_user_keeps_that() -> None:
    assert first_line("\n\n  # Train\nfit()", {}) == "# Train"
    assert first_line("fit()", {"FOREBAY_CELL_LINES": "yes"}) == "fit()"
    assert first_line(" \n ", {}) is None
    assert all(first_line("key = 'secret'", {"FOREBAY_CELL_LINES": word}) is None for word in ("no", "0", "Off", "false"))
    span = Span(id="s", kind="cell", label="a.ipynb", first_line=first_line("x" * 10**6, {}), cell_id="\0")
    assert span.first_line == "x" * 79 + "…" and span.cell_id is not None and span.cell_id.startswith("unreadable-")


def test_a_notebook_is_recognised_by_its_file_name() -> None:
    assert notebook_label({"JPY_SESSION_NAME": "/home/me/work/digits.ipynb"}, {}) == "digits.ipynb"
    assert notebook_label({}, {"__vsc_ipynb_file__": "/home/me/words.ipynb"}) == "words.ipynb"
    assert notebook_label({}, {}) == "notebook"


def test_cells_are_spans_from_the_one_that_activates(run_python: Any) -> None:
    done = run_python(FOLLOWED % {"activate": ACTIVATE}, JPY_SESSION_NAME="work/digits.ipynb")
    found = json.loads(done.stdout.splitlines()[-1])
    before, running, second, nested, outer, after = found["spans"]
    assert before["kind"] == "process"
    assert [(work["kind"], work["label"], work["cell"]) for work in (running, second, outer)] == [
        ("cell", "digits.ipynb", 1),
        ("cell", "digits.ipynb", 2),
        ("cell", "digits.ipynb", 3),
    ]
    assert [(work["cell_id"], work["first_line"]) for work in (running, second)] == [
        ("one", "from forebay.spans import Spans, running_shell"),
        ("another", "seen.append(spans.current())"),
    ]
    assert (after["cell_id"], after["first_line"]) == (None, None)
    assert nested == outer, "a cell that runs another is one span"
    assert len({work["id"] for work in (before, running, second, outer)}) == 4
    assert (after["kind"], after["label"], after["id"]) == ("process", "digits.ipynb", before["id"])
    assert found["ends"] == 8, "four cells, the one with an error too, each ended, and closed what was open before it"


RELABELLED = """
import os
os.environ["FOREBAY_LABEL"] = "first"
%s
shell.run_cell("import os; os.environ['FOREBAY_LABEL'] = 'second'")
between = [shell.user_ns["spans"].current()]
shell.run_cell("seen.append(spans.current())")
shell.run_cell("seen.append(spans.current())")
between.append(shell.user_ns["spans"].current())
print(json.dumps([vars(work) for work in [*between, *seen[-2:]]]))
"""


def test_a_label_that_changes_is_that_of_the_next_cell_and_of_what_goes_on_after_it(run_python: Any) -> None:
    last = run_python(RELABELLED % (FOLLOWED % {"activate": ACTIVATE})).stdout.splitlines()[-1]
    before, after, *cells = json.loads(last)
    assert (before["label"], before["kind"]) == ("first", "process"), "the cell that is over began as the first"
    assert [cell["label"] for cell in cells] == ["second", "second"]
    assert (after["label"], after["kind"]) == ("second", "process") and after["id"] != before["id"]


def test_activation_outside_a_cell_leaves_the_next_cell_whole(run_python: Any) -> None:
    code = """
from IPython.core.interactiveshell import InteractiveShell
from forebay.spans import Spans
shell = InteractiveShell.instance()
spans = Spans(lambda: None)
spans.follow(shell)
assert spans.current().kind == "process"
shell.user_ns["spans"] = spans
shell.run_cell("kind = spans.current().kind")
assert shell.user_ns["kind"] == "cell", shell.user_ns["kind"]
assert spans.current().kind == "process"
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_line_of_a_cell_is_told_by_the_cells_number(run_python: Any) -> None:
    code = """
from IPython.core.interactiveshell import InteractiveShell
from forebay.spans import place, shown_file
shell = InteractiveShell.instance()
shell.run_cell("1 + 1", store_history=True)
shell.run_cell("def fit(): pass\\nfit()", store_history=True)
file = shell.user_ns["fit"].__code__.co_filename
assert place(file, 3, "<module>") == "cell [2], line 3", place(file, 3, "<module>")
assert place(file, 3, "fit") == "cell [2], line 3, in fit"
assert place("train.py", 3, "<module>") == "train.py, line 3, in <module>"
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
