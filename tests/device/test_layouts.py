"""Results lie in memory as the CPU's do, whatever their inputs' strides; what overlaps is refused where the CPU refuses it.

``make test`` tries one in six entries of PyTorch's operator database with one sample; ``--full-sweep`` all, with four, in three
dtypes.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "layout_exceptions.toml"
MEMORY_BYTES = 8 << 30
PARTS = 6
CASES_MIN, CASES_MIN_FULL = 700, {"float32": 5000, "complex64": 2900, "int64": 3500}


def sweep(folder: Path, options: list[str]) -> dict[str, str]:
    """For each case nothing, or what went wrong."""
    output = folder / "results.json"
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    with standalone_worker(folder, memory_bytes=MEMORY_BYTES) as served:
        command = [fork_server.databases(), str(HERE / "layout_sweep.py"), *served, str(output), *options]
        subprocess.run(command, env=environment, check=True, timeout=1700)
    results: dict[str, str] = json.loads(output.read_text())
    return results


def entry_of(case: str, exceptions: dict[str, Any]) -> str | None:
    """The longest listed one."""
    return max((entry for entry in exceptions if case.startswith(f"{entry} ")), key=len, default=None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.full_sweep) for dtype in ("complex64", "int64"))])
def test_results_lie_as_the_cpu_s_and_the_same_overlaps_are_refused(dtype: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    full = pytestconfig.getoption("--full-sweep")
    results = sweep(tmp_path, ["--dtype", dtype, *(["--samples", "4"] if full else ["--samples", "1", "--part", "0", str(PARTS)])])
    exceptions: dict[str, dict[str, str]] = tomllib.loads(EXCEPTIONS.read_text())
    failed = {case: error for case, error in results.items() if error}
    unlisted = [f"{case}: {error}" for case, error in failed.items() if entry_of(case, exceptions) is None]
    assert not unlisted, "\n".join([f"{len(unlisted)} cases fail that {EXCEPTIONS.name} does not list:", *unlisted])
    for case, error in failed.items():
        assert exceptions[entry_of(case, exceptions) or ""]["says"] in error, f"{case}: {error}"
    if full:
        listed = {entry for entry, exception in exceptions.items() if exception.get("dtype", "float32") == dtype}
        idle = listed - {entry_of(case, exceptions) for case in failed}
        assert not idle, f"take these off {EXCEPTIONS.name}, all their cases pass: {idle}"
    assert len(results) >= (CASES_MIN_FULL[dtype] if full else CASES_MIN)
