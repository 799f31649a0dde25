"""``%%forebay exec``: a cell as a process beside a device, in a kernel as people have it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from forebay.notebook import remote_cells
from kernel_client import Kernel, Shown, kernel

NEEDS_SANDBOX = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.parametrize("line", ["", "run", "exec --in", "exec --in a;b", "exec --out a,", "exec --inn a", "exec more"])
def test_a_line_that_says_nothing_known_is_refused_with_the_usage(line: str) -> None:
    with pytest.raises(ValueError, match="usage: %%forebay exec"):
        remote_cells.parsed(line)


@contextmanager
def notebook(home: Path) -> Iterator[Kernel]:
    ours = {variable: value for variable, value in os.environ.items() if not variable.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    with kernel({**ours, "FOREBAY_URL": "local", "HOME": str(home), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}) as running:
        yield running


@NEEDS_SANDBOX
def test_a_cell_beside_a_device_has_what_it_is_given_and_gives_back_what_is_asked_for(tmp_path: Path) -> None:
    with notebook(tmp_path) as running:
        gives_and_takes(running)
        leaves_what_was(running)
        assert running.run("print(kept)").streams["stdout"] == "1\n"


def gives_and_takes(running: Kernel) -> None:
    running.run("import torch\na, hidden, rows = torch.arange(6.0).reshape(2, 3), 4, {'names': ['x', 'ä'], 'none': None}")
    shown = running.run(
        "%%forebay exec --in a,rows --out b,told\nimport os\nprint('in', os.getcwd(), 'ä')\n"
        "b, told = a.T @ a, [rows, 'hidden' in globals(), os.environ.get('FOREBAY_URL')]"
    )
    assert not shown.errors and "in /exec ä" in shown.streams["stdout"], shown
    assert "dev.1gb" in shown.streams["stderr"]
    shown = running.run("assert torch.equal(b, a.T @ a)\nprint(told)")
    assert shown.streams["stdout"] == "[{'names': ['x', 'ä'], 'none': None}, False, None]\n", shown


@NEEDS_SANDBOX
@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="tables go where pyarrow is installed")
def test_a_table_is_refused_in_words_where_there_is_no_arrow(tmp_path: Path) -> None:
    with notebook(tmp_path) as running:
        running.run("import pandas as pd\nframe, kept = pd.DataFrame({'a': [1]}), 1")
        shown = running.run("%%forebay exec --in frame --out kept\nkept = 2")
        assert "frame is a table, which goes by Arrow, and the environment lacks pyarrow" in shown.streams["stderr"], shown
        shown = running.run("%%forebay exec --out kept\nimport pandas as pd\nkept = pd.DataFrame({'a': [1]})")
        assert "What the cell made cannot come back: kept is a table" in shown.streams["stderr"], shown
        assert running.run("print(kept)").streams["stdout"] == "1\n"


def leaves_what_was(running: Kernel) -> None:
    """Where the cell fails, or is interrupted."""
    running.run("kept = 1")
    shown = running.run("%%forebay exec --out kept\nkept = 2\nraise SystemExit(7)")
    assert "exit status 7" in " ".join(shown.errors) + "".join(shown.streams.values())
    begun = running.start("%%forebay exec --out kept\nkept = 3\nprint('begun', flush=True)\nimport time\ntime.sleep(600)")
    shown = running.until(Shown(), lambda shown: "begun" in shown.streams.get("stdout", ""))
    running.interrupt()
    shown = running.finish(begun, shown)
    assert any("KeyboardInterrupt" in error for error in shown.errors), shown
