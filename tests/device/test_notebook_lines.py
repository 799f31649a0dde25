"""What a notebook is told of where it went wrong, with a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()

def run(cell):
    result = shell.run_cell(cell, store_history=True)
    return result.error_in_exec
"""
LATE = (
    CELLS
    + r"""
run("import torch\ntable, there = torch.ones(3, 2, device='cuda'), torch.tensor([7], device='cuda')")
run("torch.index_select(table, 0, there - 7).cpu()")
run("# the line below fails\n\nbad = torch.index_select(table, 0, there)")
error = run("torch.cuda.synchronize()")
assert "issued at cell [3], line 3\n" in str(error) + "\n", error
"""
)
TOO_LARGE = (
    CELLS
    + r"""
import traceback
run("import torch\nx = torch.ones(1 << 20, device='cuda')")
error = run("y = x + 1\n\nz = x.repeat(1 << 20)")
assert type(error).__name__ == "OutOfMemoryError", error
frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "ipython-input-2" in frame.filename]
assert [frame.lineno for frame in frames] == [3], traceback.extract_tb(error.__traceback__)
assert run("assert x.sum().item() == 1 << 20 and (y - x).sum().item() == 1 << 20") is None
"""
)
LOST = (
    CELLS
    + r"""
run("import os, signal, time, psutil, torch\nx = torch.ones(3, device='cuda')\nx.sum().item()")
run("[one.kill() for one in psutil.Process().children(recursive=True) if 'forebay_worker' in ' '.join(one.cmdline())]\ntime.sleep(2)")
error = run("y = [(x + 1).sum()]")
assert "this tensor is lost" in str(error), error
from forebay import process
leased = {entry.cell for entry in process.installed.journal.entries() if entry.leases}
assert leased == {1}, leased
assert run("torch.ones(3, device='cuda').sum().item()") is None
assert "this tensor is lost" in str(run("torch.cat([x, x])"))
leased = {entry.cell for entry in process.installed.journal.entries() if entry.leases}
assert leased == {1, 4}, leased
"""
)
REFUSED = (
    CELLS
    + r"""
import traceback
error = run("import torch\ntorch.ones(2, device='cuda')")
frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
assert "needs" in str(error), error
assert not any("/forebay/" in name for name in frames), frames
"""
)
WENT_BACK = (
    CELLS
    + r"""
run("import torch\nx = torch.zeros(3, device='cuda')")
assert run("%checkpoint --each-cell") is None
for value in (1, 2, 3):
    run(f"x += {value}\ny = x * 2")
for cell, held in (("%undo", [3] * 3), ("%undo", [1] * 3), ("%restore cell 5", [6] * 3), ("%undo 2", [1] * 3)):
    assert run(cell) is None and run(f"assert x.tolist() == {held}, x") is None, cell
assert run("%checkpoint --each-cell off") is None and run("x -= 1\n%checkpoint zero") is None
assert run("x -= 1\n%restore zero\nassert x.tolist() == [0] * 3") is None
refusals = (("%restore nowhere", "There is no checkpoint 'nowhere'"), ("%undo x", "invalid literal"), ("%checkpoint a b", "usage:"))
for cell, refusal in refusals:
    error = run(cell)
    assert type(error).__name__ == "UsageError" and refusal in str(error), error
"""
)


def test_a_late_failure_names_the_cell_and_its_line(run_forked: Any) -> None:
    done = run_forked(LATE, FOREBAY_URL="local")
    assert done.returncode == 0, done.stderr


def test_what_cannot_fit_is_raised_at_its_line_of_its_cell(run_forked: Any) -> None:
    done = run_forked(TOO_LARGE, FOREBAY_URL="local")
    assert done.returncode == 0, done.stderr


def test_a_cell_that_only_uses_what_was_lost_takes_no_lease(run_python: Any) -> None:
    """It can do nothing but fail, by our fault; a lease would be billed."""
    done = run_python(LOST, FOREBAY_URL="local", FOREBAY_JOURNAL_BYTES="0")
    assert done.returncode == 0, done.stderr


def test_cells_are_undone(run_python: Any) -> None:
    done = run_python(WENT_BACK, FOREBAY_URL="local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Back at checkpoint cell 3: 1 tensors were put back.\nNot brought back" in done.stdout


def test_a_refusal_shows_no_frame_of_ours(run_forked: Any) -> None:
    done = run_forked(REFUSED, FOREBAY_URL="local", FOREBAY_FLAVOR="large.256gb")
    assert done.returncode == 0, done.stderr


def test_a_shell_of_this_environment_has_the_extension_before_pytorch_is_imported(tmp_path: Path) -> None:
    """By a startup file that comes with the package, and leaves no name behind."""
    asked = "import sys; print('forebay.notebook' in sys.modules, 'torch' in sys.modules, 'forebay' in dir())"
    command = [sys.executable, "-m", "IPython", "--no-banner", "-c", asked]
    environment = {**os.environ, "FOREBAY_URL": "local", "IPYTHONDIR": str(tmp_path)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.split() == ["True", "False", "False"]
