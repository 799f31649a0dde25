"""Products of matrices in libraries, which oneDNN has where it is quicker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forebay_worker import compiler, matmul_backend
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

ROWS, INNER, COLUMNS = 48, 40, 56


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A linear layer's result, and its derivatives."""
    made = torch.relu(torch.addmm(bias, x, weight.t()))
    given = gradient * (made > 0)
    return made, torch.mm(given.t(), x), torch.mm(given, weight), torch.mm(x.t(), given)


def others(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What stays as it is: another factor, a matrix that is added, double precision, a row's sum."""
    scaled = torch.addmm(bias, x, weight.t(), beta=0.5)
    added = torch.addmm(gradient, x, weight.t())
    return scaled, added, torch.mm(x.double(), weight.t().double()), torch.addmm(bias[:1], x, weight.t())


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER), torch.randn(COLUMNS), torch.randn(ROWS, COLUMNS)]


@pytest.fixture
def all_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_backend, "_is_quicker", lambda *_: True)


def traced(function: Callable[..., tuple[torch.Tensor, ...]], mode: str = "fake") -> GraphModule:
    return make_fx(function, tracing_mode=mode)(*inputs())


@pytest.mark.usefixtures("all_quicker")
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_products_are_those_of_pytorch_but_for_rounding(mode: str) -> None:
    module = traced(layer, mode)
    assert matmul_backend.take_quicker(module) == 4
    assert not {matmul_backend.ATEN.mm.default, matmul_backend.ATEN.addmm.default} & {node.target for node in module.graph.nodes}
    for found, expected in zip(module(*inputs()), layer(*inputs()), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("all_quicker")
def test_what_is_more_than_a_product_in_single_precision_stays() -> None:
    module = traced(others)
    assert matmul_backend.take_quicker(module) == 0
    for found, expected in zip(module(*inputs()), others(*inputs()), strict=True):
        torch.testing.assert_close(found, expected)


def test_small_products_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(_: Callable[[], torch.Tensor]) -> float:
        raise AssertionError("it was timed")

    monkeypatch.setattr(matmul_backend, "_least_seconds", timed)
    assert matmul_backend.take_quicker(traced(layer)) == 0


@pytest.mark.parametrize(("seconds", "count"), [([1.0, 1.2], 4), ([1.0, 1.05], 0), ([1.2, 1.0], 0)])
def test_the_kernel_that_took_less_has_them(monkeypatch: pytest.MonkeyPatch, seconds: list[float], count: int) -> None:
    times = iter(seconds * 4)
    monkeypatch.setattr(matmul_backend, "_least_seconds", lambda _: next(times))
    monkeypatch.setattr(matmul_backend, "OPERATIONS_MIN", 1)
    matmul_backend._is_quicker.cache_clear()
    assert matmul_backend.take_quicker(traced(layer)) == count
    matmul_backend._is_quicker.cache_clear()


def test_a_kernel_is_timed_on_one_thread_and_the_others_are_there_again() -> None:
    threads = torch.get_num_threads()
    seen = []
    assert matmul_backend._least_seconds(lambda: (seen.append(torch.get_num_threads()), torch.ones(100, 100).sum())[1]) > 0
    assert set(seen) == {1}
    assert torch.get_num_threads() == threads


@pytest.mark.full_sweep
@pytest.mark.usefixtures("all_quicker")
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports
def test_a_library_calls_onednn(tmp_path: Path) -> None:
    compiler.make(tmp_path / "made.so", traced(layer), inputs())
    assert b"aoti_torch_cpu__linear_pointwise" in (tmp_path / "made.so").read_bytes()
    found = torch._C._aoti.AOTIModelContainerRunnerCpu(str(tmp_path / "made.so"), 1).run(inputs())
    for one, expected in zip(found, layer(*inputs()), strict=True):
        torch.testing.assert_close(one, expected)
