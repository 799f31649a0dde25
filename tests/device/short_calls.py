"""``ADDRESS TICKET``: for each line that comes, trains or adds up on the virtual device, and prints a number."""

from __future__ import annotations

import sys

import torch
from operator_sweep import attach
from torch import nn


def trained(width: int, rows: int, count: int) -> float:
    """The last loss of a perceptron of that width after so many steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)).to("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs, labels = torch.randn(rows, width, device="cuda"), torch.randint(0, 8, (rows,), device="cuda")
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def summed(count: int) -> int:
    """How many different results so many times the same sums have, of some that are short and some that are not."""
    few = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).cuda()
    many = torch.randn(3_000, 3_000, generator=torch.Generator().manual_seed(1)).cuda()
    results = set()
    for _ in range(count):
        sums = (few.sum(), (few * few).mean(), torch.dot(few, few), many.sum(), many.std(), (many[:64] @ many).sum())
        results.add(tuple(one.item() for one in sums))
    return len(results)


def main() -> None:
    attach(*sys.argv[1:])
    for line in sys.stdin:
        what, *numbers = line.split()
        print(trained(*map(int, numbers)) if what == "trained" else summed(*map(int, numbers)), flush=True)


if __name__ == "__main__":
    main()
