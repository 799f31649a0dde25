"""Time to record and encode one operator on the virtual device, PyTorch's own dispatch included, against native CPU.

Bar (DESIGN §10): at most 2 µs median. An embedded pool and a worker on a CPU development device serve it; before each block the
stream is drained, and a block is short enough that the worker is never waited for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from report import median_ns, report

os.environ.setdefault("FOREBAY_URL", "local")

import torch

BLOCK_CALLS = 500


def operators(device: str) -> dict[str, Callable[[], object]]:
    """The measured calls, on 4x4 tensors of ``device``."""
    one, other = torch.ones(4, 4, device=device), torch.ones(4, 4, device=device)
    weight = torch.ones(4, device=device)
    parameter = torch.ones(4, 4, device=device, requires_grad=True)
    return {
        "add": lambda: one + other,
        "add_": lambda: one.add_(other),
        "mul by a number": lambda: one * 2.0,
        "mm": lambda: one @ other,
        "relu": lambda: one.relu(),
        "layer_norm": lambda: torch.nn.functional.layer_norm(one, (4,), weight, weight),
        "add with autograd": lambda: parameter + other,
        "t (a view)": lambda: one.t(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=41, help="blocks a figure is the median of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    virtual, native = operators("cuda"), operators("cpu")
    rows = []
    for name in virtual:

        def block(call: Callable[[], object] = virtual[name]) -> float:
            torch.cuda.synchronize()
            return median_ns(1, BLOCK_CALLS, call)

        block()
        recorded = sorted(block() for _ in range(options.blocks))[options.blocks // 2] / 1e3
        own = median_ns(options.blocks, BLOCK_CALLS, native[name]) / 1e3
        rows.append({"operator": name, "virtual us": recorded, "native cpu us": own, "ratio": recorded / own})
    report("record", rows, bar_us=2.0, worst_us=max(row["virtual us"] for row in rows), torch=torch.__version__)


if __name__ == "__main__":
    main()
