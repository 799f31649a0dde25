"""What is predicted of a training step on several development devices, against what it takes: time and memory, as ``%%gpu plan`` tells.

``PYTHONPATH=bench python -m network.predictions``. Each program runs unmodified on one virtual device of 2 and of 4, one thread each: as it
is planned, where small batches have weights in rows and large ones rows of their own; in stages of one device each; and, of four devices,
in two stages of two. Bars: a predicted time within 25 % of the executed one, and memory within 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "device"), str(ROOT / "tests"), str(ROOT / "bench")]

if TYPE_CHECKING:
    import torch
    from torch import nn

DEVICES = (2, 4)
MEMORY_BYTES = 8 << 30
CONVOLUTIONS = "convolutions"
HOMES = {"as planned": "data-parallel", "in stages": "pipeline", "in a mesh": "mesh"}
CASES = (
    ("perceptron", 256, "as planned"),
    ("perceptron", 8, "as planned"),
    ("perceptron", 256, "in stages"),
    ("transformer", 64, "as planned"),
    ("transformer", 2, "as planned"),
    ("transformer", 64, "in stages"),
    (CONVOLUTIONS, 64, "as planned"),
    (CONVOLUTIONS, 64, "in stages"),
    ("wide", 8, "as planned"),
    ("deep", 64, "in stages"),
    ("deep", 256, "in a mesh"),
    ("transformer", 64, "in a mesh"),
)
"""Programs, rows of their batches, and how they are carried out."""


def convolutions() -> nn.Sequential:
    from torch import nn

    def block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2)

    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 64), nn.Flatten(), nn.Linear(64 * 16, 16))


def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return torch.randn(rows, 3, 32, 32), torch.randint(0, 16, (rows,))


def trained(name: str, rows: int, steps: int, address: str, ticket: str) -> dict[str, Any] | None:
    """The plan after so many steps."""
    from operator_sweep import attach

    attach(address, ticket)
    import torch
    from forebay import gang_work
    from network.plans import batch, loss_of, models

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = (convolutions() if name == CONVOLUTIONS else models()[name]()).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        x, y = (one.to("cuda") for one in (images(rows) if name == CONVOLUTIONS else batch(name, rows)))
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
    told = gang_work.read(0)
    plan: dict[str, Any] | None = None if told is None else told.as_json()["plan"]
    return plan


def row_of(name: str, rows: int, how: str, devices: int, steps: int) -> dict[str, Any]:
    from standalone import standalone_worker

    options = ("--threads", "1", "--homes", HOMES[how], *("--device", "cpu:0") * devices)
    environment = {**os.environ, "FOREBAY_COMPILE": "0" if how == "as planned" else "1"}
    with tempfile.TemporaryDirectory() as folder:
        with standalone_worker(Path(folder), *options, memory_bytes=MEMORY_BYTES, python=sys.executable) as reached:
            command = [sys.executable, __file__, "--program", name, str(rows), str(steps), *reached]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
    plan = json.loads(done.stdout.splitlines()[-1])
    row: dict[str, Any] = {"program": name, "rows": rows, "devices": devices}
    if plan is None:
        return row | {"layout": "none"}
    staged = plan["pipeline"] if plan["pipeline"] and plan["pipeline"]["serves"] else None
    predicted = staged or next(one for one in plan["considered"] if one["layout"] == plan["layout"])
    row["layout"] = f"{len(staged['stages'])} stages x {staged['rows']}" if staged else plan["layout"]
    most = max(plan["bytes"], default=0)
    row |= {"predicted ms": predicted["step_ns"] / 1e6, "executed ms": plan["step_ns"] / 1e6}
    row |= {"time": predicted["step_ns"] / max(plan["step_ns"], 1)}
    row |= {"predicted MiB": predicted["bytes"] / 2**20, "executed MiB": most / 2**20}
    return row | {"memory": predicted["bytes"] / max(most, 1), "steps": plan["steps"]}


def main() -> None:
    from report import report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--case", action="append", help="a program; all without it")
    parser.add_argument("--how", action="append", choices=tuple(HOMES), help="how it is carried out; all without it")
    parser.add_argument("--devices", type=int, action="append")
    options = parser.parse_args()
    devices = options.devices or DEVICES
    chosen = [one for one in CASES if one[0] in (options.case or [one[0]]) and one[2] in (options.how or HOMES)]
    chosen = [(*one, count) for one in chosen for count in devices if count > 2 or one[2] != "in a mesh"]
    report("predictions", [row_of(*one, options.steps) for one in chosen])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        name, rows, steps, *reached = sys.argv[2:]
        print(json.dumps(trained(name, int(rows), int(steps), *reached)))
    else:
        main()
