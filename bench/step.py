"""A steady training step on the virtual device against native eager on the same machine.

Bar (DESIGN §10): geometric mean of the ratios at most 1.0 with bound replay, 0.7 with compiled traces; this release has tier 0.
Both run in this process by turns; the worker is a process of its own on the same cores, as with a development device.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable
from time import perf_counter

from report import report

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from torch import nn


def mlp(device: str) -> Callable[[], None]:
    """64-256-256-10, batch 64, SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return _step(model, optimizer, torch.randn(64, 64).to(device), torch.randint(0, 10, (64,)).to(device))


def transformer(device: str) -> Callable[[], None]:
    """Two encoder layers, width 128, sequence 64, batch 8, AdamW."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(128 * 64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _step(model, optimizer, torch.randn(8, 64, 128).to(device), torch.randint(0, 10, (8,)).to(device))


def convnet(device: str) -> Callable[[], None]:
    """Three convolutions with batch norm, 16 images of 32x32, SGD with momentum."""
    torch.manual_seed(0)
    blocks = []
    for given, made in ((3, 16), (16, 32), (32, 32)):
        blocks += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _step(model, optimizer, torch.randn(16, 3, 32, 32).to(device), torch.randint(0, 10, (16,)).to(device))


def gpt2(device: str) -> Callable[[], None]:
    """transformers' GPT-2 with two layers of width 128, sequence 64, batch 4, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (4, 64)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def block_ms(step: Callable[[], None], count: int, synchronize: Callable[[], None]) -> float:
    """Mean time of a step over a block that ends when its work is done, in ms."""
    start = perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (perf_counter() - start) / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks a figure is the median of")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("models", nargs="*", help="of mlp transformer convnet gpt2; all by default")
    options = parser.parse_args()
    rows = []
    for make in (mlp, transformer, convnet, gpt2):
        if options.models and make.__name__ not in options.models:
            continue
        virtual, native = make("cuda"), make("cpu")
        for step in (virtual, native):
            block_ms(step, 3, torch.cuda.synchronize)
        pairs = [
            (block_ms(virtual, options.steps, torch.cuda.synchronize), block_ms(native, options.steps, lambda: None))
            for _ in range(options.blocks)
        ]
        rows.append(
            {
                "model": make.__name__,
                "virtual ms": statistics.median(one for one, _ in pairs),
                "native ms": statistics.median(other for _, other in pairs),
                "ratio": statistics.median(one / other for one, other in pairs),
            }
        )
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    report(
        "step", rows, geometric_mean=mean, bar_tier_1=1.0, bar_tier_2=0.7, tier=0, torch=torch.__version__, threads=torch.get_num_threads()
    )


if __name__ == "__main__":
    main()
