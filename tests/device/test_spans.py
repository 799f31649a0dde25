"""Spans: what device work is attributed to."""

from __future__ import annotations

import json
from typing import Any

from forebay.spans import LABEL_CHARACTERS_MAX, Spans, notebook_label, process_label

FOLLOWED = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

seen, ends = [], []
shell = InteractiveShell.instance()
shell.user_ns.update(seen=seen, ends=ends)
shell.run_cell(%(activate)r, store_history=True)
for cell in ["seen.append(spans.current())", "get_ipython().run_cell('seen.append(spans.current())'); seen.append(spans.current())", "1/0"]:
    shell.run_cell(cell, store_history=True)
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


def test_a_process_is_one_span_that_shows_its_command_line() -> None:
    spans = Spans(lambda: None)
    first, second = spans.current(), spans.current()
    assert first == second
    assert (first.kind, first.cell) == ("process", None)
    assert process_label(["python", "train.py", "--lr", "0.1"]) == "python train.py --lr 0.1"
    assert process_label([]) == "python"
    assert len(process_label(["x" * 10_000])) == LABEL_CHARACTERS_MAX


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
    assert nested == outer, "a cell that runs another is one span"
    assert len({work["id"] for work in (before, running, second, outer)}) == 4
    assert (after["kind"], after["label"], after["id"]) == ("process", "digits.ipynb", before["id"])
    assert found["ends"] == 8, "four cells, the one with an error too, each ended, and closed what was open before it"


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
