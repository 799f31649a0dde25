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


TABLES = """
import datetime, numpy as np, pandas as pd, pyarrow as pa
df = pd.DataFrame({
    "whole": np.array([-2**63, 0, 2**63 - 1]), "real": [np.nan, -0.0, np.inf], "text": ["", "ä\\u0000", None], "yes": [True, False, True],
    "when": pd.to_datetime(["2026-01-01", None, "1700-01-01"]), "there": pd.date_range("2026-03-28", periods=3, tz="Europe/Berlin"),
    "kind": pd.Categorical(["b", "a", "b"], categories=["b", "a", "c"], ordered=True), "some": pd.array([1, None, 3], dtype="Int8"),
})
empty, table = df.iloc[:0], pa.table({"list": [[1], [], None], "nothing": pa.nulls(3)})
named = df.set_index("text")
many = pd.DataFrame(np.random.default_rng(7).normal(size=(200_000, 20)), columns=[f"c{i}" for i in range(20)])
mixed = pd.DataFrame({"a": [1, "two"]})
"""


@NEEDS_SANDBOX
@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed, which tables go by")
def test_tables_go_to_a_cell_and_come_back_as_they_were(tmp_path: Path) -> None:
    with notebook(tmp_path) as running:
        assert not running.run(TABLES).errors
        shown = running.run(
            "%%forebay exec --in df,empty,table,named,many --out df2,empty2,table2,named2,many2,column,sums\nimport pandas as pd\n"
            "df2, empty2, table2, named2, many2 = df, empty, table, named, many * 2\n"
            "column, sums = df[['whole']].iloc[::-1], many.sum().to_frame('sum')"
        )
        assert not shown.errors and "on dev.1gb" in shown.streams["stderr"], shown
        shown = running.run(
            "same = pd.testing.assert_frame_equal\nsame(df2, df)\nsame(empty2, empty)\nsame(named2, named)\nsame(many2, many * 2)\n"
            "same(column, df[['whole']].iloc[::-1])\nsame(sums, many.sum().to_frame('sum'))\nassert table2.equals(table)\n"
            "assert np.signbit(df2['real'][1]) and df2['kind'].cat.ordered and df2['there'].dt.tz is not None\nprint('equal')"
        )
        assert shown.streams.get("stdout") == "equal\n", shown
        shown = running.run("%%forebay exec --in mixed --out df2\ndf2 = mixed")
        assert "mixed is a DataFrame that Arrow does not take" in shown.streams["stderr"] and "column a" in shown.streams["stderr"], shown
        shown = running.run("%%forebay exec --in df --out lost\nlost = df.assign(odd=[{1}, {2}, {3}])")
        assert "lost would not come back as it is: some values of its column 'odd' would be others" in shown.streams["stderr"], shown
        assert running.run("same(df2, df)\nprint('lost' in globals())").streams["stdout"] == "False\n"
