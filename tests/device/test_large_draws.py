"""What most of the device's memory is drawn for needs no second copy there, and what does not fit is refused where it is made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fork_server
from standalone import standalone_worker

MEMORY_BYTES = 64 << 20
PROGRAM = """
import sys
from operator_sweep import attach
attach(sys.argv[1], sys.argv[2])
import torch
from torch import nn
count = int(sys.argv[3])
made = {
    "randn": lambda: torch.randn(count, device="cuda"),
    "normal_": lambda: torch.empty(count, device="cuda").normal_(3, 2),
    "normal": lambda: torch.normal(1.0, 2.0, (count,), device="cuda"),
    "nn.init.normal_": lambda: nn.init.normal_(torch.empty(count, device="cuda")),
    "bernoulli_": lambda: torch.empty(count, device="cuda").bernoulli_(0.5),
    "rand": lambda: torch.rand(count, device="cuda"),
    "exponential_": lambda: torch.empty(count, device="cuda").exponential_(),
    "cauchy_": lambda: torch.empty(count, device="cuda").cauchy_(),
    "random_": lambda: torch.empty(count, device="cuda").random_(),
}
for name, make in made.items():
    x = make()
    torch.cuda.synchronize()
    assert 0 < x[: 1 << 16].float().std() < float("inf"), name
    del x
"""


def test_a_draw_fits_where_its_tensor_does(tmp_path: Path) -> None:
    with standalone_worker(tmp_path, memory_bytes=MEMORY_BYTES) as served:
        program = [fork_server.programs(), "-c", PROGRAM, *served, str(MEMORY_BYTES * 3 // 5 // 4)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
