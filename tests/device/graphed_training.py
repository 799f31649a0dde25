"""``ADDRESS TICKET PROGRAM:STEPS...``: training loops on an accelerator whose worker may record them as graphs.

Prints a line of JSON: for each whether it computed to the bit what tier 1 does, and how its longest segment is carried out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from forebay import _C
from operator_sweep import attach
from torch import nn

Step = Callable[[int], torch.Tensor]
"""Takes the number of the step, and gives its loss."""


def perceptron() -> tuple[nn.Module, Step]:
    """A batch that stays, and losses that the program keeps, while it waits for each step."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, labels = torch.randn(8, 16).cuda(), torch.randint(0, 4, (8,)).cuda()

    def step(_number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return loss.detach()

    return model, step


def transformer() -> tuple[nn.Module, Step]:
    """Dropout, AdamW, whose numbers change, another batch each step, gradients held to a norm, and a loss that is read."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(50, 16), encoder, nn.Linear(16, 50)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> torch.Tensor:
        batch = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(number)).cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return torch.tensor(loss.item())

    return model, step


def recurrent() -> tuple[nn.Module, Step]:
    """What a step makes is the next one's input, and a sum of all goes along."""
    model = nn.ModuleDict({"cell": nn.GRUCell(8, 16), "head": nn.Linear(16, 8)}).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = {"state": torch.zeros(4, 16).cuda(), "sum": torch.zeros(4, 16).cuda()}
    inputs = torch.randn(4, 8).cuda()

    def step(_number: int) -> torch.Tensor:
        optimizer.zero_grad()
        state = model["cell"](inputs, kept["state"])
        loss = (model["head"](state) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        kept["state"], kept["sum"] = state.detach(), kept["sum"] + state.detach()
        return loss.detach() + kept["sum"].mean()

    return model, step


def waiting() -> tuple[nn.Module, Step]:
    """A program that waits every fourth step, which is too seldom to be known as a loop on the way."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 16).cuda()

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        if number % 4 == 3:
            torch.cuda.synchronize()
        return loss.detach()

    return model, step


def layers() -> tuple[nn.Module, Step]:
    """Recurrent layers, one of them both ways; every fifth step's derivative is taken twice."""
    model = nn.ModuleList([nn.LSTM(8, 16), nn.GRU(16, 8, bidirectional=True), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4))]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, labels = torch.randn(7, 4, 8).cuda(), torch.randint(0, 4, (4,)).cuda()

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model[2](model[1](model[0](inputs)[0])[0][-1]), labels)
        if number % 5 == 4:
            loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return loss.detach()

    return model, step


def accumulation() -> tuple[nn.Module, Step]:
    """Gradients of two uploaded batches are added; every seventh step something else is computed before."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False)

    def step(number: int) -> torch.Tensor:
        if number % 7 == 0:
            with torch.no_grad():
                model(torch.ones(1, 3, 8, 8).cuda()).sum().item()
        chance, losses = torch.Generator().manual_seed(number), []
        for _ in range(2):
            images, labels = torch.randn(4, 3, 8, 8, generator=chance), torch.randint(0, 4, (4,), generator=chance)
            losses.append(nn.functional.cross_entropy(model(images.cuda()), labels.cuda()))
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).sum().detach()

    return model, step


def failing() -> tuple[nn.Module, Step]:
    """Each ninth batch holds an index that leads nowhere."""
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        indices = torch.arange(6).add(number).remainder(10)
        indices[2] = 10 if number % 9 == 8 else 1
        try:
            optimizer.zero_grad()
            loss = model(indices.cuda()).square().mean()
            loss.backward()
            optimizer.step()
            return loss.cpu()
        except (IndexError, RuntimeError):
            return torch.tensor(float(number))

    return model, step


def returning() -> tuple[nn.Module, Step]:
    """A perceptron that goes back four steps in every eight; it computes the same four once more."""
    model, train = perceptron()
    train(-1)  # makes what the optimizer keeps
    losses: dict[int, torch.Tensor] = {}

    def step(number: int) -> torch.Tensor:
        place = number % 8
        if place == 0:
            _C.take_checkpoint(next(numbers), False)
            losses.clear()
        elif place == 4:
            there, _ = _C.reported_checkpoints(0)
            _C.go_back(max(there))
        losses[place] = train(number)
        assert place < 4 or torch.equal(losses[place], losses[place - 4]), (number, losses)
        return losses[place]

    return model, step


numbers = itertools.count(1)
PROGRAMS = {made.__name__: made for made in (perceptron, returning, transformer, recurrent, layers, accumulation, failing, waiting)}


def segments() -> Iterator[dict[str, Any]]:
    return (dict(one) for one in _C.segments())


def computed(program: str, steps: int) -> str:
    """A hash of all losses and of the weights at the end."""
    torch.manual_seed(0)
    model, step = PROGRAMS[program]()
    losses = [step(number) for number in range(steps)]
    digest = hashlib.blake2b()
    for tensor in (*losses, *model.state_dict().values()):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    attach(sys.argv[1], sys.argv[2])
    told = {}
    for program, steps in ((name, int(count)) for name, _, count in (word.partition(":") for word in sys.argv[3:])):
        torch.use_deterministic_algorithms(False)
        before = {one["identity"]: one["times"] for one in segments()}
        recorded = computed(program, steps)
        came = [one for one in segments() if one["times"] - before.get(one["identity"], 0) > steps // 2]
        longest = max(came, key=lambda one: one["calls"])
        torch.use_deterministic_algorithms(True)  # keeps tier 1
        same = recorded == computed(program, steps)
        told[program] = {"same": same, **{name: longest[name] for name in ("calls", "times", "tier", "why")}}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
