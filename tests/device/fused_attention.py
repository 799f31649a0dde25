"""Runs attention on the virtual device, and prints as JSON which kernel each case took, and what is known of its results.

Usage: ``python fused_attention.py ADDRESS TICKET [CHOICE]``: the two say how a worker is reached. CHOICE is what its PyTorch would take, as
a number of ``torch.nn.attention.SDPBackend``; without, the worker is asked. A null device computes no fused kernel, and refuses none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 40, 24, 16


def kernel(dtype: torch.dtype = torch.bfloat16, width: int = WIDTH, mask: str = "", **options: Any) -> dict[str, Any]:
    """Forward and backward of one case."""
    query = torch.zeros(BATCH, HEADS, QUERIES, width, dtype=dtype, device="cuda", requires_grad=True)
    key, value = (torch.zeros(BATCH, HEADS, KEYS, width, dtype=dtype, device="cuda", requires_grad=True) for _ in range(2))
    if mask:
        options["attn_mask"] = torch.zeros(QUERIES, KEYS, dtype=dtype, device="cuda", requires_grad=mask == "learned")
    made = scaled_dot_product_attention(query, key, value, **options)
    made.sum().backward()
    assert made.grad_fn is not None and query.grad is not None and key.grad is not None
    name = made.grad_fn.name()
    return {
        "kernel": name.removeprefix("ScaledDotProduct").partition("AttentionBackward")[0] if name.startswith("Scaled") else "math",
        "sizes": [list(tensor.shape) for tensor in (made, query.grad, key.grad)],
        "dtype": str(made.dtype).removeprefix("torch."),
    }


def cases() -> dict[str, dict[str, Any]]:
    """By name."""
    found = {
        "half": kernel(),
        "causal": kernel(is_causal=True),
        "float": kernel(torch.float32),
        "double": kernel(torch.float64),
        "masked": kernel(mask="given"),
        "a learned mask": kernel(mask="learned"),
        "dropout": kernel(dropout_p=0.5),
        "wide heads": kernel(width=208),
    }
    with sdpa_kernel(SDPBackend.MATH):
        found["math alone"] = kernel()
    return found


def lengths() -> list[Any]:
    """What flash attention gives besides tensors that it computes: is recorded without a question to the worker."""
    query = torch.zeros(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.half, device="cuda")
    key = torch.zeros(BATCH, HEADS, KEYS, WIDTH, dtype=torch.half, device="cuda")
    out, sums, starts, other_starts, queries, keys, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, key)
    return [list(out.shape), list(sums.shape), starts is None, other_starts is None, queries, keys]


def looked_on() -> dict[str, list[int]]:
    """Sizes where somebody looks on who knows no worker: a fake tensor, vmap, and a function's gradient."""
    query = torch.zeros(3, BATCH, HEADS, KEYS, WIDTH, dtype=torch.half, device="cuda")
    one = query[0]
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(one)
        faked = scaled_dot_product_attention(fake, fake, fake)
    mapped = torch.vmap(scaled_dot_product_attention)(query, query, query)
    gradient = torch.func.grad(lambda x: scaled_dot_product_attention(x, x, x).sum())(one)
    return {"fake": list(faked.shape), "vmap": list(mapped.shape), "grad": list(gradient.shape)}


def draw_after(question: bool) -> float:
    """A number of chance, after a question for the kernel or without."""
    torch.manual_seed(5)
    tensor = torch.zeros(1, 2, 8, 8, device="cuda")
    if question:
        torch.ops.aten._fused_sdp_choice(tensor, tensor, tensor)
    return float(torch.rand((), device="cuda").item())


def main() -> None:
    choice = [int(word) for word in sys.argv[3:]]
    if choice:
        library = torch.library.Library("aten", "IMPL")  # its kernels go with it
        library.impl("_fused_sdp_choice", lambda *_, **__: choice[0], "CUDA", allow_override=True)
        print(json.dumps({"cases": cases(), "lengths": lengths(), "looked_on": looked_on()}))
        return
    asked = torch.zeros(1, 2, 8, 8)
    natively = torch.ops.aten._fused_sdp_choice(asked, asked, asked)
    taken = torch.ops.aten._fused_sdp_choice(asked.cuda(), asked.cuda(), asked.cuda())
    print(json.dumps({"natively": natively, "taken": taken, "draws": [draw_after(False), draw_after(True)]}))


if __name__ == "__main__":
    main()
