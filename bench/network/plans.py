"""Training steps of one program on two development devices by plan, against PyTorch's own data and tensor parallelism on two ranks.

``PYTHONPATH=bench python -m network.plans``. All have one thread a device or rank, and the ranks gloo. By turns, a median of each:
the program unmodified on one virtual device of two; ``DistributedDataParallel``; ``parallelize_module``, each layer by the plan that
its documentation gives. Bars: the better one of PyTorch's at most 1.05 (data) and 1.10 (tensor) times as quick.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "device"))
sys.path.insert(1, str(ROOT / "tests"))

if TYPE_CHECKING:
    import torch
    from torch import nn

RANKS = 2
MEMORY_BYTES = 8 << 30
WIDTH, TOKENS, HEAD = 512, 16, 64
CASES = {
    "perceptron": (8, 64, 256, 1024),
    "transformer": (8, 64),
    "wide": (8, 64, 256),
}
"""Programs, and the rows of their batches."""


def models() -> dict[str, Callable[[], nn.Sequential]]:
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """A layer of an encoder; heads are counted by their width, since a rank has some of them."""

        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            normed = self.before(hidden)
            heads = [layer(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
            hidden = hidden + self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
            return hidden + self.down(functional.gelu(self.up(self.between(hidden))))

    class Feed(nn.Module):
        def __init__(self, width: int, inner: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.down(functional.relu(self.up(hidden)))

    return {
        "perceptron": lambda: nn.Sequential(*(Feed(1024, 1024) for _ in range(3)), nn.Linear(1024, 16)),
        "transformer": lambda: nn.Sequential(*(Block() for _ in range(4)), nn.Linear(WIDTH, 16)),
        "wide": lambda: nn.Sequential(Feed(1024, 16384), nn.Linear(1024, 16)),
    }


def batch(name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    shape = (rows, TOKENS, WIDTH) if name == "transformer" else (rows, 1024)
    return torch.randn(shape), torch.randint(0, 16, shape[:-1])


def step_ms(model: nn.Module, device: str, name: str, rows: int, steps: int) -> float:
    """The median over blocks of five steps, each until its last loss is read."""
    import torch
    from torch.nn import functional

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    taken = []
    for block in range(2 + steps):
        begin = perf_counter()
        for _ in range(5):
            x, y = (one.to(device) for one in batch(name, rows))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
        loss.item()
        if block >= 2:
            taken.append(1e3 * (perf_counter() - begin) / 5)
    return statistics.median(taken)


def ours(name: str, rows: int, steps: int, address: str, ticket: str) -> dict[str, Any]:
    from operator_sweep import attach

    attach(address, ticket)
    import torch
    from forebay import gang_work

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ms = step_ms(models()[name]().to("cuda"), "cuda", name, rows, steps)
    told = gang_work.read(0)
    return {"ms": ms, "plan": None if told is None else told.as_json()["plan"]}


def theirs(kind: str, name: str, rows: int, steps: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    layers = models()[name]()
    model: nn.Module = layers
    if kind == "data":
        rows //= RANKS
        model = nn.parallel.DistributedDataParallel(model)
    else:
        columns, whole = ("up", "query", "key", "value"), ("down", "out")
        for layer in layers:
            inner = [child for child, _ in layer.named_children()]
            plan: dict[str, ParallelStyle] = {one: ColwiseParallel() for one in columns if one in inner}
            plan |= {one: RowwiseParallel() for one in whole if one in inner}
            parallelize_module(layer, mesh, plan)
    ms = step_ms(model, "cpu", name, rows, steps)
    dist.destroy_process_group()
    return {"ms": ms}


def program(kind: str, name: str, rows: int, steps: int, *reached: str) -> list[str]:
    return [sys.executable, __file__, "--program", kind, name, str(rows), str(steps), *reached]


def run_ours(name: str, rows: int, steps: int) -> dict[str, Any]:
    from standalone import standalone_worker

    two = ("--device", "cpu:0") * RANKS
    with tempfile.TemporaryDirectory() as folder:
        with standalone_worker(Path(folder), "--threads", "1", *two, memory_bytes=MEMORY_BYTES, python=sys.executable) as reached:
            done = subprocess.run(program("ours", name, rows, steps, *reached), capture_output=True, text=True, timeout=600, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_theirs(kind: str, name: str, rows: int, steps: int) -> dict[str, Any]:
    from many import free_port

    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(RANKS)}
    command = program(kind, name, rows, steps)
    environments = [{**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for environment in environments]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    return dict(json.loads(outputs[0].splitlines()[-1]))


def row_of(name: str, rows: int, rounds: int, steps: int) -> dict[str, Any]:
    turns = [
        (run_ours(name, rows, steps), *(run_theirs(kind, name, rows, steps)["ms"] for kind in ("data", "tensor"))) for _ in range(rounds)
    ]
    plan = turns[-1][0]["plan"]
    own, data, tensor = (statistics.median(column) for column in zip(*((one[0]["ms"], *one[1:]) for one in turns), strict=True))
    found = {"program": name, "rows": rows, "ours ms": own, "DDP ms": data, "TP ms": tensor, "of the better": own / min(data, tensor)}
    return found | {"in rows": sum(one["rows_of"] > 0 for one in plan["weights"]) if plan else 0}


def main() -> None:
    from report import report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns a figure is the median of")
    parser.add_argument("--steps", type=int, default=5, help="blocks of five steps in a turn")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="a program; all without it")
    parser.add_argument("--rows", type=int, action="append")
    options = parser.parse_args()
    cases = [(name, rows) for name in options.case or CASES for rows in options.rows or CASES[name]]
    report("plans", [row_of(name, rows, options.rounds, options.steps) for name, rows in cases])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        kind, name, rows, steps, *reached = sys.argv[2:]
        print(json.dumps(ours(name, int(rows), int(steps), *reached) if kind == "ours" else theirs(kind, name, int(rows), int(steps))))
    else:
        main()
