"""``forebay profile`` and ``%%gpu profile`` against the embedded pool: real programs, and a real IPython shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

STEPS = 5
SCRIPT = f"""
import sys, torch
import beside
total = 0.0
for step in range({STEPS}):
    x = torch.ones(4, device="cuda") * step
    total += x.sum().item()
print(sys.argv[1:], __name__, total, beside.NAME)
"""
ITEM_LINE = 7


def profile(run_python: Any, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``forebay profile`` with the arguments, in an environment without a service; a fork, which has the device already, says which."""
    code = "import sys; from forebay.toolkit.command import main; raise SystemExit(main(['profile', *sys.argv[1:]]))"
    done: subprocess.CompletedProcess[str] = run_python(code, *arguments, **variables)
    return done


def written(folder: Path, text: str) -> str:
    (folder / "beside.py").write_text("NAME = 'beside'\n")
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


def test_a_script_is_profiled_and_its_slow_line_is_named(tmp_path: Path, run_python: Any) -> None:
    done = profile(run_python, "--json", "found.json", written(tmp_path, SCRIPT), "--lr", "0.1", "--top", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['--lr', '0.1', '--top', '3'] __main__ 40.0 beside\n"
    assert f"program.py:{ITEM_LINE} total += x.sum().item()" in done.stderr
    for name in ("the program itself", "recording", "waiting for a lease", "waiting for the device", "cuda:0 worked", "aten::mul"):
        assert name in done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    (wait,) = (wait for wait in found["waits"] if wait["kind"] == "item")
    assert (wait["line"], wait["count"]) == (ITEM_LINE, STEPS)
    assert found["program_ns"] + found["recording_ns"] + sum(wait["ns"] for wait in found["waits"]) == found["wall_ns"]
    leases = [wait for wait in found["waits"] if wait["kind"] == "lease"]  # more than one where a busy machine lets the session idle
    assert leases and sum(wait["ns"] for wait in leases) == found["lease_ns"] > 0


def test_a_module_is_profiled_and_top_shortens_the_tables(tmp_path: Path, run_forked: Any) -> None:
    written(tmp_path, SCRIPT)
    done = profile(run_forked, "--top", "1", "-m", "program", "x", FOREBAY_URL="local")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['x'] __main__ 40.0 beside\n"
    assert "more operators" in done.stderr


def test_the_exit_status_of_the_program_is_passed_on(tmp_path: Path, run_forked: Any) -> None:
    done = profile(run_forked, written(tmp_path, "raise SystemExit(7)\n"), FOREBAY_URL="local")
    assert done.returncode == 7
    assert "No device was used." in done.stderr


def test_an_error_of_the_program_is_shown_with_its_own_frames_and_then_the_profile(tmp_path: Path, run_forked: Any) -> None:
    done = profile(run_forked, written(tmp_path, "import torch\ntorch.ones(3, device='cuda').sum().item()\n1 / 0\n"), FOREBAY_URL="local")
    assert done.returncode == 1
    trace, _, report = done.stderr.partition("ZeroDivisionError: division by zero\n")
    assert trace.count("  File ") == 1 and "program.py" in trace
    assert "program.py:2" in report


def test_a_missing_script_is_said(tmp_path: Path, run_forked: Any) -> None:
    done = profile(run_forked, "no-such-script.py", FOREBAY_URL="local")
    assert done.returncode == 1
    assert done.stderr == "forebay: There is no file no-such-script.py; give a script's path, or -m and a module's name.\n"


CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
results = [shell.run_cell(cell, store_history=True) for cell in json.loads(sys.argv[1])]
print("errors:", [type(result.error_before_exec or result.error_in_exec).__name__ for result in results])
"""
IMPORT = "%load_ext forebay\nimport torch"
"""A fork has imported PyTorch before it had a shell, so the import brings no extension."""
LOOP = f"""%%gpu profile --top 3
for step in range({STEPS}):
    x = torch.ones(4, device="cuda") * step
    total = x.sum().item()
kept = 42
total"""


def run_cells(run_python: Any, *cells: str) -> str:
    done = run_python(CELLS, json.dumps(cells), FOREBAY_URL="local")
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_cell_is_profiled_with_its_own_line_numbers(run_forked: Any) -> None:
    out = run_cells(run_forked, IMPORT, LOOP, "print('kept:', kept, x.tolist())")
    assert "16.0" in out, "the value of the last expression is shown"
    assert "kept: 42 [4.0, 4.0, 4.0, 4.0]" in out, "names of the cell are the notebook's"
    assert "cell:4 total = x.sum().item()" in out
    assert "Profile of " in out and "waiting for a lease" in out
    assert out.endswith("errors: ['NoneType', 'NoneType', 'NoneType']\n")


def test_an_error_in_a_profiled_cell_is_raised_after_the_profile(run_forked: Any) -> None:
    out = run_cells(run_forked, IMPORT, "%%gpu profile\ntorch.ones(3, device='cuda').sum().item()\n1 / 0", "%%gpu profile\n1")
    assert "cell:2 torch.ones(3, device='cuda').sum().item()" in out
    assert out.endswith("errors: ['NoneType', 'ZeroDivisionError', 'NoneType']\n"), "and the next one is profiled again"


def test_a_failure_that_the_cell_did_not_wait_for_is_raised(run_forked: Any) -> None:
    out = run_cells(run_forked, IMPORT, "%%gpu profile\ny = torch.ones(3).cuda().gather(0, torch.tensor([9], device='cuda'))")
    assert out.endswith("errors: ['NoneType', 'RuntimeError']\n")
    assert out.index("Profile of ") < out.index("errors: ")


def test_words_that_the_magic_does_not_know_are_refused_with_its_usage(run_forked: Any) -> None:
    out = run_cells(run_forked, IMPORT, "%%gpu profil\n1", "%%gpu profile --tip 3\n1")
    assert out.endswith("errors: ['NoneType', 'UsageError', 'UsageError']\n")


def test_the_extension_brings_the_magic_without_an_import(run_python: Any) -> None:
    out = run_cells(run_python, "%load_ext forebay", "%%gpu profile\nimport torch\ntorch.ones(2, device='cuda').tolist()")
    assert "[1.0, 1.0]" in out and "cell:3" in out
    assert out.endswith("errors: ['NoneType', 'NoneType']\n")


def test_a_cell_on_one_device_is_told_that_there_is_no_plan(run_forked: Any) -> None:
    out = run_cells(run_forked, IMPORT, "%%gpu plan\ntorch.ones(2, device='cuda').tolist()", "%%gpu plan --top 3\n1")
    assert "[1.0, 1.0]\nThere is no plan: the cell ran on one device, or on none." in out
    assert out.endswith("errors: ['NoneType', 'NoneType', 'UsageError']\n")
