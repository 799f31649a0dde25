"""A steady training step on the virtual device against native eager on the same machine.

Bars: geometric mean of the ratios at most 1.0, none above 1.1, with one thread and with two. This release has tier 1 (bound replay).
Both run in one process by turns; the worker is a process of its own on the same cores, as with a development device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from report import report

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from torch import nn

WARM_UP_STEPS = 5

Step = Callable[[], torch.Tensor]
"""Runs one training step, and returns its loss, on the device."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def mlp(device: str, hidden: int = 1) -> Step:
    """64-256-256-10, batch 64, SGD; ``hidden`` is the number of its 256-256 layers."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(hidden) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), *blocks, nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return _step(model, optimizer, torch.randn(64, 64).to(device), torch.randint(0, 10, (64,)).to(device))


def transformer(device: str, layers: int = 2, optimizer: MakeOptimizer = adamw) -> Step:
    """Encoder layers, width 128, sequence 64, batch 8."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(128 * 64, 10)).to(device)
    return _step(model, optimizer(model.parameters()), torch.randn(8, 64, 128).to(device), torch.randint(0, 10, (8,)).to(device))


def convnet(device: str) -> Step:
    """Three convolutions with batch norm, 16 images of 32x32, SGD with momentum."""
    torch.manual_seed(0)
    blocks = []
    for given, made in ((3, 16), (16, 32), (32, 32)):
        blocks += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _step(model, optimizer, torch.randn(16, 3, 32, 32).to(device), torch.randint(0, 10, (16,)).to(device))


def gpt2(device: str) -> Step:
    """transformers' GPT-2 with two layers of width 128, sequence 64, batch 4, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = adamw(model.parameters())
    tokens = torch.randint(0, 256, (4, 64)).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


MODELS: dict[str, Callable[[str], Step]] = {make.__name__: make for make in (mlp, transformer, convnet, gpt2)}


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> Step:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def block_ms(step: Step, count: int, synchronize: Callable[[], None]) -> float:
    """Mean time of a step over a block that ends when its work is done, in ms."""
    start = perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (perf_counter() - start) / count * 1e3


def row(name: str, steps: int, blocks: int) -> dict[str, Any]:
    """One model's figures with this process's number of threads, which its worker inherits."""
    virtual, native = MODELS[name]("cuda"), MODELS[name]("cpu")
    for step in (virtual, native):
        block_ms(step, WARM_UP_STEPS, torch.cuda.synchronize)
    pairs = [(block_ms(virtual, steps, torch.cuda.synchronize), block_ms(native, steps, lambda: None)) for _ in range(blocks)]
    return {
        "threads": torch.get_num_threads(),
        "model": name,
        "virtual ms": statistics.median(one for one, _ in pairs),
        "native ms": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(one / other for one, other in pairs),
    }


def rows_of(threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a process of its own: the number of threads is fixed when a process and its worker begin."""
    command = [sys.executable, __file__, "--rows", "--blocks", str(options.blocks), "--steps", str(options.steps), *options.models]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks a figure is the median of")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of native eager, and of the worker; 1 2 by default")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", help="of mlp transformer convnet gpt2; all by default")
    options = parser.parse_args()
    names = options.models or list(MODELS)
    if options.rows:
        print(json.dumps([row(name, options.steps, options.blocks) for name in names]))
        return
    rows = [found for threads in options.threads for found in rows_of(threads, options)]
    means = {
        f"geometric_mean_{threads}_threads": math.exp(statistics.fmean(math.log(one["ratio"]) for one in rows if one["threads"] == threads))
        for threads in options.threads
    }
    largest = max(one["ratio"] for one in rows)
    report("step", rows, **means, bar_geometric_mean=1.0, largest_ratio=largest, bar_largest_ratio=1.1, tier=1, torch=torch.__version__)


if __name__ == "__main__":
    main()
