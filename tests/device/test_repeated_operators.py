"""PyTorch's operator database as a loop calls it: again and again, with other values. By known steps (tier 1) the results are the CPU's,
and by libraries (tier 2) what a proof lets pass."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker
from test_operator_sweep import EXCEPTIONS, exception_of

HERE = Path(__file__).resolve().parent
STANDIN, HURRIED = (HERE.parent / "worker" / f"{kind}_compilers_worker.py" for kind in ("standin", "hurried"))
MEMORY_BYTES = 8 << 30
PARTS, PROCESSES = 24, 2
"""One of the parts is tried without --full-sweep."""
DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
SAMPLES_FULL = 4
IN_A_BATCH = 24
SECONDS_MAX, SECONDS_MAX_FULL = 240, 4 * 3600
MADE = ("takes", "is timed")
"""In what a worker says of a segment whose library was proved."""


def sweep(
    folder: Path, options: list[str], worker: tuple[str, ...] = (), program: tuple[str, ...] = ("-m", "forebay_worker")
) -> dict[str, Any]:
    """What ``repeated_sweep.py`` wrote. ``worker``: its options; ``program``: what runs it."""
    folder.mkdir(parents=True)
    output = folder / "told.json"
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", *worker, memory_bytes=MEMORY_BYTES, program=program) as served:
        command = [fork_server.databases(), str(HERE / "repeated_sweep.py"), *served, str(output), *options]
        subprocess.run(command, env=environment, check=True, timeout=SECONDS_MAX_FULL)
    return dict(json.loads(output.read_text()))


def check(results: dict[str, str]) -> None:
    failed = [f"{case}: {error}" for case, error in results.items() if error and exception_of(case.rsplit(" ", 1)[0]) is None]
    assert not failed, "\n".join([f"cases fail that {EXCEPTIONS.name} does not list:", *failed])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX_FULL)
@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.full_sweep) for dtype in DTYPES[1:])])
def test_what_a_loop_calls_again_gives_the_cpu_s_results_each_time(dtype: str, tmp_path: Path, full_sweep: bool) -> None:
    parts, options = range(PARTS if full_sweep else 1), ["--dtype", dtype, "--samples", str(SAMPLES_FULL if full_sweep else 1)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        jobs = [pool.submit(sweep, tmp_path / str(part), [*options, "--part", str(part), str(PARTS)]) for part in parts]
        told = [job.result() for job in jobs]
    results = {case: error for one in told for case, error in one["results"].items()}
    known = [case for one in told for case in one["known"]]
    print(f"{dtype}: {len(results)} cases, {len(known)} of them by known steps, {sum(map(bool, results.values()))} failed")
    check(results)
    assert len(known) >= 0.9 * len(results), "calls that come again are known"


def compiled(names: list[str], folder: Path) -> list[tuple[list[str], dict[str, Any]]]:
    """How libraries of the cases ended: one of all, or, where that is not made or is wrong, of halves of them."""
    folder.mkdir(parents=True)
    (folder / "names.json").write_text(json.dumps(names))
    options = ("--compile-after", "0", "--libraries", str(folder / "libraries"))
    told = sweep(folder / "batch", ["--batch", str(folder / "names.json")], options, (str(HURRIED),))
    if not told["error"] and any(made in told["why"] for made in MADE):
        return [(names, told)]
    if len(names) == 1:
        return [(names, told)]
    middle = len(names) // 2
    return [*compiled(names[:middle], folder / "0"), *compiled(names[middle:], folder / "1")]


@pytest.mark.full_sweep
@pytest.mark.timeout(6 * SECONDS_MAX_FULL)
def test_libraries_of_what_a_loop_calls_again_are_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all cases whose graphs could be compiled, some in a library; a case whose own is wrong is a mistake of ours or of the compiler."""
    monkeypatch.setenv("FOREBAY_COMPILE", "1")

    def describe(part: int) -> dict[str, Any]:
        folder = tmp_path / f"part-{part}"
        options = ["--part", str(part), str(PARTS), "--described", str(folder / "described")]
        return sweep(folder, options, ("--compile-after", "0", "--libraries", str(folder / "libraries")), (str(STANDIN),))

    with ThreadPoolExecutor(PROCESSES) as pool:
        told = list(pool.map(describe, range(PARTS)))
    reasons = {case: why for one in told for case, why in one["reasons"].items()}
    names = sorted(case for case, why in reasons.items() if not why)
    batches = [names[start : start + IN_A_BATCH] for start in range(0, len(names), IN_A_BATCH)]
    ends = [end for number, some in enumerate(batches) for end in compiled(some, tmp_path / f"batch-{number}")]
    print(f"{len(names)} of {len(reasons)} cases have graphs; why not: {Counter(reasons.values()).most_common(20)}")
    print(f"{len(ends)} libraries: {Counter(told['why'] for _, told in ends).most_common()}")
    bad = [(some, told) for some, told in ends if told["error"] or "wrong" in told["why"] or "failed" in told["why"]]
    wrong = [f"{some}: {told['why']} {told['error']}" for some, told in bad]
    assert not wrong, "\n".join(wrong)
    assert len(names) >= 250
