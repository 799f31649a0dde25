"""``ADDRESS TICKET``: kernels in Triton, launched on a device whose worker takes them. Prints a line of JSON: what each case gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from forebay.errors import NotOnVirtualDevice
from operator_sweep import attach


@triton.jit
def scaled_sum(x_ptr, y_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    x, y = tl.load(x_ptr + places, mask=mask), tl.load(y_ptr + places, mask=mask)
    tl.store(out_ptr + places, (x + y) * factor, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"])
@triton.heuristics({"factor": lambda given: 2.0 if given["n"] > 64 else 3.0})
@triton.jit
def tuned(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=mask) * factor, mask=mask)


@triton.jit
def softmax_rows(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    mask = places < columns
    row = tl.program_id(0) * columns
    x = tl.load(x_ptr + row + places, mask=mask, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + places, powers / tl.sum(powers, axis=0), mask=mask)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, factor: float = 1.0, block: int = 64) -> torch.Tensor:
    scaled_sum[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), factor, BLOCK=block)
    return out


def values(case: Callable[[], Any]) -> Any:
    try:
        found = case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return found.tolist() if isinstance(found, torch.Tensor) else found


def in_order() -> list[float]:
    """Among calls, in place, and through a view that begins in the middle of its storage."""
    x = torch.arange(100.0, device="cuda")
    tail = x[10:]
    out = torch.zeros(90, device="cuda")
    add(tail, tail, out, 0.5)
    out.mul_(2)
    add(out, tail, tail)
    x.add_(1)
    return [*x[:2].tolist(), *x[10:12].tolist(), x[-1].item(), out[-1].item()]


def autotuned() -> list[float]:
    x, small = torch.arange(200.0, device="cuda"), torch.arange(8.0, device="cuda")
    results = torch.empty_like(x), torch.empty_like(small)
    for given, out in zip((x, small), results, strict=True):
        tuned[lambda meta, given=given: (triton.cdiv(given.numel(), meta["BLOCK"]),)](given, out, given.numel())
    return [results[0][-1].item(), results[1][-1].item()]


def softmax() -> float:
    x = torch.randn(5, 12, device="cuda")
    out = torch.empty_like(x)
    softmax_rows[(5,)](x, out, 12, BLOCK=16)
    return float((out - x.softmax(1)).abs().max())


def graphed() -> list[float]:
    """A captured launch comes again with each replay, and the capture itself leaves nothing behind."""
    x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(x, out, out)
        doubled = out * 2
    captured = out[0].item()
    for _ in range(3):
        graph.replay()
    return [captured, out[0].item(), doubled[0].item()]


def operator_of_ones_own() -> list[float]:
    """With a derivative, plain and in a compiled graph."""

    @torch.library.triton_op("forebay_tests::summed", mutates_args=())
    def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(scaled_sum)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), 3.0, BLOCK=64)
        return out

    summed.register_autograd(lambda ctx, gradient: (gradient * 3, gradient * 3))
    found = []
    for function in (summed, torch.compile(summed, fullgraph=True)):
        x, y = torch.ones(70, device="cuda", requires_grad=True), torch.full((70,), 2.0, device="cuda")
        made = function(x, y)
        made.sum().backward()
        assert x.grad is not None
        found += [made[-1].item(), x.grad[-1].item()]
    return found


def called_from_a_compiled_function() -> list[float]:
    @torch.compile(fullgraph=True)
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        scaled_sum[(2,)](x, y, out, x.numel(), 1.0, BLOCK=64)
        return out * 2

    x = torch.ones(100, device="cuda")
    return [step(x, x)[-1].item(), step(x, x + 1)[0].item()]


def bit_types() -> list[float]:
    """Numbers of other types, and no tensor."""
    half = torch.arange(8.0, device="cuda").half()
    out = torch.zeros(8, device="cuda", dtype=torch.float64)
    tuned.fn.fn[(1,)](half, out, 8, 0.1, BLOCK=32)
    return [out[7].item()]


CASES = (in_order, autotuned, softmax, graphed, operator_of_ones_own, called_from_a_compiled_function, bit_types)


def refused() -> dict[str, Any]:
    x = torch.ones(8, device="cuda")
    host = values(lambda: add(x, torch.ones(8), x))
    clusters = values(lambda: scaled_sum[(1,)](x, x, x, 8, 1.0, BLOCK=32, num_ctas=2))
    foreign = SimpleNamespace(dtype=torch.float32, data_ptr=lambda: 1 << 40)
    address = values(lambda: scaled_sum[(1,)](foreign, x, x, 8, 1.0, BLOCK=32))
    return {"host": host, "clusters": clusters, "address": address, "after": add(x, x, x)[0].item()}


def main() -> None:
    attach(sys.argv[1], sys.argv[2])
    if len(sys.argv) > 3:  # the worker takes none
        x = torch.ones(8, device="cuda")
        told = []
        for _ in range(2):
            try:
                add(x, x, x)
            except NotOnVirtualDevice as error:
                told.append(str(error))
        print(json.dumps({"told": told, "x": x.tolist()}))
        return
    print(json.dumps({case.__name__: values(case) for case in CASES} | {"refused": refused()}))


if __name__ == "__main__":
    main()
