"""PyTorch's operator database against the CPU: eight variants, two samples a case (with ``--full-sweep`` eight, in five dtypes); and
the arguments it must refuse, PyTorch's higher-order operators, forward-mode derivatives and vmap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "operator_exceptions.toml"
MEMORY_BYTES = 8 << 30
SAMPLES, SAMPLES_FULL = 2, 8
SECONDS_MAX, SECONDS_MAX_FULL = 280, 1800
CASES_MIN = {"float32": 3900, "bfloat16": 3200, "int64": 2300, "bool": 1700, "complex64": 2200}
OTHER_DTYPES = [dtype for dtype in CASES_MIN if dtype != "float32"]
PASSING_SHARE_MIN = 0.99
SPARSE_PASSING_SHARE_MIN = 0.95
ONE_DTYPE, TWO_LAYOUTS = ("--dtypes", "float32"), ("--layouts", "coo", "csr")
SPARSE_VARIANTS: dict[str, tuple[list[str], int]] = {
    "samples of its own": (["--variants", "forward", "gradient", *ONE_DTYPE], 30),
    "given": (["--variants", "given", *ONE_DTYPE, *TWO_LAYOUTS], 150),
}
FUNCTION_CASES_MIN = {"error": 200, "hop": 10, "dual": 480, "vmap": 580}


def exception_of(case: str) -> dict[str, str] | None:
    """What the list says of a case, or of its entry."""
    listed: dict[str, dict[str, str]] = tomllib.loads(EXCEPTIONS.read_text())
    return listed.get(case) or listed.get(case.rsplit(" ", 1)[0])


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and ticket of a worker on a CPU development device."""
    with standalone_worker(tmp_path, memory_bytes=MEMORY_BYTES) as served:
        yield served


def test_the_device_allows_what_the_client_sends_and_nothing_else() -> None:
    """The client leaves out what has no kernel for the CPU in this release, as ``_scaled_mm_v2`` in 2.11."""
    script = """
import torch
from forebay import _C
from forebay_worker import _executor
_C.install()
allowed = {name.removeprefix("aten::") for name, _ in _executor.allowed_operators() if name.startswith("aten::")}
sent = {*_C.recorded(), "copy_"}
kernel = torch._C._dispatch_has_kernel_for_dispatch_key
keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
assert kernel("aten::mm", "CPU") and kernel("aten::add_.Tensor", "CPU")
print(sorted(sent - allowed), [name for name in sorted(allowed - sent) if any(kernel(f"aten::{name}", key) for key in keys)])
"""
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert result.stdout.strip() == "[] []", result.stdout + result.stderr


def sweep(script: str, worker: tuple[str, str], folder: Path, options: list[str], seconds_max: float) -> dict[str, str]:
    """What a sweep found: for each case nothing, or what went wrong."""
    output = folder / "results.json"
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    command = [fork_server.databases(), str(HERE / script), *worker, str(output), *options]
    subprocess.run(command, env=environment, check=True, timeout=seconds_max)
    results: dict[str, str] = json.loads(output.read_text())
    print(f"{' '.join(options)}: {sum(not error for error in results.values())} of {len(results)} cases pass")
    return results


def check(results: dict[str, str]) -> None:
    """Exactly the listed cases fail, and say what the list says."""
    failed = {case: error for case, error in results.items() if error}
    unlisted = [f"{case}: {error}" for case, error in failed.items() if exception_of(case) is None]
    assert not unlisted, "\n".join([f"{len(unlisted)} cases fail that {EXCEPTIONS.name} does not list:", *unlisted])
    for case in results:
        exception = exception_of(case)
        if exception is not None:
            assert case in failed, f"{case} passes now: take it off {EXCEPTIONS.name}"
            assert exception["says"] in failed[case]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX_FULL)
@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.full_sweep) for dtype in OTHER_DTYPES)])
def test_all_but_the_listed_cases_give_the_cpu_s_results(
    dtype: str, worker: tuple[str, str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    full = pytestconfig.getoption("--full-sweep")
    samples = SAMPLES_FULL if full else SAMPLES
    options = ["--dtype", dtype, "--samples", str(samples)]
    results = sweep("operator_sweep.py", worker, tmp_path, options, SECONDS_MAX_FULL if full else SECONDS_MAX)
    check(results)
    failed = {case for case, error in results.items() if error}
    assert len(results) >= CASES_MIN[dtype]
    entries, bad = ({case.rsplit(" ", 1)[0] for case in cases} for cases in (results, failed))
    assert len(bad) <= (1 - PASSING_SHARE_MIN) * len(entries)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the sweep of functions found, of all variants: importing PyTorch's database takes longer than most of them."""
    folder = tmp_path_factory.mktemp("functions")
    with standalone_worker(folder, memory_bytes=MEMORY_BYTES) as served:
        return sweep("function_sweep.py", served, folder, ["--variants", *FUNCTION_CASES_MIN], 2 * SECONDS_MAX)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX_FULL)
@pytest.mark.parametrize("variant", FUNCTION_CASES_MIN)
def test_wrong_arguments_higher_order_operators_and_function_transforms_behave_as_pytorch_says(
    variant: str, functions: dict[str, str]
) -> None:
    results = {case: error for case, error in functions.items() if case.endswith(f" {variant}")}
    check(results)
    assert len(results) >= FUNCTION_CASES_MIN[variant]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX_FULL)
@pytest.mark.parametrize("variant", [pytest.param("samples of its own", marks=pytest.mark.full_sweep), "given"])
def test_sparse_tensors_give_the_cpu_s_results(variant: str, worker: tuple[str, str], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Samples that PyTorch has for the sparse layouts, and dense ones made sparse (with ``--full-sweep`` in all layouts and dtypes)."""
    options, cases_min = SPARSE_VARIANTS[variant]
    if pytestconfig.getoption("--full-sweep"):
        options = [option for option in options if option not in (*ONE_DTYPE, *TWO_LAYOUTS)]
    results = sweep("sparse_sweep.py", worker, tmp_path, options, SECONDS_MAX)
    failed = [f"{case}: {error}" for case, error in results.items() if error]
    assert len(results) >= cases_min
    assert len(failed) <= (1 - SPARSE_PASSING_SHARE_MIN) * len(results), "\n".join(failed)
