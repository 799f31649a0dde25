"""Goes back and forth between checkpoints on a device that is several, each bit held against copies on the CPU.

Run as ``divided_checkpoints.py ADDRESS TICKET SEED``. Prints what was done, and how many calls were divided.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import forebay
import torch
from checkpointed_programs import Program, bits
from forebay import gang_work
from forebay.facade import history
from pipelined_programs import numbers, perceptron, sgd, staged
from torch import nn
from torch.nn import functional

DEVICE, ROWS = "cuda:0", 24
AGAIN_MAX = 1e-10
"""How far losses of float64 may be from those of the same steps before: the order of sums may be another one."""


class Training:
    """Of which batches come from the host; gradients are added up over two of them, into tensors that stay."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [nn.Linear(12, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5)]
        self.net = nn.Sequential(*layers).double().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2, fused=True)
        self.batches = [torch.randn(ROWS, 12, dtype=torch.double) for _ in range(6)]
        self.batches[1][: ROWS // 2] = 0  # half of it is another
        self.batches[2][:] = self.batches[2][:1]  # ties

    def half(self, number: int) -> torch.Tensor:
        batch = self.batches[number % len(self.batches)].to(DEVICE)
        loss = functional.mse_loss(self.net(batch), batch[:, :5].abs())
        loss.backward()
        return loss.detach()

    def step(self, number: int) -> list[torch.Tensor]:
        losses = [self.half(2 * number), self.half(2 * number + 1)]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return losses

    def tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self.net.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
            yield from (value for value in self.optimizer.state[parameter].values() if torch.is_tensor(value))
        yield from self.net.buffers()

    def bits(self) -> list[bytes]:
        return [bits(tensor) for tensor in self.tensors()]


class Deep(Training):
    """Which several devices may carry out in stages."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = perceptron().double().to(DEVICE)
        self.optimizer = sgd(self.net.parameters())
        self.generator = torch.Generator()

    def step(self, number: int) -> list[torch.Tensor]:
        rows, labels = numbers(self.generator.manual_seed(number), number)
        rows, labels = rows.double().to(DEVICE), labels.to(DEVICE)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.net(rows), labels)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return [loss.detach()]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Gradients are other tensors after each step."""
        for parameter in self.net.parameters():
            yield from (parameter, self.optimizer.state[parameter]["momentum_buffer"])


def goes_back(training: Training, name: str, then: Callable[[], list[torch.Tensor]]) -> None:
    """What came after a checkpoint, and again after the way back to it; and the way back from there, as far as it goes."""
    forebay.checkpoint(name)
    before = training.bits()
    first = torch.stack(then()).cpu()
    after = training.bits()
    assert after != before
    forebay.checkpoint(f"{name}, later")
    forebay.restore(name)
    assert training.bits() == before, name
    again = torch.stack(then()).cpu()
    assert (first - again).abs().max() <= AGAIN_MAX, (name, first, again)
    forebay.restore(f"{name}, later")
    assert training.bits() == after, name
    forebay.undo()
    assert training.bits() == before, name


def main(seed: int) -> None:
    training, steps = Training(seed), itertools.count()
    for _ in range(8):
        training.step(next(steps))
    work = gang_work.read(0)
    divided = work.divided.calls if work else 0
    begin = next(steps)
    goes_back(training, "between steps", lambda: [loss for number in range(begin, begin + 3) for loss in training.step(number)])
    training.half(begin)
    goes_back(training, "amid a step", lambda: [training.half(begin + 1), *training.step(begin + 1)])
    with torch.no_grad():
        training.net[0].weight.zero_()
    goes_back(training, "with zeros", lambda: training.step(begin + 2))
    deep = Deep(seed)
    for number in range(9):
        deep.step(number)
    goes_back(deep, "in stages", lambda: [loss for number in range(9, 12) for loss in deep.step(number)])
    in_stages = staged()
    program = Program(seed, "")
    program.run(120)
    print(json.dumps(dict(program.done) | {"divided": divided, "in stages": in_stages}))


if __name__ == "__main__":
    checkpoints = history.History()
    history.history = lambda: checkpoints  # a process that is attached by hand has no others
    main(int(sys.argv[3]))
