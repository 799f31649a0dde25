"""A steady training step on the virtual device against native eager on the same machine.

Bars: geometric mean of the ratios at most 1.0, none above 1.1, with one thread and with two, by tier 1 (bound replay).
Both run in one process by turns; the worker is a process of its own on the same cores, as with a development device.

With ``--compiled`` each model runs in another process, too, that asks for libraries (tier 2), and both are measured by turns when its step
has one, or will have none. Bar: at most 1.02 of tier 1's ratio.
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
COMPILE_SECONDS_MAX = 600.0
COMPILED = {"FOREBAY_COMPILE": "1", "FOREBAY_COMPILE_AFTER": "0.5"}

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


def vit(device: str) -> Step:
    """transformers' ViT with two layers of width 128, 8 images of 32x32 in patches of 4x4, AdamW."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "hidden_size": 128, "intermediate_size": 512}
    config = ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, num_labels=10)
    model = ViTForImageClassification(config).to(device).train()
    images, labels = torch.randn(8, 3, 32, 32).to(device), torch.randint(0, 10, (8,)).to(device)
    return _step(model, adamw(model.parameters()), images, labels, lambda found: found.logits)


UNSETTLED = ("it came once or twice", "no library was made", "is being made", "held against tier 1", "is timed", "had been constant")
"""Of reasons why a tier is not higher: those that may change."""
MODELS: dict[str, Callable[[str], Step]] = {make.__name__: make for make in (mlp, transformer, convnet, gpt2, vit)}


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    logits: Callable[[Any], torch.Tensor] = lambda found: found,
) -> Step:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(logits(model(inputs)), labels)
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


def largest_segment() -> dict[str, Any]:
    """The one that most calls were part of."""
    from forebay import _C

    return dict(max(_C.segments(), key=lambda segment: segment["calls"] * segment["times"]))


def until_settled(step: Step, steps: int) -> dict[str, Any]:
    """Runs blocks until it is known whether a library serves the step: its tier, the reason, and how long that took."""
    begin = perf_counter()
    while perf_counter() - begin < COMPILE_SECONDS_MAX:
        block_ms(step, steps, torch.cuda.synchronize)
        segment = largest_segment()
        if segment["tier"] == 2 or not any(word in segment["why"] for word in UNSETTLED):
            break
    return {"tier": segment["tier"], "why no higher": segment["why"], "settled s": perf_counter() - begin}


def answer(name: str, steps: int) -> None:
    """Says in a line how the model's step stands, and for each line that comes the times of a block in ms: the virtual device's, native."""
    virtual, native = MODELS[name]("cuda"), MODELS[name]("cpu")
    for step in (virtual, native):
        block_ms(step, WARM_UP_STEPS, torch.cuda.synchronize)
    settled = until_settled(virtual, steps) if os.environ.get("FOREBAY_COMPILE") == "1" else {}
    print(json.dumps({"threads": torch.get_num_threads(), "model": name} | settled), flush=True)
    for _ in sys.stdin:
        print(json.dumps((block_ms(virtual, steps, torch.cuda.synchronize), block_ms(native, steps, lambda: None))), flush=True)


class Runner:
    """A process of its own: the number of threads is fixed when a process and its worker begin."""

    def __init__(self, name: str, steps: int, threads: int, compiled: bool) -> None:
        command = [sys.executable, __file__, "--answer", "--steps", str(steps), name]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | (COMPILED if compiled else {})
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pairs: list[tuple[float, float]] = []
        self.standing: dict[str, Any] = self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def block(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        virtual, native = self._hear()
        self._pairs.append((virtual, native))

    def figures(self) -> dict[str, float]:
        virtual, native = (statistics.median(times) for times in zip(*self._pairs, strict=True))
        return {"virtual ms": virtual, "native ms": native, "ratio": statistics.median(one / other for one, other in self._pairs)}

    def close(self) -> None:
        self._process.communicate()


def row(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """One model's figures with this number of threads, which its workers inherit."""
    runners = [Runner(name, options.steps, threads, compiled) for compiled in (False, True)[: 1 + options.compiled]]
    for _ in range(options.blocks):
        for runner in runners:
            runner.block()
    for runner in runners:
        runner.close()
    found = runners[0].standing | runners[0].figures()
    if options.compiled:
        compiled = runners[1].figures()
        found |= {"compiled ms": compiled["virtual ms"], "compiled ratio": compiled["ratio"]} | runners[1].standing
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks a figure is the median of")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of native eager, and of the worker; 1 2 by default")
    parser.add_argument("--compiled", action="store_true", help="measure with libraries of what repeats, too")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", help="of mlp transformer convnet gpt2 vit; all by default")
    options = parser.parse_args()
    names = options.models or list(MODELS)
    if options.answer:
        return answer(*names, options.steps)
    rows = [row(name, threads, options) for threads in options.threads for name in names]
    means = {
        f"geometric_mean_{threads}_threads": math.exp(statistics.fmean(math.log(one["ratio"]) for one in rows if one["threads"] == threads))
        for threads in options.threads
    }
    if options.compiled:
        means["largest_compiled_to_tier_1"] = max(one["compiled ratio"] / one["ratio"] for one in rows)
        means["bar_compiled_to_tier_1"] = 1.02
    largest = max(one["ratio"] for one in rows)
    report("step", rows, **means, bar_geometric_mean=1.0, largest_ratio=largest, bar_largest_ratio=1.1, tier=1, torch=torch.__version__)


if __name__ == "__main__":
    main()
