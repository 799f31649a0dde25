"""Training steps of one program on two development devices by plan, against PyTorch's data, tensor and pipeline parallelism.

``PYTHONPATH=bench python -m network.plans``. All have one thread a device or rank, and the two ranks gloo. By turns, a median of each:
the program unmodified on one virtual device of two, as it is planned and in stages whatever that costs; ``DistributedDataParallel``;
``parallelize_module``, each layer by the plan that its documentation gives; ``Schedule1F1B`` of ``torch.distributed.pipelining``, half of
the layers on each rank and eight parts of a batch. Bars: PyTorch's at most 1.05 (data) and 1.10 (tensor, pipeline) times as quick.
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
PARTS = 8
KINDS = ("data", "tensor", "stages")
MEMORY_BYTES = 8 << 30
WIDTH, TOKENS, HEAD = 512, 16, 64
CASES = {
    "perceptron": (8, 64, 256, 1024),
    "transformer": (8, 64),
    "wide": (8, 64, 256),
    "deep": (64, 256),
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
        "deep": lambda: nn.Sequential(*(part for _ in range(16) for part in (nn.Linear(1024, 1024), nn.ReLU())), nn.Linear(1024, 16)),
    }


def batch(name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    shape = (rows, TOKENS, WIDTH) if name == "transformer" else (rows, 1024)
    return torch.randn(shape), torch.randint(0, 16, shape[:-1])


Step = Callable[[Any, Any], Any]
"""Of a batch: the loss; None where another rank has it."""


def block_ms(step: Step, device: str, name: str, rows: int, steps: int) -> float:
    """The median over blocks of five steps, each until its last loss is read, of one step."""
    taken = []
    for block in range(2 + steps):
        begin = perf_counter()
        for _ in range(5):
            loss = step(*(one.to(device) for one in batch(name, rows)))
        if loss is not None:
            loss.item()
        if block >= 2:
            taken.append(1e3 * (perf_counter() - begin) / 5)
    return statistics.median(taken)


def loss_of(made: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(made.flatten(0, -2), y.flatten())


def step_ms(model: nn.Module, device: str, name: str, rows: int, steps: int) -> float:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return block_ms(step, device, name, rows, steps)


def stages_ms(layers: nn.Sequential, name: str, rows: int, steps: int) -> float:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, half = dist.get_rank(), len(layers) // 2
    part = layers[:half] if rank == 0 else layers[half:]
    schedule = Schedule1F1B(PipelineStage(part, rank, RANKS, torch.device("cpu")), PARTS, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        return torch.stack(losses).mean() if losses else None

    return block_ms(step, "cpu", name, rows, steps)


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
    if kind == "stages":
        ms = stages_ms(layers, name, rows, steps)
        dist.destroy_process_group()
        return {"ms": ms}
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


def environment_of(homes: str) -> dict[str, str]:
    return {**os.environ, "FOREBAY_COMPILE": "1" if homes == "pipeline" else "0"}


def run_ours(name: str, rows: int, steps: int, homes: str = "data-parallel") -> dict[str, Any]:
    from standalone import standalone_worker

    options = ("--threads", "1", "--homes", homes, *("--device", "cpu:0") * RANKS)
    with tempfile.TemporaryDirectory() as folder:
        with standalone_worker(Path(folder), *options, memory_bytes=MEMORY_BYTES, python=sys.executable) as reached:
            command, environment = program("ours", name, rows, steps, *reached), environment_of(homes)
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
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
        (run_ours(name, rows, steps), run_ours(name, rows, steps, "pipeline"), *(run_theirs(kind, name, rows, steps) for kind in KINDS))
        for _ in range(rounds)
    ]
    plan, staged = turns[-1][0]["plan"], turns[-1][1]["plan"]
    own, stages, *theirs = (statistics.median(one["ms"] for one in column) for column in zip(*turns, strict=True))
    found = {"program": name, "rows": rows, "ours ms": own, "in stages ms": stages}
    found |= {"DDP ms": theirs[0], "TP ms": theirs[1], "1F1B ms": theirs[2]}
    pipeline = staged["pipeline"] if staged else None
    found |= {"of the better": own / min(theirs[:2]), "of 1F1B": stages / theirs[2]}
    found |= {"predicted ms": pipeline["step_ns"] / 1e6 if pipeline else None, "parts": pipeline["parts"] if pipeline else None}
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
