"""Kernels in Triton, alike on the virtual device and natively; functions that peers run, as in :mod:`gpu.programs`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from gpu.programs import synchronize

Case = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]
"""By a kernel, and by PyTorch's operators."""


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=mask) + tl.load(y_ptr + places, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    mask = places < columns
    row = tl.program_id(0) * columns
    x = tl.load(x_ptr + row + places, mask=mask, other=-float("inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + places, powers / tl.sum(powers, axis=0), mask=mask)


@triton.autotune(
    configs=[
        triton.Config({"M": 64, "N": 64, "K": 32}, num_warps=4, num_stages=3),
        triton.Config({"M": 128, "N": 64, "K": 32}, num_warps=4, num_stages=4),
        triton.Config({"M": 128, "N": 128, "K": 64}, num_warps=8, num_stages=3),
        triton.Config({"M": 256, "N": 256, "K": 128}, num_warps=8, num_stages=8),  # more shared memory than there is: passed over
    ],
    key=["size"],
)
@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, size, K):
        inner = first + tl.arange(0, K)
        a = tl.load(a_ptr + rows[:, None] * size + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total.to(tl.float16))


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, scale, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of one head after another, with a running maximum and sum of each row."""
    head = tl.program_id(1) * length * WIDTH
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    q = tl.load(q_ptr + head + rows[:, None] * WIDTH + columns[None, :])
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    weight = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(0, length, BLOCK):
        keys = first + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + head + keys[None, :] * WIDTH + columns[:, None])
        scores = tl.dot(q, k) * scale
        above = tl.maximum(most, tl.max(scores, 1))
        powers, faded = tl.exp(scores - above[:, None]), tl.exp(most - above)
        v = tl.load(v_ptr + head + keys[:, None] * WIDTH + columns[None, :])
        total = tl.dot(powers.to(tl.float16), v, total * faded[:, None])
        weight, most = weight * faded + tl.sum(powers, 1), above
    tl.store(out_ptr + head + rows[:, None] * WIDTH + columns[None, :], (total / weight[:, None]).to(tl.float16))


@torch.library.triton_op("forebay_bench::scaled_add", mutates_args=())
def scaled_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y, by the kernel."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


scaled_add.register_autograd(lambda ctx, gradient: (gradient, gradient))


def _vector_add(device: str, n: int) -> Case:
    x, y, out = torch.randn(n, device=device), torch.randn(n, device=device), torch.empty(n, device=device)

    def by_kernel() -> torch.Tensor:
        add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        return out

    return by_kernel, lambda: x + y


def _softmax(device: str, n: int) -> Case:
    x = torch.randn(n, n, device=device)
    out = torch.empty_like(x)

    def by_kernel() -> torch.Tensor:
        softmax_kernel[(n,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
        return out

    return by_kernel, lambda: x.softmax(1)


def _matmul(device: str, n: int) -> Case:
    a, b = torch.randn(n, n, device=device, dtype=torch.float16), torch.randn(n, n, device=device, dtype=torch.float16)
    out = torch.empty_like(a)

    def by_kernel() -> torch.Tensor:
        matmul_kernel[lambda meta: (triton.cdiv(n, meta["M"]), triton.cdiv(n, meta["N"]))](a, b, out, n)
        return out

    return by_kernel, lambda: a @ b


def _attention(device: str, n: int) -> Case:
    q, k, v = torch.randn(3, 16, n, 64, device=device, dtype=torch.float16)
    out = torch.empty_like(q)

    def by_kernel() -> torch.Tensor:
        attention_kernel[(n // 64, 16)](q, k, v, out, 0.125, n, WIDTH=64, BLOCK=64)
        return out

    return by_kernel, lambda: torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _custom_operator(device: str, n: int) -> Case:
    """Its gradient, through a graph that torch.compile has captured."""
    x, y = torch.randn(n, device=device, requires_grad=True), torch.randn(n, device=device)
    compiled = torch.compile(lambda x, y: (scaled_add(x, y) ** 2).sum(), fullgraph=True, backend="aot_eager")
    return lambda: torch.autograd.grad(compiled(x, y), x)[0], lambda: 2 * (x + y).detach()


CASES: dict[str, Callable[[str, int], Case]] = {
    "vector add": _vector_add,
    "softmax": _softmax,
    "matmul, autotuned": _matmul,
    "attention": _attention,
    "an operator of one's own with its gradient": _custom_operator,
}


@cache
def _made(device: str, name: str, n: int) -> Case:
    torch.manual_seed(7)
    return CASES[name](device, n)


def difference(device: str, name: str, n: int) -> float:
    """Between the kernel's result and PyTorch's, as a part of its largest value."""
    by_kernel, by_operators = _made(device, name, n)
    expected = by_operators().double()
    return float((by_kernel().double() - expected).abs().max() / expected.abs().max())


def launch_us(device: str, name: str, n: int, launches: int) -> float:
    """Of one launch among many."""
    by_kernel, _ = _made(device, name, n)
    times = []
    for _ in range(3):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(launches):
            by_kernel()
        synchronize(device)
        times.append((time.perf_counter() - begin) / launches * 1e6)
    return statistics.median(times)


def refusal(device: str) -> str:
    """What a launch says."""
    x = torch.ones(8, device=device)
    try:
        add_kernel[(1,)](x, x, x, 8, BLOCK=8)
    except RuntimeError as error:
        return str(error)
    return ""


def stray(device: str) -> Any:
    """A kernel that writes far outside of what it was given: what the program hears, and what a new tensor gives then."""
    x = torch.ones(8, device=device)
    try:
        add_kernel[(1 << 20,)](x, x, x, 1 << 30, BLOCK=1024)
        synchronize(device)
        said = ""
    except RuntimeError as error:
        said = str(error)
    return said
